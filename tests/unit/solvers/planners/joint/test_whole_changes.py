"""Counting that knows what stands: cheap without interruptions, and when an interruption is worth it after all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pytest

from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Generation, GpuTypeName
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import CostBasis, Objective
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity
from solvers.engines.deadline import Deadline
from solvers.models.worth import Step, worth_of
from solvers.planners.base import Budget, Thought
from solvers.planners.joint import change, planner
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.solve.reach import Reached, ReachTerms, reached
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from solvers.verify.checks import verify
from tests import builders
from tests.unit.solvers.planners.joint.seat.floors import CLOCKS, pattern, problem, workload

TERMS = ReachTerms(launch_usd_per_s=0.0002, restart_part=0.05, period_s=60.0, remembered_s=600.0)
PRICES = (1.0, 2.0, 10.0)
CHEAP, MIDDLE, DEAR = range(3)


def three_pools(*rates_rps: float, devices: Sequence[int] = (1, 1, 1)) -> JointProblem:
    """A device serves 100 rps, memory holds one replica. The first service may run on the cheap and middle pool, the
    others on cheap and dear.
    """
    made = problem(len(rates_rps), devices, workloads=tuple(workload(at, rate) for at, rate in enumerate(rates_rps)))
    allowed = np.ones((3, len(rates_rps)), dtype=bool)
    allowed[DEAR, 0] = False
    allowed[MIDDLE, 1:] = False
    pools = (replace(pool, usd_per_h=usd, memory_mib=2000.0) for pool, usd in zip(made.pools, PRICES, strict=True))
    return replace(made, pools=tuple(pools), allowed=allowed)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A problem with what stands, one network alone on each device."""

    problem: JointProblem
    standing: Layout


def scene(of: JointProblem, on: Mapping[int, int]) -> Scene:
    """Networks by device, numbered pool by pool."""
    pools = np.repeat(np.arange(len(of.pools)), of.pool_devices)
    count = Counter((int(pools[device]), network) for device, network in on.items())
    alone = {key: pattern(of, (key[1], 100), kind=len(CLOCKS) * key[0] + 1) for key in count}
    return Scene(problem=of, standing=Layout.of({alone[key]: count[key] for key in sorted(count)}))


def found(of: Scene, terms: ReachTerms = TERMS) -> Reached:
    return reached(of.problem, of.standing, (), terms, Deadline(10.0, 100))


def contents(of: Scene, made: Reached) -> dict[tuple[int, int], int]:
    """Devices by pool and network."""
    return {(int(of.problem.kind_pool[item.kind]), item.variants[0]): count for item, count in made.layout.pairs}


