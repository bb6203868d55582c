"""What the greedy planner chooses and refuses, one rule at a time."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace

import pytest

from solvers.domain.device import ColocationClass, DeviceMode, PowerCap, PowerScope, PriceKind, PriceRow, Taint
from solvers.domain.evidence import Fact, ReasonCode
from solvers.domain.ids import GpuTypeName, ProjectName, WorkloadId
from solvers.domain.plan import Assignment, Plan, Unplaced
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import JobStatus, NodeStatus, Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Project, ServiceMode, Slo, SloKind, SloScope
from solvers.planners.registry import propose
from solvers.verify.checks import is_fatal, verify
from solvers.verify.picture import knobs
from tests import builders

BY_SHARE = builders.policy(cost_basis=CostBasis.SHARE)
OFF = Affinity(anti_affinity=AntiAffinity.OFF)


def planned(picture: Snapshot, movable: tuple[str, ...] | None = None) -> Plan:
    request = builders.request(picture, movable)
    plan = propose("greedy", request).plan
    assert plan is not None
    assert not is_fatal(verify(picture, plan, request.movable))
    return plan


def of(plan: Plan, workload: str) -> list[Assignment]:
    return [item for item in plan.assignments if item.workload == f"demo/{workload}"]


def short(plan: Plan, workload: str) -> Unplaced:
    (found,) = (item for item in plan.unplaced if item.workload == f"demo/{workload}")
    return found


def codes(unplaced: Unplaced) -> set[ReasonCode]:
    return {reason.code for reason in unplaced.reasons}


def t4s(count: int) -> tuple[object, ...]:
    return tuple(builders.device("a", index, "t4") for index in range(count))


def standing(picture: Snapshot, **changes: object) -> Snapshot:
    """The picture with its own plan as the target, and then changed."""
    plan = planned(picture)
    target = builders.target(plan.assignments, settings=plan.settings)
    return replace(picture, target=target, **changes)  # type: ignore[arg-type]


class TestConfiguration:
    def test_the_cheapest_type_that_keeps_the_promise_wins(self) -> None:
        plan = planned(builders.lab([builders.service(rate_rps_declared=50.0)]))
        (item,) = of(plan, "vision")
        assert item.device.startswith("GPU-a")
        reason = item.reasons[0]
        assert (reason.code, reason.subject) == (ReasonCode.CHEAPEST_FEASIBLE, "t4")
        facts = {fact.name: fact.value for fact in reason.facts}
        assert facts["usd_per_h"] == pytest.approx(0.35 * item.share_pct_sm / 100)
        assert facts["latency_ms"] == item.latency_ms_planned
        assert item.latency_ms_planned is not None
        assert item.latency_ms_planned <= 60.0
        assert item.capacity_rps >= 50.0

    def test_every_other_type_has_its_reason(self) -> None:
        services = [builders.service(slo=builders.slo(12.0), gpu_types_allowed=("t4", "v100", "a100"))]
        picture = builders.lab(services)
        picture = replace(picture, profiles=tuple(item for item in picture.profiles if item.gpu_type != "a100"))
        (item,) = of(planned(picture), "vision")
        why = {reason.subject: reason.code for reason in item.reasons[1:]}
        assert (
            why
            == {
                "t4": ReasonCode.REJECTED_ALTERNATIVE,
                "l4": ReasonCode.TYPE_NOT_ALLOWED,
                "v100": ReasonCode.COSTLIER,
                "a100": ReasonCode.NO_PROFILE,
            }
            or why["a100"] == ReasonCode.NO_PROFILE
        )

    def test_an_unreachable_slo_says_how_near_the_best_comes(self) -> None:
        plan = planned(builders.lab([builders.service(slo=builders.slo(3.0))]))
        assert of(plan, "vision") == []
        reasons = {reason.subject: reason for reason in short(plan, "vision").reasons}
        assert reasons["t4"].code is ReasonCode.SLO_UNREACHABLE
        facts = {fact.name: fact.value for fact in reasons["t4"].facts}
        # Even a server that is used to 5 % only needs two executions and a little backlog.
        best_ms = builders.latency_ms("t4", 1, 100) * (2 + math.log(100) * 0.05 / (2 * 0.95))
        assert facts == {"latency_ms_best": pytest.approx(best_ms, abs=1e-3), "latency_ms_limit": 3.0}

    def test_token_slos_wait_for_token_profiles(self) -> None:
        slo = Slo(kind=SloKind.TOKENS, first_token_ms=500.0, inter_token_ms=50.0)
        plan = planned(builders.lab([builders.service(slo=slo)]))
        assert codes(short(plan, "vision")) == {ReasonCode.NO_PROFILE, ReasonCode.REPLICAS_MIN}

    def test_the_memory_limit_covers_the_largest_batch_of_the_envelope(self) -> None:
        (item,) = of(planned(builders.lab([builders.service()])), "vision")
        assert item.envelope.batch_min <= item.batch <= item.envelope.batch_max
        assert item.memory_mib_limit >= builders.memory_mib(item.envelope.batch_max)
        assert item.memory_mib_limit % 64 == 0

    def test_the_minimum_stands_without_demand(self) -> None:
        picture = builders.lab([builders.service(replicas_min=2, rate_rps_declared=0.0)])
        assert len(of(planned(picture), "vision")) == 2

    def test_observed_demand_and_headroom_count(self) -> None:
        picture = builders.lab([builders.service(rate_rps_declared=1.0)], policy=builders.policy(demand_headroom=1.5))
        picture = replace(picture, demands=(builders.demand("demo/vision", 400.0),))
        assert sum(item.capacity_rps for item in of(planned(picture), "vision")) >= 600.0

    def test_memory_can_be_what_costs(self) -> None:
        hungry = builders.profile("resnet50", "t4")
        hungry = replace(hungry, points=tuple(replace(point, memory_mib=12_000.0) for point in hungry.points))
        picture = builders.snapshot(
            (*t4s(1), builders.device("b", 0, "a100")),
            [builders.service(rate_rps_declared=5.0)],
            profiles=[hungry, builders.profile("resnet50", "a100")],
        )
        (item,) = of(planned(picture), "vision")
        assert item.device == "GPU-b-0"

    def test_on_a_mig_slice_price_and_share_are_the_slices(self) -> None:
        slices = [builders.mig_slice("a", index, "a100", 2) for index in (1, 2)]
        picture = builders.snapshot(
            [builders.device("a", 0, "a100"), *slices], [builders.service(rate_rps_declared=50.0)], policy=BY_SHARE
        )
        plan = planned(picture)
        (item,) = of(plan, "vision")
        assert item.device in {"MIG-a-1", "MIG-a-2"}
        assert plan.objective.cost_usd_per_h == pytest.approx(2.9 * 2 / 8 * item.share_pct_sm / 100)
        assert item.latency_ms_planned is not None
        # 28 of 108 SMs: the slice's share is judged by a quarter of the GPU, not by the whole of it.
        whole = item.share_pct_sm * 28 / 108
        proven = [share for share in builders.SHARES if share <= whole]
        assert item.latency_ms_planned >= 2 * 1.25 * builders.latency_ms("a100", item.batch, max(proven)) - 0.01


class TestPlacement:
    def test_replicas_of_a_service_stand_apart(self) -> None:
        plan = planned(builders.lab([builders.service(replicas_min=4, rate_rps_declared=0.0)]))
        assert len({item.device for item in of(plan, "vision")}) == 4

    def test_without_anti_affinity_they_pack(self) -> None:
        picture = builders.lab([builders.service(replicas_min=4, rate_rps_declared=0.0, affinity=OFF)])
        assert len({item.device for item in of(planned(picture), "vision")}) == 1

    def test_soft_anti_affinity_spreads_while_it_can(self) -> None:
        soft = Affinity(anti_affinity=AntiAffinity.SOFT)
        services = [builders.service(replicas_min=3, rate_rps_declared=0.0, affinity=soft)]
        spread = Counter(item.device for item in of(planned(builders.snapshot(t4s(2), services)), "vision"))
        assert sorted(spread.values()) == [1, 2]

    def test_hard_anti_affinity_leaves_replicas_unplaced(self) -> None:
        services = [builders.service(replicas_min=3, rate_rps_declared=0.0)]
        plan = planned(builders.snapshot(t4s(2), services))
        assert len(of(plan, "vision")) == 2
        assert {ReasonCode.ANTI_AFFINITY, ReasonCode.REPLICAS_MIN} <= codes(short(plan, "vision"))

    def test_few_devices_and_anti_affinity_call_for_larger_replicas(self) -> None:
        services = [builders.service(rate_rps_declared=400.0)]
        plan = planned(builders.snapshot(t4s(2), services))
        assert plan.unplaced == ()
        assert len(of(plan, "vision")) == 2

    @pytest.mark.parametrize("shy", ["one", "two"])
    def test_avoided_services_never_meet(self, shy: str) -> None:
        other = {"one": "two", "two": "one"}[shy]
        services = [
            builders.service(name, affinity=Affinity(avoid_services=(f"demo/{other}",)) if name == shy else Affinity())
            for name in ("one", "two")
        ]
        plan = planned(builders.snapshot(t4s(2), services))
        assert of(plan, "one")[0].device != of(plan, "two")[0].device

    def test_a_dedicated_service_has_its_device_alone(self) -> None:
        services = [builders.service("alone", affinity=builders.DEDICATED), builders.service("other")]
        plan = planned(builders.snapshot(t4s(2), services))
        (alone,) = of(plan, "alone")
        assert alone.share_pct_sm == 100
        assert alone.device != of(plan, "other")[0].device
        modes = {setting.device: setting.mode for setting in plan.settings}
        assert modes[alone.device] is DeviceMode.DEDICATED
        # Nobody interferes, so the measured latency counts without the margin.
        backlog = math.log(100) * 0.7 / (2 * 0.3 * alone.batch)
        law_ms = builders.latency_ms("t4", alone.batch, 100)
        assert alone.latency_ms_planned == pytest.approx((2 + backlog) * law_ms, rel=1e-4)

    def test_an_exclusive_device_takes_one(self) -> None:
        lone = builders.device("a", 0, "t4", mode=DeviceMode.DEDICATED)
        services = [builders.service(name, rate_rps_declared=1.0) for name in ("one", "two")]
        plan = planned(builders.snapshot([lone], services))
        assert len(plan.assignments) == 1
        assert len(plan.unplaced) == 1

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"schedulable": False}, ReasonCode.NO_DEVICE_OF_TYPE),
            ({"taints": (Taint(key="team"),)}, ReasonCode.TAINTED),
            ({"colocation": ColocationClass.TRAINING}, ReasonCode.TAINTED),
            ({"memory_mib": 1_400}, ReasonCode.NO_MEMORY_LEFT),
        ],
    )
    def test_a_closed_device_stays_empty(self, change: dict[str, object], code: ReasonCode) -> None:
        plan = planned(builders.snapshot([builders.device("a", 0, "t4", **change)], [builders.service()]))
        assert plan.assignments == ()
        assert code in codes(short(plan, "vision"))

    def test_a_tolerated_taint_does_not_close(self) -> None:
        tainted = builders.device("a", 0, "t4", taints=(Taint(key="team"),))
        services = [builders.service(tolerations=(Taint(key="team"),))]
        assert len(planned(builders.snapshot([tainted], services)).assignments) == 1

    @pytest.mark.parametrize("age_s", [None, 31.0])
    def test_silent_nodes_are_left_alone(self, age_s: float | None) -> None:
        statuses = (NodeStatus(node="a", age_s=age_s, generation_applied=0),)  # type: ignore[arg-type]
        picture = builders.snapshot(t4s(1), [builders.service()], node_statuses=statuses)
        assert planned(picture).assignments == ()

    def test_power_caps_hold(self) -> None:
        caps = (PowerCap(scope=PowerScope.NODE, subject="a", limit_w=45.0),)
        services = [builders.service(name, rate_rps_declared=200.0) for name in ("one", "two", "three")]
        free, capped = (planned(builders.snapshot(t4s(3), services, power_caps=item)) for item in ((), caps))
        assert free.unplaced == ()
        assert any(ReasonCode.POWER_CAP in codes(item) for item in capped.unplaced)

    def test_a_device_cap_becomes_its_power_limit(self) -> None:
        caps = (PowerCap(scope=PowerScope.DEVICE, subject="GPU-a-0", limit_w=65.0),)
        plan = planned(builders.snapshot(t4s(1), [builders.service()], power_caps=caps))
        assert [setting.power_limit_w for setting in plan.settings] == [65.0]

    def test_clients_per_device_are_bounded(self) -> None:
        services = [builders.service(f"s{index}", rate_rps_declared=1.0) for index in range(4)]
        plan = planned(builders.snapshot(t4s(1), services, policy=builders.policy(replicas_per_device_max=3)))
        assert len(plan.assignments) == 3
        assert [codes(item) for item in plan.unplaced] == [{ReasonCode.CLIENTS_MAX, ReasonCode.REPLICAS_MIN}]

    def test_failure_domains_are_spread_over(self) -> None:
        picture = builders.lab([builders.service(affinity=Affinity(failure_domains_min=2))])
        nodes = {picture.devices_by_id()[item.device].node for item in of(planned(picture), "vision")}
        domains = {node.failure_domain for node in picture.nodes if node.id in nodes}
        assert domains == {"zone-a", "zone-b"}

    def test_too_few_failure_domains_are_admitted(self) -> None:
        services = [builders.service(affinity=Affinity(failure_domains_min=2))]
        plan = planned(builders.snapshot(t4s(2), services))
        assert len(of(plan, "vision")) == 1
        told = short(plan, "vision")
        assert told.rate_rps_short == 0.0
        assert Fact(name="failure_domains_min", value=2.0) in told.reasons[-1].facts


class TestLimits:
    def test_replicas_max(self) -> None:
        # Greedy reckons with neighbours everywhere; who judges plans sees that these two have none.
        policy = builders.policy(interference_margin=1.0)
        plan = planned(builders.lab([builders.service(rate_rps_declared=90_000.0, replicas_max=2)], policy=policy))
        assert len(of(plan, "vision")) == 2
        assert ReasonCode.REPLICAS_MAX in codes(short(plan, "vision"))
        unserved = short(plan, "vision").rate_rps_short
        assert plan.objective.unserved == pytest.approx(100 * unserved, rel=1e-4)

    @pytest.mark.parametrize("scope", [SloScope.END_TO_END, SloScope.EXECUTION])
    def test_who_is_short_claims_all_that_it_is_served(self, scope: SloScope) -> None:
        services = [
            builders.service(rate_rps_declared=90_000.0, replicas_max=2, slo=builders.slo(60.0, scope=scope)),
            builders.service("other", rate_rps_declared=10.0),
        ]
        plan = planned(builders.lab(services))
        # Both have all of a device, where nobody can come whose neighbourhood is not known.
        assert {item.share_pct_sm for item in of(plan, "vision")} == {100}
        told = short(plan, "vision").rate_rps_short
        assert plan.objective.unserved == pytest.approx(100 * told, rel=1e-6)
        assert 90_000.0 - told == pytest.approx(sum(item.capacity_rps for item in of(plan, "vision")))

    def test_who_is_short_leaves_its_room_to_others(self) -> None:
        bound = builders.service(rate_rps_declared=900.0, replicas_max=1, budget_usd_per_h=0.1)
        before = standing(builders.snapshot(t4s(1), [bound]))
        plan = planned(replace(before, services=(bound, builders.service("new", rate_rps_declared=5.0))))
        assert len(of(plan, "new")) == 1

    def test_budget(self) -> None:
        services = [builders.service(rate_rps_declared=900.0, budget_usd_per_h=0.2)]
        plan = planned(builders.lab(services, policy=BY_SHARE))
        assert plan.objective.cost_usd_per_h <= 0.2
        assert ReasonCode.BUDGET in codes(short(plan, "vision"))

    def test_quota(self) -> None:
        projects = (Project(name=ProjectName("demo"), quota_gpus=0.5),)
        plan = planned(builders.lab([builders.service(rate_rps_declared=9_000.0)], projects=projects))
        assert sum(item.share_pct_sm for item in plan.assignments) <= 50
        assert ReasonCode.QUOTA in codes(short(plan, "vision"))

    def test_priority_goes_first(self) -> None:
        services = [
            builders.service("low", priority=1, rate_rps_declared=150.0),
            builders.service("top", priority=900, rate_rps_declared=150.0),
        ]
        plan = planned(builders.snapshot(t4s(1), services))
        assert len(of(plan, "top")) == 1
        assert short(plan, "low").rate_rps_short > 0


class TestStanding:
    def test_what_stands_stays(self) -> None:
        picture = standing(builders.lab([builders.service(), builders.service("fast", slo=builders.slo(12.0))]))
        plan = planned(picture)
        assert {item.reasons[0].code for item in plan.assignments} == {ReasonCode.KEPT_STANDING}
        assert plan.objective.churn == 0

    def test_what_can_no_longer_keep_its_promise_stays_and_is_not_said_to_keep_it(self) -> None:
        picture = standing(builders.lab([builders.service()]), services=(builders.service(slo=builders.slo(1.0)),))
        plan = planned(picture)
        assert {item.reasons[0].code for item in plan.assignments} == {ReasonCode.KEPT_AT_RISK}
        told = short(plan, "vision").reasons
        assert [item.code for item in told if item.subject == "demo/vision"] == [ReasonCode.KEPT_AT_RISK]

    def test_more_demand_adds_beside_what_stands(self) -> None:
        few = builders.snapshot(t4s(4), [builders.service()], demands=(builders.demand("demo/vision", 400.0),))
        picture = standing(few, demands=(builders.demand("demo/vision", 550.0),))
        after = {item.replica: item for item in planned(picture).assignments}
        assert len(after) > len(picture.target.assignments) > 1
        assert all(knobs(after[item.replica]) == knobs(item) for item in picture.target.assignments)

    def test_less_demand_drops_replicas_and_keeps_the_rest(self) -> None:
        busy = builders.snapshot(t4s(4), [builders.service()], demands=(builders.demand("demo/vision", 800.0),))
        picture = standing(busy, demands=(builders.demand("demo/vision", 550.0),))
        before = {item.replica: item for item in picture.target.assignments}
        after = {item.replica: item for item in planned(picture).assignments}
        assert set(after) < set(before)
        assert all(knobs(item) == knobs(before[replica]) for replica, item in after.items())

    def test_a_little_cheaper_is_not_worth_moving(self) -> None:
        picture = standing(builders.lab([builders.service()]))
        cheap = replace(builders.gpu_type("l4"), prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=0.70 * 0.95),))
        types = tuple(cheap if item.name == "l4" else item for item in picture.gpu_types)
        assert planned(replace(picture, gpu_types=types)).objective.churn == 0

    def test_much_cheaper_is(self) -> None:
        picture = standing(builders.lab([builders.service()]))
        free = replace(builders.gpu_type("l4"), prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=0.01),))
        types = tuple(free if item.name == "l4" else item for item in picture.gpu_types)
        (item,) = of(planned(replace(picture, gpu_types=types)), "vision")
        assert item.device == "GPU-a-2"
        assert item.replica == "demo/vision#0"

    def test_a_lost_device_is_left(self) -> None:
        picture = standing(builders.lab([builders.service()]))
        lost = picture.target.assignments[0].device
        picture = replace(picture, devices=tuple(item for item in picture.devices if item.id != lost))
        (item,) = of(planned(picture), "vision")
        assert item.device != lost

    def test_a_service_that_lost_its_profile_keeps_what_stands_and_says_so(self) -> None:
        picture = standing(builders.lab([builders.service()]), profiles=())
        plan = planned(picture)
        assert [item.replica for item in plan.assignments] == ["demo/vision#0"]
        assert ReasonCode.NO_PROFILE in codes(short(plan, "vision"))
        assert plan.objective.slo_risk == 100.0

    def test_higher_priority_may_push_out_lower(self) -> None:
        low = builders.service("low", priority=1, rate_rps_declared=200.0)
        picture = standing(builders.snapshot(t4s(1), [low]))
        top = builders.service("top", priority=900, rate_rps_declared=200.0)
        plan = planned(replace(picture, services=(low, top)))
        assert sum(item.capacity_rps for item in of(plan, "top")) >= 200.0

    def test_pinned_replicas_stay_and_their_room_is_theirs(self) -> None:
        fixed = builders.service("fixed", mode=ServiceMode.OFF)
        pinned = builders.assignment("demo/fixed#0", builders.device("a", 0, "t4"), share_pct_sm=70)
        services = [fixed, builders.service(rate_rps_declared=150.0)]
        picture = builders.snapshot(t4s(1), services, target=builders.target([pinned]))
        plan = planned(picture, ("demo/vision",))
        (kept,) = of(plan, "fixed")
        assert kept.reasons[0].code is ReasonCode.PINNED_BY_MODE
        assert replace(kept, reasons=()) == pinned
        assert sum(item.share_pct_sm for item in plan.assignments) <= 100

    def test_replicas_of_a_deleted_service_go(self) -> None:
        orphan = builders.assignment("demo/gone#0", builders.device("a", 0, "t4"))
        plan = planned(builders.snapshot(t4s(1), [], target=builders.target([orphan])))
        assert plan.assignments == ()


class TestFiniteWork:
    def test_a_job_fills_spare_share_of_a_device_in_use(self) -> None:
        plan = planned(builders.lab([builders.service()], jobs=(builders.job(),)))
        (train,), (vision,) = of(plan, "train"), of(plan, "vision")
        assert train.device == vision.device
        assert train.share_pct_sm == 100 - vision.share_pct_sm
        assert train.reasons[0].code is ReasonCode.FILLS_SPARE_SHARE

    def test_a_job_opens_an_idle_device_only_when_it_must_and_is_worth_it(self) -> None:
        job = builders.job(share_pct_sm_min=90, value_usd_per_h=5.0)
        plan = planned(builders.lab([builders.service()], jobs=(job,)))
        assert of(plan, "train")[0].device != of(plan, "vision")[0].device
        cheap = builders.lab([builders.service()], jobs=(replace(job, value_usd_per_h=0.1),))
        assert of(planned(cheap), "train") == []

    def test_a_job_shrinks_when_services_need_room(self) -> None:
        picture = standing(
            builders.snapshot(t4s(1), [builders.service(rate_rps_declared=50.0)], jobs=(builders.job(),))
        )
        (before,) = of(planned(picture), "train")
        (after,) = of(planned(replace(picture, demands=(builders.demand("demo/vision", 150.0),))), "train")
        assert after.share_pct_sm < before.share_pct_sm
        assert after.device == before.device

    def test_a_job_without_room_waits_in_line(self) -> None:
        plan = planned(builders.snapshot(t4s(1), [], jobs=(builders.job(memory_mib=50_000),)))
        assert {ReasonCode.WAITS_IN_LINE, ReasonCode.NO_MEMORY_LEFT} <= codes(short(plan, "train"))
        assert plan.objective.waiting_usd_per_h > 0.0

    def test_a_job_that_was_evicted_often_enough_holds_its_place(self) -> None:
        job = builders.job(share_pct_sm_min=60, evictions_max=2, value_usd_per_h=5.0)
        picture = standing(builders.snapshot(t4s(1), [], jobs=(job,)), services=(builders.service(),))
        worn = (JobStatus(workload=WorkloadId("demo/train"), done=5, evictions=2),)
        assert len(of(planned(replace(picture, job_statuses=worn)), "train")) == 1
        plan = planned(replace(picture, job_statuses=()))
        assert sum(item.capacity_rps for item in of(plan, "vision")) >= 100.0

    def test_a_finished_job_goes(self) -> None:
        done = (JobStatus(workload=WorkloadId("demo/train"), done=10_000),)
        picture = standing(builders.lab(jobs=(builders.job(),)), job_statuses=done)
        plan = planned(picture)
        assert (plan.assignments, plan.unplaced) == ((), ())

    def test_a_job_keeps_off_inference_devices(self) -> None:
        device = builders.device("a", 0, "t4", colocation=ColocationClass.INFERENCE)
        plan = planned(builders.snapshot([device], [builders.service()], jobs=(builders.job(),)))
        assert of(plan, "train") == []
        assert len(of(plan, "vision")) == 1

    def test_a_task_gets_its_rate(self) -> None:
        plan = planned(builders.lab(tasks=(builders.task(rate_rps=300.0),)))
        assert sum(item.capacity_rps for item in of(plan, "batch")) >= 300.0
        assert all(item.latency_ms_planned is None for item in of(plan, "batch"))

    def test_a_deadline_is_a_rate(self) -> None:
        slo = Slo(kind=SloKind.DEADLINE, deadline_s=10_000.0)
        plan = planned(builders.lab(tasks=(builders.task(slo=slo),)))
        assert sum(item.capacity_rps for item in of(plan, "batch")) >= 100.0


def test_the_proposal_shows_the_price_of_whole_devices() -> None:
    proposal = propose("greedy", builders.request(builders.lab([builders.service(rate_rps_declared=50.0)])))
    facts = {fact.name: fact.value for fact in proposal.reasons[0].facts}
    assert facts["whole_devices_usd_per_h"] == 0.35
    assert facts["devices_in_use"] == 1


def test_types_allowed_are_kept_to() -> None:
    services = [builders.service(gpu_types_allowed=(GpuTypeName("v100"),))]
    (item,) = of(planned(builders.lab(services)), "vision")
    assert item.device.startswith("GPU-b")


def test_a_small_fleet_is_planned_in_a_moment() -> None:
    devices = [
        builders.device(f"n{index // 4}", index % 4, ("t4", "v100", "a100", "l4")[index % 4]) for index in range(12)
    ]
    services = [builders.service(f"s{index}", rate_rps_declared=60.0 + 40 * index) for index in range(8)]
    request = builders.request(builders.snapshot(devices, services, jobs=(builders.job(), builders.job("tune"))))
    propose("greedy", request)
    began_s = time.process_time()
    plan = propose("greedy", request).plan
    # Far above what it takes (some 20 ms), far below what anybody would notice.
    assert time.process_time() - began_s < 0.5
    assert plan is not None
    assert plan.unplaced == ()
