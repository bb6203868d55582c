"""What a set of assignments is worth today: the objective, and what it leaves short.

The objective is defined here, so that a planner's answer, the standing target and any other plan are judged alike and
by today's beliefs, not by what was believed when they were made.

    unserved   sum over movable workloads of priority x (rate short, requests/s + replicas missing below the floor);
               a job that waits counts 1
    slo_risk   sum of priority x replicas that stand but cannot be shown to keep their promise
    cost       by the policy's basis: device price x share of its replicas, or x the part of its memory that they
               use, once at most; or the price of every device in use and the energy of its idle and planned power
               (prices carry expected interruptions; unknown devices cost nothing)
    churn      launch seconds of replicas that must start anew compared with the standing target
    imbalance  highest minus lowest summed share of the devices in use, as a fraction
    capacity   requests/s that full batches would carry of the movable services' replicas that are shown to keep their
               promise, beside their neighbours (of an LLM's: the rate that it may be given)
    training   seconds of the reference GPU's work that movable jobs do in a second: in proportion to peak, SMs, share
               and clock, less what neighbours take

The last two are told where the policy names them. Replicas on devices that may not be used now (silent, sick,
unschedulable, gone) serve nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from solvers.domain.ids import DeviceId, ModelName, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import CostBasis, Objective, Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.billing import billed_part
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.needs import Need, iterations_per_s, needs_of, pinned_assignments

LAUNCH_S_DEFAULT = 10.0
"""For models that are not in the catalogue (training jobs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What one workload lacks."""

    need: Need
    rate_rps_short: float
    replicas_missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The objective with the shortages behind it."""

    objective: Objective
    shortages: tuple[Shortage, ...]


def pinned_settings(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> dict[DeviceId, DeviceSetting]:
    """Standing settings of devices that hold a pinned replica: they must stay."""
    devices = {item.device for item in pinned_assignments(snapshot, movable)}
    return {setting.device: setting for setting in snapshot.target.settings if setting.device in devices}


def worth_of(
    snapshot: Snapshot,
    movable: tuple[WorkloadId, ...],
    assignments: tuple[Assignment, ...],
    settings: tuple[DeviceSetting, ...] = (),
) -> Worth:
    """Judge these assignments by the present snapshot, offered GPUs included; a device that is not among the settings
    runs at its defaults, or as it stands where something pinned is on it.
    """
    whole = snapshot.with_offers()
    held = pinned_settings(whole, movable) | {item.device: item for item in settings}
    fleet = open_fleet(whole, held)
    appraisal = Appraisal.of(fleet, whole.profiles_by_key(), whole.policy, assignments, held)
    by_workload: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        by_workload[assignment.workload].append(assignment)
    unserved = risk = full_rps = 0.0
    shortages: list[Shortage] = []
    for need in needs_of(whole, movable):
        standing = [item for item in by_workload[need.workload] if _on_usable(fleet, item)]
        shown = _shown(need, standing, appraisal)
        capacity_rps, at_risk = sum(item[0] for item in shown if item is not None), shown.count(None)
        full_rps += sum(item[1] for item in shown if item is not None and need.kind is WorkloadKind.SERVICE)
        short = max(0.0, need.rate_rps_least - capacity_rps)
        short = short if short > 1e-6 * max(1.0, need.rate_rps_least) else 0.0
        missing = max(0, need.replicas_min - len(standing))
        unserved += need.weight * (short + missing)
        risk += need.weight * at_risk
        if short or missing:
            shortages.append(Shortage(need=need, rate_rps_short=short, replicas_missing=missing))
    objective = Objective(
        unserved=unserved,
        slo_risk=risk,
        cost_usd_per_h=sum(cost_by_device(whole, fleet, assignments, held).values()),
        churn=_churn_s(whole, assignments),
        imbalance=_imbalance(assignments),
        capacity_rps=full_rps if Term.CAPACITY in whole.policy.terms else 0.0,
        training_rate=_training(whole, movable, assignments, appraisal),
    )
    return Worth(objective=objective, shortages=tuple(shortages))


def cost_by_device(
    snapshot: Snapshot,
    fleet: Fleet,
    assignments: tuple[Assignment, ...],
    settings: Mapping[DeviceId, DeviceSetting],
) -> dict[DeviceId, float]:
    """$/h of every known device in use, by the policy's basis; devices in rising order."""
    on_device: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in sorted(assignments, key=lambda item: item.replica):
        if item.device in fleet.index:
            on_device[item.device].append(item)
    profiles = snapshot.profiles_by_key() if snapshot.policy.cost_basis is CostBasis.MEMORY else {}
    basis, usd_per_wh = snapshot.policy.cost_basis, snapshot.policy.usd_per_wh(snapshot.taken_at_s)
    found: dict[DeviceId, float] = {}
    for device in sorted(on_device):
        number, setting, items = fleet.index[device], settings.get(device), on_device[device]
        kind = fleet.class_at(number)
        price = kind.expected_usd_per_h
        if basis is not CostBasis.DEVICE:
            found[device] = price * billed_part(fleet.devices[number], setting, items, basis, profiles)
            continue
        limit_w = kind.limit_w if setting is None or setting.power_limit_w is None else setting.power_limit_w
        dynamic_w = sum(item.power_w_planned for item in items)
        found[device] = price + usd_per_wh * min(kind.limit_w, limit_w, kind.idle_w + dynamic_w)
    return found


def _on_usable(fleet: Fleet, assignment: Assignment) -> bool:
    device = fleet.index.get(assignment.device)
    return device is not None and bool(fleet.usable[device])


def _shown(need: Need, standing: list[Assignment], appraisal: Appraisal) -> list[tuple[float, float] | None]:
    """By replica the rate that keeps its promise and that of full batches; None where it cannot be shown to keep it."""
    return [] if need.kind is WorkloadKind.JOB else appraisal.shown_rps(need, standing)


def _training(
    snapshot: Snapshot, movable: tuple[WorkloadId, ...], assignments: tuple[Assignment, ...], appraisal: Appraisal
) -> float:
    """How fast all movable jobs run together; 0 where the policy does not ask."""
    if Term.TRAINING not in snapshot.policy.terms:
        return 0.0
    wanted: set[str] = set(movable)
    jobs = {WorkloadId(job.id): job for job in snapshot.jobs if job.id in wanted}
    standing = (item for item in assignments if item.workload in jobs and _on_usable(appraisal.fleet, item))
    return sum(training_rate(snapshot, jobs[item.workload], item, appraisal) for item in standing)


def training_rate(snapshot: Snapshot, job: TrainingJob, item: Assignment, appraisal: Appraisal) -> float:
    """Seconds of the reference GPU's work that one job does in a second where it stands."""
    types = snapshot.gpu_types_by_name()
    kind = appraisal.fleet.class_at(appraisal.fleet.index[item.device])
    whole = iterations_per_s(job, types, kind.gpu_type) * job.iteration_ms_reference / 1000
    clock = appraisal.running(item.device) / types[kind.gpu_type].clock_mhz_sm_max
    return whole * kind.sm_part * item.share_pct_sm / 100 * clock / appraisal.slowdown(item)


def _churn_s(snapshot: Snapshot, assignments: tuple[Assignment, ...]) -> float:
    launch_s: dict[ModelName, float] = {model.name: model.launch_s for model in snapshot.models}
    standing = {item.replica: item for item in snapshot.target.assignments}

    def as_standing(item: Assignment) -> bool:
        before = standing.get(item.replica)
        return before is not None and (before.device, before.model, before.share_pct_sm, before.memory_mib_limit) == (
            item.device,
            item.model,
            item.share_pct_sm,
            item.memory_mib_limit,
        )

    return sum(launch_s.get(item.model, LAUNCH_S_DEFAULT) for item in assignments if not as_standing(item))


def _imbalance(assignments: tuple[Assignment, ...]) -> float:
    shares: dict[DeviceId, int] = defaultdict(int)
    for item in assignments:
        shares[item.device] += item.share_pct_sm
    return (max(shares.values()) - min(shares.values())) / 100 if shares else 0.0
