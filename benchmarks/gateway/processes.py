"""The processes of a hand-over: HAProxy with rendered backends, the follower, workers, and load.

Owns their start, the wait until they serve, and their end. A missing haproxy is a failure that says what to install.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port

READY_S_MAX = 20.0
END_S_MAX = 10.0
WORKER = "tests.standins.servers.server"
ROOT = Path(__file__).resolve().parents[2]
_BASE = """\
global
    stats socket {socket} mode 600 level admin
    nbthread 1
defaults
    mode http
    timeout client 30s
    timeout server 30s
frontend edge
    bind 127.0.0.1:{port}
    default_backend {backend}
"""


def haproxy_program() -> str:
    """Debian's HAProxy. Raises FileNotFoundError saying how to get it."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError("haproxy is not installed; on Debian: apt-get install haproxy")
    return found


def await_true(condition: Callable[[], bool], what: str, within_s: float = READY_S_MAX) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline_s, pause = time.monotonic() + within_s, threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} took longer than {within_s:g} s")
        pause.wait(0.02)


def end(process: subprocess.Popen[Any]) -> int:
    """Ask a process to end and wait; kill what is deaf. Its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running HAProxy."""

    port: int
    socket: Path
    process: subprocess.Popen[bytes]
    folder: Path


def listens(path: Path) -> bool:
    """Whether somebody takes connections at a socket: its file is there a moment before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        return line.connect_ex(str(path)) == 0


@contextmanager
def running_haproxy(folder: Path, backends: str, backend: str) -> Iterator[Gateway]:
    """HAProxy with these rendered backends behind one port."""
    port, line = free_port(), folder / "haproxy.sock"
    base, rendered = folder / "base.cfg", folder / "backends.cfg"
    base.write_text(_BASE.format(socket=line, port=port, backend=backend), encoding="utf-8")
    rendered.write_text(backends, encoding="utf-8")
    with (folder / "haproxy.log").open("wb") as log:
        command = [haproxy_program(), "-db", "-f", str(base), "-f", str(rendered)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        await_true(lambda: listens(line) or process.poll() is not None, "the start of haproxy")
        if process.poll() is not None:
            raise RuntimeError((folder / "haproxy.log").read_text(encoding="utf-8"))
        yield Gateway(port, line, process, folder)
    finally:
        end(process)


@contextmanager
def following(
    gateway: Gateway, service: str, environment: Mapping[str, str], options: Sequence[str] = ()
) -> Iterator[Path]:
    """The real follower; its log of JSON lines."""
    log = gateway.folder / "follower.log"
    command = [sys.executable, "-m", "app", "routes", "follow", "haproxy", "--socket", str(gateway.socket)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--service", service, *options],
            cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        yield log
    finally:
        end(process)


def log_lines(log: Path) -> list[dict[str, Any]]:
    """What a follower said."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


@dataclass(frozen=True, slots=True)
class Worker:
    """A stand-in model server in a process of its own."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def ready(self) -> bool:
        """Whether it answers readiness."""
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        try:
            asked.request("GET", "/health")
            return asked.getresponse().status == 200
        except OSError:
            return False
        finally:
            asked.close()


def start_worker(replica: str, step_ms: float = 2.0, batch: int = 32) -> Worker:
    """Begin a worker; it is ready some time later."""
    port = free_port()
    options = [f"port={port}", f"replica={replica}", f"step_ms={step_ms}", f"batch={batch}", "start_s=0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER, *options],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return Worker(port, process)


class Load:
    """The load generator in a process of its own."""

    def __init__(self, port: int, connections: int, requests_min: int) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway.load", *map(str, (port, connections, requests_min))]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def finish(self, within_s: float) -> dict[str, Any]:
        """Let it stop and tell what it saw."""
        said, _ = self._process.communicate("stop\n", timeout=within_s)
        found: dict[str, Any] = json.loads(said)
        return found

    def close(self) -> None:
        """End it, whatever it does."""
        end(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
