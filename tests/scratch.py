"""Temporary files of a run: in memory, where there is room, and gone with whoever uses them when the run has ended.

Run as a script this is the process that waits for that end, for a run that is killed cleans up nothing.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
PAUSE_S, PATIENCE = 0.1, 50
"""At most, between two looks for those who are left; after so many looks servers are not asked any more."""


def put_into_memory() -> None:
    """Unless told where they belong: processes crash here, never the kernel, so no disk need be waited for. A database
    of hundreds of files is copied there for nearly every integration test.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if runs_programs and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


def make_own() -> Path:
    """Put this process's temporary files, and its children's, into a folder of their own; pytest's stay where it keeps
    those of the last runs.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    folder.chmod(0o711)  # servers may run as somebody else
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    _own.append(folder)
    return folder


_own: list[Path] = []
"""Folders that this run has to itself, with all that was forked for it."""


def copied(name: str, make: Callable[[Path], None], to: Path) -> None:
    """Put into a new folder what the first of this run's processes made for all of them; outside of one, make it."""
    if not _own:
        make(to)
        return
    kept = _own[-1] / name
    with Path(f"{kept}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not kept.exists():
            fresh = Path(f"{kept}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            make(fresh)
            fresh.rename(kept)
    subprocess.run(["cp", "-a", "--reflink=auto", kept, to], check=True)


def clear_after_us(own: Path, *others: Path) -> None:
    """When this process has ended, however it did, end whoever it told of these folders, and remove our own."""
    command = [sys.executable, "-IS", __file__, str(os.getpid()), str(own), *map(str, others)]
    mute = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=mute, setsid=True)


def _users(folders: list[str]) -> dict[int, str]:
    """Names of processes whose environment names one of them."""
    named = [*(f"{folder}/".encode() for folder in folders), f"{folders[0]}\0".encode()]
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (entry / "environ").read_bytes()
            if any(name in environment for name in named) and int(entry.name) != os.getpid():
                found[int(entry.name)] = (entry / "comm").read_text()
    return found


def _clear(run: int, folders: list[str]) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(run)], [], [])
    for look in range(2 * PATIENCE):
        left = _users(folders)
        if not left:
            break
        endings = []
        for pid, name in left.items():
            # A database that is asked to end at once removes its shared memory.
            asked = name.startswith("postgres") and look < PATIENCE
            with suppress(ProcessLookupError):
                endings.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGQUIT if asked else signal.SIGKILL)
        select.select(endings, [], [], PAUSE_S)
        for ending in endings:
            os.close(ending)
    shutil.rmtree(folders[0], ignore_errors=True)


if __name__ == "__main__":
    _clear(int(sys.argv[1]), sys.argv[2:])
