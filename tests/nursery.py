"""Processes of the product that are forked from one which has loaded it, so that a start costs what it does and not
what it imports: `python -m app …` and `python -m agents …` with arguments, environment, folder, output and session of
their own. What they start themselves they start as ever.

That both start from nothing is for others to prove: tests/integration/demo, tests/integration/agents, and
tests/unit/app/cli/test_program.py. Run as a script this is the process that forks, of one thread. Whoever asks it for
a process keeps the connection: the process dies with it.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
LOADED: Mapping[str, tuple[str, ...]] = {
    "app": (
        *("app.cli.program", "app.bootstrap", "app.api.server", "app.api.app", "ortools.sat.python.cp_model"),
        *("solvers.planners.joint.planner", "solvers.planners.greedy.planner", "scipy.optimize", "alembic.command"),
    ),
    "agents": ("agents.__main__", "agents.devices.fake.host"),
}
"""By module that is run, before its first process: also what it would load as soon as it has work to do."""
REQUEST_BYTES_MAX = 1 << 20


class Process:
    """What the tests use of `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, out: int, err: int
    ) -> None:
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(door()))
        asked = json.dumps({"arguments": [*arguments], "environment": {**environment}, "folder": str(folder)}).encode()
        with Path(os.devnull).open("rb") as nothing:
            socket.send_fds(self._line, [len(asked).to_bytes(4, "big")], [nothing.fileno(), out, err])
        self._line.sendall(asked)
        self._told = self._line.makefile("r")
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """Its exit status as far as it has ended."""
        return self._status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """To this process alone, if it lives."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._line], [], [], timeout_s)[0]:
                self.returncode, spent_s = json.loads(self._told.readline())
                _spent_s[0] += spent_s
                self._told.close()
                self._line.close()
        return self.returncode


_spent_s = [0.0]


def spent_s() -> float:
    """Processor seconds of what was forked for this process and has ended, with what that waited for."""
    return _spent_s[0]


Running = Process | subprocess.Popen[bytes]


def start(command: Sequence[str], environment: Mapping[str, str], stream: IO[bytes], folder: Path = ROOT) -> Running:
    """A command in a session of its own, forked where that can be."""
    if tuple(command[:2]) == (sys.executable, "-m") and command[2] in LOADED:
        return Process(command[2:], environment, folder, stream.fileno(), stream.fileno())
    return subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env={**environment},
        start_new_session=True,
    )  # fmt: skip


def run(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT, limit_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output captured as text. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        status = Process(arguments, environment, folder, out.fileno(), err.fileno()).wait(limit_s)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([*arguments], status, out.read(), err.read())


PROGRAM = """#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({door!r})
asked = {{"arguments": [{module!r}, *sys.argv[1:]], "environment": {{**os.environ}}, "folder": os.getcwd()}}
asked = json.dumps(asked).encode()
socket.send_fds(line, [len(asked).to_bytes(4, "big")], [0, 1, 2])
line.sendall(asked)
told = line.makefile()
told.readline()
status = json.loads(told.readline())[0]
sys.exit(128 - status if status < 0 else status)
"""


def put_program(file: Path, module: str) -> None:
    """A program for shells: what `exec python -m MODULE "$@"` would do."""
    file.write_text(PROGRAM.format(python=sys.executable, door=str(door()), module=module))
    file.chmod(0o755)


@functools.cache
def door() -> Path:
    """Where the process that forks is asked; it is started for the first one who does, and ends with this process.
    Whoever is forked from this one asks there, too.
    """
    folder = Path(tempfile.mkdtemp(prefix="headroom-nursery-"))
    named = folder / "door"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(named))
        listening.listen(64)
        command = [sys.executable, "-m", __name__, str(listening.fileno())]
        own = {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")}
        process = subprocess.Popen(
            command, cwd=ROOT, env={**own, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()], start_new_session=True,
        )  # fmt: skip

    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            shutil.rmtree(folder)
            door.cache_clear()

    _open.callback(end)
    return named


_open = ExitStack()
"""Until nobody is forked any more."""
close = atexit.register(_open.close)


# --- The process that forks -------------------------------------------------------------------------------------------


class Nursery:
    """Forks when asked, and tells whoever asked how it ended."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listening, selectors.EVENT_READ, self._admit)
        self._waiting.register(sys.stdin, selectors.EVENT_READ, self._end)
        self._living: dict[int, int] = {}
        """Process by the descriptor of the connection that asked for it."""

    def live(self) -> list[str]:
        """Returns in each process that is forked, with its arguments."""
        while True:
            for key, _ in self._waiting.select():
                arguments: list[str] | None = key.data()
                if arguments is not None:
                    return arguments

    def _end(self) -> NoReturn:
        for pid in self._living.values():
            _kill(pid)
            os.wait4(pid, 0)
        sys.exit(0)

    def _admit(self) -> list[str] | None:
        line, _ = self._listening.accept()
        head, streams, _, _ = socket.recv_fds(line, 4, 3)
        with line.makefile("rb") as read:
            asked = json.loads(read.read(int.from_bytes(head, "big")))
        for module in LOADED[asked["arguments"][0]]:
            importlib.import_module(module)
        gc.freeze()
        pid = os.fork()
        if not pid:
            self._forget(line)
            return _born(asked, streams)
        for stream in streams:
            os.close(stream)
        line.sendall(f"{pid}\n".encode())
        self._living[line.fileno()] = pid
        ending = os.pidfd_open(pid)
        self._waiting.register(ending, selectors.EVENT_READ, functools.partial(self._ended, ending, pid, line))
        self._waiting.register(line, selectors.EVENT_READ, functools.partial(self._left, line))
        return None

    def _forget(self, line: socket.socket) -> None:
        """Whatever is open here is nothing to a process that was forked."""
        line.close()
        for key in [*self._waiting.get_map().values()]:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._waiting.close()

    def _left(self, line: socket.socket) -> None:
        """Nobody waits for it any more."""
        if line.fileno() in self._living:
            self._waiting.unregister(line)
            _kill(self._living[line.fileno()])

    def _ended(self, ending: int, pid: int, line: socket.socket) -> None:
        self._waiting.unregister(ending)
        os.close(ending)
        _, status, used = os.wait4(pid, 0)
        del self._living[line.fileno()]
        with suppress(KeyError):
            self._waiting.unregister(line)
        with suppress(OSError):
            told = (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
            line.sendall(json.dumps(told).encode() + b"\n")
        line.close()


def _kill(pid: int) -> None:
    """With what it started: it leads a session."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _born(asked: dict[str, Any], streams: Sequence[int]) -> list[str]:
    """Become what was asked for, as far as `exec` would have made it so."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Of files that these were before they know what is not so of pipes.
    sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    arguments: list[str] = asked["arguments"]
    return arguments


def _plan_in_forked() -> None:
    """What plans for a process of the application is forked from it, as where plans are made without a server."""
    os.register_at_fork(after_in_child=_hang_up)
    bootstrap = importlib.import_module("app.bootstrap")
    bootstrap.SolvePool = functools.partial(bootstrap.SolvePool, start="fork")  # type: ignore[attr-defined]


def _hang_up() -> None:
    """Connections and what listens are the parent's: nobody would hear that one has ended for as long as this process
    had it, too. Its line to the parent is a pair of sockets without names.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as held:
            if held.family in (socket.AF_INET, socket.AF_INET6) or held.getsockname() or held.getpeername():
                os.dup2(nothing, number)
    os.close(nothing)


def main() -> None:
    sys.argv[1:] = Nursery(socket.socket(fileno=int(sys.argv[1]))).live()
    module = sys.argv.pop(1)
    if module == "app":
        _plan_in_forked()
    sys.modules.pop(f"{module}.__main__", None)  # it is about to run, and says so where it was imported before
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
