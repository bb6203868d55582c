"""Planners are killed, or frozen beyond the end of their lease, at random moments while demand changes: the next one
takes over with a higher token, and the target's history has neither gaps nor repeats.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.integration.faults.fleet import DEVICES, SERVICES, busy, seed
from tests.integration.faults.house import Background, House, Process
from tests.integration.faults.invariants import Watch, behind, check_afterwards, meets
from tests.waiting import spend

pytestmark = pytest.mark.integration

SEED = 4_711
NODES = ("node-a", "node-b")
ROUNDS = 3
WRITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'headroom planner'
AND state = 'idle in transaction' AND backend_xid IS NOT NULL
"""
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'headroom planner'
AND wait_event_type = 'Lock' AND backend_xid IS NOT NULL
"""


def test_a_second_planner_takes_over_from_a_killed_one(house: House) -> None:
    stream = random.Random(SEED)
    house.start_api()
    with house.client() as client:
        seed(client)
    for node in NODES:
        house.start_agent(node, DEVICES)
    planners = [house.start_planner()]
    house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
    planners.append(house.start_planner())
    watch = Watch(house)
    with Background(watch):
        for number in range(ROUNDS):
            token = _token(house)
            name = SERVICES[number % 2]
            with house.client() as client:
                busy(client, name)
            spend(stream.uniform(0.0, 1.2))  # a random moment of the change, not a wait for something
            _kill_leader(house, planners)
            planners.append(house.start_planner())
            house.await_true(f"another leads (seed {SEED})", partial(_leads_after, house, token))
            house.await_true(f"the target meets busy {name} (seed {SEED})", partial(meets, house, name))
        house.await_true("all nodes hold the target", lambda: not behind(house, *NODES))
    assert watch.looks > 0
    assert watch.workers_seen > 0
    tokens = house.rows("SELECT DISTINCT fencing_token FROM target_history")
    assert len(tokens) > 1, "only one planner ever wrote"
    house.await_true("no cycle is left running by the dead", lambda: not _left_running(house))
    check_afterwards(house)


def test_a_leader_frozen_amid_a_write_neither_blocks_its_successor_nor_writes_after_it(house: House) -> None:
    house.start_api()
    with house.client() as client:
        seed(client)
    for node in NODES:
        house.start_agent(node, DEVICES)
    frozen = house.start_planner()
    house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
    with Background(Watch(house)), house.client() as client:
        token = _token(house)
        with house.held("LOCK TABLE target_history IN SHARE MODE"):  # its promotion stops in the middle
            busy(client, "labels")
            house.await_true("a promotion is caught", lambda: house.one(WAITING))
            frozen.freeze()
        house.await_true("it is frozen with writes not committed", lambda: house.one(WRITING))
        successor = house.start_planner()
        house.await_true("another leads", partial(_leads_after, house, token))
        house.await_true("the target meets busy labels", partial(meets, house, "labels"))
        frozen.thaw()
        busy(client, "search")
        house.await_true("the target meets busy search", partial(meets, house, "search"))
        house.await_true("all nodes hold the target", lambda: not behind(house, *NODES))
        assert frozen.alive, house.story()
        assert successor.alive, house.story()
    check_afterwards(house)


def _leader(house: House, planners: list[Process]) -> Process:
    holder = house.one("SELECT holder FROM leases WHERE name = 'planner'") or ""
    leader = next((process for process in planners if process.alive and f":{process.pid}:" in holder), None)
    assert leader is not None, f"no living planner is the holder {holder!r}"
    return leader


def _kill_leader(house: House, planners: list[Process]) -> None:
    leader = _leader(house, planners)
    leader.kill()
    house.await_true("its child follows it", lambda: leader.survivors() == [])


def _token(house: House) -> int:
    found: int = house.one("SELECT token FROM leases WHERE name = 'planner'") or 0
    return found


def _leads_after(house: House, token: int) -> bool:
    return _token(house) > token


def _left_running(house: House) -> list[object]:
    """Cycles that claim to run though their leader was deposed."""
    return list(
        house.rows("SELECT id, lane, holder FROM cycles WHERE state = 'running' AND fencing_token < %s", _token(house))
    )
