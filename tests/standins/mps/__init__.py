"""A host with GPUs and MPS that are not there: daemons, servers and clients are real processes in a directory of it.

`MpsStandIn(tmp_path)` gives `control_binary`, `library` (a libcuda.so.1) and a short `pipe_base`; use it as a context
manager, or call `close`, which ends every daemon and server that it started and says which ones had been left.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.standins.mps.cuda import LIBRARY
from tests.waiting import LIMIT_S, wait_until

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInGpu:
    """A GPU of the host that is not there."""

    uuid: str
    sms: int = 108
    memory_mib: int = 40960
    granularity: int = 2
    exclusive: bool = False


GPUS = (
    StandInGpu(uuid="GPU-11111111-2222-3333-4444-555555555555"),
    StandInGpu(uuid="GPU-66666666-7777-8888-9999-aaaaaaaaaaaa", sms=188, memory_mib=97887),
)


@functools.cache
def built() -> Path:
    """Where control program and library lie, compiled once per process of tests and gone with it."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise AssertionError("the stand-ins are written in C: install a C compiler (Debian: gcc)")
    into = Path(tempfile.mkdtemp(prefix="hr-mps-built-"))
    atexit.register(shutil.rmtree, into, ignore_errors=True)
    compile_ = [compiler, "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compile_, "-o", into / "control", HERE / "control.c"], check=True)
    shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*compile_, *shared, "-o", into / "libcuda.so.1", HERE / "libcuda.c", "-ldl"], check=True)
    return into


