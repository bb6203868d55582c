"""The embedded server is made once, found by all, outlives who started it, keeps its data, and stops when told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from app.store import embedded, migrate
from app.store.engine import Database
from solvers.errors import StateError, TransientError
from tests.integration.planner.processes import alive
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose server is stopped in the end; short, since a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="headroom-home-") as name:
        path = Path(name) / "home"
        yield path
        embedded.stop_embedded(path)


def _pid(home: Path) -> int:
    return int((home / "pgdata" / "postmaster.pid").read_text().splitlines()[0])


def _elsewhere(home: Path) -> str:
    """What another process gets."""
    code = "import sys, pathlib, app.store.embedded as e; print(e.embedded_url(pathlib.Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(home)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _dead(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_it_is_made_found_stopped_and_keeps_its_data(home: Path) -> None:
    assert not embedded.stop_embedded(home)
    url = embedded.embedded_url(home)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    pid = _pid(home)
    assert embedded.embedded_url(home) == url
    assert _pid(home) == pid
    assert embedded.stop_embedded(home)
    assert not embedded.stop_embedded(home)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    assert embedded.embedded_url(home) == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_one_that_cannot_end_in_peace_is_ended_all_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, where it never finishes what it writes last."""
    monkeypatch.setattr(embedded, "STOP_DEADLINE_S", 10)
    url = embedded.embedded_url(home)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").fetchone()
    assert found is not None
    os.kill(found[0], signal.SIGSTOP)
    assert embedded.stop_embedded(home)
    assert embedded.standing_url(home) is None
    assert embedded.embedded_url(home) == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_server_that_recovers_once_more_is_told_as_that(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has answered, then a child of its is killed: who looks after it tries again, and does not end."""
    url = embedded.embedded_url(home)

    def killed(sockets: Path) -> bool:
        connection = psycopg.connect(url)
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        wait_until(lambda: _dead(connection), "the server to notice")
        connection.close()
        return True

    monkeypatch.setattr(embedded, "_answers", killed)
    told = False
    for _ in range(20):  # for it may be back before anybody asks
        try:
            embedded.embedded_url(home)
        except TransientError:
            told = True
            break
    assert told
    monkeypatch.undo()
    wait_until(lambda: embedded.standing_url(home) == url, "it is back")


def test_a_home_that_cannot_be_written_to_sends_to_a_database_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="HEADROOM_DATABASE_URL"):
        embedded.embedded_url(tmp_path / "file" / "home")
    (tmp_path / "pgdata.lock").mkdir()
    with pytest.raises(StateError, match="HEADROOM_DATABASE_URL"):
        embedded.embedded_url(tmp_path)


def test_a_benchmark_that_is_told_to_end_leaves_none() -> None:
    serve = "with s.running_stack() as it: print(it.postgres_pid, flush=True); sys.stdin.read()"
    code = f"import sys, benchmarks.stack as s\n{serve}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        server = int(run.stdout.readline())
        assert alive(server)
        run.terminate()
    wait_until(lambda: not alive(server), "its database is gone")


def test_it_outlives_the_process_that_started_it_and_is_shared(home: Path) -> None:
    url = _elsewhere(home)
    pid = _pid(home)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("headroom",)
    assert _elsewhere(home) == embedded.embedded_url(home) == url
    assert _pid(home) == pid


def test_rivals_starting_it_share_one_server(home: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        urls = set(pool.map(_elsewhere, [home] * 3))
    assert len(urls) == 1
    with psycopg.connect(urls.pop()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_it_comes_back_after_a_crash_with_all_that_was_committed(home: Path) -> None:
    url = embedded.embedded_url(home)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(_pid(home), signal.SIGKILL)
    assert embedded.embedded_url(home) == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_pid_file_that_names_somebody_else_does_not_stop_it(home: Path) -> None:
    embedded.embedded_url(home)
    pid_file = home / "pgdata" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    embedded.stop_embedded(home)
    pid_file.write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    if os.geteuid() == 0:
        os.chown(pid_file, pid_file.parent.stat().st_uid, pid_file.parent.stat().st_gid)
    with psycopg.connect(embedded.embedded_url(home)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_half_made_one_is_made_anew(home: Path) -> None:
    (home / "pgdata.new" / "base").mkdir(parents=True)
    with psycopg.connect(embedded.embedded_url(home)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_data_of_another_version_is_left_alone(home: Path) -> None:
    data = home / "pgdata"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("15\n")
    with pytest.raises(StateError, match="PostgreSQL 15"):
        embedded.embedded_url(home)
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]


def test_a_home_too_deep_for_a_socket_still_works(home: Path) -> None:
    deep = home / ("d" * 90)
    try:
        with psycopg.connect(embedded.embedded_url(deep)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        assert embedded.stop_embedded(deep)


@pytest.mark.parametrize("name", ["my fleet", 'it\'s "ours", $HOME/`x` 100%', "Müllers + Söhne"])
def test_a_home_may_be_called_anything(home: Path, name: str) -> None:
    odd = home / name
    try:
        url = embedded.embedded_url(odd)
        migrate.upgrade(url)
        assert migrate.current(url) == migrate.head()
        with Database(url).listening("heard") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        assert embedded.stop_embedded(odd)


def test_it_is_durable_private_and_roomy(home: Path) -> None:
    database = Database(embedded.embedded_url(home))
    with database.raw() as connection:
        found = {
            name: connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("fsync", "synchronous_commit", "max_connections", "listen_addresses", "server_version_num")
        }
    database.dispose()
    assert found.pop("server_version_num", ("",)) >= ("180000",)
    assert found == {
        "fsync": ("on",),
        "synchronous_commit": ("on",),
        "max_connections": ("200",),
        "listen_addresses": ("",),
    }
    socket = home / "pgdata" / ".s.PGSQL.5432"
    assert socket.stat().st_mode & 0o077 == 0
