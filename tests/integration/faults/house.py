"""A control plane to be mistreated: its own PostgreSQL, and API, planner and agents as real processes on free ports.

Owns the life of everything it starts: whatever a test kills or forgets, nothing outlives it. It refuses to know what
is tested.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.rows import TupleRow

from app.clock import new_id, new_secret
from app.demo.home import Home, SupervisedProcess
from app.store import tokens
from app.store.embedded import embedded_url, stop_embedded
from app.store.engine import Database, libpq_url
from app.store.migrate import upgrade
from headroom_client import ApiError, Client, UnreachableError
from solvers.errors import HeadroomError
from tests import nursery
from tests.integration.postgres import embedded_binaries
from tests.ports import free_port
from tests.scratch import copied
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
POLL_S = 0.05
DEADLINE_S = 60.0
TEMPLATE = "headroom_template"

# Short periods: a fault, its discovery and the recovery fit into seconds.
QUICK: Mapping[str, str] = {
    "HEADROOM_REPORT_INTERVAL_S": "0.5",
    "HEADROOM_PLACE_INTERVAL_S": "1",
    "HEADROOM_TUNE_INTERVAL_S": "0.5",
    "HEADROOM_ACCOUNT_INTERVAL_S": "5",
    "HEADROOM_LEASE_TTL_S": "2",
    "HEADROOM_SOLVE_GRACE_S": "1",
    "HEADROOM_RATE_LIMIT_PER_S": "5000",
    "HEADROOM_DOORBELL_HEARTBEAT_S": "1",
}


def await_true(
    what: str, check: Callable[[], object], deadline_s: float = DEADLINE_S, story: Callable[[], str] = str
) -> None:
    """Poll until `check` is true; errors that recovery cures count as not yet."""
    last: object = None

    def holds() -> bool:
        nonlocal last
        try:
            last = check()
        except (ApiError, UnreachableError, HeadroomError, psycopg.Error, OSError) as error:
            last = error
            return False
        return bool(last)

    wait_until(holds, lambda: f"{what}; last seen: {last!r}\n{story()}", deadline_s, POLL_S)


class Postgres:
    """A server of its own, which can crash and come back at the same address, with a database per house."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headroom-faults-"))
        self._count = 0
        try:
            copied("cluster-faults", self._make, self.home / "pgdata")
            self.url = embedded_url(self.home)
        except BaseException:
            self.end()
            raise

    def _make(self, data: Path) -> None:
        """A cluster that is mistreated, with a migrated database to clone."""
        home = Path(tempfile.mkdtemp(prefix="headroom-made-"))
        self.url = embedded_url(home)
        # After a crash every file is made durable before recovery; one call for all is many times faster.
        self._run("ALTER SYSTEM SET recovery_init_sync_method = 'syncfs'")
        self._run(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self.of(TEMPLATE))
        stop_embedded(home)
        (home / "pgdata").rename(data)
        shutil.rmtree(home)

    def fresh(self) -> str:
        """URL of a new, migrated, empty database; a server that a failed test left crashed comes back first."""
        self.start()
        self._count += 1
        name = f"faults_{self._count}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        return self.of(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        self._run(f"DROP DATABASE IF EXISTS {urlsplit(url).path.lstrip('/')} WITH (FORCE)")

    def of(self, database: str) -> str:
        """URL of a database."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def crash(self) -> None:
        """Stop at once, without a checkpoint and without telling clients: what a power cut leaves behind."""
        self.kill(signal.SIGQUIT)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the postmaster; killed, it leaves its children to find out by themselves."""
        pid = self._pid()
        os.kill(pid, how)
        await_true("PostgreSQL is gone", lambda: not Path(f"/proc/{pid}").exists(), 20.0)

    def start(self) -> None:
        """Come back, with recovery, at the same address."""
        await_true("PostgreSQL is back", lambda: embedded_url(self.home) == self.url)

    def dump(self, url: str, file: Path) -> None:
        """A backup of a database, made while it is in use."""
        self._program("pg_dump", "--format=custom", f"--file={file}", libpq_url(url))

    def restore(self, url: str, file: Path) -> None:
        """Put a backup in the place of a database, whoever is still connected."""
        self.drop(url)
        self._run(f"CREATE DATABASE {urlsplit(url).path.lstrip('/')}")
        self._program("pg_restore", "--exit-on-error", f"--dbname={libpq_url(url)}", str(file))

    def _program(self, name: str, *arguments: str) -> None:
        done = subprocess.run([embedded_binaries() / name, *arguments], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        """Stop and remove everything."""
        if (self.home / "pgdata" / "postmaster.pid").exists():
            pid = self._pid()
            os.kill(pid, signal.SIGQUIT)
            await_true("PostgreSQL is gone", lambda: not Path(f"/proc/{pid}").exists(), 20.0)
        shutil.rmtree(self.home, ignore_errors=True)

    def _pid(self) -> int:
        return int((self.home / "pgdata" / "postmaster.pid").read_text().splitlines()[0])

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


class Process:
    """A real process with a log file, in a group of its own."""

    def __init__(self, name: str, command: tuple[str, ...], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stream:
            self._popen = nursery.start(command, environment, stream)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it lives."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """SIGKILL this process alone, as the kernel's memory killer would; what it started must look after itself."""
        self._popen.kill()
        self._popen.wait(10.0)

    def terminate(self) -> int:
        """Ask it to end, as an orchestrator does, and wait; its exit status."""
        self._popen.terminate()
        return self._popen.wait(DEADLINE_S)

    def freeze(self) -> None:
        """Stop it where it stands, its children with it, as a suspended virtual machine does."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, as if nothing had happened."""
        os.killpg(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Leave nothing of it behind, its children included."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(10.0)

    def survivors(self) -> list[int]:
        """Processes of its group that still live."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.pid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
        return found

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.name} (alive: {self.alive})", *(line[:400] for line in text[-lines:])])


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"HEADROOM_{name.upper()}": text for name, text in settings.items()}


class Line:
    """A connection to a database that is kept, for a new one costs twenty times what it asks, and is dialled again when
    it has broken. Whoever asks waits for others who do.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._turn = threading.Lock()
        self._open: psycopg.Connection[TupleRow] | None = None

    def rows(self, query: str, *arguments: object) -> list[TupleRow]:
        """What a query finds; over another connection where the kept one is from before a crash."""
        with self._turn:
            try:
                return self._dialled().execute(query.encode(), arguments).fetchall()
            except psycopg.OperationalError:
                self._hang_up()
                return self._dialled().execute(query.encode(), arguments).fetchall()

    @contextmanager
    def picture(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """For several queries of one moment. Raises psycopg.Error, and dials again next time."""
        with self._turn:
            try:
                with (connection := self._dialled()).transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    yield connection
            except psycopg.Error:
                self._hang_up()
                raise

    def close(self) -> None:
        """Hang up for good."""
        with self._turn:
            self._hang_up()

    def _dialled(self) -> psycopg.Connection[TupleRow]:
        if self._open is None:
            # What a statement was prepared for may have another schema by the next time.
            self._open = psycopg.connect(self._url, connect_timeout=5, autocommit=True, prepare_threshold=None)
        return self._open

    def _hang_up(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class House:
    """One control plane under test."""

    def __init__(self, postgres: Postgres, extra: Mapping[str, str] | None = None) -> None:
        self.postgres = postgres
        self.url = postgres.fresh()
        self.home = Path(tempfile.mkdtemp(prefix="house-", dir=postgres.home))
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._processes: list[Process] = []
        self._lines: list[Line] = []
        self._line = self.line()
        own = {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")}
        self._environment = (
            own
            | dict(QUICK)
            | dict(extra or {})
            | {
                "HEADROOM_DATABASE_URL": self.url,
                "HEADROOM_HOME": str(self.home),
                "HEADROOM_PORT": str(self.port),
                "PYTHONUNBUFFERED": "1",
            }
        )
        self.admin = self.token(tokens.Role.ADMIN)
        self.join = self.token(tokens.Role.AGENT, purpose=tokens.Purpose.JOIN)

    def token(self, role: tokens.Role, **terms: Any) -> str:
        """A new token, put where `headroom up` puts its first one: into the database."""
        secret = new_secret("hr")
        database = Database(self.url, pool_size=1)
        try:
            with database.transaction() as session:
                new = tokens.TokenDraft(id=new_id(), name=f"test-{role.value}", role=role, created_by="test", **terms)
                tokens.create(session, new, secret)
        finally:
            database.dispose()
        return secret

    # -- processes ----------------------------------------------------------------------------------------------------

    def start_api(self, *, wait: bool = True, port: int | None = None, **settings: str) -> Process:
        """Start the API and, unless told otherwise, wait until it serves."""
        own = settings | ({} if port is None else {"port": str(port)})
        process = self._start("api", (sys.executable, "-m", "app", "serve"), **own)
        if wait:
            self.await_true("the API serves", partial(self.ready, port))
        return process

    def start_planner(self, **settings: str) -> Process:
        """Start a planner."""
        return self._start("planner", (sys.executable, "-m", "app", "planner"), **settings)

    def start_up(self) -> Process:
        """Start `headroom up`: a supervisor, whose children are the API and a planner."""
        return self._start("up", (sys.executable, "-m", "app", "up", "--foreground", "--no-demo"))

    def supervised(self) -> tuple[SupervisedProcess, ...]:
        """Its children, as far as it has told of them."""
        state = Home(self.home).read_state()
        return () if state is None else state.processes

    def start_agent(self, node: str, devices: str, servers: str = "") -> Process:
        """Start a node's agent on fake devices (`t4,t4`); its state survives from one start to the next."""
        state = self.home / "agents" / node
        state.mkdir(parents=True, exist_ok=True)
        command = (
            *(sys.executable, "-m", "agents", "--server", servers or self.address, "--token", self.join),
            *("--node", node, "--devices", f"fake:{devices}", "--state-dir", str(state)),
            *("--time-factor", "20"),
        )
        return self._start(node, command)

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """One command of `headroom`, with the environment of this house."""
        return nursery.run(("app", *arguments), self._environment | _variables(settings))

    def _start(self, name: str, command: tuple[str, ...], **settings: str) -> Process:
        number = sum(process.name == name for process in self._processes)
        process = Process(name, command, self._environment | _variables(settings), self.home / f"{name}-{number}.log")
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End everything that was started here."""
        for process in reversed(self._processes):
            process.end()
        for line in self._lines:
            line.close()
        with suppress(psycopg.OperationalError):  # a test that failed amid a crash leaves no server to ask
            self.postgres.drop(self.url)

    def story(self) -> str:
        """What the processes said last, for whoever reads a failure."""
        return "\n".join(process.tail() for process in self._processes[-8:])

    def tracebacks(self, *forgiven: str) -> str:
        """Every logged traceback; recovery is no excuse for a crash that nobody expected. `forgiven`: words of those
        that were. A child whose parent is killed while it is started says that its pipe has ended.
        """
        found = []
        for log in (*(process.log for process in self._processes), *Home(self.home).logs.glob("*.log")):
            text = log.read_text(errors="replace") if log.exists() else ""
            found += [f"{log.name}: {block}" for block in _blocks(text.splitlines())]
        orphaned = ("EOFError", "ConnectionResetError", "BrokenPipeError", "_pickle.UnpicklingError")
        return "\n".join(
            block
            for block in found
            if not block.splitlines()[-1].startswith(orphaned) and not any(word in block for word in forgiven)
        )

    # -- looking and touching -----------------------------------------------------------------------------------------

    def await_true(self, what: str, check: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Poll until true, or fail with the processes' last words."""
        await_true(what, check, deadline_s, self.story)

    @contextmanager
    def client(self, token: str | None = None) -> Iterator[Client]:
        """A client with the admin's or another token."""
        with Client(self.address, self.admin if token is None else token, timeout_s=10.0) as client:
            yield client

    def ready(self, port: int | None = None) -> bool:
        """Whether the API serves, or the one at another port."""
        with Client(self.address if port is None else f"http://127.0.0.1:{port}", self.admin) as client:
            return client.ready()

    def rows(self, query: str, *arguments: object) -> list[TupleRow]:
        """Look into the database."""
        return self._line.rows(query, *arguments)

    def line(self) -> Line:
        """Another line to the database, until the house is closed."""
        self._lines.append(Line(self.url))
        return self._lines[-1]

    def change(self, statements: str) -> None:
        """Change the database behind everybody's back."""
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            connection.execute(statements.encode())

    @contextmanager
    def held(self, statement: str) -> Iterator[None]:
        """What a statement locks stays locked until the block ends."""
        with psycopg.connect(self.url, connect_timeout=5) as connection:
            connection.execute(statement.encode())
            yield
            connection.rollback()

    def one(self, query: str, *arguments: object) -> Any:
        """The single value of a query; None without rows."""
        found = self.rows(query, *arguments)
        return found[0][0] if found else None

    def generation(self) -> int:
        """The current generation; 0 before the first plan."""
        return self.one("SELECT generation FROM cluster_state") or 0

    def beyond(self, generation: int) -> bool:
        """Whether a newer generation is current."""
        return self.generation() > generation


def _blocks(lines: list[str]) -> Iterator[str]:
    """Lines with a traceback; a bare one goes on to the line that is not indented."""
    for place, line in enumerate(lines):
        if "Traceback" in line:
            rest = [] if line.startswith("{") else lines[place + 1 : place + 60]
            end = next((n for n, each in enumerate(rest) if not each.startswith(" ")), len(rest) - 1)
            yield "\n".join([line[:2000], *rest[: end + 1]])


class Background:
    """A thread that repeats something until the block ends, and hands its failure to whoever waits for it."""

    def __init__(self, step: Callable[[], None], pause_s: float = POLL_S) -> None:
        self._step = step
        self._pause_s = pause_s
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ending.set()
        self._thread.join(20.0)
        if kind is None:
            self.check()
            assert not self._thread.is_alive()

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._step()
                self._ending.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._failure = error
