"""The control daemon of one device as a process: its directories, how it is found, started and ended.

Owns pipe and log directory (both only for this user) and the daemon's identity: a daemon counts when the pid in its
pipe directory is a process of this user that runs the control program for this device, so that neither a pid used
again nor another device's daemon is taken for it. It outlives the agent. What it holds is the protocols' matter.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agents.errors import NotSupportedError, SharingError
from agents.mps.control import COMMAND_TIMEOUT_S, MpsControl, plain_environment, shortened
from agents.mps.options import SOCKET_PATH_BYTES_MAX
from agents.mps.processes import MpsProcessId, bound_to, environment_of, identify, runs
from agents.mps.protocol import MpsProtocol

PID_FILE = "nvidia-cuda-mps-control.pid"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
LOG_BYTES_MAX = 8 * 2**20
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


class DaemonProcess:
    """Where a device's daemon lives."""

    def __init__(self, uuid: str, control_binary: str, pipe_base: Path, log_base: Path) -> None:
        name = hashlib.sha256(uuid.encode()).hexdigest()[:8]
        self.uuid = uuid
        self.pipe = pipe_base / name
        self.logs = log_base / name
        self.control = MpsControl(control_binary, self.pipe)

    def find(self) -> MpsProcessId | None:
        """The daemon that runs, whoever started it."""
        try:
            pid = int((self.pipe / PID_FILE).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        found = identify(pid)
        # Its environment is read last: had the pid been given to another process meanwhile, this would not be ours.
        if found is None or not runs(pid, Path(self.control.binary).name):
            return None
        seen = environment_of(pid) or {}
        ours = seen.get("CUDA_VISIBLE_DEVICES") == self.uuid and seen.get("CUDA_MPS_PIPE_DIRECTORY") == str(self.pipe)
        return found if ours else None

    def start(self, protocol: MpsProtocol) -> None:
        """Start it and return; it is not up yet. Raises SharingError, NotSupportedError without a control program."""
        path = protocol.socket_path(self.pipe)
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise SharingError(f"pipe directory {self.pipe} is too long a path for its sockets: choose a shorter one")
        try:
            self._fresh_directories()
            with (self.logs / "start.log").open("wb") as log:
                done = subprocess.run(
                    [self.control.binary, "-d", *(("-p", "3") if protocol.number == 3 else ())],
                    env=self._environment(protocol),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
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

    def await_end(self, process: MpsProcessId, servers: Iterable[MpsProcessId]) -> None:
        """Wait until a daemon that was told to quit is gone, and see to it. Raises SharingError."""
        if not await_until(lambda: not process.lives, END_S):
            _signal(process, signal.SIGTERM)
            if not await_until(lambda: not process.lives, END_S):
                raise SharingError(f"the daemon (process {process.pid}) does not end")
        self.end_orphans(servers, END_S)

    def end_orphans(self, servers: Iterable[MpsProcessId], patience_s: float = 0.0) -> None:
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
        for directory in (self.pipe, self.logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > LOG_BYTES_MAX:
                log.replace(log.with_suffix(".log.old"))

    def _environment(self, protocol: MpsProtocol) -> dict[str, str]:
        return plain_environment(
            {
                "CUDA_VISIBLE_DEVICES": self.uuid,
                "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
                "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
                "CUDA_MPS_PROTOCOL_VERSION": str(protocol.number),
            }
        )


def _signal(process: MpsProcessId, number: signal.Signals) -> None:
    if process.lives:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
