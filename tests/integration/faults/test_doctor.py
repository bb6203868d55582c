"""`headroom doctor` beside real processes: all is well, then one thing after the other is broken on purpose, and each
time the one line that is about it says so and what to do.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from app.cli.program import run
from app.settings import Settings
from app.store import migrate, tokens
from tests.integration.faults.fleet import DEVICES, seed
from tests.integration.faults.house import House, Postgres
from tests.integration.faults.invariants import behind
from tests.ports import free_port

pytestmark = pytest.mark.integration

LIMIT_S = "10"


class Patient:
    """Somebody on the house's machine who asks the doctor."""

    def __init__(self, house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.house, self._capsys, self._monkeypatch = house, capsys, monkeypatch
        for name in [name for name in os.environ if name.startswith("HEADROOM_")]:
            monkeypatch.delenv(name)
        home = house.home / "doctor"
        home.mkdir(mode=0o700)
        self.set(HEADROOM_DATABASE_URL=house.url, HEADROOM_HOME=str(home), HEADROOM_PORT=str(house.port))
        self.set(HEADROOM_SERVER=house.address, HEADROOM_TOKEN=house.admin)

    def set(self, **variables: str) -> None:
        for name, text in variables.items():
            self._monkeypatch.setenv(name, text)

    def told(self, *options: str) -> dict[str, dict[str, str]]:
        """Every line by its name; the status is that of the worst."""
        self._capsys.readouterr()
        status = run(["doctor", "--json", "--limit-s", LIMIT_S, *options])
        said = self._capsys.readouterr().out
        found = {line["check"]: line for line in json.loads(said)}
        assert status == (1 if any(line["state"] == "wrong" for line in found.values()) else 0)
        assert self.house.admin not in said
        return found

    def wrong(self, *names: str) -> dict[str, str]:
        """What is wrong, which is exactly these; the first one's line."""
        found = self.told()
        assert {name for name, line in found.items() if line["state"] == "wrong"} == set(names), found
        assert all(found[name]["todo"] for name in names)
        return found[names[0]]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What takes its time on a busy machine, so that only what hangs is late."""
    import app.api.server
    from app.cli.doctor.machine import machine_checks

    assert app.api.server
    for check in machine_checks(Settings(), serves=True):
        check.symptom(100.0)


@pytest.fixture
def patient(house: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Patient:
    return Patient(house, capsys, monkeypatch)


def content(house: House) -> dict[str, object]:
    """A digest of every table."""
    tables = house.rows(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
    )
    query = "SELECT md5(coalesce(string_agg(item::text, '' ORDER BY item::text), '')) FROM {} AS item"
    return {table: house.one(query.format(table)) for (table,) in tables}


def test_a_deployment_is_well_until_somebody_stops_it(house: House, patient: Patient) -> None:
    house.start_api()
    with house.client() as client:
        seed(client)
    agent = house.start_agent("node-a", DEVICES)
    planner = house.start_planner()
    house.await_true("a plan is applied", lambda: house.generation() > 0 and not behind(house, "node-a"))
    found = patient.told()
    assert {name: line for name, line in found.items() if line["state"] not in ("well", "odd")} == {}
    assert {"schema", "leader", "history", "notifications", "plans", "beliefs", "api clock"} <= set(found)
    assert "node-a" not in found["nodes"]["todo"]
    assert found["plans"]["found"].startswith("planned by")

    house.token(tokens.Role.VIEWER, ttl_s=86_400.0)
    assert patient.told()["tokens"]["found"].startswith("about to end: test-viewer in ")

    agent.kill()
    house.await_true("the node is silent", lambda: patient.told()["nodes"]["state"] == "wrong")
    assert patient.wrong("nodes")["found"] == "1 of 1 are silent: node-a"

    planner.kill()
    house.await_true("the lease has ended", lambda: patient.told()["leader"]["state"] == "wrong")
    assert patient.wrong("leader", "nodes")["todo"] == "start `headroom planner`"

    house.change("UPDATE cycles SET started_at = started_at - interval '1 day'")
    assert patient.wrong("plans", "leader", "nodes")["todo"] == "see whether a planner leads, and its log"

    house.change(
        "INSERT INTO receipts (node_id, boot_id, generation, outcome, observed_at, elapsed_ms, problems, document)"
        " SELECT node_id, boot_id, generation, 'refused', now(), 1, '{generation 1 is older than 9}', document"
        " FROM receipts ORDER BY id DESC LIMIT 1"
    )
    refusing = patient.wrong("history", "plans", "leader", "nodes")
    assert refusing["found"] == "node-a: generation 1 is older than 9"
    assert "headroom restore --new-epoch" in refusing["todo"]

    with house.held("LOCK TABLE receipts IN ACCESS EXCLUSIVE MODE"):
        # A process of its own: a look that hangs is left behind with its connection.
        said = house.run("doctor", "--json", "--limit-s", LIMIT_S)
        found = {line["check"]: line for line in json.loads(said.stdout)}
        assert found["history"]["found"] == f"no answer within {LIMIT_S} s"
        assert found["leader"]["state"] == "wrong"

    house.postgres.crash()
    try:
        found = patient.told()
        assert (found["database"]["state"], found["api"]["state"]) == ("wrong", "wrong")
        assert "schema" not in found
        assert "nodes" not in found
    finally:
        house.postgres.start()


def test_a_database_that_is_not_what_it_should_be(house: House, patient: Patient) -> None:
    """No API runs here, and no planner: `leader` and `api` are wrong throughout."""
    before = content(house)
    assert patient.wrong("leader", "api")["state"] == "wrong"
    assert content(house) == before

    name = urlsplit(house.url).path.lstrip("/")
    house.change(f"ALTER DATABASE {name} SET synchronous_commit = off")
    assert "synchronous_commit off" in patient.wrong("durability", "leader", "api")["found"]
    house.change(f"ALTER DATABASE {name} RESET synchronous_commit")

    house.change("CREATE TABLE report_log_p20200101 (); CREATE TABLE device_samples_p20200101 ()")
    assert "it trims" in patient.wrong("telemetry kept", "leader", "api")["todo"]
    house.change("INSERT INTO accounting_marks VALUES ('accounted_until', '2020-01-02 03:04Z')")
    late = patient.told()["telemetry kept"]
    assert (late["state"], "up to 2020-01-02 03:04 UTC" in late["found"]) == ("odd", True), late
    house.change("UPDATE accounting_marks SET at = now() WHERE name = 'accounted_until'")
    assert "it trims" in patient.wrong("telemetry kept", "leader", "api")["todo"]
    house.change("DELETE FROM accounting_marks")
    house.change("DROP TABLE report_log_p20200101, device_samples_p20200101")

    newest = migrate.head()
    migrate.downgrade(house.url, "0033")
    behind_head = patient.wrong("schema", "api")
    assert behind_head["found"] == f"the schema is at 0033, this software needs {newest}"
    assert behind_head["todo"].startswith("headroom migrate up")
    migrate.downgrade(house.url, "base")
    assert patient.wrong("schema", "api")["found"] == f"the schema is at base, this software needs {newest}"
    migrate.upgrade(house.url)

    house.change("CREATE ROLE doctor_reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO doctor_reader")
    try:
        patient.set(HEADROOM_DATABASE_URL=house.url.replace("headroom@", "doctor_reader@"))
        assert "may not write" in patient.wrong("rights", "leader", "api")["found"]
    finally:
        house.change("DROP OWNED BY doctor_reader; DROP ROLE doctor_reader")


def test_a_database_that_nobody_reaches(postgres: Postgres, patient: Patient) -> None:
    del postgres
    patient.set(HEADROOM_DATABASE_URL=f"postgresql://me:hush-hush@127.0.0.1:{free_port()}/headroom")
    told = patient.wrong("database", "api")
    assert "hush-hush" not in str(told)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        patient.set(HEADROOM_DATABASE_URL=f"postgresql://me:hush-hush@127.0.0.1:{mute.getsockname()[1]}/headroom")
        assert any(word in patient.wrong("database", "api")["found"] for word in ("no answer within", "timeout"))
    patient.set(HEADROOM_DATABASE_URL="nonsense:hush-hush@here")
    assert "hush-hush" not in str(patient.wrong("database", "api"))
    patient.set(HEADROOM_DATABASE_URL="")
    assert patient.told()["database"]["state"] == "unseen"


def test_an_embedded_database_that_does_not_run_is_told_and_not_started(patient: Patient, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "pgdata").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    patient.set(HEADROOM_DATABASE_URL="", HEADROOM_HOME=str(home))
    assert "does not run" in patient.wrong("database", "api")["found"]
    assert [path.name for path in home.rglob("*")] == ["pgdata"]


def test_a_pool_by_transaction_is_refused(house: House, patient: Patient) -> None:
    with pooled(house.url) as url:
        patient.set(HEADROOM_DATABASE_URL=url)
        assert "by transaction" in patient.wrong("notifications", "leader", "api")["found"]
    patient.set(HEADROOM_DATABASE_URL=house.url)
    assert patient.told()["notifications"]["state"] == "well"


def test_a_second_address_of_another_database_is_told(postgres: Postgres, house: House, patient: Patient) -> None:
    patient.set(HEADROOM_DATABASE_DIRECT_URL=postgres.url)
    line = patient.wrong("notifications", "leader", "api")
    assert line["found"] == "LISTEN at HEADROOM_DATABASE_DIRECT_URL does not hear HEADROOM_DATABASE_URL"
    patient.set(HEADROOM_DATABASE_DIRECT_URL=house.url.replace("port=5432", "port=5433"))
    assert "HEADROOM_DATABASE_DIRECT_URL" in patient.wrong("notifications", "leader", "api")["todo"]


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """The same database as such a pool shows it: what the server says by itself reaches nobody."""
    with psycopg.connect(url) as connection:
        path = f"{connection.info.host}/.s.PGSQL.{connection.info.port}"
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=_admit, args=(door, path), daemon=True).start()
        parts = urlsplit(url)
        yield f"postgresql://{parts.username}@127.0.0.1:{door.getsockname()[1]}{parts.path}?sslmode=disable"
        door.shutdown(socket.SHUT_RDWR)


def _admit(door: socket.socket, path: str) -> None:
    with suppress(OSError):
        while True:
            client, _ = door.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(path)
            threading.Thread(target=_say, args=(client, server), daemon=True).start()
            threading.Thread(target=_answer, args=(server, client), daemon=True).start()


def _say(client: socket.socket, server: socket.socket) -> None:
    with suppress(OSError), client, server:
        while data := client.recv(1 << 16):
            server.sendall(data)


def _answer(server: socket.socket, client: socket.socket) -> None:
    """Messages are a letter, a length that counts itself, and a body; an `A` is a notification."""
    with suppress(OSError), server.makefile("rb") as messages:
        while head := messages.read(5):
            body = messages.read(int.from_bytes(head[1:], "big") - 4)
            if head[:1] != b"A":
                client.sendall(head + body)
