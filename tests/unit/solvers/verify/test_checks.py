"""What is fatal, what is only a warning, and that honest plans are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import Finding, FindingCode, Severity
from solvers.domain.ids import Generation, WorkloadId
from solvers.domain.plan import Assignment, Destination, Plan, Unplaced
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import ServiceMode, SloScope, WorkloadKind
from solvers.planners.registry import propose
from solvers.verify.checks import is_fatal, verify
from tests import builders

VISION = (WorkloadId("demo/vision"),)


def world(**changes: object) -> Snapshot:
    return builders.lab([builders.service()], **changes)


def plan_of(picture: Snapshot, planner: str = "greedy", movable: tuple[str, ...] | None = None) -> Plan:
    plan = propose(planner, builders.request(picture, movable)).plan
    assert plan is not None
    return plan


def standing(picture: Snapshot) -> Snapshot:
    plan = plan_of(picture)
    return replace(picture, target=builders.target(plan.assignments, settings=plan.settings))


def severities(findings: tuple[Finding, ...], code: FindingCode) -> set[Severity]:
    return {item.severity for item in findings if item.code is code}


def tamper(plan: Plan, **changes: object) -> Plan:
    first, *rest = plan.assignments
    changed: Assignment = replace(first, **changes)  # type: ignore[arg-type]
    return replace(plan, assignments=(changed, *rest))


def test_an_honest_plan_has_no_findings() -> None:
    assert verify(world(), plan_of(world()), VISION) == ()


def test_an_empty_plan_of_an_empty_world_has_no_findings() -> None:
    assert verify(builders.lab(), plan_of(builders.lab()), ()) == ()


def test_without_a_list_everything_may_move() -> None:
    assert verify(world(), plan_of(world())) == ()
    assert is_fatal(verify(world(), tamper(plan_of(world()), share_pct_sm=0)))


def test_findings_come_in_a_fixed_order_and_once() -> None:
    plan = tamper(plan_of(world()), share_pct_sm=0, batch=0)
    findings = verify(world(), plan, VISION)
    assert list(findings) == sorted(set(findings), key=lambda item: (item.code, item.subject, item.severity))
    assert len({item.code for item in findings}) > 2


def test_a_job_may_wait_where_the_plan_says_so() -> None:
    picture = builders.lab(jobs=(builders.job(memory_mib=1_000_000),))
    plan = plan_of(picture)
    assert [item.workload for item in plan.unplaced] == ["demo/train"]
    assert verify(picture, plan) == ()
    silent = verify(picture, replace(plan, unplaced=()))
    assert severities(silent, FindingCode.REPLICAS_OUT_OF_RANGE) == {Severity.FATAL}


class TestPinned:
    """What may not move cannot be held against the plan."""

    def violated(self) -> Snapshot:
        """A pinned replica on a silent node, over a power cap, slower than its SLO."""
        pinned = builders.assignment("demo/fixed#0", builders.device("a", 0, "t4"), share_pct_sm=10)
        services = [builders.service("fixed", mode=ServiceMode.OFF), builders.service(rate_rps_declared=10.0)]
        caps = (PowerCap(scope=PowerScope.DEVICE, subject="GPU-a-0", limit_w=11.0),)
        made = builders.lab(services, target=builders.target([pinned]), power_caps=caps)
        statuses = (replace(item, age_s=999.0 if item.node == "a" else 1.0) for item in made.node_statuses)
        return replace(made, node_statuses=tuple(statuses))

    def test_its_violations_are_warnings(self) -> None:
        picture = self.violated()
        findings = verify(picture, plan_of(picture, movable=VISION), VISION)
        assert not is_fatal(findings)
        found = {item.code for item in findings}
        assert {FindingCode.DEVICE_SILENT, FindingCode.POWER_CAP_EXCEEDED, FindingCode.LATENCY_EXCEEDED} <= found

    def test_they_are_fatal_once_it_may_move(self) -> None:
        picture = self.violated()
        plan = plan_of(picture, movable=VISION)
        everything = builders.everything_movable(picture)
        assert severities(verify(picture, plan, everything), FindingCode.DEVICE_SILENT) == {Severity.FATAL}

    def test_joining_a_pinned_violation_is_fatal(self) -> None:
        pinned = [
            builders.assignment(f"demo/fixed#{index}", builders.device("a", 0, "t4"), share_pct_sm=60)
            for index in range(2)
        ]
        services = [builders.service("fixed", mode=ServiceMode.OFF), builders.service(rate_rps_declared=10.0)]
        picture = builders.lab(services, target=builders.target(pinned))
        plan = plan_of(picture, movable=VISION)
        assert severities(verify(picture, plan, VISION), FindingCode.SHARE_EXCEEDED) == {Severity.WARNING}
        joined = replace(
            plan,
            assignments=tuple(
                replace(item, device=pinned[0].device) if item.workload in VISION else item for item in plan.assignments
            ),
        )
        assert severities(verify(picture, joined, VISION), FindingCode.SHARE_EXCEEDED) == {Severity.FATAL}

    def test_a_pinned_replica_of_a_removed_device_may_go(self) -> None:
        pinned = builders.assignment("demo/fixed#0", builders.device("z", 0, "t4"))
        services = [builders.service("fixed", mode=ServiceMode.OFF), builders.service()]
        picture = builders.lab(services, target=builders.target([pinned]))
        plan = plan_of(picture, movable=VISION)
        assert "demo/fixed#0" not in {item.replica for item in plan.assignments}
        assert not is_fatal(verify(picture, plan, VISION))


class TestDeclaredShortage:
    def short(self) -> tuple[Snapshot, Plan]:
        picture = builders.lab([builders.service(rate_rps_declared=90_000.0, replicas_max=1)])
        return picture, plan_of(picture)

    def test_declared_is_a_warning(self) -> None:
        picture, plan = self.short()
        findings = verify(picture, plan, VISION)
        assert severities(findings, FindingCode.CAPACITY_SHORT) == {Severity.WARNING}

    @pytest.mark.parametrize("declared", [(), (10.0,)])
    def test_silent_or_played_down_is_fatal(self, declared: tuple[float, ...]) -> None:
        picture, plan = self.short()
        unplaced = tuple(
            Unplaced(kind=WorkloadKind.SERVICE, workload=VISION[0], rate_rps_short=rate, reasons=())
            for rate in declared
        )
        findings = verify(picture, replace(plan, unplaced=unplaced), VISION)
        assert severities(findings, FindingCode.CAPACITY_SHORT) == {Severity.FATAL}

    def test_a_standing_replica_may_break_its_promise_if_the_plan_says_so(self) -> None:
        tightened = replace(standing(world()), services=(builders.service(slo=builders.slo(1.0)),))
        plan = plan_of(tightened)
        assert len(plan.assignments) == 1
        findings = verify(tightened, plan, VISION)
        assert severities(findings, FindingCode.LATENCY_EXCEEDED) == {Severity.WARNING}
        silent = verify(tightened, replace(plan, unplaced=()), VISION)
        assert severities(silent, FindingCode.LATENCY_EXCEEDED) == {Severity.FATAL}

    def test_a_new_replica_may_not_whatever_the_plan_says(self) -> None:
        plan = tamper(plan_of(world()), share_pct_sm=10)
        declared = Unplaced(kind=WorkloadKind.SERVICE, workload=VISION[0], rate_rps_short=100.0, reasons=())
        findings = verify(world(), replace(plan, unplaced=(declared,)), VISION)
        assert severities(findings, FindingCode.LATENCY_EXCEEDED) == {Severity.FATAL}


def test_keeping_the_target_is_not_held_against_anybody() -> None:
    picture = replace(standing(world()), node_statuses=(NodeStatus(node="a", age_s=None, generation_applied=1),))  # type: ignore[arg-type]
    plan = plan_of(picture, "keep-target")
    assert is_fatal(verify(picture, plan, VISION))
    assert not is_fatal(verify(picture, plan, ()))


def test_power_below_the_smallest_measured_batch_is_that_of_the_smallest() -> None:
    picture = standing(builders.lab([builders.service()], profiles=[builders.profile(batches=(8, 16))]))
    assert verify(picture, plan_of(picture), VISION) == ()


def test_another_generation_is_another_parent() -> None:
    picture = replace(world(), target=replace(world().target, generation=Generation(5)))
    findings = verify(picture, plan_of(world()), VISION)
    assert {item.code for item in findings} == {FindingCode.PARENT_MISMATCH, FindingCode.SNAPSHOT_MISMATCH}


class TestOpenClocks:
    """Below the planned clock a promise holds by proof, or somebody keeps it, or it is told."""

    def world(self, governor: str) -> Snapshot:
        """A service that promises execution alone, under caps on every device."""
        slo = builders.slo(120.0, scope=SloScope.EXECUTION)
        made = builders.lab([builders.service(slo=slo)], policy=builders.policy(governor=governor))
        types = made.gpu_types_by_name()
        caps = (
            PowerCap(scope=PowerScope.DEVICE, subject=item.id, limit_w=0.95 * types[item.gpu_type].power_limit_w_max)
            for item in made.devices
        )
        return replace(made, power_caps=tuple(sorted(caps, key=lambda cap: (cap.scope, cap.subject))), demands=())

    @pytest.mark.parametrize(
        ("governor", "told"), [("morak", set()), ("clipper_l", set()), ("dfs", {Severity.WARNING})]
    )
    def test_who_heeds_latencies_keeps_what_is_not_proven(self, governor: str, told: set[Severity]) -> None:
        picture = self.world(governor)
        plan = plan_of(picture, "morak")
        assert all(item.envelope.clock_mhz_sm_min < item.envelope.clock_mhz_sm_max for item in plan.assignments)
        findings = verify(picture, plan, VISION)
        assert severities(findings, FindingCode.ENVELOPE_UNKEPT) == told
        assert not is_fatal(findings)

    def test_what_is_proven_in_its_worst_corner_needs_nobody(self) -> None:
        picture = self.world("dfs")
        plan = plan_of(picture, "joint")
        clocks = next(
            item.clocks_mhz_sm
            for item in picture.gpu_types
            if item.name in {device.gpu_type for device in picture.devices if device.id == plan.assignments[0].device}
        )
        opened = tamper(
            plan,
            envelope=replace(plan.assignments[0].envelope, clock_mhz_sm_min=clocks[0], batch_max=1, batch_min=1),
            batch=1,
        )
        assert severities(verify(picture, opened, VISION), FindingCode.ENVELOPE_UNKEPT) == {Severity.WARNING}
        measured = tuple(
            builders.profile(item.model, item.gpu_type, clocks=kind.clocks_mhz_sm)
            for item in picture.profiles
            for kind in picture.gpu_types
            if kind.name == item.gpu_type
        )
        slow = replace(picture, profiles=measured)
        assert severities(verify(slow, opened, VISION), FindingCode.ENVELOPE_UNKEPT) == set()


def test_what_a_plan_makes_room_for_is_judged_like_a_plan() -> None:
    plan = plan_of(world())
    to = Destination(
        assignments=plan.assignments, settings=plan.settings, unplaced=plan.unplaced, objective=plan.objective
    )
    assert verify(world(), replace(plan, toward=to)) == ()
    cheap = replace(to, objective=replace(plan.objective, cost_usd_per_h=0.01))
    assert severities(verify(world(), replace(plan, toward=cheap)), FindingCode.COST_WRONG) == {Severity.FATAL}
