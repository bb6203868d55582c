"""What speaks against a plan that was made when other things were believed: promises, not figures of then."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from app.services.planning.reviewing import Review, cheaper_words, difference, known_by_now
from app.store.plans import PlanState
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.device import Device
from solvers.domain.evidence import FindingCode, SilentReporter
from solvers.domain.ids import Generation, NodeId, PolicyName
from solvers.domain.plan import DeviceSetting, Plan
from solvers.domain.policy import Pool
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ServiceMode
from solvers.planners import registry
from tests import builders


def stored() -> tuple[Snapshot, Plan]:
    """A picture in which nothing stands yet, and a plan of it."""
    picture = builders.lab([builders.service()])
    plan = registry.propose("greedy", builders.request(picture), b"", SilentReporter()).plan
    assert plan is not None
    assert plan.assignments
    return picture, plan


def test_what_replicas_were_believed_to_carry_is_no_obstacle() -> None:
    picture, plan = stored()
    more = tuple(replace(item, capacity_rps=item.capacity_rps * 20) for item in plan.assignments)
    review = Review(picture, replace(plan, assignments=more), Lane.APPROVE)
    assert any(item.code == "capacity_short" for item in review.after.chosen.findings)
    assert (review.unsound, review.blocked) == ((), ())


def test_a_promise_that_is_kept_no_more_refuses_approval_but_not_a_rollback() -> None:
    picture, plan = stored()
    (service,) = picture.services
    strict = replace(picture, services=(replace(service, slo=builders.slo(0.5)),))
    review = Review(strict, plan, Lane.APPROVE)
    assert review.unsound == ()
    assert review.worse[0].startswith("latency exceeded (")
    assert review.blocked == review.worse


def test_a_device_that_may_not_be_used_refuses_both() -> None:
    picture, plan = stored()
    used = {item.device for item in plan.assignments}

    def drained(item: Device) -> Device:
        return replace(item, schedulable=item.id not in used)

    review = Review(replace(picture, devices=tuple(map(drained, picture.devices))), plan, Lane.APPROVE)
    assert review.unsound
    assert set(review.unsound) <= set(review.blocked)


def test_what_stands_is_judged_while_no_policy_has_a_usable_device() -> None:
    picture, plan = stored()
    edge = builders.policy(name=PolicyName("edge"), pool=Pool(nodes=(NodeId("c"),)))
    silent = tuple(replace(item, age_s=900.0) for item in picture.node_statuses)
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    works = tuple(replace(item, mode=ServiceMode.APPROVE) for item in picture.services)
    away = replace(picture, services=works, policies=(edge,), node_statuses=silent, target=target)
    review = Review(away, plan, Lane.APPROVE)
    assert review.before.plan.assignments == plan.assignments
    assert [item.code for item in review.after.chosen.findings] == [FindingCode.DEVICE_SILENT]


def test_what_whoever_decides_should_know_by_now() -> None:
    def waits(name: str, added: float, *blocked: str) -> Any:
        state, told = PlanState.AWAITING_APPROVAL, {"added_usd_per_h": added, "blocked": blocked}
        return SimpleNamespace(id=f"sha256:{name * 64}", state=state, parent_generation=3, **told)

    dear, same, gone = waits("a", 3.49), waits("b", 0.0), waits("c", -1.0, "falls short (x)", "other")
    assert known_by_now(dear, 3, {}) == ("costs $3.49/h more than what stands",)
    later = "made for generation 3, 4 stands by now"
    assert known_by_now(same, 4, {}) == ("costs as much as what stands", later)
    refused = "cannot be approved now: falls short (x) and 1 more"
    # What cannot be approved saves nothing, and what costs as much neither.
    assert cheaper_words((dear, same, gone)) is None
    less = cheaper_words((dear, same, gone, waits("d", -0.54), waits("e", -0.3)))
    named = "d" * 12
    assert less == f"plan {named} waits for approval and costs $0.54/h less than what stands: headroom approve {named}"
    looked = {gone.id: datetime(2026, 5, 1, 12, 0, 1, tzinfo=UTC)}
    assert known_by_now(gone, 3, looked) == (refused, "as the planner saw it at 12:00:01 UTC")


def test_every_step_says_what_it_does_and_no_other_does() -> None:
    picture, plan = stored()
    first = plan.assignments[0]
    was = replace(first, share_pct_sm=first.share_pct_sm - 5, memory_mib_limit=first.memory_mib_limit - 1, batch=99)
    standing = Target(generation=1, assignments=(was,), settings=(DeviceSetting(device=first.device),))
    capped = DeviceSetting(device=first.device, clock_mhz_sm=900, power_limit_w=70.0)
    wished = replace(plan, assignments=(first,), settings=(capped,))
    review = Review(replace(picture, target=standing), wished, Lane.APPROVE)
    summary: Any = SimpleNamespace(id="sha256:0", lane=Lane.APPROVE, state=PlanState.PROPOSED, told=())
    assert [step.said for step in difference(review, summary, Target()).steps] == [
        "clock MHz default -> 900",
        "power limit W default -> 70",
        f"batch 99 -> {first.batch}",
        f"memory MiB {was.memory_mib_limit} -> {first.memory_mib_limit}",
        f"share % {was.share_pct_sm} -> {first.share_pct_sm}",
    ]


def test_devices_are_named_as_people_name_them() -> None:
    picture, plan = stored()
    first, there = plan.assignments[0], next(each for each in picture.devices if each.id != plan.assignments[0].device)
    standing = Target(generation=1, assignments=(replace(first, device=there.id),))
    review = Review(replace(picture, target=standing), replace(plan, assignments=(first,)), Lane.APPROVE)
    summary: Any = SimpleNamespace(id="sha256:0", lane=Lane.APPROVE, state=PlanState.PROPOSED, told=())
    (step,) = difference(review, summary, Target()).steps
    here = picture.devices_by_id()[first.device]
    places = f"from {there.node} GPU {there.index} to {here.node} GPU {here.index}"
    assert step.said == f"move {places}, with {first.share_pct_sm} % and batch {first.batch}"
    off = replace(picture, devices=tuple(replace(each, schedulable=False) for each in picture.devices))
    beside = replace(first, replica=f"{first.workload}#1")
    blocked = Review(off, replace(plan, assignments=(first, beside)), Lane.APPROVE).blocked
    assert blocked.count(f"device unschedulable ({here.node} GPU {here.index})") == 1, "once for all replicas there"