class TestReached:
    def test_money_interrupts_nobody(self) -> None:
        made = scene(three_pools(90.0, 90.0), {CHEAP: 0, DEAR: 1})
        # The other way round it would cost 3 $/h instead of 11, but the first service would end before it is replaced.
        assert contents(made, found(made)) == {(CHEAP, 0): 1, (DEAR, 1): 1}

    def test_where_memory_holds_both_shares_overlap_meanwhile(self) -> None:
        made = scene(three_pools(90.0, 90.0), {CHEAP: 0, DEAR: 1})
        roomy = tuple(replace(pool, memory_mib=4000.0) for pool in made.problem.pools)
        wide = replace(made, problem=replace(made.problem, pools=roomy))
        assert contents(wide, found(wide)) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}

    def test_nothing_starts_beside_who_is_dedicated(self) -> None:
        of = three_pools(90.0, 90.0)
        roomy = tuple(replace(pool, memory_mib=4000.0) for pool in of.pools)
        works = (replace(of.workloads[0], dedicated=True), of.workloads[1])
        made = scene(replace(of, pools=roomy, workloads=works), {CHEAP: 0, DEAR: 1})
        assert contents(made, found(made)) == {(CHEAP, 0): 1, (DEAR, 1): 1}

    def test_money_may_interrupt_where_interruptions_do_not_count(self) -> None:
        made = scene(three_pools(90.0, 90.0), {CHEAP: 0, DEAR: 1})
        assert contents(made, found(made, replace(TERMS, period_s=1e9))) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}

    def test_what_can_be_spared_makes_room(self) -> None:
        made = scene(three_pools(90.0, 90.0), {CHEAP: 0, MIDDLE: 0, DEAR: 1})
        assert contents(made, found(made)) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}

    def test_an_idle_device_needs_no_room(self) -> None:
        made = scene(three_pools(90.0, 90.0, devices=(2, 1, 1)), {CHEAP: 0, 3: 1})
        assert contents(made, found(made)) == {(CHEAP, 0): 1, (CHEAP, 1): 1}

    def test_who_would_stay_short_is_worth_a_short_interruption(self) -> None:
        of = three_pools(90.0, 90.0, devices=(1, 1, 0))
        made = scene(of, {CHEAP: 0})
        brief = found(made)
        assert contents(made, brief) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}
        assert brief.period_s == TERMS.period_s

    def test_a_long_one_is_weighed_by_how_long_demand_is_remembered(self) -> None:
        of = three_pools(90.0, 90.0, devices=(1, 1, 0))
        of = replace(of, variants=tuple(replace(item, launch_s=120.0) for item in of.variants))
        made = scene(of, {CHEAP: 0})
        assert found(made).period_s == TERMS.remembered_s
        assert contents(made, found(made)) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}
        # Where demand is forgotten at once, the one who stands keeps his place.
        hasty = found(made, replace(TERMS, remembered_s=0.0))
        assert contents(made, hasty)[CHEAP, 0] == 1

    def test_a_restart_must_save_what_it_counts(self) -> None:
        made = scene(three_pools(90.0, 90.0, devices=(2, 1, 1)), {2: 0, CHEAP: 1})
        assert contents(made, found(made)) == {(CHEAP, 0): 1, (CHEAP, 1): 1}
        assert contents(made, found(made, replace(TERMS, restart_part=1.1))) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}

    def test_what_covers_the_demand_itself_need_not_grow_for_headroom(self) -> None:
        of = three_pools(120.0, 90.0, devices=(2, 1, 1))
        works = (replace(of.workloads[0], rate_least_rps=95.0), of.workloads[1])
        made = scene(replace(of, workloads=works), {CHEAP: 0, 3: 1})
        assert contents(made, found(made)) == {(CHEAP, 0): 1, (CHEAP, 1): 1}
        short = scene(replace(of, workloads=(replace(works[0], rate_least_rps=105.0), works[1])), {CHEAP: 0, 3: 1})
        assert sum(count for (_, network), count in contents(short, found(short)).items() if network == 0) == 2

    @pytest.mark.parametrize(
        ("most", "starts_free", "moved"), [(0, False, 0), (2, False, 2), (0, True, 0), (2, True, 2), (4, False, 3)]
    )
    def test_no_more_starts_and_ends_than_one_promotion_may_cause(
        self, most: int, starts_free: bool, moved: int
    ) -> None:
        made = scene(three_pools(90.0, 90.0, 90.0, 90.0, devices=(3, 1, 3)), {3: 0, 4: 1, 5: 2, 6: 3})
        terms = replace(TERMS, changes_max=most, starts_free=starts_free)
        there = contents(made, found(made, terms))
        assert sum(count for (pool, _), count in there.items() if pool == CHEAP) == moved
        assert sum(there.values()) == 4

    def test_no_more_replicas_than_allowed(self) -> None:
        of = three_pools(150.0, 90.0, devices=(3, 0, 1))
        one = replace(of.workloads[0], replicas_max=1)
        made = scene(replace(of, workloads=(one, of.workloads[1])), {CHEAP: 0})
        assert contents(made, found(made))[CHEAP, 0] == 1


def test_a_gain_below_the_gap_is_none() -> None:
    made = scene(three_pools(90.0, 90.0, devices=(2, 1, 1)), {2: 0, CHEAP: 1})
    assert contents(made, found(made, replace(TERMS, gap=0.6))) == {(MIDDLE, 0): 1, (CHEAP, 1): 1}


