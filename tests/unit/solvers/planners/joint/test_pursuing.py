"""Where the policy names capacity before cost, what is idle carries more, and what stands is not moved for little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.ids import Generation, ServiceId
from solvers.domain.plan import Plan
from solvers.domain.policy import Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.planners import registry
from solvers.planners.joint import spare
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.spare import contents_of, pursues
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders

CROWDED = [(7000, (60.0, 40.0, 40.0, 90.0), 1.2), (5000, (40.0, 90.0, 60.0, 20.0), 1.5)]
ORDER = (Term.UNSERVED, Term.SLO_RISK, Term.CAPACITY)


def picture(order: tuple[Term, ...] = ORDER, rate_rps: float = 50.0, **changes: Any) -> Snapshot:
    services = [
        builders.service("one", rate_rps_declared=rate_rps, replicas_max=3),
        builders.service("two", rate_rps_declared=20.0, replicas_max=3),
    ]
    devices = [builders.device("a", 0, "t4"), builders.device("a", 1, "t4"), builders.device("b", 0, "t4")]
    policy = builders.policy(objective=order, work_units=200)
    return replace(builders.snapshot(devices, services, policy=policy), **changes)


def planned(seen: Snapshot) -> Plan:
    plan = registry.propose("joint", builders.request(seen)).plan
    assert plan is not None
    assert not is_fatal(verify(seen, plan, builders.everything_movable(seen)))
    return plan


def stood(seen: Snapshot, plan: Plan) -> Snapshot:
    target = replace(
        seen.target, generation=Generation(1), assignments=plan.assignments, settings=plan.settings, promoted_at_s=0.0
    )
    return replace(seen, target=target)


def processes(plan: Plan) -> set[tuple[object, ...]]:
    return {(item.replica, item.device, item.share_pct_sm, item.memory_mib_limit) for item in plan.assignments}


def test_idle_devices_and_spare_share_carry_more() -> None:
    thrifty, eager = planned(picture(())), planned(picture())
    assert thrifty.objective.capacity_rps == 0.0, "nobody asked"
    counted = verify_capacity(thrifty)
    assert eager.objective.capacity_rps > 1.5 * counted
    assert eager.objective.unserved == 0.0
    assert len({item.device for item in eager.assignments}) == 3
    assert max(sum(1 for item in eager.assignments if item.workload == f"demo/{name}") for name in ("one", "two")) <= 3


@pytest.mark.parametrize("rate_rps", [300.0, 700.0])
def test_of_many_contents_those_are_looked_at_that_the_relaxed_optimum_is_made_of(
    rate_rps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices from few columns are those of all: what they leave out would not be taken."""
    every = planned(picture(rate_rps=rate_rps))
    monkeypatch.setattr(spare, "COLUMNS_MAX", 12)
    monkeypatch.setattr(spare, "ENTER_MAX", 1)
    monkeypatch.setattr(spare, "SHAKES", 0)
    assert planned(picture(rate_rps=rate_rps)).objective.capacity_rps == pytest.approx(every.objective.capacity_rps)


def verify_capacity(plan: Plan) -> float:
    """What the plan's full batches carry, whatever its policy asks."""
    return sum(
        1000 * item.batch / builders.latency_ms("t4", item.batch, item.share_pct_sm) for item in plan.assignments
    )


def test_what_was_planned_stands() -> None:
    first = planned(picture())
    again = planned(stood(picture(), first))
    assert processes(again) == processes(first)
    assert again.objective.churn == 0.0


def granted(plan: Plan) -> dict[str, float]:
    return {
        name: sum(item.capacity_rps for item in plan.assignments if item.workload == f"demo/{name}")
        for name in ("one", "two")
    }


def asked(seen: Snapshot, name: str, rate_rps: float) -> Snapshot:
    services = (replace(item, rate_rps_declared=rate_rps) if item.name == name else item for item in seen.services)
    return replace(seen, services=tuple(services))


@pytest.mark.parametrize("groups", [0, 8], ids=["of-pools", "by-group"])
def test_who_becomes_short_is_served_and_others_stay(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "GROUPS_MAX", groups)
    first = planned(picture())
    least_rps, least = min((rate, name) for name, rate in granted(first).items())
    again = planned(stood(asked(picture(), least, least_rps * 1.2), first))
    assert again.objective.unserved == 0.0
    assert again.objective.capacity_rps > 0.5 * first.objective.capacity_rps


def test_however_little_is_missing_it_is_served_and_the_rest_still_carries_most() -> None:
    """A tenth of a request/s is no reason to fall back to the cheapest plan."""
    seen = picture(devices=(builders.device("a", 0, "t4"), builders.device("a", 1, "t4")))
    first = planned(seen)
    most_rps = granted(planned(stood(asked(seen, "one", granted(first)["one"] * 1.02), first)))["one"]
    little, more = (planned(stood(asked(seen, "one", most_rps * times), first)) for times in (1.0003, 1.01))
    assert processes(more) != processes(first), "what stands is not enough"
    assert little.objective.unserved == more.objective.unserved == 0.0
    assert little.objective.capacity_rps >= more.objective.capacity_rps


