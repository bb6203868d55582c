"""What a plan made from a snapshot comes to, as a whole and workload by workload.

Owns the numbers that plans from files and simulations show (cost, bound, what is unserved, energy, GPUs in use, moves)
and how each workload is served in one plan and in another, derived from snapshot and plan alone. It judges by nothing
but the verifier's findings, and does not say why.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from solvers.cycle.attempts import ChosenPlan
from solvers.cycle.record import Attempt
from solvers.domain.change import Change, ChangeKind, Transition, diff
from solvers.domain.codec import digest
from solvers.domain.device import Device
from solvers.domain.evidence import Finding, Severity
from solvers.domain.ids import DeviceId, Digest, GpuTypeName, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, Plan, Unplaced
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import late, value
from solvers.domain.workload import WorkloadKind

HOURS_PER_DAY = 24
_ONCE = frozenset({ChangeKind.STOP, ChangeKind.START, ChangeKind.MOVE, ChangeKind.SWAP_MODEL})


@value
class TypeUse:
    """GPUs of one type: how many there are, and how many hold something."""

    gpu_type: GpuTypeName
    in_use: int
    total: int


@value
class Moves:
    """What has to happen to replicas to get from what stands to a plan; a replica counts once."""

    starts: int = 0
    stops: int = 0
    moved: int = 0
    changed: int = 0
    """Share, memory, batch or envelope changed in place."""
    launch_s: float = 0.0


@value
class Outcome:
    """A plan in numbers. Where no planner gave a plan, `plan` is None and all numbers are those of an empty one."""

    snapshot: Digest
    plan: Digest | None
    planner: str | None
    verified: bool
    attempts: tuple[Attempt, ...]
    findings: tuple[Finding, ...]
    cost_usd_per_h: float = 0.0
    bound_usd_per_h: float | None = None
    gap_pct: float | None = None
    unserved: float = 0.0
    """Weighted by priority, as the objective has it."""
    workloads_short: int = 0
    rate_rps_short: float = 0.0
    slo_risk: float = 0.0
    power_w: float = 0.0
    """Of the GPUs in use: what they draw idle and what is planned above."""
    energy_kwh_per_day: float = 0.0
    """The same power for a day, cooling included."""
    replicas: int = 0
    gpus_in_use: int = 0
    gpus_total: int = 0
    gpus: tuple[TypeUse, ...] = ()
    moves: Moves = Moves()
    capacity_rps: float = late(0.0)
    """What full batches of services would carry; told where the policy names `capacity`."""
    training_rate: float = late(0.0)
    """Seconds of the reference GPU's work that jobs do in a second; told where the policy names `training`."""


def outcome_of(snapshot: Snapshot, chosen: ChosenPlan) -> Outcome:
    """Put what the chain of planners ended with into numbers."""
    plan = chosen.plan
    if plan is None:
        return Outcome(
            snapshot=digest(snapshot), plan=None, planner=None, verified=False, attempts=chosen.attempts, findings=()
        )
    whole = snapshot.with_offers()
    power_w = power_w_of(whole, plan)
    use = use_by_type(whole, plan)
    return Outcome(
        snapshot=plan.snapshot,
        plan=digest(plan),
        planner=plan.planner,
        verified=chosen.sound,
        attempts=chosen.attempts,
        findings=chosen.findings,
        cost_usd_per_h=plan.objective.cost_usd_per_h,
        bound_usd_per_h=plan.bound_usd_per_h,
        gap_pct=plan.gap_pct,
        unserved=plan.objective.unserved,
        workloads_short=len(plan.unplaced),
        rate_rps_short=sum(item.rate_rps_short for item in plan.unplaced),
        slo_risk=plan.objective.slo_risk,
        power_w=power_w,
        energy_kwh_per_day=power_w * HOURS_PER_DAY / 1000 * snapshot.policy.power_usage_effectiveness,
        replicas=len(plan.assignments),
        gpus_in_use=sum(item.in_use for item in use),
        gpus_total=sum(item.total for item in use),
        gpus=use,
        moves=moves_of(transition_of(snapshot, plan)),
        capacity_rps=plan.objective.capacity_rps,
        training_rate=plan.objective.training_rate,
    )


