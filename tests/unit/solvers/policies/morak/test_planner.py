"""Virtual GPUs at their knees, open envelopes, whole GPUs for who knows no partitioning, and answers to controllers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.change import Target
from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.ids import DeviceId, Generation, GpuTypeName, ModelName, ReplicaId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import BrokenLimit, DeviceTelemetry, RepartitionWish
from solvers.domain.workload import Affinity, AntiAffinity, SloScope
from solvers.models.worth import worth_of
from solvers.planners import registry
from solvers.planners.base import Thought
from solvers.planners.case import Case
from solvers.planners.tuning import Scalar
from solvers.policies.morak.cutting import Leftover, MorakParameters, batch_ceiling, knee_share_pct
from solvers.policies.morak.models import CountOnly
from solvers.policies.morak.planner import Wishes, _Partition, crowds_of
from solvers.verify.checks import is_fatal, verify
from tests import builders

DEVICES = tuple(builders.device("a", index, "t4") for index in range(4))
TOP_MHZ = 1590
NAMES = ("one", "two", "three")
EXECUTION = builders.slo(300.0, scope=SloScope.EXECUTION)
CURVE = {share: builders.latency_ms("t4", 16, share) for share in builders.SHARES}
KNEE_PCT = knee_share_pct(CURVE, 0.2)
SETTINGS: dict[str, Scalar] = {
    "knee_batch": 16,
    "knee_gain_part": 0.2,
    "copies_per_device": 1,
    "leftover": "reserve",
}


def room(**changes: Any) -> Snapshot:
    services = [builders.service(name, slo=EXECUTION, rate_rps_declared=5.0, replicas_max=8) for name in NAMES]
    return builders.snapshot(DEVICES, services, **changes)


def thought(
    picture: Snapshot, name: str = "morak", state: bytes | None = None, settings: dict[str, Scalar] | None = None
) -> Thought:
    planner = registry.create(name, SETTINGS if settings is None else settings)
    found = registry.think(planner, builders.request(picture), state, SilentReporter())
    assert found.proposal.plan is not None
    assert not is_fatal(verify(picture, found.proposal.plan, builders.everything_movable(picture)))
    return found


def plan_of(found: Thought) -> Plan:
    assert found.proposal.plan is not None
    return found.proposal.plan


def by_device(plan: Plan) -> dict[DeviceId, list[Assignment]]:
    found: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in plan.assignments:
        found[item.device].append(item)
    return found


def after(picture: Snapshot, plan: Plan, generation: int, *seen: DeviceTelemetry) -> Snapshot:
    target = Target(generation=Generation(generation), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target, device_telemetry=seen)


def asking(device: DeviceId, wish: RepartitionWish) -> DeviceTelemetry:
    return DeviceTelemetry(
        device=device,
        power_w=60.0,
        utilisation_pct=90.0,
        memory_mib_used=1.0,
        clock_mhz_sm=TOP_MHZ,
        age_s=1.0,
        repartition=wish,
    )


def test_copies_of_every_service_are_spread_over_all_gpus_by_their_knees() -> None:
    assert 3 * KNEE_PCT > 100 > 2 * KNEE_PCT
    plan = plan_of(thought(room()))
    held = by_device(plan)
    assert set(held) == {device.id for device in DEVICES}
    for items in held.values():
        assert [item.share_pct_sm for item in items] == [KNEE_PCT] * 2
        assert len({item.workload for item in items}) == 2
    assert sorted(Counter(item.workload for item in plan.assignments).values()) == [2, 3, 3]


def test_what_knees_leave_free_can_go_to_those_who_are_there() -> None:
    reserved = plan_of(thought(room()))
    shared = plan_of(thought(room(), settings={**SETTINGS, "leftover": "distribute"}))
    where = {item.replica: item.device for item in shared.assignments}
    assert where == {item.replica: item.device for item in reserved.assignments}
    for items in by_device(shared).values():
        assert [item.share_pct_sm for item in items] == [50, 50]


def test_a_share_between_two_steps_draws_what_was_measured_there() -> None:
    """Shares are handed out in steps of 40, and what knees leave free makes one of 50 out of one of 40."""
    fine = builders.profile(shares=(10, 20, 30, 40, 50, 60, 80, 100))
    picture = room(profiles=(fine,), policy=builders.policy(share_step_pct=40))
    plan = plan_of(thought(picture, settings={**SETTINGS, "leftover": "distribute"}))
    measured = {(point.batch, point.share_pct_sm): point.power_w for point in fine.points}
    assert 50 in {item.share_pct_sm for item in plan.assignments}
    for item in plan.assignments:
        assert item.power_w_planned == measured[item.batch, item.share_pct_sm]


def test_copies_go_to_who_serves_most_for_its_share_once_everybodys_demand_is_met() -> None:
    names = ("busy", "heavy")
    off = Affinity(anti_affinity=AntiAffinity.OFF)
    services = [
        builders.service(
            name, slo=EXECUTION, rate_rps_declared=5.0, replicas_max=8, model=ModelName(name), affinity=off
        )
        for name in names
    ]
    profiles = (builders.profile("busy"), builders.profile("heavy", work=1.5))
    snapshot = builders.snapshot(DEVICES, services, profiles=profiles)
    plan = plan_of(thought(snapshot, settings={**SETTINGS, "leftover": "copies", "copies_per_device": 4}))
    assert Counter(item.workload for item in plan.assignments) == {"demo/busy": 7, "demo/heavy": 1}
    assert all(sum(item.share_pct_sm for item in items) == 100 for items in by_device(plan).values())


def test_batches_begin_small_and_end_at_the_ceiling_with_every_clock_open() -> None:
    plan = plan_of(thought(room()))
    served = {batch: batch / builders.latency_ms("t4", batch, KNEE_PCT) for batch in builders.BATCHES}
    for item in plan.assignments:
        envelope = item.envelope
        assert (item.batch, envelope.batch_min, envelope.batch_max) == (1, 1, batch_ceiling(served))
        assert (envelope.clock_mhz_sm_min, envelope.clock_mhz_sm_max) == (TOP_MHZ - 600, TOP_MHZ)
    assert {setting.clock_mhz_sm for setting in plan.settings} == {None}


@pytest.mark.parametrize(("governor", "kept"), [("morak", True), ("dfs", False)])
def test_clocks_are_open_at_no_risk_where_the_controller_heeds_latencies(governor: str, kept: bool) -> None:
    picture = room(policy=builders.policy(governor=governor))
    plan = plan_of(thought(picture))
    objective = worth_of(picture, builders.everything_movable(picture), plan.assignments, plan.settings).objective
    assert (objective == plan.objective) is kept
    assert (objective.slo_risk == 0) is kept


def test_the_clock_begins_low_where_it_was_measured_and_every_batch_still_keeps_its_promise() -> None:
    low = builders.profile(clocks=(TOP_MHZ - 600, TOP_MHZ - 300, TOP_MHZ))
    assert {item.clock_mhz_sm for item in plan_of(thought(room(profiles=(low,)))).settings} == {TOP_MHZ - 600}
    tight = [builders.service(name, slo=replace(EXECUTION, latency_ms=200.0), rate_rps_declared=5.0) for name in NAMES]
    strict = plan_of(thought(builders.snapshot(DEVICES, tight, profiles=(low,))))
    assert {item.clock_mhz_sm for item in strict.settings} == {TOP_MHZ - 300}
    assert {item.envelope.batch_max for item in strict.assignments} == {32}


def test_for_few_gpus_it_stops_where_the_demand_is_met() -> None:
    plan = plan_of(thought(room(), settings={**SETTINGS, "goal": "devices"}))
    assert Counter(item.workload for item in plan.assignments) == {f"demo/{name}": 1 for name in NAMES}
    assert len(by_device(plan)) == 2


def test_who_knows_no_partitioning_has_whole_gpus_in_turn() -> None:
    plan = plan_of(thought(room(), "whole_gpu", settings={}))
    held = by_device(plan)
    assert all(len(items) == 1 and items[0].share_pct_sm == 100 for items in held.values())
    assert sorted(Counter(item.workload for item in plan.assignments).values()) == [1, 1, 2]
    assert all(item.envelope.clock_mhz_sm_min < item.envelope.clock_mhz_sm_max for item in plan.assignments)


def test_a_late_replica_gets_share_once_for_each_generation_and_its_donor_gives_it() -> None:
    picture = room()
    first = thought(picture)
    device, items = sorted(by_device(plan_of(first)).items())[0]
    worst, donor = items
    wish = RepartitionWish(cause=BrokenLimit.LATENCY, replica=worst.replica, donor=donor.replica, share_pct_sm=5)
    asked = after(picture, plan_of(first), 2, asking(device, wish))
    second = thought(asked, state=first.state)
    shares = {item.workload: item.share_pct_sm for item in by_device(plan_of(second))[device]}
    assert shares == {worst.workload: KNEE_PCT + 5, donor.workload: KNEE_PCT - 5}
    others = [item for item in plan_of(second).assignments if item.device != device]
    assert {item.share_pct_sm for item in others} == {KNEE_PCT}
    repeated = thought(asked, state=second.state)
    assert plan_of(repeated).assignments == plan_of(second).assignments
    third = thought(after(picture, plan_of(second), 3, asking(device, wish)), state=second.state)
    assert {item.share_pct_sm for item in by_device(plan_of(third))[device]} == {KNEE_PCT + 10, KNEE_PCT - 10}


def test_where_nothing_is_free_the_worst_takes_from_the_donor() -> None:
    picture, settings = room(), {**SETTINGS, "leftover": "distribute"}
    first = thought(picture, settings=settings)
    device, items = sorted(by_device(plan_of(first)).items())[0]
    worst, donor = items
    wish = RepartitionWish(cause=BrokenLimit.LATENCY, replica=worst.replica, donor=donor.replica, share_pct_sm=5)
    second = thought(after(picture, plan_of(first), 2, asking(device, wish)), state=first.state, settings=settings)
    shares = {item.workload: item.share_pct_sm for item in by_device(plan_of(second))[device]}
    assert shares[worst.workload] >= 55
    assert sum(shares.values()) == 100


def test_above_the_cap_a_service_leaves_the_device_if_it_has_another() -> None:
    picture = room()
    first = thought(picture)
    device, items = sorted(by_device(plan_of(first)).items())[0]
    wish = RepartitionWish(cause=BrokenLimit.POWER, replica=items[0].replica)
    second = thought(after(picture, plan_of(first), 2, asking(device, wish)), state=first.state)
    assert items[0].workload not in {item.workload for item in by_device(plan_of(second))[device]}
    assert items[0].workload in {item.workload for item in plan_of(second).assignments}
    few: dict[str, Scalar] = {**SETTINGS, "goal": "devices"}
    only = thought(picture, settings=few)
    (replica,) = (item for item in plan_of(only).assignments if item.workload == items[0].workload)
    assert len(by_device(plan_of(only))) > 1
    kept = RepartitionWish(cause=BrokenLimit.POWER, replica=replica.replica)
    asked = after(picture, plan_of(only), 2, asking(replica.device, kept))
    again = by_device(plan_of(thought(asked, state=only.state, settings=few)))
    assert replica.workload in {item.workload for item in again[replica.device]}


def test_what_was_asked_is_forgotten_in_time_and_wishes_of_strangers_count_nothing() -> None:
    picture = room()
    first = thought(picture)
    device, items = sorted(by_device(plan_of(first)).items())[0]
    stranger = RepartitionWish(cause=BrokenLimit.LATENCY, replica=ReplicaId("demo/none#0"), share_pct_sm=5)
    unmoved = thought(after(picture, plan_of(first), 2, asking(device, stranger)), state=first.state)
    assert {item.share_pct_sm for item in plan_of(unmoved).assignments} == {KNEE_PCT}
    wish = RepartitionWish(cause=BrokenLimit.LATENCY, replica=items[0].replica, share_pct_sm=5)
    second = thought(after(picture, plan_of(first), 2, asking(device, wish)), state=first.state)
    assert KNEE_PCT + 5 in {item.share_pct_sm for item in plan_of(second).assignments}
    later = replace(after(picture, plan_of(second), 3), taken_at_s=picture.taken_at_s + 4000.0)
    assert {item.share_pct_sm for item in plan_of(thought(later, state=second.state)).assignments} == {KNEE_PCT}


def test_what_stands_is_planned_again_unchanged() -> None:
    picture = room()
    first = thought(picture)
    again = thought(after(picture, plan_of(first), 2), state=first.state)
    knobs = [(item.replica, item.device, item.share_pct_sm, item.envelope) for item in plan_of(first).assignments]
    assert [(i.replica, i.device, i.share_pct_sm, i.envelope) for i in plan_of(again).assignments] == knobs


@pytest.mark.parametrize("name", ["morak", "whole_gpu"])
def test_what_the_start_does_not_serve_is_said_to_be_short(name: str) -> None:
    services = [builders.service("big", slo=EXECUTION, rate_rps_declared=5000.0, replicas_max=2)]
    plan = plan_of(thought(builders.snapshot(DEVICES, services), name, settings={}))
    (short,) = plan.unplaced
    assert short.rate_rps_short > 1000.0
    assert {reason.code for reason in short.reasons} == {ReasonCode.WAITS_IN_LINE}


def test_no_more_copies_of_a_service_are_on_a_gpu_than_may_be() -> None:
    off = Affinity(anti_affinity=AntiAffinity.OFF)
    services = [builders.service("one", slo=EXECUTION, rate_rps_declared=5.0, replicas_max=40, affinity=off)]
    settings: dict[str, Scalar] = {"knee_batch": 1, "knee_gain_part": 0.9, "leftover": "copies"}
    for copies in (1, 2):
        plan = plan_of(
            thought(builders.snapshot(DEVICES, services), settings={**settings, "copies_per_device": copies})
        )
        assert {len(items) for items in by_device(plan).values()} == {copies}


def test_clocks_stay_closed_beside_what_may_not_be_moved() -> None:
    device = DEVICES[0]
    held = builders.assignment(
        "demo/three#0", device, share_pct_sm=20, memory_mib_limit=3000, batch=1, latency_ms_planned=60.0
    )
    picture = builders.snapshot(
        [device],
        [builders.service(name, slo=EXECUTION, rate_rps_declared=5.0) for name in NAMES],
        target=builders.target([held]),
    )
    movable = ("demo/one", "demo/two")
    request = builders.request(picture, movable)
    plan = registry.think(registry.create("morak", SETTINGS), request, None, SilentReporter()).proposal.plan
    assert plan is not None
    mine = [item for item in plan.assignments if item.workload in movable]
    assert mine
    assert {item.envelope.clock_mhz_sm_max - item.envelope.clock_mhz_sm_min for item in mine} == {0}


def test_a_replica_goes_where_most_is_free() -> None:
    services = [builders.service(name, slo=EXECUTION, rate_rps_declared=5.0, replicas_max=1) for name in NAMES]
    plan = plan_of(thought(builders.snapshot(DEVICES, services)))
    assert sorted(len(items) for items in by_device(plan).values()) == [1, 1, 1]


def crowded(limit_ms: float, interference: Interference | None = None) -> Snapshot:
    """Services that press little at their shares, and more the more there are by what profiles tell of larger ones."""
    slo = builders.slo(limit_ms, scope=SloScope.EXECUTION)
    services = [builders.service(name, slo=slo, rate_rps_declared=5.0, replicas_max=8) for name in (*NAMES, "four")]
    picture = builders.snapshot(DEVICES[:1], services)
    return replace(picture, profiles=tuple(replace(item, interference=interference) for item in picture.profiles))


PRESSING = Interference(pressure=8.0, sensitivity=0.5, exponent=2.0)


def test_no_more_models_meet_than_their_limits_bear_by_their_number() -> None:
    """(3): L L_int(n) is within the limit for who comes and for all who are there, n counting who comes."""
    request = builders.request(crowded(300.0, PRESSING))
    case = Case.of(request)
    parameters = MorakParameters(knee_gain_part=0.9, copies_per_device=1, leftover=Leftover.RESERVE)
    made = _Partition(request, case, parameters, Wishes())
    crowd, here = crowds_of(case)[GpuTypeName("t4")], np.array([0])
    assert made.draft.fleet.occupants[0] == 4
    four, five = (float(crowd.factor("t4", np.array([count]))[0]) for count in (4.0, 5.0))
    assert 1.15 < four < five
    need = made.draft.needs[0]
    virtual = made.cutter.cut(need, 0)
    assert virtual is not None
    took = 300.0 / made._borne(need, virtual)
    assert made.tolerated[0] == pytest.approx(300.0 / took)
    for factor, open_to_it in (((four + five) / 2, []), (five + 0.01, [0])):
        assert made._bearable(replace(need, limit_ms=factor * took), virtual, here).tolist() == open_to_it
        made.tolerated[0] = factor
        assert made._bearable(need, virtual, here).tolist() == open_to_it
        made.tolerated[0] = np.inf
    assert crowds_of(Case.of(builders.request(crowded(300.0))))[GpuTypeName("t4")] == CountOnly()


def capped(limit_w: float) -> Snapshot:
    cap = PowerCap(scope=PowerScope.DEVICE, subject=DEVICES[0].id, limit_w=limit_w)
    return replace(crowded(300.0), power_caps=(cap,))


def together_w(picture: Snapshot, power_beside: str, leftover: str = "reserve") -> float:
    """What a GPU with a cap is planned to draw, idle power included, by the sum of who is there."""
    plan = plan_of(thought(picture, settings={**SMALL, "power_beside": power_beside, "leftover": leftover}))
    return picture.gpu_types[0].idle_w + sum(item.power_w_planned for item in plan.assignments)


SMALL: dict[str, Scalar] = {"knee_gain_part": 0.9, "copies_per_device": 1}


def test_a_gpu_with_a_cap_holds_no_more_than_power_times_p_int_allows() -> None:
    """(4): between the sum of four and 156 / 152 of it three meet; where powers add up, as elsewhere, all four do."""
    four_w = together_w(crowded(300.0), "sum")
    assert together_w(crowded(300.0), "p_int") == four_w, "without a cap nobody is kept away"
    between = capped(four_w * (1.0 + 156.0 / 152.0) / 2.0)
    assert together_w(between, "sum") == four_w
    assert together_w(between, "p_int") < four_w
    assert together_w(capped(four_w * 156.0 / 152.0 + 0.1), "p_int") == four_w


def test_nobody_grows_beyond_power_times_p_int() -> None:
    grown_w = together_w(crowded(300.0), "sum", "distribute")
    assert grown_w > together_w(crowded(300.0), "sum")
    between = capped(grown_w * (1.0 + 156.0 / 152.0) / 2.0)
    assert together_w(between, "p_int", "distribute") < together_w(between, "sum", "distribute") == grown_w


def under_one_cap(limit_w: float) -> Snapshot:
    return room(power_caps=(PowerCap(scope=PowerScope.NODE, subject="a", limit_w=limit_w),))


def sums_w(plan: Plan) -> dict[DeviceId, float]:
    idle_w = builders.gpu_type("t4").idle_w
    here = by_device(plan)
    return {item.id: idle_w + sum(each.power_w_planned for each in here.get(item.id, [])) for item in DEVICES}


@pytest.mark.parametrize("name", ["morak", "whole_gpu"])
@pytest.mark.parametrize("opened", [0, 1, 3])
def test_clocks_are_open_only_where_a_shared_cap_holds_them(name: str, opened: int) -> None:
    """No controller sees what the others draw: clocks rise where boards may draw all they can."""
    most_w = builders.gpu_type("t4").power_limit_w_max
    free = sums_w(plan_of(thought(under_one_cap(4 * most_w + 1.0), name, settings={})))
    limit_w = opened * most_w + (4 - opened) * max(free.values()) + 1.0
    picture = under_one_cap(limit_w)
    plan = plan_of(thought(picture, name, settings={}))
    found = {
        item.device for item in plan.assignments if item.envelope.clock_mhz_sm_min < item.envelope.clock_mhz_sm_max
    }
    assert len(found) == min(opened, len(by_device(plan)))
    assert sum(most_w if device in found else planned_w for device, planned_w in sums_w(plan).items()) <= limit_w
