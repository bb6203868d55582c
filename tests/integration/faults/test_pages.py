"""What operators' pages tell to type is typed here, in order, against real processes.

Runs every block of a page that is marked `sh`, as one script. Services are started and stopped by a `systemctl` of
its own, which asks the test; all else is what an operator has: `headroom`, PostgreSQL's programs, a shell.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from agents.wire import NodeTarget, decode
from app.store import migrate, tokens
from tests import nursery
from tests.integration.faults.fleet import DEVICES, busy, seed
from tests.integration.faults.house import House, Postgres, Process
from tests.integration.faults.invariants import Watch, behind, meets
from tests.integration.postgres import embedded_binaries, running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "reference"
LIMIT_S = 400.0
CONNECTED = """
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND starts_with(application_name, 'headroom')
UNION ALL SELECT 1 FROM leases WHERE expires_at > now()
"""
"""Or leads still, as a backup of this moment says too."""
SYSTEMCTL = """#!{python}
import socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({door!r})
    asked.sendall(" ".join(sys.argv[1:]).encode() + b"\\n")
    sys.exit(asked.makefile().read() != "done")
"""


def commands(page: str, heading: str = "") -> str:
    """What a page tells to type, below one of its headings alone where that is named."""
    text = (PAGES / page).read_text(encoding="utf-8")
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} tells nothing to type"
    return "\n".join(["set -euo pipefail", *blocks])


def typed_beside(script: str, url: str, folder: Path, **programs: str) -> None:
    """Run a page's commands beside a database alone; `programs` are shell lines that stand for what they are named."""
    for name, line in {"systemctl": "true", "headroom": "true", **programs}.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    path = f"{folder}:{embedded_binaries()}:{os.environ['PATH']}"
    environment = {"PATH": path, "HEADROOM_DATABASE_URL": url, "HEADROOM_TOKEN": "none"}
    done = subprocess.run(
        ["timeout", "60", "bash", "-c", script],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


class Services:
    """The house's API and planner as services with names."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._running: dict[str, Process | None] = {}

    def pretend(self, *names: str) -> None:
        """These run, as far as anybody who stops them knows."""
        self._running |= dict.fromkeys(names)

    def do(self, verb: str, *names: str) -> None:
        assert set(names) <= {"headroom-api", "headroom-planner"}, names
        if verb in ("stop", "restart"):
            for name in names:
                process = self._running.pop(name)
                if process is not None:
                    process.kill()
            self.house.await_true("they are gone", lambda: verb == "restart" or not self.house.one(CONNECTED))
        if verb in ("start", "restart"):
            for name in names:
                start = self.house.start_api if name == "headroom-api" else self.house.start_planner
                self._running[name] = start()

    @contextmanager
    def door(self, folder: Path) -> Iterator[None]:
        """A `systemctl` in a folder that has these services started and stopped."""
        program, place = folder / "systemctl", str(self.house.home / "services")
        program.write_text(SYSTEMCTL.format(python=sys.executable, door=place))
        program.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(place)
            door.listen()
            thread = threading.Thread(target=self._admit, args=(door,), daemon=True)
            thread.start()
            yield
            door.shutdown(socket.SHUT_RDWR)
            thread.join(10.0)
        Path(place).unlink()

    def _admit(self, door: socket.socket) -> None:
        while True:
            try:
                asked, _ = door.accept()
            except OSError:
                return
            with asked, asked.makefile() as lines:
                self.do(*lines.readline().split())
                asked.sendall(b"done")


def typed(house: House, page: str, folder: Path, services: Services) -> str:
    """What a page's commands print, once all have succeeded."""
    programs = folder / "bin"
    programs.mkdir()
    nursery.put_program(programs / "headroom", "app")
    own = {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")}
    environment = {
        **own, "PATH": f"{programs}:{embedded_binaries()}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "HEADROOM_DATABASE_URL": house.url, "HEADROOM_HOME": str(house.home), "HEADROOM_PORT": str(house.port),
        "HEADROOM_SERVER": house.address, "HEADROOM_TOKEN": house.admin,
    }  # fmt: skip
    work = folder / "work"
    work.mkdir()
    said = folder / "said"
    with services.door(programs), said.open("w") as stream:
        script = ["timeout", "-k", "5", f"{LIMIT_S}", "bash", "-c", commands(page)]
        done = subprocess.run(script, cwd=work, env=environment, stdout=stream, stderr=stream, check=False)
    assert done.returncode == 0, f"{page}: {said.read_text()[-4000:]}\n{house.story()}"
    return said.read_text()


RECORDED = ROOT / "tests" / "upgrade"
"""Of earlier revisions of the schema: a dump with what stood in it, and what an agent of that time asked and heard."""


@pytest.mark.parametrize("revision", sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir()))
def test_an_upgrade_from_an_earlier_revision(house: House, tmp_path: Path, revision: str) -> None:
    """The page's commands, on what that revision left; then an agent of its time says again what it said."""
    house.home.chmod(0o700)
    file = tmp_path / "dump.sql"
    file.write_bytes(lzma.decompress((RECORDED / revision / "dump.sql.xz").read_bytes()))
    house.change("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    psql = (embedded_binaries() / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", house.url, "-f", file)
    loaded = subprocess.run(psql, check=False, capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert migrate.current(house.url) == revision
    # However old the record is: what is done must not go by the day on which this runs.
    house.change("UPDATE plans SET created_at = created_at - interval '1 year'")
    house.change("UPDATE target_history SET promoted_at = promoted_at - interval '1 year'")
    # Of a year that nobody asks about a minute after the other would be billed beside the test.
    house.change("UPDATE accounting_marks SET at = now() - interval '3 days'")
    generation = house.generation()
    kept = house.rows(STOOD, generation)
    migrate.upgrade(house.url)
    house.admin = house.token(tokens.Role.ADMIN)
    house.join = house.token(tokens.Role.AGENT, purpose=tokens.Purpose.JOIN)
    migrate.downgrade(house.url, revision)
    services = Services(house)
    # What ran before the upgrade is not of this revision: only what the page says to start runs here.
    services.pretend("headroom-api", "headroom-planner")
    agent = house.start_agent("node-a", DEVICES)
    said = typed(house, "upgrade.md", tmp_path, services)
    assert f"schema is at {revision}, the newest is {migrate.head()}" in said
    assert house.rows(STOOD, generation) == kept
    house.await_true("the agent holds the target", lambda: not behind(house, "node-a"))
    agent.kill()
    house.change(
        "UPDATE node_states SET last_report_at = now() - interval '1 hour', joined_at = now() - interval '1 hour'"
    )
    _say_again(house, json.loads((RECORDED / revision / "wire.json").read_text(encoding="utf-8")))
    before = house.generation()
    house.start_agent("node-b", f"{DEVICES},{DEVICES}")
    with house.client() as client:
        busy(client, "search")
    house.await_true("planning goes on", lambda: house.beyond(before) and not behind(house, "node-b"))


STOOD = """
SELECT 'services', array_agg(spec::text ORDER BY spec::text) FROM services
UNION ALL SELECT 'points', array_agg(concat_ws(' ', model, gpu_type, batch, latency_ms_mean)) FROM
    (SELECT * FROM profile_points ORDER BY model, gpu_type, batch, share_pct_sm) AS point
UNION ALL SELECT 'promoted', array_agg(concat_ws(' ', generation, plan_id)) FROM
    (SELECT * FROM target_history WHERE promoted_by <> '' AND generation <= %s ORDER BY generation) AS past
"""


def _say_again(house: House, recorded: list[dict[str, Any]]) -> None:
    """Every request is answered as well as it was, and with nothing that an agent of that time would refuse."""
    shift_s = time.time() - max(item["body"]["observed_at_s"] for item in recorded if _observed(item))
    targets = [item["answer"] for item in recorded if item["path"].endswith("/target") and item["answer"] is not None]
    known = {name for target in targets for name in target}
    token = house.join
    for item in recorded:
        body = item["body"]
        if _observed(item):
            body = {**body, "observed_at_s": body["observed_at_s"] + shift_s}
        headers = {**item["headers"], "Authorization": f"Bearer {token}"}
        answer = httpx.request(item["method"], house.address + item["path"], json=body, headers=headers, timeout=30.0)
        assert answer.status_code in (200, 304), (item, answer.text)
        if answer.status_code == 304:
            continue
        found = answer.json()
        token = found.get("token", token)
        if item["path"].endswith("/target"):
            # An agent refuses a target with a field that it does not know.
            assert set(found) <= known, (set(found), known)
            decode(NodeTarget, found)
        elif item["answer"] is not None and not item["path"].endswith("/profile-runs"):
            assert set(found) >= set(item["answer"]), (item["path"], found)


def _observed(item: dict[str, Any]) -> bool:
    return isinstance(item["body"], dict) and "observed_at_s" in item["body"]


@pytest.fixture(scope="module")
def services(postgres: Postgres) -> Iterator[Services]:
    """A control plane with an agent that holds a target, for those pages that go on from one."""
    with closing(House(postgres)) as house:
        house.home.chmod(0o700)
        found = Services(house)
        found.do("start", "headroom-api")
        with house.client() as client:
            seed(client)
        house.start_agent("node-a", f"{DEVICES},{DEVICES}")
        found.do("start", "headroom-planner")
        house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, "node-a"))
        yield found


