"""Services with the least share they need, jobs in the rest, and what is remembered between plans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.change import Target
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.ids import DeviceId, Generation
from solvers.domain.plan import Assignment, Plan, ProposalStatus
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import ReplicaTelemetry
from solvers.domain.workload import WorkloadKind
from solvers.planners import registry
from solvers.planners.base import Thought
from solvers.planners.tuning import Scalar
from solvers.policies.mudi.sizing import LateReading, MudiMemory
from solvers.verify.checks import is_fatal, verify
from tests import builders

DEVICES = tuple(builders.device("a", index, "a100") for index in range(4))


def room(jobs: int = 0, rate_rps: float = 100.0, **changes: Any) -> Snapshot:
    services = [builders.service(name, rate_rps_declared=rate_rps, replicas_max=4) for name in ("one", "two")]
    made = tuple(builders.job(f"train-{number}") for number in range(jobs))
    return builders.snapshot(DEVICES, services, jobs=made, **changes)


def thought(picture: Snapshot, state: bytes | None = None, settings: dict[str, Scalar] | None = None) -> Thought:
    planner = registry.create("mudi", settings)
    found = registry.think(planner, builders.request(picture), state, SilentReporter())
    assert found.proposal.plan is not None
    assert not is_fatal(verify(picture, found.proposal.plan, builders.everything_movable(picture)))
    return found


def plan_of(found: Thought) -> Plan:
    assert found.proposal.plan is not None
    return found.proposal.plan


def after(picture: Snapshot, plan: Plan) -> Snapshot:
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target)


def jobs_by_device(plan: Plan) -> dict[DeviceId, list[Assignment]]:
    found: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in plan.assignments:
        if item.kind is WorkloadKind.JOB:
            found[item.device].append(item)
    return found


def inference(plan: Plan) -> list[Assignment]:
    return [item for item in plan.assignments if item.kind is WorkloadKind.SERVICE]


def test_every_service_has_a_device_of_its_own() -> None:
    devices = [item.device for item in inference(plan_of(thought(room())))]
    assert len(devices) >= 2
    assert len(set(devices)) == len(devices)


def test_services_meet_on_a_device_rather_than_go_unserved() -> None:
    services = [builders.service(f"s{number}", rate_rps_declared=5.0) for number in range(6)]
    plan = plan_of(thought(builders.snapshot(DEVICES, services)))
    assert {item.workload for item in inference(plan)} == {item.id for item in services}
    assert not plan.unplaced


def test_at_most_three_jobs_meet_and_divide_what_is_left_evenly() -> None:
    plan = plan_of(thought(room(jobs=20)))
    found = jobs_by_device(plan)
    taken = {item.device: item.share_pct_sm for item in inference(plan)}
    assert len(found) == len(DEVICES)
    for device, jobs in found.items():
        shares = [item.share_pct_sm for item in jobs]
        assert len(jobs) == 3
        assert max(shares) - min(shares) <= 1
        assert sum(shares) == 100 - taken.get(device, 0)
    assert sum(item.kind is WorkloadKind.JOB for item in plan.unplaced) == 20 - 12


def test_jobs_go_first_where_no_service_suffers() -> None:
    plan = plan_of(thought(room(jobs=2)))
    assert not set(jobs_by_device(plan)) & {item.device for item in inference(plan)}


def test_the_fewest_jobs_come_first_unless_as_printed() -> None:
    spread, printed = (plan_of(thought(room(jobs=4), settings={"selector": name})) for name in ("spread", "slope"))
    assert [len(jobs) for jobs in jobs_by_device(spread).values()] == [1, 1, 1, 1]
    assert sorted(len(jobs) for jobs in jobs_by_device(printed).values()) == [2, 2]


def test_the_random_selector_is_another_choice_and_the_same_every_time() -> None:
    first, again = (plan_of(thought(room(jobs=8), settings={"selector": "random"})) for _ in range(2))
    assert first == again
    assert first != plan_of(thought(room(jobs=8)))


def test_memory_is_never_promised_twice() -> None:
    picture = room()
    large = tuple(builders.job(f"train-{number}", memory_mib=30_000) for number in range(12))
    plan = plan_of(thought(replace(picture, jobs=large)))
    held: dict[DeviceId, int] = defaultdict(int)
    for item in plan.assignments:
        held[item.device] += item.memory_mib_limit
    assert max(held.values()) <= DEVICES[0].memory_mib
    assert any(item.kind is WorkloadKind.JOB for item in plan.unplaced)


def test_what_serves_stays_and_what_does_not_grows() -> None:
    picture = room(jobs=3)
    first = thought(picture)
    again = plan_of(thought(after(picture, plan_of(first)), first.state))
    kept = [item.reasons[0].code for item in inference(again)]
    assert set(kept) == {ReasonCode.KEPT_STANDING}
    larger = replace(after(picture, plan_of(first)), services=room(rate_rps=400.0).services)
    grown = plan_of(thought(larger, first.state))
    assert sum(item.share_pct_sm for item in inference(grown)) > sum(item.share_pct_sm for item in inference(again))


def test_a_job_stays_where_it_stands() -> None:
    picture = room(jobs=5)
    first = plan_of(thought(picture))
    again = plan_of(thought(after(picture, first)))
    assert jobs_by_device(again).keys() == jobs_by_device(first).keys()
    assert {(item.workload, item.device, item.share_pct_sm) for item in again.assignments} == {
        (item.workload, item.device, item.share_pct_sm) for item in first.assignments
    }


def test_late_answers_are_remembered_by_batch_and_make_another_batch_of_it() -> None:
    picture = room()
    plan = plan_of(thought(picture))
    item = inference(plan)[0]
    seen = ReplicaTelemetry(
        replica=item.replica,
        rate_rps=100.0,
        latency_ms_p50=50.0,
        latency_ms_p99=90.0,
        queue_length=3.0,
        batch_mean=float(item.batch),
        violation_fraction=0.9,
        age_s=1.0,
    )
    late = replace(after(picture, plan), replica_telemetry=(seen,))
    found = thought(late)
    assert found.state is not None
    assert MudiMemory.of(found.state).readings == (LateReading(workload=item.workload, batch=item.batch, late=0.27),)
    changed = [other.batch for other in inference(plan_of(found)) if other.workload == item.workload]
    assert changed
    assert item.batch not in changed


def test_bytes_of_another_kind_are_as_good_as_none() -> None:
    picture = room(jobs=2)
    assert plan_of(thought(picture, b"what is this")) == plan_of(thought(picture))


def test_the_reasons_tell_share_slope_and_tuning() -> None:
    found = thought(room(jobs=12))
    told = {reason.subject: {fact.name: fact.value for fact in reason.facts} for reason in found.proposal.reasons}
    sized, selected = told["demo/one"], told["demo/train-0"]
    assert isinstance(sized["evaluations"], float)
    assert 1 <= sized["evaluations"] <= 25
    assert isinstance(sized["share_pct_least"], float)
    assert isinstance(sized["share_pct_sm"], float)
    assert sized["share_pct_least"] <= sized["share_pct_sm"]
    assert selected["selector"] == "spread"
    assert any(facts.get("slope_ms", 0.0) != 0.0 for facts in told.values())


def test_both_engines_give_the_same_plan() -> None:
    first, second = (plan_of(thought(room(jobs=2), settings={"share_engine": name})) for name in ("closed", "convex"))
    assert first.assignments == second.assignments


def test_without_cvxpy_its_convex_shares_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not replaced in silence by the closed form."""
    monkeypatch.setattr("solvers.policies.mudi.planner.available", lambda: False)
    refused = registry.create("mudi", {"share_engine": "convex"})
    proposal = registry.think(refused, builders.request(room()), None, SilentReporter()).proposal
    assert proposal.status is ProposalStatus.NOT_APPLICABLE
    assert "headroom-gpu[convex]" in str(proposal.reasons[0].facts[0].value)
