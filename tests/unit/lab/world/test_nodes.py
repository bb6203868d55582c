"""Nodes carry targets out as real agents do: shadows where there is room, gaps where there is none, drains first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agents.loop.steps import next_steps
from lab.world.ledger import bill
from lab.world.nodes import DRAIN_S_MAX, MIB_PER_GB, WorldNodes
from lab.world.queues import Carried
from lab.world.state import Leave, Process, State, TargetByDevice
from lab.world.world import state_of
from solvers.domain.change import Target
from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId, Generation, ServiceId
from solvers.domain.plan import Assignment, DeviceSetting
from tests.simulation.small_world import replica, scenario
from tests.unit.agents.builders import device_target, replica_target
from tests.unit.agents.loop.test_steps import Device

LAUNCH_S = 5.0
SERVICE = "demo/resnet50-trt"
FIRST, SECOND, FAR = (DeviceId(name) for name in ("GPU-n1-0", "GPU-n1-1", "GPU-n2-0"))


class Fleet:
    """The small world's nodes, told by hand."""

    def __init__(self) -> None:
        self.state: State = state_of(scenario(), scenario().policy)
        self.nodes = WorldNodes(
            state=self.state,
            launch_s=lambda model, cell: LAUNCH_S,
            memory_mib=lambda model, batch: 1500.0,
            queue_of=lambda process: process.queue,
            on_change=lambda cell: None,
        )

    def tell(self, *items: Assignment, instantly: bool = False, **rest: Any) -> None:
        generation = Generation(self.state.target.generation + 1)
        self.state.wish = TargetByDevice.of(Target(generation=generation, assignments=items, **rest))
        for host in self.state.hosts.values():
            self.nodes.hear(host, self.state.wish, instantly=instantly)
        self.state.kernel.happen()

    def wait(self, seconds: float) -> None:
        kernel, until_s = self.state.kernel, self.state.now_s + seconds
        while kernel.now_s < until_s:
            kernel.move(min(until_s, kernel.next_s()))
            kernel.happen()

    def standing(self) -> list[tuple[str, int, str, str]]:
        found = [each for cell in self.state.cells.values() for each in cell.processes]
        return [(each.item.replica[-1], each.item.share_pct_sm, each.cell.id, each.state.value) for each in found]

    def one(self) -> Process:
        (found,) = (each for cell in self.state.cells.values() for each in cell.processes)
        return found


def test_a_start_takes_its_launch() -> None:
    fleet = Fleet()
    fleet.tell(replica())
    assert fleet.standing() == [("0", 40, FIRST, "starting")]
    assert fleet.state.lanes[ServiceId(SERVICE)].processes == []
    fleet.wait(LAUNCH_S)
    assert fleet.standing() == [("0", 40, FIRST, "ready")]
    assert fleet.state.lanes[ServiceId(SERVICE)].processes == [fleet.one()]


def test_what_changes_live_keeps_its_process() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    before = fleet.one()
    fleet.tell(replica(batch=8, capacity_rps=150.0), settings=(DeviceSetting(device=FIRST, clock_mhz_sm=900),))
    assert fleet.one() is before
    assert (before.batch, before.item.capacity_rps, before.cell.clock_mhz) == (8, 150.0, 900)


def test_a_new_share_is_shadowed_where_there_is_room() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    fleet.tell(replica(share_pct_sm=60))
    assert fleet.standing() == [("0", 40, FIRST, "ready"), ("0", 60, FIRST, "starting")]
    fleet.wait(LAUNCH_S)
    assert fleet.standing() == [("0", 60, FIRST, "ready")]


def test_without_memory_the_old_one_stops_first() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    fleet.tell(replica(memory_mib_limit=14_000))
    assert fleet.standing() == [("0", 40, FIRST, "starting")]
    fleet.wait(LAUNCH_S)
    assert fleet.standing()[0][3] == "ready"


