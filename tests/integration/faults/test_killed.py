"""Agents and planners are killed, and a planner frozen beyond the end of its lease, at random moments while demand
changes. An agent that is killed while it changes over to another generation ends at the current one once it is started
again. Of planners the next one takes over with a higher token, and the target's history has neither gaps nor repeats.
At no moment does a device hold more than it has.

All on one control plane, which lives on: each test begins from whatever the one before it left.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest

from tests.integration.faults.fleet import DEVICES, SERVICES, busy, seed
from tests.integration.faults.house import Background, House, Postgres, Process
from tests.integration.faults.invariants import Watch, behind, check_afterwards, held, meets, wanted
from tests.waiting import spend

pytestmark = pytest.mark.integration

SEED, SEED_OF_AGENTS = 4_711, 77
NODES = ("node-a", "node-b")
ROUNDS, KILLS = 3, 4
WRITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'headroom planner'
AND state = 'idle in transaction' AND backend_xid IS NOT NULL
"""
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'headroom planner'
AND wait_event_type = 'Lock' AND backend_xid IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Living:
    """A house and who lives in it."""

    house: House
    agents: dict[str, Process]
    planners: list[Process]


@pytest.fixture(scope="module")
def living(postgres: Postgres) -> Iterator[Living]:
    """A control plane with two nodes that hold a first plan."""
    with closing(House(postgres)) as house:
        house.start_api()
        with house.client() as client:
            seed(client)
        agents = {node: house.start_agent(node, DEVICES) for node in NODES}
        found = Living(house, agents, [house.start_planner()])
        house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
        yield found


def test_a_killed_agent_converges_to_the_current_generation(living: Living) -> None:
    house, stream, watch, cut_short = living.house, random.Random(SEED_OF_AGENTS), Watch(living.house), 0
    with Background(watch), house.client() as client:
        for number in range(KILLS):
            name = SERVICES[number % 2]
            busy(client, name)
            house.await_true(f"the target meets busy {name}", partial(meets, house, name))
            spend(stream.uniform(0.0, 0.5))  # a random moment of the change, not a wait for something
            changing = [str(row[0]) for row in behind(house, *NODES)]
            cut_short += bool(changing)
            node = stream.choice(changing or NODES)
            living.agents[node].kill()
            living.agents[node] = house.start_agent(node, DEVICES)
        house.await_true("all nodes hold the target", lambda: not behind(house, *NODES))
    assert cut_short > 0, "no kill hit a change"
    assert watch.looks > 0
    assert watch.workers_seen > 0
    for node in NODES:
        house.await_true(f"{node} runs what it shall", partial(_runs_what_it_shall, house, node))
    assert any(wanted(house, node) for node in NODES)
    check_afterwards(house)


def _runs_what_it_shall(house: House, node: str) -> bool:
    return held(house, node) == wanted(house, node)


def test_a_second_planner_takes_over_from_a_killed_one(living: Living) -> None:
    house, planners, stream, watch = living.house, living.planners, random.Random(SEED), Watch(living.house)
    planners.append(house.start_planner())
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


def test_a_leader_frozen_amid_a_write_neither_blocks_its_successor_nor_writes_after_it(living: Living) -> None:
    house, frozen = living.house, _leader(living.house, living.planners)
    for other in living.planners:
        if other is not frozen and other.alive:
            other.kill()
    first, second = ("labels", "search") if meets(house, "search") else ("search", "labels")
    with Background(Watch(house)), house.client() as client:
        token = _token(house)
        with house.held("LOCK TABLE target_history IN SHARE MODE"):  # its promotion stops in the middle
            busy(client, first)
            house.await_true("a promotion is caught", lambda: house.one(WAITING))
            frozen.freeze()
        house.await_true("it is frozen with writes not committed", lambda: house.one(WRITING))
        successor = house.start_planner()
        house.await_true("another leads", partial(_leads_after, house, token))
        house.await_true(f"the target meets busy {first}", partial(meets, house, first))
        frozen.thaw()
        busy(client, second)
        house.await_true(f"the target meets busy {second}", partial(meets, house, second))
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
