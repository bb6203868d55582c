"""One way, at least, to corrupt a valid plan for every code the verifier knows.

A corruption gets the world, its valid plan and a service replica of it, and returns the corrupted plan (and the world,
for rules that are easier to tighten than to break).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.device import ColocationClass, DeviceMode, Offer, PowerCap, PowerScope, Taint
from solvers.domain.evidence import FindingCode
from solvers.domain.ids import (
    DeviceId,
    Digest,
    Generation,
    GpuTypeName,
    ModelName,
    PolicyName,
    ProjectName,
    ReplicaId,
    WorkloadId,
)
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import CostBasis, Pool, Term
from solvers.domain.profile import Interference
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Project, Service, ServiceMode
from solvers.models.worth import worth_of
from tests import builders

Corrupted = tuple[Snapshot, Plan]
Corruption = Callable[[Snapshot, Plan, Assignment], Corrupted]


def base_world() -> Snapshot:
    """A valid world with something of everything: three services on auto, one pinned, a job, and spare devices."""
    services = [
        builders.service("vision", affinity=Affinity(anti_affinity=AntiAffinity.OFF)),
        builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=200.0, replicas_max=2),
        builders.service("spread", rate_rps_declared=900.0, affinity=Affinity(failure_domains_min=2)),
        builders.service("fixed", mode=ServiceMode.OFF),
    ]
    pinned = builders.assignment("demo/fixed#0", builders.device("b", 1, "v100"))
    return builders.lab(services, jobs=(builders.job(),), target=builders.target([pinned]))


def with_assignment(plan: Plan, item: Assignment, **changes: object) -> Plan:
    """The plan with one replica changed, its cost kept right by whoever cares."""
    changed = replace(item, **changes)  # type: ignore[arg-type]
    return replace(plan, assignments=tuple(changed if other is item else other for other in plan.assignments))


def with_service(world: Snapshot, item: Assignment, **changes: object) -> Snapshot:
    """The world with the replica's service changed."""

    def changed(service: Service) -> Service:
        return replace(service, **changes) if service.id == item.workload else service  # type: ignore[arg-type]

    return replace(world, services=tuple(changed(service) for service in world.services))


def with_pool(world: Snapshot, device: str) -> Snapshot:
    """The world with a device in the pool of another policy."""
    pool = Pool(devices=(DeviceId(device),))
    return replace(world, policies=(builders.policy(name=PolicyName("other"), pool=pool),))


def with_device(world: Snapshot, item: Assignment, **changes: object) -> Snapshot:
    """The world with the replica's device changed."""
    devices = (replace(each, **changes) if each.id == item.device else each for each in world.devices)  # type: ignore[arg-type]
    return replace(world, devices=tuple(devices))


def beside(world: Snapshot, plan: Plan, item: Assignment, count: int = 1) -> Plan:
    """The plan with copies of the replica on the same device."""
    copies = tuple(replace(item, replica=ReplicaId(f"{item.workload}#{90 + index}")) for index in range(count))
    return replace(plan, assignments=(*plan.assignments, *copies))


def setting(plan: Plan, item: Assignment, **changes: object) -> Plan:
    """The plan with the setting of the replica's device changed."""
    settings = (replace(each, **changes) if each.device == item.device else each for each in plan.settings)  # type: ignore[arg-type]
    return replace(plan, settings=tuple(settings))


