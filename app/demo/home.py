"""The home folder of a local control plane: where its lock, state, logs and secrets lie, and how they are read and
written; and what a detached supervisor tells the command that started it, one JSON object per line through a pipe.

The lock tells whether a supervisor lives; the kernel frees it with its holder, so it cannot go stale. Writes are
atomic, with mode 0600.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from app.client.connection import write_private
from solvers.errors import InputError

LOCK_FILE = "supervisor.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedProcess:
    """A process that cannot be mistaken for a later one with the same number: its start time is part of it."""

    name: str
    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorState:
    """What a supervisor tells those who look: itself, its children, the address, and whether everything stands."""

    supervisor: SupervisedProcess
    address: str
    ready: bool
    owns_database: bool
    processes: tuple[SupervisedProcess, ...]


class Home:
    """A home folder, made on first use so that only its user can look inside."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def prepare(self) -> None:
        """Make the folder. Raises InputError when that is impossible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.logs.mkdir(exist_ok=True)
            self.logs.chmod(0o700)
            for log in self.logs.iterdir():
                log.chmod(0o600)
        except OSError as error:
            raise InputError(f"cannot use {self.path} as home: {error.strerror}") from error

    def lock(self) -> IO[str] | None:
        """Become the one supervisor of this home, as long as the handle stays open; None when another lives."""
        handle = (self.path / LOCK_FILE).open("a")
        os.fchmod(handle.fileno(), 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        return handle

    def read_state(self) -> SupervisorState | None:
        """The last state written, or None when there is none (or it is not ours to read)."""
        try:
            stored = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
            stored["supervisor"] = SupervisedProcess(**stored["supervisor"])
            stored["processes"] = tuple(SupervisedProcess(**item) for item in stored["processes"])
            return SupervisorState(**stored)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_state(self, state: SupervisorState) -> None:
        write_private(self.path / "state.json", json.dumps(asdict(state), indent=1) + "\n")

    def forget_state(self) -> None:
        (self.path / "state.json").unlink(missing_ok=True)

    def read_secret(self, name: str) -> str | None:
        try:
            return (self.path / f"{name}.token").read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def write_secret(self, name: str, secret: str) -> None:
        write_private(self.path / f"{name}.token", secret + "\n")


# --- What a detached supervisor tells until it is ready or has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A phase that ended, a notice, readiness, one that runs already, or failure with the command's exit code."""

    event: str
    text: str = ""
    elapsed_s: float = 0.0
    exit_code: int = 0


class Teller:
    """The supervisor's end. A reader that went away is no reason to stop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def tell(self, message: Message) -> None:
        if self._descriptor is None:
            return
        try:
            # One write: a line is far shorter than what a pipe takes at once.
            os.write(self._descriptor, (json.dumps(asdict(message)) + "\n").encode())
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def listen(descriptor: int) -> Iterator[Message]:
    """Messages until the supervisor closes its end (or dies)."""
    with os.fdopen(descriptor, "r", encoding="utf-8") as stream:
        for line in stream:
            yield Message(**json.loads(line))
