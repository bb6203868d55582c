"""One device's control daemon: its directories, how it is found, started and ended, and its server through their life.

A daemon counts when the pid in its pipe directory is a process of this user that runs the control program for this
device, so that neither a pid used again nor another device's daemon is taken for it. It outlives the agent. Between two
looks it is watched through /proc alone, so that asking every second how it is starts no process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.errors import DeviceError, NotSupportedError, SharingError
from agents.mps.memo import DaemonRecord, Memo
from agents.mps.protocols import (
    COMMAND_TIMEOUT_S,
    MpsClient,
    MpsControl,
    MpsProtocol,
    MpsServer,
    ProtocolThree,
    ProtocolTwo,
    ServerState,
    plain_environment,
    shortened,
)
from agents.processes import ProcessId, arguments_of, bound_to, environment_of, identify, runs

SOCKET_PATH_BYTES_MAX = 107
"""What the kernel takes as the path of a Unix socket, its final NUL left out."""
PID_FILE = "nvidia-cuda-mps-control.pid"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
LOG_BYTES_MAX, BLOCK_BYTES = 8 * 2**20, 512
POLL_S = 0.02
END_S = 3.0


def await_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for something a short while; whether it came."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def daemon_in(pipe: Path, control_binary: str) -> ProcessId | None:
    """The daemon of this user that lives in a pipe directory, whatever its device."""
    try:
        found = identify(int((pipe / PID_FILE).read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None
    return found if found is not None and runs(found.pid, Path(control_binary).name) else None


class DaemonProcess:
    def __init__(
        self, uuid: str, control_binary: str, pipe_base: Path, log_base: Path, *, many_users: bool = False
    ) -> None:
        """`many_users`: clients may be processes of other users than this one, which has to be root."""
        name = hashlib.sha256(uuid.encode()).hexdigest()[:8]
        self.uuid = uuid
        self.many_users = many_users
        self.pipe = pipe_base / name
        self.logs = log_base / name
        self.control = MpsControl(control_binary, self.pipe)

    def find(self) -> ProcessId | None:
        """The daemon that runs, whoever started it."""
        found = daemon_in(self.pipe, self.control.binary)
        if found is None:
            return None
        # Its environment is read last: had the pid been given to another process meanwhile, this would not be ours.
        seen = environment_of(found.pid) or {}
        ours = seen.get("CUDA_VISIBLE_DEVICES") == self.uuid and seen.get("CUDA_MPS_PIPE_DIRECTORY") == str(self.pipe)
        return found if ours else None

    def start(self, protocol: MpsProtocol) -> None:
        """Start it and return; it is not up yet. Raises SharingError, NotSupportedError without a control program."""
        path = protocol.socket_path(self.pipe)
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise SharingError(f"pipe directory {self.pipe} is too long a path for its sockets: choose a shorter one")
        options = ("-p", "3") if protocol.number == 3 else ()
        if self.many_users:
            options = (*options, protocol.many_users)
        try:
            self._fresh_directories()
            with (self.logs / "start.log").open("wb") as log:
                done = subprocess.run(
                    [self.control.binary, "-d", *options],
                    env=plain_environment(
                        {
                            "CUDA_VISIBLE_DEVICES": self.uuid,
                            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
                            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
                            "CUDA_MPS_PROTOCOL_VERSION": str(protocol.number),
                        }
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    umask=0 if self.many_users else -1,
                    timeout=COMMAND_TIMEOUT_S,
                    check=False,
                )
        except FileNotFoundError:
            raise NotSupportedError(f"there is no {self.control.binary} on this host") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SharingError(f"cannot start the daemon: {error}") from error
        if done.returncode != 0:
            said = (self.logs / "start.log").read_text(encoding="utf-8", errors="replace")
            raise SharingError(f"the daemon did not start: {shortened(said)}")

    def await_end(self, process: ProcessId, servers: Iterable[ProcessId]) -> None:
        """Wait until a daemon that was told to quit is gone, and see to it. Raises SharingError."""
        if not await_until(lambda: not process.lives, END_S):
            _signal(process, signal.SIGTERM)
            if not await_until(lambda: not process.lives, END_S):
                raise SharingError(f"the daemon (process {process.pid}) does not end")
        self.end_orphans(servers, END_S)

    def end_orphans(self, servers: Iterable[ProcessId], patience_s: float = 0.0) -> None:
        """End servers that have lost their daemon. Raises SharingError while workers may still be on them: they have
        to end first, because a server that ends under them takes their work with it.
        """
        orphans = [server for server in servers if server.lives and runs(server.pid, SERVER_PROGRAM)]
        if not orphans or await_until(lambda: not any(orphan.lives for orphan in orphans), patience_s):
            return
        names = {orphan.pid for orphan in orphans}
        left = [pid for pid in bound_to(self.pipe) if pid not in names]
        if left:
            shown = ", ".join(map(str, sorted(left)[:8]))
            raise SharingError(f"the daemon has ended, but its server still has processes, which must end: {shown}")
        for orphan in orphans:
            _signal(orphan, signal.SIGTERM)
        if not await_until(lambda: not any(orphan.lives for orphan in orphans), END_S):
            raise SharingError(f"the server (process {orphans[0].pid}) of an ended daemon does not end")

    def clear(self) -> None:
        """Remove the pipe directory of a daemon that is gone. Logs stay."""
        shutil.rmtree(self.pipe, ignore_errors=True)

    def _fresh_directories(self) -> None:
        self.clear()
        self.pipe.parent.mkdir(parents=True, exist_ok=True)
        if self.many_users:
            # Whoever made it: an agent that was killed here, or one that had no other users.
            self.pipe.parent.chmod(stat.S_IMODE(self.pipe.parent.stat().st_mode) | 0o011)
        for directory in (self.pipe, self.logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        if self.many_users:
            self.pipe.chmod(0o755)
        self.cut_logs()

    def cut_logs(self) -> None:
        """Real daemons write down all they are asked, without end. The end of what is too long becomes the old log; the
        daemon goes on in the same file, maybe far behind its new beginning: what it takes on the disk counts.
        """
        for log in self.logs.glob("*.log"):
            if log.stat().st_blocks * BLOCK_BYTES <= LOG_BYTES_MAX:
                continue
            with contextlib.suppress(OSError), log.open("rb") as file:
                file.seek(-LOG_BYTES_MAX, os.SEEK_END)
                log.with_suffix(".log.old").write_bytes(file.read())
                os.truncate(log, 0)


def _signal(process: ProcessId, number: signal.Signals) -> None:
    if process.lives:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


START_S = 3.0
"""How long a call waits for a daemon or server that was just started."""
LAUNCH_S = 30.0
"""How long a daemon may take until it shows itself, before another one is started."""
LOOK_S = 30.0
"""How often a daemon that seems well is asked."""
TROUBLE_LOOK_S = 5.0
"""How often one that does not is, so that one that hangs does not hold up everything else."""
DOWN = "its daemon is down: its processes run without their limits, or not at all"
ONE_USER = "workers of projects with users of their own cannot start until all of this device have ended"
SLOW = "its server does not accept clients yet"
CUDA_WITH_3, BRANCH_WITH_3 = (13, 4), 615
BINARY_LEAST = 1000
"""From here on a number is CUDA's version as its binaries carry it: 13000 is 13.0."""
_VERSION = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_PROTOCOLS: Mapping[int, MpsProtocol] = {2: ProtocolTwo(), 3: ProtocolThree()}


