"""An agent is killed while it changes over to another generation: started again it ends at the current one, and at no
moment does a device hold more than it has.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.integration.faults.fleet import DEVICES, SERVICES, busy, seed
from tests.integration.faults.house import Background, House
from tests.integration.faults.invariants import Watch, behind, check_afterwards, held, meets, wanted
from tests.waiting import spend

pytestmark = pytest.mark.integration

SEED = 77
NODES = ("node-a", "node-b")
KILLS = 4


def test_a_killed_agent_converges_to_the_current_generation(house: House) -> None:
    stream = random.Random(SEED)
    house.start_api()
    with house.client() as client:
        seed(client)
        agents = {node: house.start_agent(node, DEVICES) for node in NODES}
        house.start_planner()
        house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
        watch = Watch(house)
        cut_short = 0
        with Background(watch):
            for number in range(KILLS):
                name = SERVICES[number % 2]
                busy(client, name)
                house.await_true(f"the target meets busy {name}", partial(meets, house, name))
                spend(stream.uniform(0.0, 0.5))  # a random moment of the change, not a wait for something
                changing = [str(row[0]) for row in behind(house, *NODES)]
                cut_short += bool(changing)
                node = stream.choice(changing or NODES)
                agents[node].kill()
                agents[node] = house.start_agent(node, DEVICES)
            house.await_true(f"all nodes hold the target (seed {SEED})", lambda: not behind(house, *NODES))
        assert cut_short > 0, f"no kill hit a change (seed {SEED})"
        assert watch.looks > 0
        assert watch.workers_seen > 0
    for node in NODES:
        house.await_true(f"{node} runs what it shall (seed {SEED})", partial(_runs_what_it_shall, house, node))
    assert any(wanted(house, node) for node in NODES)
    check_afterwards(house)


def _runs_what_it_shall(house: House, node: str) -> bool:
    return held(house, node) == wanted(house, node)
