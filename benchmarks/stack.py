"""A control plane for a benchmark: embedded PostgreSQL and a real API process on a free port, in a folder that is
thrown away.

Owns start, credentials and end. It refuses to share anything with a running `headroom up`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.clock import new_id, new_secret
from app.store import tokens
from app.store.embedded import embedded_url, stop_embedded
from app.store.engine import Database
from app.store.migrate import upgrade
from app.store.tokens import Purpose, Role, TokenDraft
from headroom_client import Client
from solvers.errors import HeadroomError
from tests.ports import free_port
from tests.scratch import clear_after_us, make_own

READY_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Where everything is."""

    url: str
    server: str
    port: int
    admin_token: str
    api_pid: int
    postgres_pid: int
    planner_pid: int | None = None

    def token(self, role: Role, purpose: Purpose | None = None, subject: str | None = None) -> str:
        """A fresh token, made straight in the database."""
        database = Database(self.url)
        try:
            return _make_token(database, role, purpose, subject)
        finally:
            database.dispose()


@contextmanager
def running_stack(serve: Sequence[str] = ("app", "serve"), *, plans: bool = False, **settings: str) -> Iterator[Stack]:
    """Database and API, ready, and a planner where `plans`; all gone at the end. `serve` is the module that serves,
    with its arguments; `settings` become `HEADROOM_…` variables.
    """
    clear_after_us(make_own())
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as folder:
        home = Path(folder)
        url = embedded_url(home)
        upgrade(url)
        database = Database(url)
        admin = _make_token(database, Role.ADMIN)
        with database.raw() as connection:
            postgres = _parent(connection.info.backend_pid)
        database.dispose()
        port = free_port()
        environment = {
            **os.environ,
            "HEADROOM_HOME": folder,
            "HEADROOM_DATABASE_URL": url,
            "HEADROOM_PORT": str(port),
            "HEADROOM_LOG_LEVEL": "ERROR",
            **{f"HEADROOM_{name.upper()}": text for name, text in settings.items()},
        }
        ways = [serve, *([("app", "planner")] if plans else [])]
        running = [subprocess.Popen([sys.executable, "-m", *way], env=environment) for way in ways]
        pids = [process.pid for process in running]
        try:
            server = f"http://127.0.0.1:{port}"
            _await_ready(server, admin)
            yield Stack(url, server, port, admin, pids[0], postgres, pids[-1] if plans else None)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(60)
            stop_embedded(home)


def _make_token(database: Database, role: Role, purpose: Purpose | None = None, subject: str | None = None) -> str:
    secret = new_secret("hr")
    new = TokenDraft(id=new_id(), name="benchmark", role=role, purpose=purpose, subject=subject, created_by="benchmark")
    with database.transaction() as session:
        tokens.create(session, new, secret)
    return secret


def _await_ready(server: str, token: str) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        with Client(server, token, attempts_max=1) as client:
            try:
                if client.ready():
                    return
            except HeadroomError:
                pass
        time.sleep(0.1)
    raise TimeoutError("the API did not become ready")


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processor_s(pid: int) -> float:
    """Processor seconds of a process and its children so far, also of those that ended."""
    seconds = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        mine = path.parent.name == str(pid)
        if mine or int(fields[1]) == pid:
            seconds += sum(map(int, fields[11:15] if mine else fields[11:13]))
    return seconds / os.sysconf("SC_CLK_TCK")
