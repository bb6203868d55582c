"""History is read from a streaming replica while that keeps up; one that is behind, or gone, is passed over loudly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.cli.doctor.database import database_checks
from app.settings import Settings
from app.store.engine import Database
from app.store.migrate import upgrade
from app.store.replica import Reads, require_primary
from solvers.errors import StateError, TransientError
from tests.integration.availability.houses import Cloned
from tests.integration.faults.house import House, Process
from tests.integration.postgres import Standby, debian_binaries, running, standby
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LAG_S_MAX = 4.0
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headroom reports'"
AGE = "headroom-read-lag-s"


class Kept(Cloned):
    """A server with one database, which its replica has, too."""

    def fresh(self) -> str:
        url = self._server.create("kept")
        upgrade(url)
        return url


class Site:
    """An API process over a primary and a replica of it."""

    def __init__(self, house: House, replica: Standby) -> None:
        self.house, self.replica = house, replica
        self.read_url = replica.url("kept")
        wait_until(lambda: self._on_replica("SELECT to_regclass('events')") is not None, "the replica follows")
        self.api: Process = house.start_api(database_read_url=self.read_url, read_lag_s_max=str(LAG_S_MAX))
        self.http = httpx.Client(base_url=house.address, headers={"Authorization": f"Bearer {house.admin}"})

    def project(self, name: str) -> None:
        assert self.http.put(f"/v1/projects/{name}", json={"name": name}).status_code == 201

    def events(self) -> tuple[list[str], float | None]:
        """Subjects of the newest events, and how old the picture was."""
        answer = self.http.get("/v1/events", params={"limit": 5})
        assert answer.status_code == 200, answer.text
        age = answer.headers.get(AGE)
        return [each["subject"] for each in answer.json()["items"]], None if age is None else float(age)

    def backends(self) -> int:
        """Connections for reports that the replica has."""
        return int(
            self._on_replica("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headroom reports'")
        )

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.api.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == event]

    def _on_replica(self, query: str) -> Any:
        database = Database(self.read_url, pool_size=1)
        try:
            with database.raw() as connection:
                row = connection.execute(query.encode()).fetchone()
        finally:
            database.dispose()
        return None if row is None else row[0]


@pytest.fixture
def site() -> Iterator[Site]:
    with running(debian_binaries()) as primary:
        kept = Kept(primary)
        house = House(kept)
        with standby(primary, debian_binaries()) as replica:
            made = Site(house, replica)
            try:
                yield made
            finally:
                made.http.close()
                house.close()
                kept.end()


def test_reports_come_from_the_replica_and_from_the_primary_when_it_lags_or_is_gone(site: Site) -> None:
    lag, passed_over = "headroom_read_replica_lag_seconds", "headroom_read_replica_passed_over_total"
    wait_until(lambda: site.metric(lag) <= LAG_S_MAX, "the replica is measured")
    site.project("one")
    wait_until(lambda: site.events()[0][0] == "projects/one", "the replica has it, too")
    assert site.backends() > 0
    assert site.events()[1] is not None

    site.replica.follow(on=False)
    before = site.metric(passed_over)
    site.project("two")
    newest, age_s = site.events()
    assert newest[0] == "projects/two" or (age_s is not None and 0.0 <= age_s <= LAG_S_MAX)
    # A picture that is behind for longer than it may be is not shown.
    wait_until(lambda: site.events()[0][0] == "projects/two", "the primary answers")
    assert site.metric(lag) > LAG_S_MAX
    assert site.metric(passed_over) > before
    wait_until(lambda: site.said("replica.passed_over"), "it is told")
    assert site.http.get("/v1/projects/two").headers.get(AGE) is None, "documents are always fresh"
    site.project("three")
    newest, age_s = site.events()
    assert (newest[:2], age_s) == (["projects/three", "projects/two"], 0.0)

    site.replica.follow(on=True)
    wait_until(lambda: site.metric(lag) <= LAG_S_MAX, "it caught up")
    assert site.said("replica.used")
    count = len(site.said("replica.passed_over"))

    site.replica.stop()
    for _ in range(5):
        assert site.events()[0][0] == "projects/three", "nobody sees an error"
    wait_until(lambda: site.metric(lag) == math.inf, "it is known to be gone")
    assert len(site.said("replica.passed_over")) == count + 1, "one line for one outage"
    assert site.http.get("/v1/ready").status_code == 200
    site.replica.start()
    wait_until(lambda: site.metric(lag) <= LAG_S_MAX, "it is back")
    assert site.events()[0][0] == "projects/three"


def test_what_is_no_replica_is_never_read_and_one_away_is_told(site: Site) -> None:
    primary = Database(site.house.url)
    impostor = Reads(primary, Database(site.house.url), LAG_S_MAX)
    with pytest.raises(StateError, match="no replica"):
        impostor.measure()
    assert impostor.read(lambda session: 7) == 7
    assert impostor.passed_over == 1
    away = Reads(primary, Database(site.read_url), LAG_S_MAX)

    def keeps_up() -> bool:
        away.measure()
        return away.lag_s <= LAG_S_MAX

    # A replica that has just come back and replayed nothing yet cannot say how far it is.
    wait_until(keeps_up, "it can say how far it is")
    site.replica.stop()
    assert away.lag_s <= LAG_S_MAX
    assert away.read(lambda session: session.info or 8) == 8, "asked in vain, and then the primary"
    assert (away.passed_over, away.lag_s) == (1, math.inf)
    with pytest.raises(TransientError):
        away.measure()
    impostor.dispose()
    away.dispose()
    primary.dispose()
    site.replica.start()


def test_a_standby_in_the_primarys_place_is_away_and_no_fault_of_ours(site: Site) -> None:
    """As after a failover: whoever was connected to the primary of before gets errors that pass."""
    left_behind = Database(site.read_url, pool_size=1)
    with left_behind.reading() as session, pytest.raises(TransientError, match="a standby, which takes no writes"):
        require_primary(session)
    # A connection of the pool that nobody has read with, then one that was given back.
    for _ in range(2):
        with pytest.raises(TransientError), left_behind.transaction() as session:
            session.execute(text("SELECT pg_notify('bell', '7')"))
    with pytest.raises(TransientError), left_behind.listening("bell"):
        pass
    left_behind.dispose()
    primary = Database(site.house.url)
    with primary.reading() as session:
        require_primary(session)
    primary.dispose()


def test_the_doctor_says_how_far_it_is(site: Site) -> None:
    primary = Database(site.house.url)

    def told(url: str, lag_s_max: float = LAG_S_MAX) -> str:
        checks = database_checks(Settings(database_read_url=url, read_lag_s_max=lag_s_max), primary)
        (symptom,) = [check.symptom(20.0) for check in checks if check.name == "read replica"]
        return f"{symptom.state.value}: {symptom.found}"

    wait_until(lambda: told(site.read_url).startswith("well: it is "), "it keeps up")
    assert re.fullmatch(r"odd: it is [\d.]+ s behind, and passed over", told(site.read_url, 0.0))
    assert told(site.house.url).startswith("wrong: HEADROOM_DATABASE_READ_URL leads to a database that is no replica")
    site.replica.stop()
    assert told(site.read_url).startswith("wrong: database: ")
    site.replica.start()
    assert [check.name for check in database_checks(Settings(), primary) if check.name == "read replica"] == []
    primary.dispose()