@dataclass(frozen=True, slots=True)
class DaemonSeat:
    protocol: MpsProtocol
    control: MpsControl
    pipe: Path
    daemon: ProcessId
    servers: tuple[ProcessId, ...]


class MpsDevice:
    """A device whose daemon shall run. Safe to use from several threads: clients are ended beside everything else."""

    def __init__(self, daemon: DaemonProcess, memo: Memo, protocol_wanted: str, now_s: Callable[[], float]) -> None:
        self._daemon = daemon
        self._memo = memo
        self._protocol_wanted = protocol_wanted
        self._now_s = now_s
        self._lock = threading.RLock()
        self._process: ProcessId | None = None
        self._protocol = _PROTOCOLS[2]
        """The language of the daemon that runs."""
        self._servers: tuple[ProcessId, ...] = ()
        self._looked_s: float | None = None
        self._answers = False
        self._trouble = ""
        self._launched_s: float | None = None
        self._held: tuple[object, ...] = ()

    @property
    def lives(self) -> bool:
        """Whether there is a daemon; it may be another one than last time."""
        with self._lock:
            return self._find() is not None

    @property
    def seat(self) -> DaemonSeat | None:
        """Daemon and servers, None where there is no daemon. A server that ended since the last look is not in it."""
        with self._lock:
            process = self._find()
            if process is None:
                return None
            self._look(now=not all(server.lives for server in self._servers))
            return DaemonSeat(self._protocol, self._daemon.control, self._daemon.pipe, process, self._servers)

    def answers(self) -> bool:
        """Whether the daemon answered when it was last asked."""
        with self._lock:
            return self._find() is not None and self._look()

    def trouble(self, *, now: bool = False) -> str:
        """What is wrong; empty when nothing is. It may be a while old, unless it shall be of now."""
        with self._lock:
            if self._find() is None:
                return DOWN
            self._look(now=now)
            return self._trouble

    def open(self) -> None:
        """See to it that daemon and server run, and hold what was granted. Raises SharingError."""
        with self._lock:
            if self._find() is None:
                self._launch()
            started_with = arguments_of(self._process.pid) if self._process is not None else ()
            if self._daemon.many_users and started_with and self._protocol.many_users not in started_with:
                raise SharingError(f"the daemon of {self._daemon.uuid} serves one user alone: {ONE_USER}")
            if self.trouble():
                self._make_ready()
            self._remember()
            self.hold()

    def shut(self) -> None:
        """End the daemon, which has no clients, and remove its pipe directory."""
        with self._lock:
            process, record = self._find(), self._memo.daemon(self._daemon.uuid)
            servers = self._servers + (record.servers if record is not None else ())
            if process is not None:
                self._protocol.quit(self._daemon.control)
                self._daemon.await_end(process, servers)
            else:
                self._daemon.end_orphans(servers)
            self._daemon.clear()
            self._memo.put_daemon(self._daemon.uuid, None)

    def hold(self) -> None:
        """Have the daemon hold what was granted, if it does not already."""
        with self._lock:
            orders = self._memo.orders(self._daemon.uuid)
            wanted = (self._process, self._servers, orders)
            if self._held != wanted:
                self._held = ()
                self._protocol.hold(self._daemon.control, orders)
                self._held = wanted

    def clients(self) -> tuple[MpsClient, ...]:
        with self._lock:
            return self._protocol.clients(self._daemon.control) if self._find() is not None else ()

    def terminate(self, client: MpsClient) -> None:
        with self._lock:
            self._protocol.terminate(self._daemon.control, client)

    def _find(self) -> ProcessId | None:
        if self._process is None or not self._process.lives:
            self._process, self._servers, self._looked_s = self._daemon.find(), (), None
            self._answers, self._trouble, self._held = False, "", ()
            told = environment_of(self._process.pid) if self._process is not None else None
            self._protocol = _PROTOCOLS[3 if (told or {}).get("CUDA_MPS_PROTOCOL_VERSION") == "3" else 2]
        return self._process

    def _launch(self) -> None:
        record = self._memo.daemon(self._daemon.uuid)
        if record is not None:
            self._daemon.end_orphans(record.servers)
        now_s = self._now_s()
        if self._launched_s is None or now_s - self._launched_s > LAUNCH_S:
            self._daemon.start(self._protocol_to_start())
            self._launched_s = now_s
        if not await_until(lambda: self._find() is not None, START_S):
            raise SharingError(f"the daemon of {self._daemon.uuid} is starting")
        self._launched_s = None

    def _make_ready(self) -> None:
        """Wait for daemon and server; start a server where there is none."""
        if not await_until(lambda: self._look(now=True), START_S):
            raise SharingError(f"the daemon of {self._daemon.uuid} is starting: {self._trouble}")
        self._remember()
        if not self._servers:
            self._protocol.start_server(self._daemon.control, self._daemon.uuid)
            # To be told that it was created proves nothing: one that cannot use the device dies thereafter.
            await_until(lambda: self._look(now=True) and bool(self._servers), START_S)
        if self._trouble == SLOW:
            await_until(lambda: not self._look(now=True) or self._trouble != SLOW, START_S)
        if self._trouble:
            raise SharingError(f"{self._daemon.uuid}: {self._trouble}")

    def _remember(self) -> None:
        if self._process is not None:
            found = DaemonRecord(process=self._process, protocol=self._protocol.number, servers=self._servers)
            self._memo.put_daemon(self._daemon.uuid, found)

    def _look(self, *, now: bool = False) -> bool:
        """Ask the daemon how its servers are, unless that was done lately and they live; whether it answered."""
        now_s = self._now_s()
        good_for_s = TROUBLE_LOOK_S if self._trouble else LOOK_S
        lately = self._looked_s is not None and now_s - self._looked_s < good_for_s
        if not now and lately and all(server.lives for server in self._servers):
            return self._answers
        self._looked_s = now_s
        self._daemon.cut_logs()
        try:
            servers = self._protocol.servers(self._daemon.control)
        except DeviceError as error:
            self._answers, self._trouble = False, f"its daemon does not answer: {error}"
            return False
        self._answers = True
        self._servers = tuple(filter(None, (identify(server.pid) for server in servers)))
        self._trouble = _trouble(servers)
        return True

    def _protocol_to_start(self) -> MpsProtocol:
        if self._protocol_wanted != "auto":
            return _PROTOCOLS[int(self._protocol_wanted)]
        try:
            text = self._daemon.control.ask_freely("-v")
        except DeviceError:
            text = ""
        return _PROTOCOLS[3 if speaks_3(text) else 2]


def speaks_3(version: str) -> bool:
    """Whether a version's text is one with protocol 3: of CUDA, as 13.4 or 13040, or of a driver branch, as 615. In
    doubt it is not.
    """
    for major, minor in _VERSION.findall(version):
        found = int(major)
        if found >= BINARY_LEAST:
            return (found // 1000, found % 1000 // 10) >= CUDA_WITH_3
        if found >= 100:
            return found >= BRANCH_WITH_3
        if minor:
            return (found, int(minor)) >= CUDA_WITH_3
    return False


def _trouble(servers: tuple[MpsServer, ...]) -> str:
    if not servers:
        return "it has no server"
    states = {server.state for server in servers}
    if ServerState.FAULT in states:
        return "its server is in fault and takes nobody until all its clients have ended"
    return "" if ServerState.ACTIVE in states else SLOW