@pytest.mark.parametrize(("over_s", "stands"), [(1.0, True), (3600.0, False)])
def test_a_shortage_that_interrupting_would_outweigh_is_borne(over_s: float, stands: bool) -> None:
    small = replace(builders.device("a", 0, "t4"), memory_mib=4500)  # holds both, and nothing beside them
    crowded = picture(devices=(small,))
    first = planned(crowded)
    seen = stood(asked(crowded, "one", granted(first)["one"] * 1.3), first)
    again = planned(replace(seen, policy=replace(seen.policy, interruption_over_s=over_s)))
    assert (processes(again) == processes(first)) is stands
    assert (again.objective.unserved > 0.0) is stands


@pytest.mark.parametrize(("memory_mib", "rates", "times"), CROWDED)
def test_what_serves_who_is_short_beside_what_stands_carries_most(
    memory_mib: int, rates: tuple[float, ...], times: float
) -> None:
    """Memory does not hold a device's processes beside all that replaces them: what interrupts nobody leaves some as
    they are, and goes where there is room, though it would carry as much on the other device.
    """
    devices = [replace(builders.device("a", at, "t4"), memory_mib=memory_mib) for at in range(2)]
    services = [builders.service(f"s{at}", rate_rps_declared=rate, replicas_max=4) for at, rate in enumerate(rates)]
    policy = builders.policy(objective=ORDER, work_units=200, interruption_over_s=15.0)
    seen = builders.snapshot(devices, services, policy=policy)
    first = planned(seen)
    served = {item.id: sum(at.capacity_rps for at in first.assignments if at.workload == item.id) for item in services}
    fullest = min(services, key=lambda item: served[item.id] / item.rate_rps_declared)
    later = stood(asked(seen, fullest.name, served[fullest.id] * times), first)
    proposal = registry.propose("joint", builders.request(later))
    assert proposal.plan is not None
    assert proposal.insight is not None
    cheapest = next(item.objective for item in proposal.insight.contenders if item.name == "joint")
    assert proposal.plan.objective.unserved == cheapest.unserved == 0.0
    assert proposal.plan.objective.capacity_rps > 1.25 * cheapest.capacity_rps


def test_what_is_asked_now_has_its_margin_and_what_has_passed_has_none() -> None:
    """The busiest moment is served either way."""
    policy = builders.policy(objective=ORDER, work_units=200, demand_headroom=1.3)
    carried = dict[float, Plan]()
    for now_rps in (600.0, 50.0):
        demand = replace(
            Demand.declared(ServiceId("demo/one"), 600.0), rate_rps_mean=now_rps, origin=DemandOrigin.OBSERVED
        )
        carried[now_rps] = planned(picture(rate_rps=600.0, policy=policy, demands=(demand,)))
    assert granted(carried[50.0])["one"] >= 600.0
    assert granted(carried[600.0])["one"] >= 780.0
    assert carried[50.0].objective.capacity_rps > carried[600.0].objective.capacity_rps


def test_capacity_after_cost_is_not_pursued() -> None:
    for order, wanted in ((ORDER, True), ((Term.COST, Term.CAPACITY), False), ((), False)):
        seen = picture(order)
        assert pursues(read(seen, builders.everything_movable(seen))) is wanted
    thrifty, last = planned(picture(())), planned(picture((Term.UNSERVED, Term.SLO_RISK, Term.COST, Term.CAPACITY)))
    assert last.objective.cost_usd_per_h == pytest.approx(thrifty.objective.cost_usd_per_h)


@pytest.mark.parametrize(
    "changes",
    [
        {"power_caps": (PowerCap(scope=PowerScope.NODE, subject="a", limit_w=90.0),)},
        {"jobs": (builders.job(),)},
    ],
    ids=["cap", "job"],
)
def test_what_couples_devices_is_left_to_the_cheapest(changes: dict[str, Any]) -> None:
    seen = picture(**changes)
    assert not pursues(read(seen, builders.everything_movable(seen)))
    planned(seen)


def test_full_batches_are_what_the_objective_counts() -> None:
    seen = picture()
    reading = read(seen, builders.everything_movable(seen))
    found = contents_of(reading.problem, ())
    full = found.judged.full_rps.sum(axis=1)
    single = found.replicas.sum(axis=1) == 1
    best = int(np.argmax(np.where(single, full, 0.0)))
    (batch,) = reading.problem.batches[found.judged.column[best, :1]].tolist()
    (share,) = found.judged.rows.shares_pct[best, :1].tolist()
    assert full[best] == pytest.approx(1000 * batch / builders.latency_ms("t4", batch, share), rel=1e-3)
    assert full.max() >= full[best]
    assert (found.granted_rps.sum(axis=1) <= full + 1e-6).all()


def test_larger_batches_are_taken_when_full_ones_count() -> None:
    seen = picture()
    problem = read(seen, builders.everything_movable(seen)).problem
    rows = contents_of(problem, ()).judged.rows
    eager, calm = (Judge(problem, eager=choice).judge(rows).column for choice in (True, False))
    assert (eager >= calm).mean() > 0.95


def test_what_stands_goes_on_with_larger_batches_without_a_restart() -> None:
    first = planned(picture())
    small = tuple(
        replace(item, batch=item.envelope.batch_min, capacity_rps=1.0, latency_ms_planned=None)
        for item in first.assignments
    )
    again = planned(stood(picture(), replace(first, assignments=small)))
    assert processes(again) == processes(first)
    assert {item.replica: item.batch for item in again.assignments} == {
        item.replica: item.batch for item in first.assignments
    }