def test_capacity_planning(services: Services, tmp_path: Path) -> None:
    assert "node_samples" in typed(services.house, "capacity.md", tmp_path, services)


def test_backup_and_restore(services: Services, tmp_path: Path) -> None:
    said = typed(services.house, "backup.md", tmp_path, services)
    assert "epoch 1 is over" in said
    _goes_on(services.house)


def test_a_backup_comes_back_on_a_server_that_knows_no_role_of_it(database_url: str, tmp_path: Path) -> None:
    """To an owner of its database who may make roles, and nothing else; who reads the views there reads them again."""
    typed_beside(commands("backup.md", "Backup"), database_url, tmp_path)
    with running(embedded_binaries()) as other:
        with psycopg.connect(other.url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE ROLE mover LOGIN CREATEROLE")
            connection.execute("CREATE DATABASE moved OWNER mover")
        url = other.url("moved").replace("//headroom@", "//mover@")
        for _ in range(2):
            typed_beside(commands("backup.md", "Restore"), url, tmp_path)
        assert migrate.current(url) == migrate.head()
        with psycopg.connect(other.url("moved")) as connection:
            connection.execute("SET ROLE headroom_reader")
            assert connection.execute("SELECT count(*) FROM cost_by_service_hour").fetchone() == (0,)


def test_a_new_password_is_taken_by_all(tmp_path: Path) -> None:
    """On a server that asks for it; what restarts reads what the page wrote."""
    with running(embedded_binaries()) as server:
        rules = server.sockets / "data" / "pg_hba.conf"
        rules.write_text(f"local all keeper scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE ROLE keeper LOGIN PASSWORD 'before'")
            connection.execute("SELECT pg_reload_conf()")
        before = server.url("postgres").replace("//headroom@", "//keeper:before@")
        asks = "psql -q -d \"$HEADROOM_DATABASE_URL\" -c 'SELECT 1'"
        reads = f"HEADROOM_DATABASE_URL=$(sed s/^HEADROOM_DATABASE_URL=// database.env) && {asks} > restarted"
        typed_beside(commands("keys.md", "The database's password"), before, tmp_path, headroom=asks, systemctl=reads)
        assert "1 row" in (tmp_path / "restarted").read_text()
        assert (tmp_path / "database.env").stat().st_mode & 0o077 == 0
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(before)


def test_key_rotation(services: Services, tmp_path: Path) -> None:
    """Last, for it ends what the house was opened with."""
    house, before = services.house, services.house.admin
    said = typed(house, "keys.md", tmp_path, services)
    assert "administrator, next year" in said
    with house.client(before) as client:
        assert client.call("GET", "/v1/health").status == 200
    ended = house.rows("SELECT name FROM tokens WHERE revoked_at IS NOT NULL")
    assert ended == [("test-admin",)]
    assert (tmp_path / "work" / "gpu-9.token").read_text().startswith("hr_")


def _goes_on(house: House) -> None:
    with house.client() as client:
        busy(client, "labels")
    house.await_true("planning goes on", lambda: meets(house, "labels") and not behind(house, "node-a"))
    Watch(house)()
