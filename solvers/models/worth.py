"""What a set of assignments is worth today: the objective, and what it leaves short.

Owns the objective's definition, so that a planner's answer, the standing target and any other plan are judged alike and
by today's beliefs, not by what was believed when they were made.

    unserved   sum over movable workloads of priority x (rate short, requests/s + replicas missing below the floor);
               a job that waits counts 1
    slo_risk   sum of priority x replicas that stand but cannot be shown to keep their promise
    cost       sum over assignments of device price x share (the bill by SM share; unknown devices cost nothing)
    churn      launch seconds of replicas that must start anew compared with the standing target
    imbalance  highest minus lowest summed share of the devices in use, as a fraction

Replicas on devices that may not be used now (silent, sick, unschedulable, gone) serve nothing. It refuses to propose
anything.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from solvers.domain.ids import DeviceId, ModelName, WorkloadId
from solvers.domain.objective import Objective
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.options import Beliefs
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.needs import Need, needs_of, pinned_assignments

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


def worth_of(snapshot: Snapshot, movable: tuple[WorkloadId, ...], assignments: tuple[Assignment, ...]) -> Worth:
    """Judge these assignments by the present snapshot."""
    fleet = open_fleet(snapshot, pinned_settings(snapshot, movable))
    beliefs = Beliefs.of(snapshot, fleet.classes)
    by_workload: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        by_workload[assignment.workload].append(assignment)
    unserved = risk = 0.0
    shortages: list[Shortage] = []
    for need in needs_of(snapshot, movable):
        standing = [item for item in by_workload[need.workload] if _on_usable(fleet, item)]
        capacity_rps, at_risk = _capacity(need, standing, fleet, beliefs)
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
        cost_usd_per_h=cost_usd_per_h(fleet, assignments),
        churn=_churn_s(snapshot, assignments),
        imbalance=_imbalance(assignments),
    )
    return Worth(objective=objective, shortages=tuple(shortages))


def cost_usd_per_h(fleet: Fleet, assignments: tuple[Assignment, ...]) -> float:
    """Price x share, summed in replica order."""
    return sum(
        fleet.class_at(fleet.index[item.device]).usd_per_h * item.share_pct_sm / 100
        for item in sorted(assignments, key=lambda item: item.replica)
        if item.device in fleet.index
    )


def _on_usable(fleet: Fleet, assignment: Assignment) -> bool:
    device = fleet.index.get(assignment.device)
    return device is not None and bool(fleet.usable[device])


def _capacity(need: Need, standing: list[Assignment], fleet: Fleet, beliefs: Beliefs) -> tuple[float, int]:
    """Rate that keeps its promise, and the number of replicas that cannot be shown to keep it."""
    if need.kind is WorkloadKind.JOB:
        return 0.0, 0
    options = [beliefs.assess(need, int(fleet.class_of[fleet.index[item.device]]), item) for item in standing]
    return sum(option.capacity_rps for option in options if option is not None), options.count(None)


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