def fatal(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that block."""
    return tuple(item for item in findings if item.severity is Severity.FATAL)


def transition_of(snapshot: Snapshot, plan: Plan) -> Transition:
    """The way from what stands to the plan."""
    return diff(snapshot.target, plan, {model.name: model.launch_s for model in snapshot.models})


def moves_of(transition: Transition) -> Moves:
    """Count a transition's changes of replicas."""
    kinds = Counter(change.kind for change in transition.changes)
    changed = {change.subject for change in transition.changes if _in_place(change)}
    return Moves(
        starts=kinds[ChangeKind.START],
        stops=kinds[ChangeKind.STOP],
        moved=kinds[ChangeKind.MOVE] + kinds[ChangeKind.SWAP_MODEL],
        changed=len(changed),
        launch_s=sum(change.cost_s for change in transition.changes),
    )


def _in_place(change: Change) -> bool:
    return change.after is not None and change.kind not in _ONCE


def use_by_type(snapshot: Snapshot, plan: Plan) -> tuple[TypeUse, ...]:
    """GPUs of every type, by name; slices of one GPU count as one."""
    held = {item.device for item in plan.assignments}
    total = Counter(item.gpu_type for item in {_whole(device): device for device in snapshot.devices}.values())
    used = Counter(
        item.gpu_type for item in {_whole(device): device for device in snapshot.devices if device.id in held}.values()
    )
    return tuple(TypeUse(gpu_type=name, in_use=used[name], total=total[name]) for name in sorted(total))


def _whole(device: Device) -> DeviceId:
    return device.mig.parent if device.mig is not None else device.id


def power_w_of(snapshot: Snapshot, plan: Plan) -> float:
    """Power planned for the GPUs in use: idle, and what their replicas add, within their limits."""
    types, devices = snapshot.gpu_types_by_name(), snapshot.devices_by_id()
    limits = {item.device: item.power_limit_w for item in plan.settings}
    drawn: dict[DeviceId, float] = {}
    for item in plan.assignments:
        drawn[item.device] = drawn.get(item.device, 0.0) + item.power_w_planned
    total_w = 0.0
    for name, dynamic_w in sorted(drawn.items()):
        device = devices.get(name)
        if device is None:
            continue
        gpu_type = types[device.gpu_type]
        part = gpu_type.part_of(device)
        limit_w = limits.get(name) or gpu_type.power_limit_w_max
        total_w += min(part * gpu_type.idle_w + dynamic_w, part * limit_w)
    return total_w


DIGITS = 6


class Fate(StrEnum):
    """What became of a workload's declaration."""

    ADDED = "added"
    REMOVED = "removed"
    KEPT = "kept"


@value
class TypeReplicas:
    """Replicas on GPUs of one type, and the share of GPUs they hold, summed."""

    gpu_type: GpuTypeName
    replicas: int
    gpus: float


@value
class Serving:
    """How a workload is served: rate asked for and short, requests/s; price of its shares of GPUs."""

    rate_rps: float = 0.0
    rate_rps_short: float = 0.0
    replicas: int = 0
    usd_per_h: float = 0.0
    on: tuple[TypeReplicas, ...] = ()


@value
class WorkloadChange:
    """One workload before and after."""

    workload: WorkloadId
    kind: WorkloadKind
    fate: Fate
    before: Serving
    after: Serving

    @property
    def differs(self) -> bool:
        """Whether anything about it changed."""
        return self.fate is not Fate.KEPT or self.before != self.after


@dataclass(frozen=True, slots=True)
class _WorkloadKey:
    workload: WorkloadId
    kind: WorkloadKind


def workload_changes(
    before: Snapshot, plan_before: Plan | None, after: Snapshot, plan_after: Plan | None
) -> tuple[WorkloadChange, ...]:
    """One row for each workload of either picture, by id."""
    old = _servings(before.with_offers(), plan_before)
    new = _servings(after.with_offers(), plan_after)
    rows = []
    for key in sorted({*old, *new}, key=lambda item: (item.workload, item.kind)):
        fate = Fate.ADDED if key not in old else Fate.REMOVED if key not in new else Fate.KEPT
        rows.append(
            WorkloadChange(
                workload=key.workload,
                kind=key.kind,
                fate=fate,
                before=old.get(key, Serving()),
                after=new.get(key, Serving()),
            )
        )
    return tuple(rows)


def _servings(snapshot: Snapshot, plan: Plan | None) -> dict[_WorkloadKey, Serving]:
    by_workload: dict[_WorkloadKey, list[Assignment]] = defaultdict(list)
    short: dict[_WorkloadKey, Unplaced] = {}
    if plan is not None:
        for item in plan.assignments:
            by_workload[_WorkloadKey(item.workload, item.kind)].append(item)
        short = {_WorkloadKey(item.workload, item.kind): item for item in plan.unplaced}
    prices = price_by_device(snapshot)
    types = {device.id: device.gpu_type for device in snapshot.devices}
    return {
        key: _serving(rate_rps, by_workload[key], short.get(key), prices, types)
        for key, rate_rps in _rates(snapshot).items()
    }


def _rates(snapshot: Snapshot) -> dict[_WorkloadKey, float]:
    """What is asked for, by workload; jobs and tasks have no rate of arrivals."""
    demands = snapshot.demands_by_service()
    rates = {
        _WorkloadKey(WorkloadId(item.id), WorkloadKind.SERVICE): (
            demands[item.id].rate_rps_upper if item.id in demands else item.rate_rps_declared
        )
        for item in snapshot.services
    }
    rates |= {_WorkloadKey(WorkloadId(item.id), WorkloadKind.JOB): 0.0 for item in snapshot.jobs}
    return rates | {_WorkloadKey(WorkloadId(item.id), WorkloadKind.TASK): 0.0 for item in snapshot.tasks}


def price_by_device(snapshot: Snapshot) -> dict[DeviceId, float]:
    """Price of an hour of every device, by the policy that decides on it."""
    types, nodes, owners = snapshot.gpu_types_by_name(), snapshot.nodes_by_id(), owners_of(snapshot)
    return {
        device.id: owners.policy_at(device.id).usd_per_h(device, types[device.gpu_type], nodes[device.node])
        for device in snapshot.devices
    }


def _serving(
    rate_rps: float,
    items: list[Assignment],
    short: Unplaced | None,
    prices: Mapping[DeviceId, float],
    types: Mapping[DeviceId, GpuTypeName],
) -> Serving:
    replicas: Counter[GpuTypeName] = Counter()
    shares: Counter[GpuTypeName] = Counter()
    for item in items:
        if item.device in types:
            replicas[types[item.device]] += 1
            shares[types[item.device]] += item.share_pct_sm
    usd_per_h = sum(prices.get(item.device, 0.0) * item.share_pct_sm / 100 for item in items)
    return Serving(
        rate_rps=rate_rps,
        rate_rps_short=short.rate_rps_short if short is not None else 0.0,
        replicas=len(items),
        usd_per_h=round(usd_per_h, DIGITS),
        on=tuple(
            TypeReplicas(gpu_type=name, replicas=replicas[name], gpus=shares[name] / 100) for name in sorted(replicas)
        ),
    )
