"""The closed loop of planner and gate holds still under noise, grows at once, and shrinks only when demand has been low
for long: many cycles over drawn demand, with time as an argument.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import Lane
from solvers.domain.change import ChangeKind, Target, Transition
from solvers.domain.codec import digest
from solvers.domain.ids import CycleId, PolicyName
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import DEMAND_BIN_S
from tests import builders
from tests.memory import World

LOOKBACK_S = 180.0
SETTLED_S = LOOKBACK_S + 60.0
"""All that is looked back upon was as it is."""
POLICY = Policy(name=PolicyName("default"), planners=("greedy",), cost_basis=CostBasis.SHARE)
"""Greed chooses by share, so that is what it saves."""
DISTURBING = {
    ChangeKind.STOP,
    ChangeKind.MOVE,
    ChangeKind.SWAP_MODEL,
    ChangeKind.SHRINK_SHARE,
    ChangeKind.GROW_SHARE,
    ChangeKind.SHRINK_MEMORY,
    ChangeKind.GROW_MEMORY,
}
Rate = Callable[[float], float]


@dataclass
class Loop:
    """Cycles every bin over drawn arrivals; the upper demand is that of the busiest bin of the look-back."""

    rates: dict[str, Rate]
    seed: int = 1
    snapshot: Snapshot = field(init=False)
    promoted: list[tuple[float, Transition]] = field(default_factory=list)
    _bins: dict[str, deque[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        services = [builders.service(name, rate_rps_declared=rate(0.0)) for name, rate in self.rates.items()]
        self.snapshot = replace(builders.lab(services, jobs=(builders.job(),)), policy=POLICY)
        self._bins = {name: deque(maxlen=round(LOOKBACK_S / DEMAND_BIN_S)) for name in self.rates}
        self._stream = random.Random(self.seed)
        self._now_s = 0.0

    def run(self, until_s: float) -> None:
        while self._now_s < until_s:
            self._cycle()
            self._now_s += DEMAND_BIN_S

    def since(self, moment_s: float) -> list[tuple[float, Transition]]:
        return [(at_s, transition) for at_s, transition in self.promoted if at_s >= moment_s]

    def capacity_rps(self, name: str) -> float:
        return sum(item.capacity_rps for item in self.snapshot.target.assignments if item.workload == f"demo/{name}")

    def _cycle(self) -> None:
        for name, rate in self.rates.items():
            mean = rate(self._now_s) * DEMAND_BIN_S
            self._bins[name].append(max(0.0, self._stream.gauss(mean, math.sqrt(mean))) / DEMAND_BIN_S)
        seen = tuple(builders.demand(f"demo/{name}", max(bins)) for name, bins in sorted(self._bins.items()))
        world = World(replace(self.snapshot, demands=seen, taken_at_s=self._now_s))
        order = CycleOrder(id=CycleId(f"c{self._now_s:g}"), lane=Lane.ACT, seed=1, software_version="0")
        record = run_cycle(world.ports, order)
        if record.generation is None or record.plan is None or record.transition is None:
            return
        self.promoted.append((self._now_s, record.transition))
        target = Target(
            generation=record.generation,
            plan=digest(record.plan),
            promoted_at_s=self._now_s,
            assignments=record.plan.assignments,
            settings=record.plan.settings,
        )
        self.snapshot = replace(self.snapshot, target=target)


def disturbed(promotions: Iterable[tuple[float, Transition]]) -> set[str]:
    """Replicas of services that were stopped, moved or replaced."""
    changes = (change for _, transition in promotions for change in transition.changes)
    return {change.subject for change in changes if change.kind in DISTURBING and "train" not in change.subject}


def flat(rate_rps: float) -> Rate:
    return lambda _: rate_rps


def wave(rate_rps: float, swing: float, period_s: float) -> Rate:
    return lambda now_s: rate_rps * (1.0 + swing * math.sin(2.0 * math.pi * now_s / period_s))


def step(rate_rps: float, factor: float, from_s: float, until_s: float = math.inf) -> Rate:
    return lambda now_s: rate_rps * (factor if from_s <= now_s < until_s else 1.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_constant_demand_with_noise_changes_nothing_after_the_first_plan(seed: int) -> None:
    loop = Loop({"vision": flat(120.0), "small": flat(8.0), "tiny": flat(1.0)}, seed)
    loop.run(600.0)
    assert [at_s for at_s, _ in loop.promoted] == [0.0]


@pytest.mark.parametrize("period_s", [120.0, 600.0])
def test_small_ups_and_downs_change_nothing_once_known(period_s: float) -> None:
    loop = Loop({"vision": wave(120.0, 0.05, period_s), "other": wave(60.0, 0.05, period_s * 1.3)})
    loop.run(max(600.0, 2 * period_s))
    assert loop.since(period_s) == []


def test_growth_is_answered_in_the_very_cycle_that_sees_it_and_only_adds() -> None:
    loop = Loop({"vision": step(120.0, 4.0, SETTLED_S), "other": flat(60.0)})
    loop.run(SETTLED_S + 100.0)
    grown = loop.since(DEMAND_BIN_S)
    assert grown[0][0] == SETTLED_S
    assert disturbed(grown) == set()
    assert loop.capacity_rps("vision") >= 4 * 120.0


def test_shrinking_waits_until_demand_was_low_for_the_whole_look_back() -> None:
    low_s = SETTLED_S + 300.0
    loop = Loop({"vision": step(120.0, 4.0, SETTLED_S, until_s=low_s), "other": flat(60.0)})
    loop.run(low_s + LOOKBACK_S - DEMAND_BIN_S)
    assert disturbed(loop.promoted) == set()
    peak_rps = loop.capacity_rps("vision")
    loop.run(low_s + 400.0)
    shrunk = loop.since(low_s + LOOKBACK_S - DEMAND_BIN_S)
    assert 1 <= len(shrunk) <= 2
    assert loop.capacity_rps("vision") < peak_rps / 2


def test_rise_and_fall_change_capacity_in_one_direction_each() -> None:
    period_s = 1800.0
    loop = Loop({"vision": wave(120.0, 0.5, period_s)})
    capacities_rps = []
    for quarter in range(1, 4):
        for part in range(1, 16):
            loop.run((quarter - 1 + part / 15) * period_s / 4)
            capacities_rps.append(loop.capacity_rps("vision"))
    turn = 15 + round(LOOKBACK_S / period_s * 60)
    assert capacities_rps[:turn] == sorted(capacities_rps[:turn])
    assert capacities_rps[turn:] == sorted(capacities_rps[turn:], reverse=True)
    assert capacities_rps[-1] < capacities_rps[turn]
    assert len(loop.promoted) <= 10