def test_neighbours_that_swap_shares_do_so_one_by_one_and_leave_no_gap() -> None:
    fleet = Fleet()
    fleet.tell(replica(0, share_pct_sm=70), replica(1, share_pct_sm=30), instantly=True)
    fleet.tell(replica(0, share_pct_sm=30), replica(1, share_pct_sm=70))
    states = []
    for _ in range(40):
        fleet.wait(0.5)
        found = fleet.standing()
        largest = {name: max(share for each, share, *_ in found if each == name) for name, *_ in found}
        assert sum(largest.values()) <= 100
        states.append(sum(state == "ready" for *_, state in found))
    assert fleet.standing() == [("0", 30, FIRST, "ready"), ("1", 70, FIRST, "ready")]
    assert min(states) == 2


def test_a_move_on_a_node_hands_over() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    fleet.tell(replica(device=SECOND))
    assert fleet.standing() == [("0", 40, FIRST, "ready"), ("0", 40, SECOND, "starting")]
    fleet.wait(LAUNCH_S)
    assert fleet.standing() == [("0", 40, SECOND, "ready")]


def test_what_may_leave_late_goes_on_until_then_and_makes_room_before() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    before = fleet.one()
    target = Target(generation=Generation(9), assignments=(replica(device=FAR),))
    fleet.state.wish = TargetByDevice.of(target, {FIRST: {before.item.replica: Leave(before.item, 30.0)}})
    for host in fleet.state.hosts.values():
        fleet.nodes.hear(host, fleet.state.wish)
    fleet.wait(20.0)
    assert fleet.standing() == [("0", 40, FIRST, "ready"), ("0", 40, FAR, "ready")]
    fleet.wait(10.0)
    fleet.nodes.reconcile(before.cell)
    fleet.state.kernel.happen()
    assert fleet.standing() == [("0", 40, FAR, "ready")]


def test_a_drain_works_off_its_queue_but_not_for_ever() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    process = fleet.one()
    process.carried = Carried(waiting_s=(0.5, 0.1))
    fleet.tell()
    assert fleet.standing() == [("0", 40, FIRST, "draining")]
    fleet.wait(3.0)
    assert fleet.standing() == [("0", 40, FIRST, "draining")]
    fleet.wait(DRAIN_S_MAX)
    assert fleet.standing() == []
    assert np.array_equal(fleet.state.lanes[ServiceId(SERVICE)].waiting_s, [0.1, 0.5])


def test_a_drain_waits_for_the_batch_that_runs() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    fleet.one().carried = Carried(free_s=0.3, executing=4)
    fleet.tell()
    fleet.wait(0.29)
    assert fleet.standing() == [("0", 40, FIRST, "draining")]
    fleet.wait(0.02)
    assert fleet.standing() == []


def test_dedicated_devices_hold_one_process_at_a_time() -> None:
    fleet = Fleet()
    alone = (DeviceSetting(device=FIRST, mode=DeviceMode.DEDICATED),)
    fleet.tell(replica(share_pct_sm=100), settings=alone, instantly=True)
    fleet.tell(replica(share_pct_sm=100, memory_mib_limit=3000), settings=alone)
    assert [state for *_, state in fleet.standing()] == ["starting"]


def test_old_targets_and_nodes_that_cannot_hear_change_nothing() -> None:
    fleet = Fleet()
    fleet.tell(replica(), instantly=True)
    host = fleet.one().cell.host
    fleet.nodes.hear(host, TargetByDevice())
    assert len(fleet.standing()) == 1
    host.silent = 1
    fleet.tell()
    assert len(fleet.standing()) == 1
    host.silent = 0
    fleet.nodes.hear(host, fleet.state.wish)
    fleet.state.kernel.happen()
    assert fleet.standing() == []


def test_usage_is_kept_for_the_bill() -> None:
    fleet = Fleet()
    fleet.tell(replica(share_pct_sm=100), instantly=True)
    fleet.wait(60.0)
    fleet.tell()
    (usage,) = fleet.nodes.usages
    assert (usage.begin_s, usage.end_s, usage.whole_gpu) == (0.0, 60.0, True)
    assert usage.memory_gb_used == pytest.approx(1500.0 * 1.048576e-3)
    assert usage.price_per_gb_s * usage.memory_gb_gpu * 3600.0 == pytest.approx(fleet.state.cells[FIRST].usd_per_h)


