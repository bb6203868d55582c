"""Only what has a reason to change is opened, but for a full solve now and then, whenever cycles run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from app.settings import Settings
from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import CycleId, Generation, ModelName
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import SloScope
from solvers.engines.deadline import Deadline
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.joint import change
from solvers.planners.joint.attempt import Kept, remember
from solvers.planners.joint.change import (
    FULL_EVERY_S,
    REACH_PART,
    JointSearch,
    question_of,
    restless_of,
    scope_of,
    solved,
)
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.planners.joint.solve.reach import Reached, reached
from solvers.planners.joint.solve.solve import first_layout
from solvers.planners.registry import create, propose, think
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from solvers.verify.checks import is_fatal, verify
from tests import builders
from tests.memory import MemoryMemory, World

pytestmark = pytest.mark.usefixtures("unproven")

FULL_AT_S = 1_000_000.0
CAP_W = 170.0
QUIET_S = FULL_AT_S + FULL_EVERY_S - 1.0


def asked(picture: Snapshot) -> PlanRequest:
    """With little work, by which what little there is here is planned as well as by more."""
    return replace(builders.request(picture), budget=Budget(deadline_s=600.0, work_units=200))


@cache
def served(count: int = 10) -> Snapshot:
    """Ten services, served by a plan of our own."""
    services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(count)]
    picture = builders.lab(services)
    plan = propose("joint", asked(picture)).plan
    assert plan is not None
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target, taken_at_s=QUIET_S)


def world(**changes: Any) -> Snapshot:
    """The same, and what is different."""
    return replace(served(), **changes)


def opened(picture: Snapshot, full_at_s: float | None = FULL_AT_S) -> set[str] | None:
    reading = read(picture, builders.everything_movable(picture))
    scope = scope_of(reading, restless_of(reading), full_at_s)
    return None if scope is None else {reading.problem.workloads[number].id for number in scope}


def test_what_is_served_and_has_nothing_to_spare_rests() -> None:
    assert opened(world()) == set()


def test_everything_opens_when_its_hour_comes_and_before_anything_stands() -> None:
    picture = world()
    assert opened(replace(picture, taken_at_s=FULL_AT_S + FULL_EVERY_S)) is None
    assert opened(replace(picture, target=Target())) is None


def test_everything_opens_where_the_last_time_is_unknown_or_ahead() -> None:
    assert opened(world(), None) is None
    assert opened(world(), QUIET_S + 1.0) is None


def test_everything_opens_once_what_was_changed_since_may_be_changed_again() -> None:
    promoted_at_s = FULL_AT_S + 10.0
    picture = world(target=replace(served().target, promoted_at_s=promoted_at_s))
    free_at_s = promoted_at_s + picture.policy.cooldown_s
    assert opened(replace(picture, taken_at_s=free_at_s - 1.0)) == set()
    assert opened(replace(picture, taken_at_s=free_at_s)) is None
    assert opened(replace(picture, taken_at_s=free_at_s + 5.0), free_at_s) == set()


@cache
def read_once() -> Reading:
    """Of a small fleet: it is about when, not about what."""
    return read(served(2), builders.everything_movable(served(2)))


@pytest.mark.parametrize("phase_s", [0, 1, 14, 15, 29, 30, 31, 45, 59])
def test_every_pace_has_full_solves(phase_s: int) -> None:
    """The planner's own interval, from any second of a minute on, on a fleet where nothing happens."""
    interval_s = Settings(database_url="postgresql://").place_interval_s
    reading, full_at_s, state = read_once(), list[float](), b""
    whole = reading.problem

    def nothing(problem: JointProblem, order: object, deadline: Deadline) -> Layout:
        if problem is whole:
            full_at_s.append(now_s)
        return Layout(patterns=(), counts=())

    moments_s = [FULL_AT_S + phase_s + interval_s * number for number in range(15)]
    search = JointSearch(solve=nothing, deadline=Deadline(60.0))
    for now_s in moments_s:
        at = replace(served(2), taken_at_s=now_s)
        answer = solved(search, builders.request(at), replace(reading, snapshot=at), state)
        state = remember(whole, answer.kept)
    gaps_s = [later - earlier for earlier, later in zip(full_at_s, [*full_at_s[1:], moments_s[-1]], strict=True)]
    assert full_at_s[0] == moments_s[0]
    assert FULL_EVERY_S <= max(gaps_s) <= FULL_EVERY_S + interval_s
    assert len(full_at_s) == 3


