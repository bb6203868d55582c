"""What a plan comes to, and how it differs from the plan of another picture.

Its numbers (cost, bound, what is unserved, energy, GPUs in use, moves) and how each workload is served are derived from
picture and plan alone, judged by nothing but the verifier's findings. Where nothing stands yet, the plan of the fleet
as it is counts as standing for the second one: otherwise every replica would count as moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.records import record_of
from app.services.explaining.explaining import gaps
from app.services.explaining.sentences import answered_words, gap_words, given_words
from app.services.explaining.short import ShortLine, short_lines
from app.services.whatif.made import KEPT, Made, Wish, planned_beside, request_of, standing_on
from solvers.cycle.attempts import Asking
from solvers.cycle.record import Attempt, Lane, answered
from solvers.domain.change import ChangeKind, diff
from solvers.domain.codec import digest
from solvers.domain.evidence import Finding
from solvers.domain.grouping import grouped, summed
from solvers.domain.ids import DeviceId, Digest, GpuTypeName, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, Plan, Unplaced
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import late, value
from solvers.domain.workload import WorkloadKind

HOURS_PER_DAY = 24
DIGITS = 6
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
    answered: str | None
    """Who made the plan, and how it came about, as people are told."""
    stood_in: bool
    """Whether someone else than who was asked first made it, or a planner failed or was stopped from outside."""
    findings: tuple[Finding, ...]
    as_before: bool = False
    """The plan before the change is still the best one known; what planners found instead is in the attempts."""
    cost_usd_per_h: float = 0.0
    bound_usd_per_h: float | None = None
    gap_pct: float | None = None
    gap_told: str = ""
    """How far from the best of which plans it can be, in words."""
    unserved: float = 0.0
    """Weighted by priority, as the objective has it."""
    workloads_short: int = 0
    rate_rps_short: float = 0.0
    short: tuple[ShortLine, ...] = ()
    """Who has no place, or too little of it, and why."""
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
    waiting_usd_per_h: float = late(0.0)
    """What jobs would be worth for all that they could do and do not; it counts with the cost."""


def outcome_of(made: Made) -> Outcome:
    plan, whole = made.plan, made.picture.with_offers()
    attempts = made.chosen.attempts
    as_before, told = any(item.planner == KEPT for item in attempts), answered(attempts, made.chosen.proposal)
    power_w, use = power_w_of(whole, plan), use_by_type(whole, plan)
    return record_of(
        Outcome,
        plan.objective,
        snapshot=plan.snapshot,
        plan=digest(plan),
        planner=plan.planner,
        verified=made.chosen.sound,
        attempts=made.chosen.attempts,
        answered=None if told is None else answered_words(told),
        stood_in=told is not None and (bool(told.failures) if as_before else told.stood_in),
        findings=made.chosen.findings,
        as_before=as_before,
        bound_usd_per_h=plan.bound_usd_per_h,
        gap_pct=plan.gap_pct,
        gap_told=gap_words(
            plan.objective.cost_usd_per_h,
            plan.bound_usd_per_h,
            given_words(plan.assignments, plan.unplaced, pooled=bool(plan.parts)),
        ),
        workloads_short=len(plan.unplaced),
        rate_rps_short=sum(item.rate_rps_short for item in plan.unplaced),
        short=short_lines(plan.assignments, gaps(plan.unplaced, None)),
        power_w=power_w,
        energy_kwh_per_day=power_w * HOURS_PER_DAY / 1000 * made.picture.policy.power_usage_effectiveness,
        replicas=len(plan.assignments),
        gpus_in_use=sum(item.in_use for item in use),
        gpus_total=sum(item.total for item in use),
        gpus=use,
        moves=_moves_of(made.picture, plan),
    )


def _moves_of(picture: Snapshot, plan: Plan) -> Moves:
    """The changes of replicas on the way from what stands to the plan."""
    changes = diff(picture.target, plan, {model.name: model.launch_s for model in picture.models}).changes
    kinds = Counter(change.kind for change in changes)
    return Moves(
        starts=kinds[ChangeKind.START],
        stops=kinds[ChangeKind.STOP],
        moved=kinds[ChangeKind.MOVE] + kinds[ChangeKind.SWAP_MODEL],
        changed=len({item.subject for item in changes if item.after is not None and item.kind not in _ONCE}),
        launch_s=sum(change.cost_s for change in changes),
    )


def use_by_type(picture: Snapshot, plan: Plan) -> tuple[TypeUse, ...]:
    """GPUs of every type, by name; slices of one GPU count as one."""
    held = {item.device for item in plan.assignments}
    total = Counter({device.board: device.gpu_type for device in picture.devices}.values())
    used = Counter({device.board: device.gpu_type for device in picture.devices if device.id in held}.values())
    return tuple(TypeUse(gpu_type=name, in_use=used[name], total=total[name]) for name in sorted(total))


def power_w_of(picture: Snapshot, plan: Plan) -> float:
    """Power planned for the GPUs in use: idle, and what their replicas add, within their limits."""
    types, devices = picture.gpu_types_by_name(), picture.devices_by_id()
    limits = {item.device: item.power_limit_w for item in plan.settings}
    drawn = summed(plan.assignments, lambda item: item.device, lambda item: item.power_w_planned)
    total_w = 0.0
    for name, dynamic_w in sorted(drawn.items()):
        if name in devices:
            gpu_type = types[devices[name].gpu_type]
            part = gpu_type.part_of(devices[name])
            limit_w = limits.get(name) or gpu_type.power_limit_w_max
            total_w += min(part * gpu_type.idle_w + dynamic_w, part * limit_w)
    return total_w


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
    workload: WorkloadId
    kind: WorkloadKind
    fate: Fate
    before: Serving
    after: Serving

    @property
    def differs(self) -> bool:
        return self.fate is not Fate.KEPT or self.before != self.after


@dataclass(frozen=True, slots=True, order=True)
class WorkloadKey:
    workload: WorkloadId
    kind: WorkloadKind


def workload_changes(before: Made, after: Made) -> tuple[WorkloadChange, ...]:
    """One row for each workload of either picture, by id."""
    old, new = servings(before), servings(after)
    return tuple(
        WorkloadChange(
            workload=key.workload,
            kind=key.kind,
            fate=Fate.ADDED if key not in old else Fate.REMOVED if key not in new else Fate.KEPT,
            before=old.get(key, Serving()),
            after=new.get(key, Serving()),
        )
        for key in sorted({*old, *new})
    )


def servings(made: Made) -> dict[WorkloadKey, Serving]:
    picture = made.picture.with_offers()
    by_workload = grouped(made.plan.assignments, lambda item: WorkloadKey(item.workload, item.kind))
    short = {WorkloadKey(item.workload, item.kind): item for item in made.plan.unplaced}
    prices = price_by_device(picture)
    types = {device.id: device.gpu_type for device in picture.devices}
    return {
        key: _serving(rate_rps, by_workload[key], short.get(key), prices, types)
        for key, rate_rps in _rates(picture).items()
    }


def _rates(picture: Snapshot) -> dict[WorkloadKey, float]:
    """What is asked for, by workload; jobs and tasks have no rate of arrivals."""
    rates = {item.id: item.rate_rps_declared for item in picture.services}
    rates |= {item.service: item.rate_rps_upper for item in picture.demands if item.service in rates}
    found = {WorkloadKey(WorkloadId(name), WorkloadKind.SERVICE): rate_rps for name, rate_rps in rates.items()}
    found |= {WorkloadKey(WorkloadId(item.id), WorkloadKind.JOB): 0.0 for item in picture.jobs}
    return found | {WorkloadKey(WorkloadId(item.id), WorkloadKind.TASK): 0.0 for item in picture.tasks}


def price_by_device(picture: Snapshot) -> dict[DeviceId, float]:
    """Price of an hour of every device, by the policy that decides on it."""
    types, nodes, owners = picture.gpu_types_by_name(), picture.nodes_by_id(), owners_of(picture)
    return {
        device.id: owners.policy_at(device.id).usd_per_h(device, types[device.gpu_type], nodes[device.node])
        for device in picture.devices
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


@value
class TypeDifference:
    """How many GPUs of a type more (or fewer) are in use, and there."""

    gpu_type: GpuTypeName
    in_use: int
    total: int


@value
class Difference:
    """After less before. What has to move is in the outcomes: it is counted from what stands."""

    cost_usd_per_h: float
    unserved: float
    workloads_short: int
    rate_rps_short: float
    slo_risk: float
    power_w: float
    energy_kwh_per_day: float
    replicas: int
    gpus_in_use: int
    gpus: tuple[TypeDifference, ...]
    """Only types that differ."""
    capacity_rps: float = late(0.0)
    training_rate: float = late(0.0)
    waiting_usd_per_h: float = late(0.0)


@value
class Simulation:
    """Two plans and what is between them. With `work_units`, equal inputs give equal answers."""

    seed: int
    lane: Lane
    deadline_s: float
    work_units: int | None
    before: Outcome
    after: Outcome
    difference: Difference
    workloads: tuple[WorkloadChange, ...]
    """Those that are served otherwise, or for another price."""
    workloads_same: int
    moves_from_plan_before: bool
    """Nothing stood, so the moves of `after` are counted from the plan of `before`."""


def compare(before: Made, picture: Snapshot, wish: Wish, asking: Asking) -> tuple[Made, Simulation]:
    changed = standing_on(picture, before.plan)
    after = planned_beside(before.plan, changed, wish, asking)
    outcomes = outcome_of(before), outcome_of(after)
    rows = workload_changes(before, after)
    differing = tuple(row for row in rows if row.differs)
    asked = request_of(before.picture, wish)
    return after, Simulation(
        seed=asked.seed,
        lane=wish.lane,
        deadline_s=asked.budget.deadline_s,
        work_units=wish.work_units,
        before=outcomes[0],
        after=outcomes[1],
        difference=_difference(*outcomes),
        workloads=differing,
        workloads_same=len(rows) - len(differing),
        moves_from_plan_before=changed is not picture,
    )


_COUNTED = (
    "cost_usd_per_h", "unserved", "workloads_short", "rate_rps_short", "slo_risk", "power_w", "energy_kwh_per_day",
    "replicas", "gpus_in_use", "capacity_rps", "training_rate", "waiting_usd_per_h",
)  # fmt: skip


def _difference(before: Outcome, after: Outcome) -> Difference:
    more = {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
    old, new = ({use.gpu_type: use for use in item.gpus} for item in (before, after))
    gpus = []
    for name in sorted({*old, *new}):
        empty = TypeUse(gpu_type=name, in_use=0, total=0)
        was, now = old.get(name, empty), new.get(name, empty)
        if was != now:
            in_use, total = now.in_use - was.in_use, now.total - was.total
            gpus.append(TypeDifference(gpu_type=name, in_use=in_use, total=total))
    return Difference(**more, gpus=tuple(gpus))