def test_every_stretch_is_billed_by_the_batch_that_was_held_in_it() -> None:
    fleet = Fleet()
    fleet.nodes.memory_mib = lambda model, batch: 1000.0 + 100.0 * batch
    fleet.tell(replica(batch=4, memory_mib_limit=4000), instantly=True)
    fleet.wait(60.0)
    fleet.tell(replica(batch=16, memory_mib_limit=4000))
    fleet.wait(10.0)
    told = [(each.begin_s, each.end_s, each.memory_gb_used * MIB_PER_GB) for each in fleet.nodes.standing_usages()]
    assert told == [(0.0, 60.0, pytest.approx(1400.0)), (60.0, 70.0, pytest.approx(2600.0))]
    price = fleet.state.cells[FIRST].usd_per_h / 3600.0
    assert bill(fleet.nodes.standing_usages()).occupied == pytest.approx(price * 70.0)


def test_a_batch_moved_between_plans_is_billed_and_what_lasted_no_time_is_not() -> None:
    fleet = Fleet()
    fleet.nodes.memory_mib = lambda model, batch: 1000.0 + 100.0 * batch
    fleet.tell(replica(batch=4, memory_mib_limit=4000), instantly=True)
    process = fleet.one()
    fleet.wait(30.0)
    for batch in (16, 8):
        process.become(process.item, batch, fleet.state.now_s)
    fleet.wait(10.0)
    fleet.tell()
    fleet.state.kernel.happen()
    told = [(each.seconds, each.memory_gb_used * MIB_PER_GB) for each in fleet.nodes.usages]
    assert told == [(30.0, pytest.approx(1400.0)), (10.0, pytest.approx(1800.0))]


CHANGES = (
    ((30, 4000), (70, 4000), (70, 4000), (30, 4000)),
    ((40, 9000), (50, 4000), (60, 9000), (40, 4000)),
    ((40, 4000), (50, 8000), (50, 8000), (40, 4000)),
    ((60, 12_000), (0, 0), (0, 0), (90, 14_000)),
    ((60, 6000), (0, 0), (0, 0), (90, 6000)),
)
"""Share and memory of two replicas, before and after."""


@pytest.mark.parametrize("shapes", CHANGES)
def test_who_begins_when_and_beside_whom_is_as_the_agents_have_it(shapes: tuple[tuple[int, int], ...]) -> None:
    pairs = [(f"{SERVICE}#{place % 2}", *shape) for place, shape in enumerate(shapes)]
    before, after = ([each for each in two if each[1]] for two in (pairs[:2], pairs[2:]))
    fleet = Fleet()
    for items, at_once in ((before, True), (after, False)):
        told = [replica(int(name[-1]), share_pct_sm=share, memory_mib_limit=mib) for name, share, mib in items]
        fleet.tell(*told, instantly=at_once)
    simulated = []
    for _ in range(200):
        found = {(each.item.replica, each.state.value) for each in fleet.state.cells[FIRST].processes}
        simulated.append(_begun(found))
        fleet.wait(0.1)
    device = Device("t4")
    device.hold(*(replica_target(*each) for each in before))
    target, agents = device_target(device.uuid, *(replica_target(*each) for each in after)), []
    for _ in range(200):
        device.take(next_steps(device.view(), target).steps)
        agents.append(_begun({(name, state.value) for name, (_, state) in device.held_all()}))
        device.clock.pass_s(0.5)
    assert _distinct(simulated) == _distinct(agents)


def _begun(found: set[tuple[str, str]]) -> tuple[tuple[str, bool], ...]:
    """Replicas that begin, and which of them still serve meanwhile."""
    return tuple(sorted((name, (name, "ready") in found) for name, state in found if state == "starting"))


def _distinct(seen: list[tuple[tuple[str, bool], ...]]) -> list[tuple[tuple[str, bool], ...]]:
    return [one for place, one in enumerate(seen) if one and (place == 0 or seen[place - 1] != one)]