def test_a_planner_that_began_late_in_a_minute_solves_everything_again() -> None:
    """Cycles of a calm fleet with the planner as it is, ended by work and not by a busy machine."""
    order = CycleOrder(id=CycleId("c1"), lane=Lane.ACT, seed=7, software_version="0.1.0")
    policy = replace(served().policy, planners=("joint",), deadline_s=600.0, work_units=100)
    memory = MemoryMemory()
    opened_each: list[object] = []
    for number in range(7):
        ports = World(world(policy=policy, taken_at_s=FULL_AT_S + 45.0 + 60.0 * number), memory=memory).ports
        proposal = run_cycle(ports, order).proposal
        assert proposal is not None
        assert proposal.insight is not None
        opened_each += [fact.value for fact in proposal.insight.facts if fact.name == "workloads_open"]
    assert opened_each == [10.0, 0.0, 0.0, 0.0, 0.0, 10.0, 0.0]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """What each look at what stands may take, and what it is told that an earlier one left."""
    found = list[tuple[float, float]]()

    def looked_at(
        problem: JointProblem, standing: Any, fresh: Any, terms: Any, deadline: Deadline, **more: Any
    ) -> Reached:
        found.append((deadline.time_left_s, terms.left_usd))
        return reached(problem, standing, fresh, terms, deadline, **more)

    monkeypatch.setattr(change, "reached", looked_at)
    return found


def test_little_changes_take_no_more_than_their_part_of_the_time(looks: list[tuple[float, float]]) -> None:
    """Where nothing is remembered, what stands is looked at before a search and after it."""
    picture = world(demands=(builders.demand("demo/s3", 500.0),))
    search = JointSearch(solve=lambda problem, *_: first_layout(problem), deadline=Deadline(60.0))
    solved(search, builders.request(picture), read(picture, builders.everything_movable(picture)), b"")
    assert len(looks) == 2
    assert max(looks)[0] <= REACH_PART * 60.0


def test_what_a_search_left_counts_while_the_same_stands_and_not_everything_is_solved(
    looks: list[tuple[float, float]],
) -> None:
    def told(picture: Snapshot, before: Snapshot, full_at_s: float = FULL_AT_S) -> list[float]:
        reading, earlier = (read(item, builders.everything_movable(item)) for item in (picture, before))
        kept = Kept(question=question_of(earlier, restless_of(earlier)), left_usd=0.7, full_at_s=full_at_s)
        search = JointSearch(solve=lambda problem, *_: first_layout(problem), deadline=Deadline(60.0))
        looks.clear()
        solved(search, builders.request(picture), reading, remember(reading.problem, kept))
        return [left_usd for _, left_usd in looks]

    moved, rising = (world(demands=(builders.demand("demo/s3", rps),)) for rps in (160.0, 150.0))
    assert opened(moved) == opened(rising) == {"demo/s3"}
    other = replace(rising, target=replace(rising.target, generation=Generation(2)))
    assert told(moved, rising) == [0.7]
    assert told(moved, other) == [0.0]
    assert told(moved, rising, full_at_s=FULL_AT_S - FULL_EVERY_S) == [0.0, 0.0]


def placed(picture: Snapshot, state: bytes | None, deadline_s: float = 60.0) -> tuple[set[str], bytes | None]:
    """Jobs with a place, and what is remembered."""
    request = replace(builders.request(picture), budget=Budget(deadline_s=deadline_s))
    thought = think(create("joint"), request, state, SilentReporter())
    assert thought.proposal.plan is not None
    named = {job.id for job in picture.jobs}
    return {item.workload for item in thought.proposal.plan.assignments} & named, thought.state or state


def test_jobs_that_came_since_are_asked_for_until_they_have_their_place() -> None:
    """Whoever had no time for them looks again, and so does whoever found a plan that is no target yet."""
    picture = replace(world(), taken_at_s=FULL_AT_S)
    _, state = placed(picture, None)
    later = replace(picture, taken_at_s=FULL_AT_S + 10.0, jobs=(builders.job("late", value_usd_per_h=50.0),))
    found, state = placed(later, state, 1e-3)
    assert not found
    for _ in range(3):
        later = replace(later, taken_at_s=later.taken_at_s + 10.0)
        found, state = placed(later, state)
        assert found == {"demo/late"}


@pytest.mark.parametrize("full_at_s", [FULL_AT_S, FULL_AT_S - FULL_EVERY_S])
@pytest.mark.parametrize("late", [False, True])
def test_a_question_whose_time_ended_is_no_answered_one(
    monkeypatch: pytest.MonkeyPatch, full_at_s: float, *, late: bool
) -> None:
    """However much was looked at."""
    picture = world(jobs=(builders.job("new", value_usd_per_h=0.0),))
    reading, looked = read(picture, builders.everything_movable(picture)), list[Reached]()

    def slow(*given: Any, **more: Any) -> Reached:
        looked.append(reached(*given, **more))
        given[-1].seconds *= not late
        return looked[-1]

    monkeypatch.setattr(change, "reached", slow)
    state = remember(reading.problem, Kept(full_at_s=full_at_s))
    for asked_before in range(3):
        search = JointSearch(solve=lambda problem, *_: first_layout(problem), deadline=Deadline(60.0))
        found = solved(search, builders.request(picture), reading, state)
        state = remember(reading.problem, found.kept)
        assert len(looked) == (asked_before + 1 if late else 1)
        assert found.searched == (full_at_s < FULL_AT_S and not asked_before)


