"""Workload by workload, how it is served in one plan and how in another.

Owns the rows of that comparison: rate, replicas by GPU type, price by share, what is short. It refuses to say why.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from solvers.domain.ids import DeviceId, GpuTypeName, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, Plan, Unplaced
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind

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
class _Key:
    workload: WorkloadId
    kind: WorkloadKind


def workload_changes(
    before: tuple[Snapshot, Plan | None], after: tuple[Snapshot, Plan | None]
) -> tuple[WorkloadChange, ...]:
    """One row for each workload of either picture, by id."""
    old, new = (_servings(snapshot.with_offers(), plan) for snapshot, plan in (before, after))
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


def _servings(snapshot: Snapshot, plan: Plan | None) -> dict[_Key, Serving]:
    by_workload: dict[_Key, list[Assignment]] = defaultdict(list)
    short: dict[_Key, Unplaced] = {}
    if plan is not None:
        for item in plan.assignments:
            by_workload[_Key(item.workload, item.kind)].append(item)
        short = {_Key(item.workload, item.kind): item for item in plan.unplaced}
    prices = price_by_device(snapshot)
    types = {device.id: device.gpu_type for device in snapshot.devices}
    return {
        key: _serving(rate_rps, by_workload[key], short.get(key), (prices, types))
        for key, rate_rps in _rates(snapshot).items()
    }


def _rates(snapshot: Snapshot) -> dict[_Key, float]:
    """What is asked for, by workload; jobs and tasks have no rate of arrivals."""
    demands = snapshot.demands_by_service()
    rates = {
        _Key(WorkloadId(item.id), WorkloadKind.SERVICE): (
            demands[item.id].rate_rps_upper if item.id in demands else item.rate_rps_declared
        )
        for item in snapshot.services
    }
    rates |= {_Key(WorkloadId(item.id), WorkloadKind.JOB): 0.0 for item in snapshot.jobs}
    return rates | {_Key(WorkloadId(item.id), WorkloadKind.TASK): 0.0 for item in snapshot.tasks}


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
    about: tuple[Mapping[DeviceId, float], Mapping[DeviceId, GpuTypeName]],
) -> Serving:
    prices, types = about
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
