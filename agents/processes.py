"""Processes of this host, from /proc: starting them, finding them again, ending them.

A process is known by its pid and the moment it started, because pids come back; zombies count as gone. A worker is its
leader's whole session, because children are the worker too; what left the session is found by the mark in its
environment, as long as it kept that. No pid is signalled that is not the process meant: signals go through a descriptor
of the process, checked after it was opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agents.errors import WorkerError

NOFILE_MAX = 65536
MARK = "HEADROOM_WORKER"
"""Tells whose process one is, also when an agent died between starting it and writing that down."""
PROC = Path("/proc")
STATUS = b"%-11d\n"
"""How a keeper writes down how its process ended. The room is taken before, since a disk may be full by then."""
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, even after its pid has come back."""

    pid: int
    started_ticks: int
    """Clock ticks since boot."""

    @property
    def lives(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        return identify(self.pid) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    working_directory: str | None
    uid: int | None = None
    """Of a user that owns nothing but what it is given; None: this process's own."""


class _Child(subprocess.Popen[bytes]):
    def __del__(self) -> None:
        """Workers outlive the agent on purpose: nothing to warn of."""


def _begun(invocation: Invocation, log: int) -> _Child:
    """Raises OSError, ValueError."""

    def begin(**more: Any) -> _Child:
        return _Child(
            invocation.arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(invocation.environment),
            cwd=invocation.working_directory,
            start_new_session=True,
            **more,
        )

    uid = invocation.uid
    if uid is None:
        return begin()

    def begin_apart() -> _Child:
        # Of this thread alone, and of what it starts: no program gives back what is given up here.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot give up new privileges")
        return begin(user=uid, group=uid, extra_groups=(), umask=0o077)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(begin_apart).result()


class HostProcesses:
    def __init__(self) -> None:
        self._children: dict[ProcessId, _Child] = {}
        self._keepers: list[_Child] = []
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._nofile = (min(NOFILE_MAX, hard), hard)

    def start(self, invocation: Invocation, log: int, ending: Path | None = None) -> ProcessId:
        """Start the leader of a new session; `ending`: the file of its keeper, where it has one. Raises WorkerError."""
        if ending is not None:
            return self._start_kept(invocation, log, ending)
        try:
            child = _begun(invocation, log)
        except (OSError, ValueError, RuntimeError) as error:
            # RuntimeError: no thread was left to start it from.
            program = invocation.arguments[0]
            headless = isinstance(error, FileNotFoundError) and error.filename == program and Path(program).exists()
            raise WorkerError(f"{program}: {'its interpreter is not there' if headless else error}") from error
        stat = _stat(child.pid)
        # It stays a zombie until it is waited for, so its pid cannot have come back yet.
        process = ProcessId(pid=child.pid, started_ticks=stat.started_ticks if stat is not None else 0)
        self._children[process] = child
        self._limit(child.pid)
        return process

    def _start_kept(self, invocation: Invocation, log: int, ending: Path) -> ProcessId:
        command = (sys.executable, "-P", "-m", "agents.keeper")
        environment = {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")}
        try:
            with ending.open("wb", buffering=0) as file:
                file.write(b" " * len(STATUS % 0))
                fcntl.flock(file, fcntl.LOCK_EX)
                keeper = _Child(
                    (*command, str(file.fileno()), str(os.getpid())),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(file.fileno(),),
                )
            self._keepers.append(keeper)
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            with keeper.stdin as asked, keeper.stdout as told:
                asked.write(json.dumps(asdict(invocation)).encode())
                asked.close()
                answer = json.loads(told.read() or "null")
        except (OSError, ValueError, RuntimeError) as error:
            raise WorkerError(f"{invocation.arguments[0]}: nobody could be started to wait for it: {error}") from error
        if not isinstance(answer, list):
            raise WorkerError(answer or f"{invocation.arguments[0]}: who was to wait for it did not come up")
        return ProcessId(*answer)

    def keeper_waits(self, ending: Path) -> bool:
        """Whether a keeper is there that has not written down yet how its process ended."""
        try:
            with ending.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _limit(self, pid: int) -> None:
        """Set from here, right after the start: code between fork and exec is not safe in a process with threads."""
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, self._nofile)

    def alive(self, process: ProcessId) -> bool:
        """Whether this very process runs; a zombie does not."""
        return process.lives

    def exit_status(self, process: ProcessId, ending: Path | None = None) -> int | None:
        """How it ended, as `subprocess` counts (below 0: by a signal); None: not known. Where no keeper had to write it
        down it is told once, of a child of ours, and reaps it.
        """
        if ending is not None:
            with contextlib.suppress(OSError, ValueError):
                return int(ending.read_bytes())
            return None
        child = self._children.get(process)
        status = None if child is None else child.poll()
        if status is not None:
            del self._children[process]
        return status

    def sessions(self, leaders: Iterable[ProcessId]) -> dict[ProcessId, tuple[ProcessId, ...]]:
        """All living processes of each session, leaders first. A session's number is not given anew while one of its
        processes lives; where the leader's pid belongs to somebody else, the session is gone.
        """
        self._keepers = [each for each in self._keepers if each.poll() is None]
        found: dict[ProcessId, tuple[ProcessId, ...]] = {}
        by_session: dict[int, ProcessId] = {}
        for leader in leaders:
            stat = _stat(leader.pid)
            found[leader] = ()
            if stat is None or stat.started_ticks == leader.started_ticks:
                by_session[leader.pid] = leader
        for pid in _pids() if by_session else ():
            try:
                leader = by_session[os.getsid(pid)]
            except (KeyError, OSError):
                continue
            stat = _stat(pid)
            if stat is None or stat.started_ticks < leader.started_ticks:
                continue
            if stat.lives:
                member = ProcessId(pid=pid, started_ticks=stat.started_ticks)
                found[leader] = (leader, *found[leader]) if member == leader else (*found[leader], member)
            elif stat.parent == os.getpid() and pid != leader.pid:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
        return found

    def marked(self, mark: str) -> tuple[ProcessId, ...]:
        """Living processes that were started with this mark. Costly."""
        return self.identify(pid for pid in _pids() if (environment_of(pid) or {}).get(MARK) == mark)

    def identify(self, pids: Iterable[int]) -> tuple[ProcessId, ...]:
        return tuple(filter(None, map(identify, pids)))

    def send(self, process: ProcessId, number: signal.Signals) -> None:
        """Signal it; nothing happens when it is gone."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return
        try:
            if self.alive(process):
                signal.pidfd_send_signal(descriptor, number)
        except OSError:
            return
        finally:
            os.close(descriptor)


def identify(pid: int) -> ProcessId | None:
    stat = _stat(pid)
    return ProcessId(pid, stat.started_ticks) if stat is not None and stat.lives else None


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None where it cannot be read."""
    try:
        text = (PROC / str(pid) / "environ").read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError:
        return None
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def arguments_of(pid: int) -> tuple[str, ...]:
    """What a process was started with; nothing where it is gone."""
    try:
        return tuple(map(os.fsdecode, (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")))
    except OSError:
        return ()


def runs(pid: int, program: str) -> bool:
    """Whether a process of this user runs a program of this name, as itself or as a script."""
    try:
        mine = (PROC / str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return False
    return mine and program in [part.rpartition("/")[2] for part in arguments_of(pid)]


def bound_to(pipe: Path) -> tuple[int, ...]:
    """Processes of this user that were started to be clients of the daemon in a pipe directory."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            at = (environment_of(int(entry.name)) or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
            if at and (Path(at) == pipe or pipe in Path(at).parents):
                found.append(int(entry.name))
    return tuple(pid for pid in found if identify(pid) is not None)


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    started_ticks: int

    @property
    def lives(self) -> bool:
        return self.state not in ("Z", "X", "x")


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The second field is the program's name in parentheses, and may hold both spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(state=fields[0].decode(), parent=int(fields[1]), started_ticks=int(fields[19]))


def _pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]