class MpsStandIn:
    """The host. Everything that goes wrong on it is asked for by a method."""

    def __init__(self, tmp_path: Path, gpus: tuple[StandInGpu, ...] = GPUS, version: str = "13.0") -> None:
        self.root = tmp_path / "mps-standin"
        self.pipe_base = Path(tempfile.mkdtemp(prefix="hr-mps-", dir="/tmp"))
        for name in ("bin/daemon", "lib", "notes"):
            (self.root / name).mkdir(parents=True)
        binary = self.root / "bin"
        for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
            shutil.copy2(built() / "control", binary / name)
        shutil.copy2(built() / "libcuda.so.1", self.root / "lib")
        shutil.copy2(HERE / "daemon.py", binary / "daemon" / "nvidia-cuda-mps-control")
        (binary / "python").write_text(f"{sys.executable}\n")
        major, minor = map(int, version.split("."))
        told = f"CUDA MPS Control for Linux/Unix/QNX. Binary version: {1000 * major + 10 * minor}\n"
        (binary / "version").write_text(told)
        self.control_binary = str(binary / "nvidia-cuda-mps-control")
        self.library = str(self.root / "lib" / "libcuda.so.1")
        self._wrong: dict[str, object] = {}
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._write_gpus()

    def __enter__(self) -> MpsStandIn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def sm_counts(self) -> Mapping[str, int]:
        """SMs of each whole GPU."""
        return {gpu.uuid: gpu.sms for gpu in self._gpus.values()}

    @property
    def probe_command(self) -> tuple[str, ...]:
        """The agent's probe, on this host's library."""
        return (sys.executable, "-m", "agents.probe", "--library", self.library)

    def env(self) -> dict[str, str]:
        """What a stand-in worker needs to find the library."""
        return {LIBRARY: self.library}

    # What is found

    def daemons(self) -> tuple[int, ...]:
        """Control daemons that run."""
        return tuple(pid for pid in self._noted("daemons") if _lives(pid))

    def processes(self) -> tuple[int, ...]:
        """Control daemons and servers that run."""
        return tuple(pid for pid in self._noted("pids") if _lives(pid))

    def daemon_of(self, uuid: str) -> int:
        """The daemon that has this device."""
        for pid in self.daemons():
            if _environment(pid).get("CUDA_VISIBLE_DEVICES") == uuid:
                return pid
        raise AssertionError(f"no daemon for {uuid}")

    def ask(self, uuid: str, *arguments: str, stdin: str = "") -> str:
        """Give the daemon of a device a command."""
        pipe = _environment(self.daemon_of(uuid))["CUDA_MPS_PIPE_DIRECTORY"]
        command = [self.control_binary, *arguments]
        environment = {"CUDA_MPS_PIPE_DIRECTORY": pipe}
        done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def clients(self, uuid: str) -> tuple[int, ...]:
        """Processes that are clients of the device's daemon."""
        if "-p" in Path(f"/proc/{self.daemon_of(uuid)}/cmdline").read_text().split("\0"):
            lines = self.ask(uuid, "client", "list", "--all", "--format=csv,noheader").splitlines()
            return tuple(int(line.split(",")[0]) for line in lines)
        return tuple(int(line.split()[0]) for line in self.ask(uuid, stdin="ps\n").splitlines()[1:])

    def abrupt(self) -> tuple[int, ...]:
        """Clients that ended without leaving or being terminated: killed with work in flight, for all one knows."""
        return self._noted("abrupt")

    def commands(self) -> tuple[str, ...]:
        """Every command that daemons were given."""
        path = self.root / "notes" / "commands"
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    # What goes wrong

    def crash_daemon(self, uuid: str) -> None:
        """Kill the daemon; its servers go with it unless `orphans` was asked for. Clients go on, without limits."""
        pid = self.daemon_of(uuid)
        servers = _children(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _lives(pid), "the daemon's end")
        if not self._wrong.get("orphans"):
            wait_until(lambda: not any(map(_lives, servers)), "the end of its servers")

    def crash_server(self, uuid: str) -> None:
        """Kill the daemon's servers."""
        servers = _children(self.daemon_of(uuid))
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(_lives, servers)), "the end of the servers")

    def fault(self, uuid: str) -> None:
        """A client's fatal fault reaches all of them; the server takes nobody until all have left."""
        self.ask(uuid, "__fault")

    def slow_start(self) -> None:
        """Daemons that start do not answer until everything goes right again."""
        self._set("slow_start", True)

    def slow_server(self, seconds: float) -> None:
        """Servers take so long to accept clients."""
        self._set("slow_server_s", seconds)

    def linger(self, seconds: float) -> None:
        """Servers hear so late that clients have ended."""
        self._set("linger_s", seconds)

    def orphans(self) -> None:
        """Servers survive their daemon."""
        self._set("orphans", True)

    def slots(self, count: int) -> None:
        """Clients that fit on a server."""
        self._set("slots", count)

    def say(self, command: str, text: str) -> None:
        """Answer a command, by how it begins, with a text and exit status 0 instead of obeying."""
        texts = self._wrong.get("texts")
        self._set("texts", {**(texts if isinstance(texts, dict) else {}), command: text})

    def hang(self, command: str) -> None:
        """Never answer a command, by how it begins; an empty text: answer all again."""
        self._set("hang", command)

    def heal(self) -> None:
        """Everything goes right again."""
        self._wrong = {}
        self._set("hang", "")

    def exclusive(self, uuid: str, on: bool) -> None:
        """Compute mode: with `on`, a process that is no client cannot open the device."""
        gpu = self._gpus[uuid]
        self._gpus[uuid] = StandInGpu(
            uuid=uuid, sms=gpu.sms, memory_mib=gpu.memory_mib, granularity=gpu.granularity, exclusive=on
        )
        self._write_gpus()

    def add(self, gpu: StandInGpu) -> None:
        """Another GPU, or another one in place of that with the same UUID."""
        self._gpus[gpu.uuid] = gpu
        self._write_gpus()

    def close(self) -> None:
        """End what runs and remove the pipe directories. Safe to call twice."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes(), "the end of all daemons")
        shutil.rmtree(self.pipe_base, ignore_errors=True)

    def _noted(self, kind: str) -> tuple[int, ...]:
        path = self.root / "notes" / kind
        return tuple(int(line) for line in path.read_text().split()) if path.exists() else ()

    def _set(self, name: str, value: object) -> None:
        self._wrong[name] = value
        temporary = self.root / "faults.new"
        temporary.write_text(json.dumps(self._wrong))
        temporary.replace(self.root / "faults.json")

    def _write_gpus(self) -> None:
        lines = [f"{g.uuid} {g.sms} {g.memory_mib} {g.granularity} {int(g.exclusive)}\n" for g in self._gpus.values()]
        temporary = self.root / "lib" / "gpus.new"
        temporary.write_text("".join(lines))
        temporary.replace(self.root / "lib" / "gpus")


class StandInWorker:
    """A process on the device, as its environment says; `worker.py`. One that could not open it has ended."""

    def __init__(self, host: MpsStandIn, environment: Mapping[str, str]) -> None:
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(HERE / "worker.py")],
            env={**keep, **host.env(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self.greeting = self._line()
        if self.greeting != "open":
            self.end()

    def ask(self, line: str) -> str:
        """Say a line, get a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        return self._line()

    def end(self) -> None:
        """Let it leave the device and end."""
        if self._process.returncode is None:
            self._process.communicate("end\n", timeout=LIMIT_S)

    def kill(self) -> None:
        """SIGKILL, with whatever it has in flight."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate(timeout=LIMIT_S)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _environment(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
