"""Checks of the plan as a document: it answers this snapshot, names what exists, leaves pinned replicas alone, and its
cost and bound are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.plan import Assignment
from solvers.domain.workload import Service
from solvers.verify.cost import usd_per_h
from solvers.verify.picture import Picture, knobs
from solvers.verify.report import fatal, promise

DUST = 1e-6


def check_structure(picture: Picture) -> Iterator[Finding]:
    """All document checks."""
    snapshot, plan = picture.snapshot, picture.plan
    if plan.snapshot != picture.snapshot_digest:
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
        else:
            yield from _model(picture, item)
    for setting in picture.plan.settings:
        if setting.device not in picture.devices:
            yield fatal(FindingCode.UNKNOWN_DEVICE, setting.device)


def _model(picture: Picture, item: Assignment) -> Iterator[Finding]:
    """A replica runs its workload's model; a service's also an alternative that is known to be accurate enough."""
    owner = picture.services.get(item.workload) or picture.jobs.get(item.workload) or picture.tasks[item.workload]
    allowed = {owner.model, *owner.alternatives} if isinstance(owner, Service) else {owner.model}
    found = picture.models.get(item.model)
    if found is None or item.model not in allowed:
        yield promise(picture, FindingCode.UNKNOWN_MODEL, item, model=item.model)
    elif isinstance(owner, Service) and item.model != owner.model and owner.accuracy_pct_min is not None:
        accuracy, floor = found.accuracy_pct, owner.accuracy_pct_min
        if accuracy is None or accuracy < floor:
            shown = "unknown" if accuracy is None else accuracy
            yield promise(
                picture,
                FindingCode.ACCURACY_TOO_LOW,
                item,
                model=item.model,
                accuracy_pct=shown,
                accuracy_pct_min=floor,
            )


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
    cost = usd_per_h(picture)
    claimed, dust = picture.plan.objective.cost_usd_per_h, DUST * max(1.0, cost)
    # Written so that a claim that is not a number is wrong.
    if not abs(cost - claimed) <= dust:
        yield fatal(FindingCode.COST_WRONG, picture.snapshot.cluster, usd_per_h=cost, usd_per_h_claimed=claimed)
    bound = picture.plan.bound_usd_per_h
    if bound is not None and not bound <= cost + dust:
        yield fatal(FindingCode.BOUND_WRONG, picture.snapshot.cluster, usd_per_h=cost, bound_usd_per_h=bound)
