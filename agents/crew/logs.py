"""What workers write: two files each, together never much larger than told.

Owns the files. A worker appends to a plain file, so that it goes on writing whether or not an agent lives; a process in
between would take the worker with it when it dies. The agent looks every second and, where a file is full, keeps its
last part aside and empties it in place (writers append, so they go on at its beginning; lines written in that instant
are lost). While no agent lives nothing is cut; the next one does it first of all. A limit of the kernel on file sizes
would bound every file a worker writes, checkpoints too, and is refused for that.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from agents.errors import WorkerError

TAIL_BYTES = 4096
TAIL_LINES = 8
LINE_LENGTH_MAX = 300
GONE_KEPT_MAX = 32
"""Workers whose logs stay after they are gone."""
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Logs:
    """A folder of log files."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """`bytes_max`: of one worker, both of its files."""
        self._folder = folder
        self._half_bytes = max(TAIL_BYTES, bytes_max // 2)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """The file a worker writes to."""
        return self._folder / f"{name}.log"

    def open(self, name: str) -> int:
        """A descriptor to append to, for a new process."""
        try:
            return os.open(self.path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WorkerError(f"cannot write {self.path(name)}: {error.strerror}") from error

    def bound(self, name: str) -> None:
        """Cut a file that is full. A disk that is full as well must not stop this: the older part then goes."""
        path = self.path(name)
        try:
            if path.stat().st_size <= self._half_bytes:
                return
        except OSError:
            return
        try:
            _older(path).write_bytes(_end_of(path, self._half_bytes))
        except OSError:
            _older(path).unlink(missing_ok=True)
        # Where even that fails, the next second tries again.
        with contextlib.suppress(OSError):
            os.truncate(path, 0)

    def tail(self, name: str) -> str:
        """The last lines, safe to show: bounded, without control characters."""
        text = ""
        for path in (_older(self.path(name)), self.path(name)):
            try:
                text += _end_of(path, TAIL_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
        lines = [_CONTROL.sub("", line).strip()[:LINE_LENGTH_MAX] for line in text[-TAIL_BYTES:].splitlines()]
        return " | ".join([line for line in lines if line][-TAIL_LINES:])

    def prune(self, in_use: frozenset[str]) -> None:
        """Keep the last words of only the newest workers that are gone."""
        gone = [path for path in self._folder.glob("*.log") if path.stem not in in_use]
        for path in sorted(gone, key=lambda each: each.stat().st_mtime)[:-GONE_KEPT_MAX]:
            _older(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _end_of(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - length))
        return file.read(length)
