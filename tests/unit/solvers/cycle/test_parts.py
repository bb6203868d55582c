"""Several policies in one cycle: who plans what, what is shared, what is left, what is kept, and that it is sound."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from lab.world.targets import next_target
from solvers.cycle.cycle import CycleOrder, replay, run_cycle
from solvers.cycle.dividing import Division
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.change import Transition
from solvers.domain.codec import bytes_digest, canonical_json, digest, from_json
from solvers.domain.device import Label, PowerCap, PowerScope
from solvers.domain.evidence import FindingCode, Severity
from solvers.domain.ids import CycleId, DeviceId, GpuTypeName, NodeId, PolicyName
from solvers.domain.ownership import moved_by, owners_of
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.policy import Policy, Pool
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand, DeviceTelemetry
from solvers.domain.workload import ServiceMode
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.planners.base import PlanRequest, Thought
from solvers.verify.checks import verify
from tests import builders
from tests.memory import MemoryMemory, MemoryRunner, World

EDGE, LAB = PolicyName("edge"), PolicyName("lab")
ORDER = CycleOrder(id=CycleId("c1"), lane=Lane.ACT, seed=7, software_version="0.1.0")


def edge(**changes: Any) -> Policy:
    """A policy with node a for itself, planned by gpulet."""
    made = builders.policy(name=EDGE, planners=("gpulet",), pool=Pool(nodes=(NodeId("a"),)))
    return replace(made, **changes)


def two(**changes: Any) -> Snapshot:
    """`near` belongs to the policy of node a, `far` to nobody in particular."""
    services = (builders.service("far"), builders.service("near", policy=EDGE))
    picture = builders.lab(services, policies=(edge(),))
    return replace(picture, **changes)


def cycle(picture: Snapshot, **changes: Any) -> CycleRecord:
    return run_cycle(World(picture).ports, replace(ORDER, **changes))


def planned(record: CycleRecord) -> Plan:
    assert record.plan is not None
    return record.plan


def promoted(picture: Snapshot, record: CycleRecord) -> Snapshot:
    """The picture after a promotion, long after."""
    target = next_target(picture.target, planned(record), picture.taken_at_s)
    return replace(picture, target=target, taken_at_s=picture.taken_at_s + 1000.0)


def nodes_of(plan: Plan, workload: str) -> set[str]:
    return {item.device.split("-")[1] for item in plan.assignments if item.workload == workload}


def fatal(picture: Snapshot, plan: Plan) -> list[FindingCode]:
    movable = moved_by(plan, picture, builders.everything_movable(picture))
    return [item.code for item in verify(picture, plan, movable) if item.severity is Severity.FATAL]


def test_every_policy_plans_its_own_devices_by_its_own_chain() -> None:
    record = cycle(two())
    plan = planned(record)
    assert record.generation == 1
    assert (nodes_of(plan, "demo/near"), nodes_of(plan, "demo/far") & {"a"}) == ({"a"}, set())
    assert [(item.policy, item.planner) for item in record.attempts] == [("edge", "gpulet"), ("default", "greedy")]
    assert [(part.policy, part.planner, part.held) for part in plan.parts] == [
        ("edge", "gpulet", ()),
        ("default", "greedy", ()),
    ]
    assert plan.objective.cost_usd_per_h == pytest.approx(sum(part.objective.cost_usd_per_h for part in plan.parts))
    assert record.findings == verify(record.snapshot, plan, record.movable)


def test_pictures_without_pools_are_written_as_before() -> None:
    picture = builders.lab([builders.service()])
    record = cycle(picture)
    for text in (canonical_json(picture), canonical_json(record)):
        assert '"policies"' not in text
        assert '"pool"' not in text
        assert '"parts"' not in text
    assert [item.policy for item in record.attempts] == [None]
    assert from_json(Snapshot, canonical_json(two())) == two()


def test_the_workload_with_the_highest_priority_is_planned_first() -> None:
    services = (builders.service("far", priority=900), builders.service("near", policy=EDGE))
    picture = builders.lab(services, policies=(edge(),))
    assert [item.policy for item in cycle(picture).attempts] == ["default", "edge"]


def test_states_are_kept_for_each_policy_and_found_again() -> None:
    class Keeping(MemoryRunner):
        def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
            thought = super().think(planner, request, state)
            name = request.snapshot.policy.name.encode()
            return Thought(proposal=thought.proposal, state=(state or b"") + name + b".")

    memory, picture = MemoryMemory(), two()
    chains = (("gpulet",), ("igniter",), ("gpulet",))
    for chain in chains:
        run_cycle(World(replace(picture, policies=(edge(planners=chain),)), Keeping(), memory=memory).ports, ORDER)
    assert memory.states == {
        "greedy": b"default.default.default.",
        "edge/gpulet": b"edge.edge.",
        "edge/igniter": b"edge.",
    }


def test_a_policy_without_a_plan_keeps_what_stands_and_holds_nobody_else() -> None:
    first = promoted(two(), cycle(two()))
    grown = replace(first, demands=(builders.demand("demo/far", 900.0), builders.demand("demo/near", 900.0)))
    answers = {"gpulet": EngineError("it broke", planner="gpulet")}
    record = run_cycle(World(grown, MemoryRunner(answers)).ports, ORDER)
    plan = planned(record)
    assert record.generation == 2
    before = [item for item in first.target.assignments if item.workload == "demo/near"]
    assert [item for item in plan.assignments if item.workload == "demo/near"] == before
    assert [part.held for part in plan.parts] == [("no_plan",), ()]
    assert fatal(grown, plan) == []


def test_a_policys_own_gate_holds_its_own_part_only() -> None:
    calm = edge(cooldown_s=86_400.0, planners=("greedy",))
    idle = (builders.demand("demo/near", 1.0),)
    first = replace(two(), policies=(calm,), demands=(builders.demand("demo/near", 900.0),))
    stands = promoted(first, cycle(first))
    # `near` could give replicas back, and `far` needs more at once.
    later = replace(stands, demands=(*idle, builders.demand("demo/far", 900.0)))
    record = cycle(later)
    plan = planned(record)
    kept = [item.replica for item in stands.target.assignments if item.workload == "demo/near"]
    assert record.generation == 2
    assert [item.replica for item in plan.assignments if item.workload == "demo/near"] == kept
    assert {part.policy: part.held for part in plan.parts} == {"default": (), "edge": ("cooldown",)}
    alone = cycle(replace(stands, demands=idle))
    assert alone.generation is None
    assert alone.decision is not None
    assert [reason.value for reason in alone.decision.reasons] == ["nothing_to_change", "cooldown"]
    assert [fact.name for fact in alone.decision.facts] == ["edge.cooldown_left_s"]


def test_nobody_has_a_plan() -> None:
    def none(request: PlanRequest) -> Proposal:
        return Proposal(status=ProposalStatus.INFEASIBLE, planner="none", plan=None)

    record = run_cycle(World(two(), MemoryRunner({"gpulet": none, "greedy": none})).ports, ORDER)
    assert record.plan is None
    assert record.decision is not None
    assert [reason.value for reason in record.decision.reasons] == ["no_plan"]
    assert [(item.policy, item.status) for item in record.attempts] == [
        ("edge", "infeasible"),
        ("default", "infeasible"),
    ]


def test_a_cap_over_both_is_kept_by_both_together() -> None:
    rates = (builders.demand("demo/far", 3000.0), builders.demand("demo/near", 600.0))
    cap = PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=150.0)
    for limit_w in (200.0, 260.0, 400.0):
        record = cycle(two(power_caps=(replace(cap, limit_w=limit_w),), demands=rates))
        plan = planned(record)
        assert record.generation == 1
        assert fatal(record.snapshot, plan) == []
        assert {item.workload for item in plan.unplaced} <= {"demo/far", "demo/near"}
    # Under the tightest one, something is left undone by both; idle power alone is 133 W.
    tight = planned(cycle(two(power_caps=(cap,), demands=rates)))
    assert {item.workload for item in tight.unplaced} == {"demo/far", "demo/near"}


def test_a_quota_is_shared() -> None:
    quota = (replace(two().projects[0], quota_gpus=2.0),)
    rates = (builders.demand("demo/far", 9000.0), builders.demand("demo/near", 9000.0))
    plan = planned(cycle(two(projects=quota, demands=rates)))
    assert fatal(two(projects=quota, demands=rates), plan) == []
    assert sum(item.share_pct_sm for item in plan.assignments) <= 200


def test_a_moved_pool_is_left_before_it_is_needed() -> None:
    first = promoted(two(), cycle(two()))
    moved = replace(first, policies=(edge(pool=Pool(nodes=(NodeId("b"),))),))
    division = Division(moved, builders.everything_movable(moved))
    by_policy = {policy.name: division.part(policy) for policy in division.policies}
    # Its own policy sees it gone, and whoever has its device now sees it stand.
    assert by_policy[EDGE].elsewhere
    standing = {item.replica for item in first.target.assignments if item.workload == "demo/near"}
    assert by_policy[PolicyName("default")].strangers == standing
    record = cycle(moved)
    plan = planned(record)
    assert record.generation == 2
    assert nodes_of(plan, "demo/near") == {"b"}
    assert fatal(moved, plan) == []
    assert record.transition is not None
    again = cycle(promoted(moved, record))
    assert nodes_of(planned(again), "demo/near") == {"b"}


def test_what_has_no_new_place_stays_in_its_old_one_and_is_said_to_be_short() -> None:
    first = promoted(two(), cycle(two()))
    dead = replace(
        first,
        policies=(edge(pool=Pool(nodes=(NodeId("c"),))),),
        devices=tuple(replace(item, schedulable=item.node != "c") for item in first.devices),
    )
    plan = planned(cycle(dead))
    assert nodes_of(plan, "demo/near") == {"a"}
    assert "demo/near" in {item.workload for item in plan.unplaced}
    codes = {(item.code, item.severity) for item in verify(dead, plan)}
    assert (FindingCode.FOREIGN_DEVICE, Severity.WARNING) in codes
    assert fatal(dead, plan) == []


def test_what_stays_in_its_old_place_is_no_change_that_is_promoted_again_and_again() -> None:
    """Nor is it urgent for the rest of its policy's plan; and the others' cooldown passes."""
    first = promoted(two(), cycle(two()))
    dead = replace(
        first,
        policies=(edge(pool=Pool(nodes=(NodeId("c"),))),),
        devices=tuple(replace(item, schedulable=item.node != "c") for item in first.devices),
    )
    record = cycle(promoted(dead, cycle(dead)))
    assert nodes_of(planned(record), "demo/near") == {"a"}
    assert (record.generation, record.transition) == (None, Transition(changes=()))
    assert record.decision is not None
    assert [reason.value for reason in record.decision.reasons] == ["nothing_to_change"]


def test_what_may_not_stay_in_its_old_place_is_stopped() -> None:
    first = promoted(two(), cycle(two()))
    dead = replace(
        first,
        policies=(edge(pool=Pool(nodes=(NodeId("c"),))),),
        devices=tuple(replace(item, schedulable=item.node != "c") for item in first.devices),
    )
    stands = promoted(dead, cycle(dead))
    near = next(item for item in stands.target.assignments if item.workload == "demo/near")
    limit_w = 1.0 + sum(gpu.idle_w for gpu in stands.gpu_types if gpu.name == "t4")
    cap = PowerCap(scope=PowerScope.DEVICE, subject=near.device, limit_w=limit_w)
    record = cycle(replace(stands, power_caps=(cap,)))
    assert record.generation is not None
    assert nodes_of(planned(record), "demo/near") == set()


def test_pinned_replicas_stay_where_they_are_whoever_owns_the_device() -> None:
    first = promoted(two(), cycle(two()))
    services = tuple(replace(item, mode=ServiceMode.APPROVE) for item in first.services if item.name == "near")
    moved = replace(
        first,
        services=(*(item for item in first.services if item.name == "far"), *services),
        policies=(edge(pool=Pool(nodes=(NodeId("b"),))),),
        demands=(builders.demand("demo/far", 900.0),),
    )
    record = cycle(moved)
    plan = planned(record)
    assert nodes_of(plan, "demo/near") == {"a"}
    assert [item for item in record.findings if item.severity is Severity.FATAL] == []
    assert FindingCode.FOREIGN_DEVICE in {item.code for item in verify(moved, plan) if item.severity is Severity.FATAL}


def test_a_replica_on_anothers_device_is_refuted() -> None:
    record = cycle(two())
    plan = planned(record)
    swapped = tuple(
        replace(item, device=DeviceId("GPU-a-0")) if item.workload == "demo/far" else item for item in plan.assignments
    )
    assert FindingCode.FOREIGN_DEVICE in fatal(record.snapshot, replace(plan, assignments=swapped))


def test_slices_of_a_gpu_have_one_owner_and_the_first_by_name_has_it() -> None:
    gpu = builders.device("a", 0, "a100")
    slices = (builders.mig_slice("a", 0, "a100", 3), builders.mig_slice("a", 1, "a100", 4))
    picture = builders.snapshot(
        (gpu, *slices),
        policies=(
            builders.policy(name=EDGE, pool=Pool(devices=(slices[0].id,))),
            builders.policy(name=LAB, pool=Pool(devices=(slices[1].id,))),
        ),
    )
    assert set(owners_of(picture).of_device.items()) == {(item.id, EDGE) for item in (gpu, *slices)}


def test_pools_select_by_labels_and_types_together() -> None:
    label = Label(key="site", value="north")
    nodes = (builders.node("a", labels=(label, Label(key="team", value="x"))), builders.node("b"))
    devices = [builders.device("a", 0, "t4"), builders.device("a", 1, "l4"), builders.device("b", 0, "t4")]
    pool = Pool(labels=(label,), gpu_types=(GpuTypeName("t4"),))
    picture = builders.snapshot(devices, nodes=nodes, policies=(edge(pool=pool),))
    assert dict(owners_of(picture).of_device) == {"GPU-a-0": EDGE}


def test_a_divided_cycle_can_be_repeated() -> None:
    record = cycle(two())
    assert replay(record) == record.plan_digest
    stands = promoted(two(), record)
    moved = replace(stands, policies=(edge(pool=Pool(nodes=(NodeId("b"),)), planners=("greedy",)),))
    later = cycle(moved)
    assert replay(from_json(CycleRecord, canonical_json(later))) == later.plan_digest


def test_a_divided_replay_hands_every_policy_what_its_own_planner_kept() -> None:
    world = World(two(policy=builders.policy(planners=("morak",))))
    known = {"morak": b"of all", "edge/gpulet": b"of the edge"}
    world.memory.states |= known
    record = run_cycle(world.ports, ORDER)
    handed: dict[str, bytes | None] = {}

    def propose(planner: str, request: PlanRequest, state: bytes | None) -> Proposal:
        handed[planner] = state
        return registry.propose(planner, request, state)

    kept = {bytes_digest(state): state for state in known.values()}
    states = {maker.policy: kept[maker.state_digest] for maker in record.makers if maker.state_digest is not None}
    assert replay(record, propose, states) == record.plan_digest
    assert handed == {"morak": b"of all", "gpulet": b"of the edge"}


def test_a_device_that_is_sick_in_one_pool_does_not_hold_the_other() -> None:
    first = promoted(two(), cycle(two()))
    sick = DeviceTelemetry(
        device=DeviceId("GPU-a-0"),
        power_w=10.0,
        utilisation_pct=0.0,
        memory_mib_used=0.0,
        clock_mhz_sm=1000,
        temperature_c=40.0,
        healthy=False,
        age_s=1.0,
    )
    record = cycle(replace(first, device_telemetry=(sick,), demands=(builders.demand("demo/far", 900.0),)))
    assert record.generation == 2
    assert all(item.device != "GPU-a-0" for item in planned(record).assignments)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_pools_the_whole_is_sound_and_repeatable(seed: int) -> None:
    dice = random.Random(seed)
    picture = _any_world(dice)
    for _ in range(3):
        record = cycle(picture)
        plan = planned(record)
        assert fatal(picture, plan) == []
        owners, standing = owners_of(picture), {item.replica: item for item in picture.target.assignments}
        for item in plan.assignments:
            its = owners.policy_at(item.device).name
            assert owners.policy_for(item.workload).name == its or standing[item.replica].device == item.device
        assert replay(record) == digest(plan)
        picture = promoted(picture, record) if record.generation is not None else picture
        picture = replace(picture, policies=_any_pools(dice), demands=_any_demands(dice))


def _any_world(dice: random.Random) -> Snapshot:
    services = tuple(
        builders.service(f"s{index}", policy=dice.choice((None, EDGE, LAB)), priority=dice.choice((50, 100, 300)))
        for index in range(5)
    )
    caps = (PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=dice.choice((300.0, 500.0, 5000.0))),)
    picture = builders.lab(services, policies=_any_pools(dice), demands=_any_demands(dice), power_caps=caps)
    quota = dice.choice((None, 2.0, 4.0))
    return replace(
        picture,
        jobs=(builders.job(policy=dice.choice((None, EDGE))),),
        projects=(replace(picture.projects[0], quota_gpus=quota),),
    )


def _any_pools(dice: random.Random) -> tuple[Policy, ...]:
    nodes = [NodeId(name) for name in dice.sample(("a", "b", "c"), 2)]
    chains = [dice.choice((("greedy",), ("gpulet", "greedy"), ("hetsev", "greedy"))) for _ in nodes]
    bases = [dice.choice(tuple(type(builders.policy().cost_basis))) for _ in nodes]
    return tuple(
        builders.policy(
            name=name,
            planners=chain,
            pool=Pool(nodes=(node,)),
            cost_basis=basis,
            utilisation_max=dice.choice((0.5, 0.8)),
        )
        for name, node, chain, basis in zip((EDGE, LAB), nodes, chains, bases, strict=True)
    )


def _any_demands(dice: random.Random) -> tuple[Demand, ...]:
    return tuple(builders.demand(f"demo/s{index}", dice.choice((0.0, 40.0, 200.0, 700.0))) for index in range(5))


def test_the_registry_knows_no_planner_by_the_name_of_the_whole() -> None:
    assert "pools" not in registry.names()
