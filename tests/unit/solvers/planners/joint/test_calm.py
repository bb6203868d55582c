"""The closed loop of the joint planner and the gate holds still under noise and grows at once."""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.ids import PolicyName
from solvers.domain.policy import Policy
from tests.unit.solvers.cycle.test_calm import Loop, Rate, disturbed, flat, step

POLICY = Policy(name=PolicyName("default"), planners=("joint", "greedy"), deadline_s=0.5)


def loop(rates: dict[str, Rate]) -> Loop:
    made = Loop(rates)
    made.snapshot = replace(made.snapshot, policy=POLICY)
    return made


def test_constant_demand_with_noise_changes_nothing_after_the_first_plan() -> None:
    calm = loop({"vision": flat(120.0), "small": flat(8.0), "tiny": flat(1.0)})
    calm.run(80.0)
    assert [at_s for at_s, _ in calm.promoted] == [0.0]


def test_growth_is_answered_in_the_very_cycle_that_sees_it_and_only_where_it_is() -> None:
    grows_at_s = 40.0
    growing = loop({"vision": step(120.0, 4.0, grows_at_s), "other": flat(60.0)})
    growing.run(60.0)
    assert growing.since(10.0)[0][0] == grows_at_s
    assert {subject.partition("#")[0] for subject in disturbed(growing.since(10.0))} <= {"demo/vision"}
    assert growing.capacity_rps("vision") >= 4 * 120.0