def test_however_little_is_short_it_counts_more_than_devices() -> None:
    of = three_pools(100.5, 90.0, devices=(2, 1, 1))
    cheap = replace(of, workloads=tuple(replace(work, unserved_usd=0.1) for work in of.workloads))
    made = scene(cheap, {CHEAP: 0, 3: 1})
    assert sum(count for (_, network), count in contents(made, found(made)).items() if network == 0) == 2


def standing_apart(*, besides: bool = False, **policy: object) -> Snapshot:
    """One service on a T4 and one on an A100; the first may go to a V100, and the second would then cost less there.
    Besides, a third may go from an A100 to an L4 at once.
    """
    alone = Affinity(dedicated=True)
    nodes = (("a", "t4"), ("b", "v100"), ("c", "a100"), ("d", "a100"), ("e", "l4"))[: 5 if besides else 3]
    fleet = [builders.device(name, 0, kind) for name, kind in nodes]
    kinds = {"s0": ("t4",), "s1": ("a100",), **({"s2": ("a100",)} if besides else {})}
    services = [
        builders.service(name, rate_rps_declared=50.0, affinity=alone, gpu_types_allowed=allowed)
        for name, allowed in kinds.items()
    ]
    made = builders.policy(cost_basis=CostBasis.DEVICE, energy_usd_per_kwh=0.0, **policy)
    first = builders.snapshot(fleet, services, policy=made)
    plan = Joint().propose(builders.request(first), b"", SilentReporter()).plan
    assert plan is not None
    wider = (("t4", "v100"), ("t4", "a100"), ("l4", "a100"))[: len(services)]
    freed = [
        replace(item, gpu_types_allowed=tuple(map(GpuTypeName, names)))
        for item, names in zip(services, wider, strict=True)
    ]
    target = builders.target(plan.assignments, settings=plan.settings)
    return builders.snapshot(fleet, freed, policy=made, target=target)


def asked(picture: Snapshot, state: bytes = b"", by: Joint | None = None) -> Thought:
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=200))
    return (by or Joint()).think(request, state, SilentReporter())


def where(assignments: Sequence[Assignment]) -> set[tuple[str, str]]:
    """Services and nodes."""
    return {(item.workload.partition("/")[2], item.device.split("-")[1]) for item in assignments}


def worth_now(picture: Snapshot) -> Objective:
    """Of what stands."""
    return worth_of(picture, builders.everything_movable(picture), picture.target.assignments).objective


APART, MOVED = {("s0", "a"), ("s1", "c")}, {("s0", "b"), ("s1", "a")}


def test_where_interruptions_hardly_count_one_is_made() -> None:
    plan = asked(standing_apart(interruption_over_s=1e9)).proposal.plan
    assert plan is not None
    assert where(plan.assignments) == MOVED
    assert plan.toward is None


def test_money_makes_room_first_and_interrupts_nobody() -> None:
    picture = standing_apart(interruption_over_s=60.0)
    thought = asked(picture)
    plan = thought.proposal.plan
    assert plan is not None
    assert plan.toward is not None
    assert where(plan.assignments) == APART | {("s0", "b")}
    assert where(plan.toward.assignments) == MOVED
    now = worth_now(picture)
    assert plan.toward.objective.cost_usd_per_h < now.cost_usd_per_h < plan.objective.cost_usd_per_h
    assert 0 < (plan.arrived.bound_usd_per_h or 0) <= plan.toward.objective.cost_usd_per_h
    assert verify(picture, plan) == ()
    assert Step.of(picture, now, plan).worthwhile
    target = builders.target(plan.assignments, settings=plan.settings, generation=Generation(2))
    later = asked(replace(picture, target=target, taken_at_s=picture.taken_at_s + 100.0), thought.state)
    assert later.proposal.plan is not None
    assert where(later.proposal.plan.assignments) == MOVED
    assert later.proposal.plan.toward is None


