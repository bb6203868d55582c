"""PostgreSQL crashes and comes back while everything works: all processes find it again by themselves, the target has
one history, and what was acknowledged is still there.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.integration.faults.bells import Listener
from tests.integration.faults.fleet import HIGH_RPS, LOW_RPS, demand, seed
from tests.integration.faults.house import Background, House
from tests.integration.faults.invariants import Watch, behind, check_afterwards
from tests.integration.faults.reporters import Reporter

pytestmark = pytest.mark.integration

SEED = 5
NODES = ("node-a", "node-b")
CRASHES = 2
RECOVERY_S = 20.0


def test_everything_recovers_from_a_crash_of_the_database(house: House) -> None:
    stream = random.Random(SEED)
    api = house.start_api()
    with house.client() as client:
        seed(client)
    agents = [house.start_agent(node, "t4,t4") for node in NODES]
    planner = house.start_planner()
    house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
    reporter = Reporter(house.address, "node-c", house.join, stream)
    ending = threading.Event()
    thread = threading.Thread(target=reporter.run, args=(ending,), daemon=True)
    thread.start()
    try:
        with Background(Watch(house)), Listener(house) as listener:
            house.await_true("the bell is heard", lambda: listener.knows(house.generation))
            for number in range(CRASHES):
                _crash_amid_a_change(house, HIGH_RPS if number % 2 == 0 else LOW_RPS, stream)
                _await_recovery(house, listener, reporter)
    finally:
        ending.set()
        thread.join(30.0)
        reporter.close()
    assert not thread.is_alive()
    assert all(process.alive for process in (api, planner, *agents)), house.story()
    assert reporter.refused == []
    logged = house.rows("SELECT boot_id, sequence FROM report_log WHERE source = 'node/node-c'")
    assert sorted(tuple(row) for row in logged) == sorted(reporter.acknowledged), f"seed {SEED}"
    check_afterwards(house)


def _crash_amid_a_change(house: House, rate_rps: float, stream: random.Random) -> None:
    with house.client() as client:
        demand(client, rate_rps)
    time.sleep(stream.uniform(0.0, 1.0))  # a random moment of the change, not a wait for something
    house.postgres.crash()
    house.postgres.start()


def _await_recovery(house: House, listener: Listener, reporter: Reporter) -> None:
    """Reports are taken, a change of demand becomes a new target, agents apply it and the doorbell tells of it."""
    acknowledged = len(reporter.acknowledged)
    house.await_true("reports are taken", lambda: len(reporter.acknowledged) > acknowledged, RECOVERY_S)
    generation = house.generation()
    with house.client() as client:
        rate_rps = house.one("SELECT (spec ->> 'rate_rps_declared')::float8 FROM services WHERE name = 'search'")
        demand(client, LOW_RPS if rate_rps == HIGH_RPS else HIGH_RPS, "search")
    house.await_true("a new target", lambda: house.generation() > generation, RECOVERY_S)
    house.await_true("agents hold it", lambda: not behind(house, *NODES), RECOVERY_S)
    house.await_true("the bell told of it", lambda: listener.knows(house.generation), RECOVERY_S)
