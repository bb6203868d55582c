"""Child processes of the supervisor: started with their own log file of bounded size, watched, restarted with back-off,
stopped with a deadline. A process is its number and its start time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from app.demo.home import LOCK_FILE, Home, SupervisedProcess, SupervisorState
from solvers.errors import StateError

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
STEADY_AFTER_S = 60.0
"""A child that lived this long starts its next restarts from the shortest delay again."""
LOG_BYTES_MAX = 8 * 1024 * 1024
MARK = "HEADROOM_SUPERVISED"
"""Tells whose child one is, also where its supervisor died before it wrote that down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """How to run a child. `environment` is added to ours; what is in it is not shown by `ps`, unlike the command."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_deadline_s: float = 10.0


class Child:
    def __init__(self, spec: ChildSpec, logs: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.log = logs / f"{spec.name}.log"
        self.failures = 0
        self._now_s = now_s
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._restart_at_s: float | None = None

    @property
    def pid(self) -> int | None:
        """Process number while it lives."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process; its output is appended to its log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.spec.environment, MARK: f"{self.spec.name} {self.log.parent}"},
                # Its own group: Ctrl-C in the terminal reaches the supervisor alone, which stops children in order.
                start_new_session=True,
            )
        self._started_s = self._now_s()
        self._restart_at_s = None

    def watch(self) -> str | None:
        """Look once; restart when its delay is over. Returns a line for the log when something happened."""
        if self._process is None or self._process.poll() is None:
            return None
        now_s = self._now_s()
        if self._restart_at_s is None:
            if now_s - self._started_s >= STEADY_AFTER_S:
                self.failures = 0
            delay_s = BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)]
            self.failures += 1
            self._restart_at_s = now_s + delay_s
            return f"{self.spec.name} ended with {self._process.returncode}; next start in {delay_s:g} s"
        if now_s < self._restart_at_s:
            return None
        self.start()
        return f"{self.spec.name} started again as {self.pid}"

    def ask_to_stop(self) -> None:
        """Send SIGTERM when it lives."""
        if self.pid is not None and self._process is not None:
            self._process.terminate()

    def await_stop(self) -> bool:
        """Wait until the deadline, then kill its group. Returns whether it went by itself."""
        if self._process is None:
            return True
        try:
            self._process.wait(self.spec.stop_deadline_s)
            return True
        except subprocess.TimeoutExpired:
            kill_group(self._process.pid)
            self._process.wait()
            return False

    def bound_log(self) -> None:
        """Keep the log and one older part within bounds. The child appends, so emptying its file is safe."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)


def identify(name: str, pid: int) -> SupervisedProcess | None:
    """The identity of a living process, or None when there is none with this number."""
    ticks = _start_ticks(pid)
    return SupervisedProcess(name=name, pid=pid, started_ticks=ticks) if ticks is not None else None


def alive(process: SupervisedProcess) -> bool:
    return _start_ticks(process.pid) == process.started_ticks


def holder(home: Home, deadline_s: float = 30.0) -> SupervisorState | IO[str]:
    """What the supervisor that lives here tells of itself, or else the lock. Who begins or ends tells nothing, or what
    another told before it: it is waited for. Raises StateError when that lasts, and at once where it was stopped.
    """
    end_s = time.monotonic() + deadline_s
    while (lock := home.lock()) is None:
        state = home.read_state()
        if state is not None and alive(state.supervisor):
            return state
        stopped = next((pid for pid in _holding(home.path / LOCK_FILE) if _stat(pid)[:1] == ["T"]), None)
        if stopped is not None:
            raise StateError(
                f"process {stopped}, which holds {home.path}, was stopped: kill -CONT {stopped} has it go on, and end"
            )
        if time.monotonic() >= end_s:
            raise StateError(f"somebody holds {home.path} and does not tell who; see {home.logs / 'supervisor.log'}")
        time.sleep(0.05)
    return lock


def _holding(file: Path) -> list[int]:
    """Processes that have a lock on a file, as far as the kernel tells."""
    inode = file.stat().st_ino
    try:
        told = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
    return [int(words[4]) for words in told if words[1] == "FLOCK" and words[5].endswith(f":{inode}")]


def leftovers(home: Home) -> tuple[SupervisedProcess, ...]:
    """What a supervisor of this home left running, the youngest first: what it told of, and what it had started and not
    told of yet. Only under the home's lock.
    """
    state = home.read_state()
    found = {*(() if state is None else state.processes), *_marked(home.logs)}
    return tuple(sorted(filter(alive, found), key=lambda process: process.started_ticks, reverse=True))


def _marked(logs: Path) -> Iterator[SupervisedProcess]:
    """Children that were started with these logs. What they started in turn is theirs to end."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (entry / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
            marks = [text.partition("=")[2] for text in variables if text.startswith(f"{MARK}=")]
            name, _, place = (marks or [""])[-1].partition(" ")
            found = identify(name, int(entry.name))
            if found is not None and place == str(logs) and os.getsid(found.pid) == found.pid:
                yield found


def end_processes(processes: Iterable[SupervisedProcess], deadline_s: float) -> list[str]:
    """End what is not our child: SIGTERM, also to those that were stopped, then SIGKILL after the deadline. Returns the
    names of those that lived.
    """
    living = [process for process in processes if alive(process)]
    for process in living:
        _signal(process.pid, signal.SIGTERM)
        _signal(process.pid, signal.SIGCONT)
    if not await_end(living, deadline_s):
        for process in living:
            if alive(process):
                kill_group(process.pid)
        await_end(living, 5.0)
    return [process.name for process in living]


def await_end(processes: Iterable[SupervisedProcess], deadline_s: float) -> bool:
    """Wait until none of these lives; False when the deadline passes first."""
    waiting = list(processes)
    end_s = time.monotonic() + deadline_s
    while any(alive(process) for process in waiting):
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.05)
    return True


def kill_group(pid: int) -> None:
    """SIGKILL a process and what it started in its group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; a zombie counts as gone. Without /proc (not Linux) every start is 0."""
    proc = Path("/proc")
    if not (proc / "self").exists():
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return 0
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _stat(pid: int) -> list[str]:
    """What /proc tells of a process, from field 3 on, its state; nothing where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    # The name in parentheses may hold anything, so fields are counted from its last closing one.
    return text.rpartition(")")[2].split()