def test_what_is_had_at_once_comes_before_room() -> None:
    picture = standing_apart(besides=True, interruption_over_s=60.0)
    thought = asked(picture)
    plan = thought.proposal.plan
    assert plan is not None
    assert plan.toward is None
    assert where(plan.assignments) == APART | {("s2", "e")}
    target = builders.target(plan.assignments, settings=plan.settings, generation=Generation(2))
    later = asked(replace(picture, target=target, taken_at_s=picture.taken_at_s + 100.0), thought.state).proposal.plan
    assert later is not None
    assert later.toward is not None
    assert where(later.toward.assignments) == MOVED | {("s2", "e")}


def standing_dear(count: int, **policy: object) -> Snapshot:
    """Services alone on an A100 each, which would all be served by L4s that are idle."""
    alone, names = Affinity(dedicated=True), [f"s{number}" for number in range(count)]
    fleet = [builders.device(f"{kind}{number}", 0, kind) for kind in ("a100", "l4") for number in range(count)]
    services = [builders.service(name, rate_rps_declared=50.0, affinity=alone) for name in names]
    made = builders.policy(cost_basis=CostBasis.DEVICE, energy_usd_per_kwh=0.0, **policy)
    dear = [replace(item, gpu_types_allowed=(GpuTypeName("a100"),)) for item in services]
    plan = asked(builders.snapshot(fleet, dear, policy=made)).proposal.plan
    assert plan is not None
    return builders.snapshot(fleet, services, policy=made, target=builders.target(plan.assignments))


def on(plan: Plan, kind: str) -> int:
    return sum(kind in item.device for item in plan.assignments)


def test_of_more_changes_than_one_promotion_may_cause_some_are_made() -> None:
    picture = standing_dear(5, changes_max=2)
    thought = asked(picture)
    for moved in (2, 4, 5):
        plan = thought.proposal.plan
        assert plan is not None
        assert (on(plan, "l4"), on(plan, "a100")) == (moved, 5 - moved)
        assert Step.of(picture, worth_now(picture), plan).worthwhile
        target = builders.target(plan.assignments, settings=plan.settings, generation=Generation(2))
        picture = replace(picture, target=target, taken_at_s=picture.taken_at_s + 200.0)
        thought = asked(picture, thought.state)


def weighed_by(terms_of: Callable[[ReachTerms], ReachTerms], **of_it: Any) -> Callable[..., Reached]:
    """What little changes make by other terms, with something else said `of_it`."""

    def made(problem: Any, standing: Any, fresh: Any, terms: ReachTerms, *more: Any, **named: Any) -> Reached:
        return replace(reached(problem, standing, fresh, terms_of(terms), *more, **named), **of_it)

    return made