def _weak_variant(accuracy_pct: float | None) -> Corruption:
    """The replica runs an alternative that is less accurate than the owner bears, or of unknown accuracy."""

    def corrupt(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
        weak = builders.model(f"weak-{len(world.models)}", accuracy_pct=accuracy_pct)
        world = with_service(world, item, alternatives=(weak.name,), accuracy_pct_min=70.0)
        return replace(world, models=(*world.models, weak)), with_assignment(plan, item, model=weak.name)

    return corrupt


def with_interference(world: Snapshot, pressure: float, sensitivity: float) -> Snapshot:
    """The world where it is known how its models press and suffer."""
    known = Interference(pressure=pressure, sensitivity=sensitivity)
    return replace(world, profiles=tuple(replace(profile, interference=known) for profile in world.profiles))


def _pressed(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    free = with_service(world, item, affinity=Affinity(anti_affinity=AntiAffinity.OFF))
    return with_interference(free, 20.0, 20.0), beside(world, plan, item)


def _beside_a_pinned(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    pinned = next(each for each in plan.assignments if each.workload == "demo/fixed")
    return with_interference(world, 20.0, 20.0), with_assignment(plan, item, device=pinned.device)


def _in_wide_company(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    wide = replace(world, policy=replace(world.policy, interference_margin=10.0))
    return wide, beside(world, plan, item)


def _beyond_the_offer(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    offer = Offer(name="more", gpu_type=GpuTypeName("t4"), count_max=2)
    beyond = DeviceId("offer.more.000002.gpu-0")
    return replace(world, offers=(offer,)), with_assignment(plan, item, device=beyond)


def _spot(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    """Every price gets interruptions, which the plan's cost leaves out."""
    types = (
        replace(kind, prices=tuple(replace(row, interruptions_per_h=0.1) for row in kind.prices))
        for kind in world.gpu_types
    )
    return replace(world, gpu_types=tuple(types), policy=replace(world.policy, interruption_usd=1.0)), plan


def _by_basis(basis: CostBasis) -> Corruption:
    """The plan says the other basis's cost."""
    other = next(each for each in CostBasis if each is not basis)

    def corrupt(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
        judged = worth_of(replace(world, policy=replace(world.policy, cost_basis=other)), (), plan.assignments)
        objective = replace(plan.objective, cost_usd_per_h=judged.objective.cost_usd_per_h)
        policy = replace(world.policy, cost_basis=basis)
        return replace(world, policy=policy), replace(plan, objective=objective)

    return corrupt


def _bounded(factor: float) -> Corruption:
    return lambda world, plan, item: (
        world,
        replace(plan, bound_usd_per_h=plan.objective.cost_usd_per_h * factor),
    )


def _costing(usd_per_h: float) -> Corruption:
    return lambda world, plan, item: (
        world,
        replace(plan, objective=replace(plan.objective, cost_usd_per_h=usd_per_h)),
    )


def _claiming(**objective: float) -> Corruption:
    return lambda world, plan, item: (world, replace(plan, objective=replace(plan.objective, **objective)))


def _overstating(term: Term, name: str, factor: float) -> Corruption:
    """Under a policy that names the term, so many times what is true."""

    def corrupt(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
        named = replace(world, policy=replace(world.policy, objective=(Term.UNSERVED, term)))
        true = worth_of(named, builders.everything_movable(named), plan.assignments, plan.settings).objective
        claimed = replace(true, **{name: factor * getattr(true, name)})
        return named, replace(plan, snapshot=digest(named), objective=claimed)

    return corrupt


def _stranger(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    stranger = replace(item, replica=ReplicaId("demo/nobody#0"), workload=WorkloadId("demo/nobody"))
    return world, replace(plan, assignments=(*plan.assignments, stranger))


def _tight_cap(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    cap = PowerCap(scope=PowerScope.DEVICE, subject=item.device, limit_w=20.0)
    return replace(world, power_caps=(cap,)), plan


def _limited(world: Snapshot, plan: Plan, item: Assignment) -> Plan:
    """The lowest power limit that the replica's device knows."""
    gpu_type = world.gpu_types_by_name()[world.devices_by_id()[item.device].gpu_type]
    return setting(plan, item, power_limit_w=gpu_type.power_limit_w_min)


def _silence(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    node = world.devices_by_id()[item.device].node
    statuses = (
        NodeStatus(node=each.node, age_s=None if each.node == node else 1.0, generation_applied=0)
        for each in world.node_statuses
    )
    return replace(world, node_statuses=tuple(statuses)), plan


def _twins(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    strict = with_service(world, item, affinity=Affinity(anti_affinity=AntiAffinity.HARD))
    return strict, beside(world, plan, item)


def _foes(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    other = next(each for each in plan.assignments if each.workload != item.workload and each.workload in SERVICES)
    wary = with_service(world, item, affinity=Affinity(avoid_services=(other.workload,)))  # type: ignore[arg-type]
    return wary, with_assignment(plan, other, device=item.device)


def _crowd_dedicated(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    alone = with_service(world, item, affinity=Affinity(dedicated=True, anti_affinity=AntiAffinity.OFF))
    return alone, beside(world, plan, item)


def _crowd_exclusive(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    return with_device(world, item, mode=DeviceMode.DEDICATED), beside(world, plan, item)


def _one_zone(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    nodes = tuple(replace(node, failure_domain="zone-z") for node in world.nodes)
    return replace(with_service(world, item, affinity=Affinity(failure_domains_min=2)), nodes=nodes), plan


def _move_pinned(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    pinned = next(each for each in plan.assignments if each.workload == "demo/fixed")
    return world, with_assignment(plan, pinned, share_pct_sm=pinned.share_pct_sm - 10)


def _drop_pinned(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    return world, replace(plan, assignments=tuple(e for e in plan.assignments if e.workload != "demo/fixed"))


def _add_pinned(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    pinned = next(each for each in plan.assignments if each.workload == "demo/fixed")
    more = replace(pinned, replica=ReplicaId("demo/fixed#1"), device=item.device)
    return world, replace(plan, assignments=(*plan.assignments, more))


def _quota(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    return replace(world, projects=(Project(name=ProjectName("demo"), quota_gpus=0.2),)), plan


def _without_service(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    kept = tuple(each for each in plan.assignments if each.workload != item.workload)
    return world, replace(plan, assignments=kept)


def _dearer(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    objective = replace(plan.objective, cost_usd_per_h=plan.objective.cost_usd_per_h * 0.9)
    return world, replace(plan, objective=objective)


def _setting_of_nowhere(world: Snapshot, plan: Plan, item: Assignment) -> Corrupted:
    return world, replace(plan, settings=(*plan.settings, DeviceSetting(device=DeviceId("GPU-nowhere"))))


SERVICES = ("demo/vision", "demo/fast", "demo/spread")

CORRUPTIONS: dict[FindingCode, tuple[Corruption, ...]] = {
    FindingCode.UNKNOWN_DEVICE: (
        lambda world, plan, item: (world, with_assignment(plan, item, device=DeviceId("GPU-nowhere"))),
        _setting_of_nowhere,
        _beyond_the_offer,
    ),
    FindingCode.UNKNOWN_WORKLOAD: (
        _stranger,
        lambda world, plan, item: (world, with_assignment(plan, item, replica=ReplicaId("demo/other#0"))),
    ),
    FindingCode.UNKNOWN_MODEL: (
        lambda world, plan, item: (world, with_assignment(plan, item, model=ModelName("mystery"))),
        lambda world, plan, item: (replace(world, models=()), plan),
    ),
    FindingCode.ACCURACY_TOO_LOW: (_weak_variant(60.0), _weak_variant(69.999), _weak_variant(None)),
    FindingCode.DUPLICATE_REPLICA: (
        lambda world, plan, item: (world, replace(plan, assignments=(*plan.assignments, item))),
    ),
    FindingCode.SHARE_EXCEEDED: (lambda world, plan, item: (world, beside(world, plan, item, 10)),),
    FindingCode.SHARE_INVALID: (
        lambda world, plan, item: (world, with_assignment(plan, item, share_pct_sm=0)),
        lambda world, plan, item: (world, with_assignment(plan, item, share_pct_sm=101)),
        lambda world, plan, item: (world, with_assignment(plan, item, share_pct_sm=-5)),
    ),
    FindingCode.MEMORY_EXCEEDED: (
        lambda world, plan, item: (world, with_assignment(plan, item, memory_mib_limit=90_000)),
        lambda world, plan, item: (with_device(world, item, memory_mib=1_000), plan),
    ),
    FindingCode.MEMORY_TOO_SMALL: (
        lambda world, plan, item: (world, with_assignment(plan, item, memory_mib_limit=64)),
        lambda world, plan, item: (world, with_assignment(plan, item, memory_mib_limit=-64)),
    ),
    FindingCode.BATCH_INVALID: (
        lambda world, plan, item: (world, with_assignment(plan, item, batch=0)),
        lambda world, plan, item: (world, with_assignment(plan, item, batch=2_000_000)),
    ),
    FindingCode.CLIENTS_EXCEEDED: (lambda world, plan, item: (world, beside(world, plan, item, 8)),),
    FindingCode.CLOCK_UNSUPPORTED: (
        lambda world, plan, item: (world, setting(plan, item, clock_mhz_sm=777)),
        lambda world, plan, item: (
            world,
            with_assignment(plan, item, envelope=replace(item.envelope, clock_mhz_sm_min=777)),
        ),
    ),
    FindingCode.POWER_LIMIT_OUT_OF_RANGE: (
        lambda world, plan, item: (world, setting(plan, item, power_limit_w=1.0)),
        lambda world, plan, item: (world, setting(plan, item, power_limit_w=9_999.0)),
    ),
    FindingCode.POWER_LIMIT_TOO_LOW: (
        lambda world, plan, item: (world, _limited(world, with_assignment(plan, item, power_w_planned=9e3), item)),
        lambda world, plan, item: (world, _limited(world, with_assignment(plan, item, power_w_planned=math.nan), item)),
    ),
    FindingCode.POWER_CAP_EXCEEDED: (_tight_cap,),
    FindingCode.POWER_UNDERSTATED: (
        lambda world, plan, item: (world, with_assignment(plan, item, power_w_planned=0.0)),
        lambda world, plan, item: (world, with_assignment(plan, item, power_w_planned=item.power_w_planned - 0.1)),
        lambda world, plan, item: (world, with_assignment(plan, item, power_w_planned=math.nan)),
    ),
    FindingCode.LATENCY_EXCEEDED: (
        lambda world, plan, item: (world, with_assignment(plan, item, share_pct_sm=5)),
        lambda world, plan, item: (world, with_assignment(plan, item, share_pct_sm=10, batch=32)),
        lambda world, plan, item: (world, with_assignment(plan, item, latency_ms_planned=1e6)),
        lambda world, plan, item: (with_service(world, item, slo=builders.slo(0.5)), plan),
        lambda world, plan, item: (replace(world, profiles=()), plan),
        lambda world, plan, item: (world, with_assignment(plan, item, batch=4_096)),
        lambda world, plan, item: (world, with_assignment(plan, item, latency_ms_planned=math.nan)),
        _pressed,
        _beside_a_pinned,
        _in_wide_company,
    ),
    FindingCode.CAPACITY_SHORT: (
        lambda world, plan, item: (world, with_assignment(plan, item, capacity_rps=math.nan)),
        lambda world, plan, item: (world, with_assignment(plan, item, capacity_rps=item.capacity_rps * 2)),
        lambda world, plan, item: (with_service(world, item, rate_rps_declared=50_000.0), plan),
        _without_service,
    ),
    FindingCode.TYPE_NOT_ALLOWED: (
        lambda world, plan, item: (with_service(world, item, gpu_types_allowed=(GpuTypeName("h100"),)), plan),
    ),
    FindingCode.ANTI_AFFINITY_BROKEN: (_twins,),
    FindingCode.AVOIDED_NEIGHBOUR: (_foes,),
    FindingCode.DEDICATED_BROKEN: (
        _crowd_dedicated,
        _crowd_exclusive,
        lambda world, plan, item: (world, setting(beside(world, plan, item), item, mode=DeviceMode.DEDICATED)),
    ),
    FindingCode.COLOCATION_CLASS_BROKEN: (
        lambda world, plan, item: (with_device(world, item, colocation=ColocationClass.TRAINING), plan),
    ),
    FindingCode.TAINT_NOT_TOLERATED: (
        lambda world, plan, item: (with_device(world, item, taints=(Taint(key="reserved"),)), plan),
    ),
    FindingCode.DEVICE_UNSCHEDULABLE: (lambda world, plan, item: (with_device(world, item, schedulable=False), plan),),
    FindingCode.DEVICE_SILENT: (_silence,),
    FindingCode.REPLICAS_OUT_OF_RANGE: (
        lambda world, plan, item: (with_service(world, item, replicas_min=16, replicas_max=16), plan),
        lambda world, plan, item: (
            with_service(world, item, replicas_max=1),
            beside(world, plan, item),
        ),
        _without_service,
    ),
    FindingCode.FAILURE_DOMAINS_SHORT: (_one_zone,),
    FindingCode.BUDGET_EXCEEDED: (lambda world, plan, item: (with_service(world, item, budget_usd_per_h=0.001), plan),),
    FindingCode.QUOTA_EXCEEDED: (_quota,),
    FindingCode.PINNED_CHANGED: (_move_pinned, _drop_pinned, _add_pinned),
    FindingCode.COST_WRONG: (
        _dearer,
        lambda world, plan, item: (world, with_assignment(plan, item, power_w_planned=item.power_w_planned + 5)),
        _by_basis(CostBasis.DEVICE),
        _by_basis(CostBasis.SHARE),
        _by_basis(CostBasis.MEMORY),
        _spot,
        _costing(0.0),
        _costing(math.nan),
    ),
    FindingCode.BOUND_WRONG: (_bounded(1.01), _bounded(math.inf), _bounded(math.nan)),
    FindingCode.CAPACITY_OVERSTATED: (
        _claiming(capacity_rps=1.0),
        _claiming(capacity_rps=math.inf),
        _claiming(capacity_rps=math.nan),
        _overstating(Term.CAPACITY, "capacity_rps", 1.5),
    ),
    FindingCode.TRAINING_OVERSTATED: (
        _claiming(training_rate=1.0),
        _claiming(training_rate=math.nan),
        _overstating(Term.TRAINING, "training_rate", 1.01),
    ),
    FindingCode.PARENT_MISMATCH: (
        lambda world, plan, item: (world, replace(plan, parent=Generation(plan.parent + 1))),
        lambda world, plan, item: (replace(world, target=replace(world.target, generation=Generation(9))), plan),
    ),
    FindingCode.SNAPSHOT_MISMATCH: (
        lambda world, plan, item: (world, replace(plan, snapshot=Digest("sha256:" + "0" * 64))),
        lambda world, plan, item: (replace(world, taken_at_s=world.taken_at_s + 1), plan),
        lambda world, plan, item: (replace(world, target=Target(generation=world.target.generation)), plan),
    ),
    FindingCode.ENVELOPE_INVALID: (
        lambda world, plan, item: (
            world,
            with_assignment(plan, item, envelope=replace(item.envelope, batch_min=item.batch + 1)),
        ),
        lambda world, plan, item: (
            world,
            with_assignment(plan, item, envelope=replace(item.envelope, batch_max=item.batch - 1)),
        ),
        lambda world, plan, item: (
            world,
            with_assignment(plan, item, envelope=replace(item.envelope, batch_min=0)),
        ),
        lambda world, plan, item: (
            world,
            with_assignment(plan, item, envelope=replace(item.envelope, batch_max=4_096)),
        ),
        lambda world, plan, item: (world, setting(plan, item, clock_mhz_sm=_lowest_clock(world, item))),
    ),
    FindingCode.FOREIGN_DEVICE: (
        lambda world, plan, item: (with_pool(world, item.device), plan),
        lambda world, plan, item: (
            with_pool(with_service(world, item, policy=PolicyName("other")), "GPU-nowhere-0"),
            plan,
        ),
    ),
    FindingCode.SETTING_DUPLICATE: (
        lambda world, plan, item: (world, replace(plan, settings=(*plan.settings, plan.settings[0]))),
    ),
}


def _lowest_clock(world: Snapshot, item: Assignment) -> int:
    device = world.devices_by_id()[item.device]
    return world.gpu_types_by_name()[device.gpu_type].clocks_mhz_sm[0]