def tightened() -> dict[str, dict[str, Any]]:
    """What limits several together, with a little less than what stands has."""
    picture = served()
    spent = sum(item.share_pct_sm for item in picture.target.assignments) / 100
    first, *others = picture.services
    return {
        "quota": {"projects": tuple(replace(item, quota_gpus=0.5 * spent) for item in picture.projects)},
        "budget": {"services": (replace(first, budget_usd_per_h=1e-3), *others)},
        "cap": {"power_caps": (PowerCap(scope=PowerScope.CLUSTER, subject=picture.cluster, limit_w=CAP_W),)},
    }


@pytest.mark.parametrize("kind", ["quota", "budget", "cap"])
def test_what_stands_beyond_a_limit_that_came_later_does_not_stay(kind: str) -> None:
    picture = world(**tightened()[kind])
    assert opened(picture) is None
    reading = read(served(), builders.everything_movable(served()))
    kept = remember(reading.problem, Kept(full_at_s=FULL_AT_S, question=question_of(reading, restless_of(reading))))
    thought = think(create("joint"), asked(picture), kept, SilentReporter())
    assert thought.proposal.plan is not None
    assert not is_fatal(verify(picture, thought.proposal.plan, builders.everything_movable(picture)))


def test_who_needs_more_is_opened() -> None:
    picture = world(demands=(builders.demand("demo/s3", 500.0),))
    assert opened(picture) == {"demo/s3"}


def test_who_could_do_with_fewer_is_opened() -> None:
    services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(9)]
    picture = builders.lab([*services, builders.service("much", rate_rps_declared=1800.0)])
    plan = propose("joint", asked(picture)).plan
    assert plan is not None
    assert sum(item.workload == "demo/much" for item in plan.assignments) > 1
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    calm = replace(picture, target=target, taken_at_s=QUIET_S)
    assert "demo/much" not in (opened(calm) or set())
    assert "demo/much" in (opened(replace(calm, demands=(builders.demand("demo/much", 50.0),))) or set())


def test_who_can_always_use_more_rests_with_plenty() -> None:
    services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(9)]
    slo = builders.slo(scope=SloScope.EXECUTION)
    picture = builders.lab([*services, builders.service("much", rate_rps_declared=1500.0, slo=slo)])
    others = tuple(builders.demand(item.id, 60.0) for item in services)
    picture = replace(picture, demands=others)
    plan = propose("joint", asked(picture)).plan
    assert plan is not None
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    fewer = tuple(replace(item, rate_rps_declared=50.0) if item.name == "much" else item for item in picture.services)
    calm = replace(picture, target=target, taken_at_s=QUIET_S, services=fewer)
    assert "demo/much" not in (opened(calm) or set())
    counted = replace(calm, demands=(builders.demand("demo/much", 50.0), *others))
    assert "demo/much" in (opened(counted) or set())


def test_who_could_do_with_much_less_share_is_opened() -> None:
    picture = builders.lab([builders.service("much", rate_rps_declared=150.0)])
    plan = propose("joint", asked(picture)).plan
    assert plan is not None
    assert len(plan.assignments) == 1
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    calm = replace(picture, target=target, taken_at_s=QUIET_S)
    assert opened(calm) == set()
    assert opened(replace(calm, demands=(builders.demand("demo/much", 20.0),))) == {"demo/much"}


def test_who_lost_a_replica_or_may_not_run_it_is_opened() -> None:
    picture = world()
    first = picture.target.assignments[0]
    without = replace(picture, target=replace(picture.target, assignments=picture.target.assignments[1:]))
    assert first.workload in (opened(without) or set())
    other = tuple(
        replace(item, model=ModelName("vgg")) if item.workload == "demo/s1" else item
        for item in picture.target.assignments
    )
    found = opened(replace(picture, target=replace(picture.target, assignments=other)))
    assert found is None or "demo/s1" in found  # None: everything is opened


def test_with_many_open_all_are() -> None:
    picture = world(demands=tuple(builders.demand(f"demo/s{number}", 400.0) for number in range(5)))
    assert opened(picture) is None


def test_what_was_held_while_a_promotion_was_fresh_is_asked_again_when_it_no_longer_is() -> None:
    picture = world()
    promoted = replace(picture, target=replace(picture.target, promoted_at_s=QUIET_S))
    asked = [
        question_of(read(later, builders.everything_movable(later)), frozenset())
        for age_s in (0.0, picture.policy.cooldown_s - 1.0, picture.policy.cooldown_s, 2 * picture.policy.cooldown_s)
        for later in (replace(promoted, taken_at_s=QUIET_S + age_s),)
    ]
    assert asked[0] == asked[1] != asked[2] == asked[3]