def test_where_seating_makes_more_changes_than_one_promotion_may_fewer_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where that leaves nothing, the plan that is beyond is held."""

    def boundless(terms: ReachTerms) -> ReachTerms:
        return replace(terms, changes_max=inf)

    monkeypatch.setattr(change, "reached", weighed_by(boundless))
    picture = standing_dear(5, changes_max=4)
    plan = asked(picture).proposal.plan
    assert plan is not None
    assert on(plan, "l4") == 3
    assert Step.of(picture, worth_now(picture), plan).worthwhile
    monkeypatch.setattr(change, "reached", weighed_by(boundless, fewer=None))
    picture = standing_dear(5, changes_max=2)
    plan = asked(picture).proposal.plan
    assert plan is not None
    assert on(plan, "l4") == 5
    assert Step.of(picture, worth_now(picture), plan).waits_for_churn


def test_where_little_may_change_nothing_else_is_handed_over_and_less_time_searched() -> None:
    told = list[tuple[bool, int]]()

    def watched(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        told.append((order.better is not None, deadline.work_units or 0))
        return solve(problem, order, deadline)

    for changes_max in (1, 2):
        asked(standing_dear(5, changes_max=changes_max), by=Joint(solve=watched))
    (some, half), (every, most) = told
    assert (some, every) == (False, True)
    assert 0 < half < 0.8 * most


def test_of_very_many_others_are_open_once_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = list[int]()

    def watched(terms: ReachTerms) -> ReachTerms:
        turns.append(terms.turn)
        return terms

    monkeypatch.setattr(change, "reached", weighed_by(watched))
    picture = standing_dear(5, changes_max=2)
    state = asked(picture).state
    later = replace(picture, taken_at_s=picture.taken_at_s + change.FULL_EVERY_S)
    asked(later, state)
    moved = replace(later, target=replace(later.target, generation=Generation(7)))
    asked(moved, state)
    assert turns == [0, 1 + int(later.taken_at_s // change.FULL_EVERY_S) % change.TURNS, 0]


def test_no_room_is_made_for_what_changes_more_than_one_promotion_may_which_is_told() -> None:
    picture = standing_apart(interruption_over_s=60.0, changes_max=1)
    plan = asked(picture).proposal.plan
    assert plan is not None
    step = Step.of(picture, worth_now(picture), plan)
    assert (step.counted_changes, step.changes_after) == (1, 3)
    assert (step.within_churn, step.waits_for_churn, step.worthwhile) == (False, True, False)
    borne = replace(picture, policy=replace(picture.policy, changes_max=3))
    assert Step.of(borne, worth_now(picture), plan).worthwhile


@pytest.fixture
def finds_nothing(monkeypatch: pytest.MonkeyPatch) -> Joint:
    """A planner whose searches end with what stands."""

    def stays(
        _problem: object, standing: Layout, _fresh: object, terms: ReachTerms, *_: object, **_more: object
    ) -> Reached:
        return Reached(layout=standing, period_s=terms.period_s, left_usd=0.0, short=False)

    monkeypatch.setattr(change, "reached", stays)
    monkeypatch.setattr(planner, "counted", lambda *_: None)
    return Joint(solve=lambda _problem, order, _deadline: order.standing)


def test_what_room_was_made_for_follows_even_where_a_search_finds_nothing(request: pytest.FixtureRequest) -> None:
    picture = standing_apart(interruption_over_s=60.0)
    thought = asked(picture)
    plan = thought.proposal.plan
    assert plan is not None
    target = builders.target(plan.assignments, settings=plan.settings, generation=Generation(2))
    by = request.getfixturevalue("finds_nothing")
    later = asked(replace(picture, target=target, taken_at_s=picture.taken_at_s + 100.0), thought.state, by)
    assert later.proposal.plan is not None
    assert where(later.proposal.plan.assignments) == MOVED


def test_what_was_found_while_nothing_might_change_is_not_forgotten(request: pytest.FixtureRequest) -> None:
    picture = standing_apart(interruption_over_s=1e9, cooldown_s=600.0)
    young = replace(picture, target=replace(picture.target, promoted_at_s=picture.taken_at_s - 10.0))
    seen = asked(young)
    again = asked(replace(young, taken_at_s=young.taken_at_s + 5.0), seen.state)
    by = request.getfixturevalue("finds_nothing")
    later = asked(replace(young, taken_at_s=young.taken_at_s + 600.0), again.state, by)
    assert seen.proposal.plan is not None
    assert later.proposal.plan is not None
    assert where(seen.proposal.plan.assignments) == where(later.proposal.plan.assignments) == MOVED
    assert Step.of(picture, worth_now(picture), later.proposal.plan).worthwhile


def test_what_would_have_to_stand_dear_for_too_long_is_left() -> None:
    picture = standing_apart(interruption_over_s=60.0, cooldown_s=3600.0)
    young = replace(picture, target=replace(picture.target, promoted_at_s=picture.taken_at_s - 600.0))
    plan = asked(young).proposal.plan
    assert plan is not None
    assert where(plan.assignments) == APART
    old = asked(picture).proposal.plan
    assert old is not None
    assert old.toward is not None


def test_room_beyond_an_owners_bound_is_none() -> None:
    picture = standing_apart(interruption_over_s=60.0)
    bounded = tuple(replace(item, replicas_max=1) for item in picture.services)
    plan = asked(replace(picture, services=bounded)).proposal.plan
    assert plan is not None
    assert where(plan.assignments) == APART
