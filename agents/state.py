"""The agent's state directory: its node token, the target it accepted, and whatever a back end must remember.

A file is either the old or the new one, also after a kill or a power cut. What cannot be read is an error, and its
caller says aloud what that means.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from agents.errors import StateFileError

TOKEN_FILE = "token"
TARGET_FILE = "target.json"
DEVICES_FILE = "devices.json"
LOCK_FILE = "lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_boot_id() -> str:
    """Changes when the host boots. Raises StateFileError where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StateFileError(f"cannot read {_BOOT_ID}: {error.strerror}") from error


class StateDirectory:
    """A folder only its owner may enter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        except OSError as error:
            raise StateFileError(f"cannot use state directory {path}: {error.strerror}") from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one agent that uses this directory. Raises StateFileError when another one lives."""
        try:
            opened = (self.path / LOCK_FILE).open("w")
        except OSError as error:
            raise StateFileError(f"cannot write {self.path / LOCK_FILE}: {error.strerror}") from error
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StateFileError(f"another agent uses {self.path}") from None
            yield

    def read_text(self, name: str) -> str | None:
        """Content of a file, or None when it does not exist."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateFileError(f"cannot read {self.path / name}: {error}") from error

    def read_json(self, name: str) -> object | None:
        """Decoded content of a file, or None when it does not exist. Raises StateFileError when it is not JSON."""
        text = self.read_text(name)
        if text is None:
            return None
        try:
            found: object = json.loads(text)
        except ValueError as error:
            raise StateFileError(f"{self.path / name} is not JSON: {error}") from error
        return found

    def write_text(self, name: str, text: str) -> None:
        """Replace a file at once; it is on disk when this returns."""
        temporary = self.path / f".{name}.new"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / name)
            self._sync_directory()
        except OSError as error:
            raise StateFileError(f"cannot write {self.path / name}: {error.strerror}") from error

    def write_json(self, name: str, content: object) -> None:
        self.write_text(name, json.dumps(content, separators=(",", ":")))

    def remove(self, name: str) -> None:
        """Have a file no more, where there is one."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise StateFileError(f"cannot remove {self.path / name}: {error.strerror}") from error

    def _sync_directory(self) -> None:
        # Some file systems cannot sync a directory; the rename is atomic there all the same.
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
