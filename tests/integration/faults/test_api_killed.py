"""The API is killed while nodes report: what it acknowledged is stored, whole and once; what it did not is sent again
and then stored, whole and once.
"""

from __future__ import annotations

import random
import threading

import pytest

from app.store.engine import Database
from tests.integration.faults.fleet import seed
from tests.integration.faults.house import House, Process
from tests.integration.faults.invariants import DOUBLED
from tests.integration.faults.reporters import DEVICES_PER_NODE, REPLICAS_PER_NODE, Reporter, report
from tests.integration.store.samples import tell
from tests.waiting import spend

pytestmark = pytest.mark.integration

SEED = 20_241
NODES = 4
KILLS = 2
SLOW_COMMIT = """
CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT OR UPDATE ON report_heads DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION slow_commit()
"""
COMMITTING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
"""
REPORTS_BETWEEN = 50


def test_acknowledged_reports_survive_a_killed_api_whole_and_once(house: House) -> None:
    stream = random.Random(SEED)
    api = house.start_api()
    with house.client() as client:
        seed(client)
    reporters = [
        Reporter(house.address, f"node-{number}", house.join, random.Random(stream.random())) for number in range(NODES)
    ]
    database = Database(house.url, pool_size=1)
    with database.transaction() as session:
        for each in reporters:
            tell(session, each.node, *report(each.node, each.boot_id, 1, 0.0).replicas)
    database.dispose()
    ending = threading.Event()
    threads = [threading.Thread(target=reporter.run, args=(ending,), daemon=True) for reporter in reporters]
    for thread in threads:
        thread.start()
    try:
        _await_progress(house, reporters)
        _kill_mid_stream(api, stream)
        api = house.start_api()
        _await_progress(house, reporters)
        _kill_mid_commit(house, api)
        house.start_api()
        _await_progress(house, reporters)
    finally:
        ending.set()
        for thread in threads:
            thread.join(30.0)
        for reporter in reporters:
            reporter.close()
    assert not any(thread.is_alive() for thread in threads), f"seed {SEED}"
    _check_stored(house, reporters)


def _await_progress(house: House, reporters: list[Reporter]) -> None:
    """Every node gets more reports acknowledged, so that the next fault hits a full stream."""
    before = [len(reporter.acknowledged) for reporter in reporters]
    house.await_true(
        "every node reports",
        lambda: all(
            len(reporter.acknowledged) >= count + REPORTS_BETWEEN
            for reporter, count in zip(reporters, before, strict=True)
        ),
    )


def _kill_mid_stream(api: Process, stream: random.Random) -> None:
    spend(stream.uniform(0.0, 0.05))  # a random moment, not a wait for something
    api.kill()


def _kill_mid_commit(house: House, api: Process) -> None:
    """The worst moment: the database commits, and nobody is left to tell the nodes."""
    house.change(SLOW_COMMIT)
    house.await_true("a commit is under way", lambda: house.one(COMMITTING))
    api.kill()
    house.change("DROP FUNCTION slow_commit CASCADE")


def _check_stored(house: House, reporters: list[Reporter]) -> None:
    sent = {
        (f"node/{reporter.node}", boot_id, sequence)
        for reporter in reporters
        for boot_id, sequence in reporter.acknowledged
    }
    assert all(reporter.refused == [] for reporter in reporters), [reporter.refused[:2] for reporter in reporters]
    assert all(len(reporter.acknowledged) == reporter.sequence for reporter in reporters)
    assert sum(reporter.resent for reporter in reporters) >= KILLS, "the kills hit nobody"
    assert sum(reporter.repeats for reporter in reporters) > 0, "nothing was committed without being acknowledged"
    assert house.rows(DOUBLED) == []
    logged = {tuple(row) for row in house.rows("SELECT source, boot_id, sequence FROM report_log")}
    assert logged == sent, f"seed {SEED}: lost {sorted(sent - logged)[:5]}, unasked {sorted(logged - sent)[:5]}"
    for table, rows in (("device_samples", DEVICES_PER_NODE), ("replica_samples", REPLICAS_PER_NODE)):
        stored = house.rows(
            "SELECT 'node/' || node_id, boot_id, sequence, count(*), bool_and(energy_j = sequence)"
            f" FROM {table} GROUP BY 1, 2, 3"
        )
        assert {tuple(row[:3]) for row in stored} == sent, table
        assert {(row[3], row[4]) for row in stored} == {(rows, True)}, table
    heads = house.rows("SELECT source, boot_id, sequence FROM report_heads")
    assert {tuple(row) for row in heads} == {(f"node/{each.node}", each.boot_id, each.sequence) for each in reporters}
