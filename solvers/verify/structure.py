"""Checks of the plan as a document: it answers this snapshot, names what exists, leaves pinned replicas alone, and its
cost is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from solvers.domain.codec import digest
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.ids import ModelName
from solvers.domain.plan import Assignment
from solvers.domain.workload import WorkloadKind
from solvers.verify.picture import Picture, knobs
from solvers.verify.report import fatal, promise


def check_structure(picture: Picture) -> Iterator[Finding]:
    """All document checks."""
    snapshot, plan = picture.snapshot, picture.plan
    if plan.snapshot != digest(snapshot):
        yield fatal(FindingCode.SNAPSHOT_MISMATCH, plan.snapshot)
    if plan.parent != snapshot.target.generation:
        yield fatal(
            FindingCode.PARENT_MISMATCH,
            snapshot.cluster,
            parent=float(plan.parent),
            generation=float(snapshot.target.generation),
        )
    yield from _names(picture)
    yield from _pins(picture)
    yield from _cost(picture)


def _names(picture: Picture) -> Iterator[Finding]:
    counts = Counter(item.replica for item in picture.plan.assignments)
    for replica, count in sorted(counts.items()):
        if count > 1:
            yield fatal(FindingCode.DUPLICATE_REPLICA, replica, count=float(count))
    for item in picture.plan.assignments:
        if not item.replica.startswith(f"{item.workload}#"):
            yield fatal(FindingCode.UNKNOWN_WORKLOAD, item.replica, workload=item.workload)
        # Nobody could carry these out, so not even standing replicas are excused.
        if picture.host(item) is None:
            yield fatal(FindingCode.UNKNOWN_DEVICE, item.device, replica=item.replica)
        if not picture.known(item.kind, item.workload):
            yield fatal(FindingCode.UNKNOWN_WORKLOAD, item.workload, replica=item.replica)
        elif item.model not in _models(picture, item):
            yield promise(picture, FindingCode.UNKNOWN_MODEL, item, model=item.model)
    for setting in picture.plan.settings:
        if setting.device not in picture.devices:
            yield fatal(FindingCode.UNKNOWN_DEVICE, setting.device)


def _models(picture: Picture, item: Assignment) -> set[ModelName]:
    """Models this replica may run."""
    catalogue = {model.name for model in picture.snapshot.models}
    if item.kind is WorkloadKind.JOB:
        return {picture.jobs[item.workload].model} & catalogue
    if item.kind is WorkloadKind.TASK:
        return {picture.tasks[item.workload].model} & catalogue
    service = picture.services[item.workload]
    return {service.model, *service.alternatives} & catalogue


def _pins(picture: Picture) -> Iterator[Finding]:
    planned = {item.replica: item for item in picture.plan.assignments}
    for replica, standing in sorted(picture.standing.items()):
        if standing.workload in picture.movable or not picture.known(standing.kind, standing.workload):
            continue
        after = planned.get(replica)
        if picture.host(standing) is None and after is None:
            continue
        if after is None or knobs(after) != knobs(standing):
            yield fatal(FindingCode.PINNED_CHANGED, replica)
    for item in picture.plan.assignments:
        before = picture.standing.get(item.replica)
        stood = before is not None and before.workload == item.workload
        if item.workload not in picture.movable and not stood and picture.known(item.kind, item.workload):
            yield fatal(FindingCode.PINNED_CHANGED, item.replica)


def _cost(picture: Picture) -> Iterator[Finding]:
    cost = 0.0
    for item in picture.plan.assignments:
        host = picture.host(item)
        if host is not None:
            cost += picture.price_usd_per_h(host[0]) * item.share_pct_sm / 100
    claimed = picture.plan.objective.cost_usd_per_h
    if abs(cost - claimed) > 1e-6 * max(1.0, cost):
        yield fatal(FindingCode.COST_WRONG, picture.snapshot.cluster, usd_per_h=cost, usd_per_h_claimed=claimed)
