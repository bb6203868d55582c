"""The verifier: everything a plan claims, derived again from the snapshot, by code that shares nothing with planners.

Here are the order of the checks and the short ones; `devices`, `promises` and `tokens` have the others, `FindingCode`
is the list of what all can find. Nothing is repaired: a plan is promoted as it is or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from solvers.domain.device import ColocationClass, Device, DeviceMode, Taint
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.ids import GpuTypeName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import AntiAffinity, Service, WorkloadKind
from solvers.verify.bounds import execution, keeps_promise, slowdown, usd_per_h
from solvers.verify.devices import check_devices
from solvers.verify.picture import Picture, about, fatal, is_fatal, knobs, promise
from solvers.verify.promises import check_promises
from solvers.verify.tokens import token_service, tokens_rps

__all__ = ["is_fatal", "verify"]

# --- The plan as a document: it answers this snapshot, names what exists, leaves pinned replicas alone, and its cost
# and bound are right

DUST = 1e-6


def check_structure(picture: Picture) -> Iterator[Finding]:
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


# --- Placement rules: who may stand where and beside whom, and that a policy's workloads stay on its devices
#
# What stands on a device of another policy may stay there only while the plan may not move it, or says that its
# workload is short.


def check_rules(picture: Picture) -> Iterator[Finding]:
    ages = {status.node: status.age_s for status in picture.snapshot.node_statuses}
    sick = {reading.device for reading in picture.snapshot.device_telemetry if not reading.healthy}
    for item in picture.plan.assignments:
        host = picture.host(item)
        if host is None:
            continue
        device, _, node = host
        allowed, tolerated = _owner_rules(picture, item)
        if allowed and device.gpu_type not in allowed:
            yield about(picture, FindingCode.TYPE_NOT_ALLOWED, item.replica, [item], gpu_type=device.gpu_type)
        if not {*device.taints, *node.taints} <= tolerated:
            yield about(picture, FindingCode.TAINT_NOT_TOLERATED, item.replica, [item], device=device.id)
        unfit = ColocationClass.INFERENCE if item.kind is WorkloadKind.JOB else ColocationClass.TRAINING
        if device.colocation is unfit:
            yield about(picture, FindingCode.COLOCATION_CLASS_BROKEN, item.replica, [item], device=device.id)
        if not device.schedulable or not node.schedulable or device.id in sick or device.id in picture.parents:
            yield about(picture, FindingCode.DEVICE_UNSCHEDULABLE, device.id, [item], replica=item.replica)
        if picture.known(item.kind, item.workload):
            yield from _owner(picture, item)
        age_s = ages.get(device.node)
        if age_s is None or age_s > picture.policy_at(device.id).device_silent_after_s:
            yield about(picture, FindingCode.DEVICE_SILENT, device.id, [item], replica=item.replica)
    for device_id, items in sorted(picture.on_device.items()):
        yield from _neighbours(picture, device_id, items)


def _owner(picture: Picture, item: Assignment) -> Iterator[Finding]:
    mine, its = picture.policy_for(item.workload).name, picture.policy_at(item.device).name
    if mine != its:
        yield promise(picture, FindingCode.FOREIGN_DEVICE, item, device=item.device, policy=mine, owner=its)


def _owner_rules(picture: Picture, item: Assignment) -> tuple[tuple[GpuTypeName, ...], set[Taint]]:
    """Allowed types and tolerated taints of the workload; nothing is known of an unknown one."""
    owner = picture.services.get(item.workload) or picture.jobs.get(item.workload) or picture.tasks.get(item.workload)
    return ((), set()) if owner is None else (owner.gpu_types_allowed, set(owner.tolerations))


def _neighbours(picture: Picture, device_id: str, items: list[Assignment]) -> Iterator[Finding]:
    counts = Counter(item.workload for item in items)
    for item in items:
        service = picture.services.get(item.workload)
        if service is None or item.kind is not WorkloadKind.SERVICE:
            continue
        twins = [other for other in items if other.workload == item.workload]
        if service.affinity.anti_affinity is AntiAffinity.HARD and counts[item.workload] > 1 and item is twins[0]:
            yield about(picture, FindingCode.ANTI_AFFINITY_BROKEN, device_id, twins, service=item.workload)
        avoided: set[str] = set(service.affinity.avoid_services)
        disliked = [other for other in items if other.workload in avoided]
        if disliked:
            yield about(picture, FindingCode.AVOIDED_NEIGHBOUR, device_id, [item, *disliked], service=item.workload)
        if service.affinity.dedicated and len(items) > 1:
            yield about(picture, FindingCode.DEDICATED_BROKEN, device_id, items, service=item.workload)
    if picture.devices[items[0].device].mode is DeviceMode.DEDICATED and len(items) > 1:
        yield about(picture, FindingCode.DEDICATED_BROKEN, device_id, items, replicas=float(len(items)))


# --- What services would carry and how fast jobs run, as the plan says: no more than can be shown
#
# Summed over the workloads that may move and whose policy names the term. A plan that says less is not to blame.


def check_rising(picture: Picture) -> Iterator[Finding]:
    """Both claims; written so that one that is not a number is wrong. Nothing is summed up where nothing is claimed."""
    objective, cluster = picture.plan.objective, picture.snapshot.cluster
    claimed = objective.capacity_rps
    if not claimed <= 0.0:
        shown = sum(_full_rps(picture, item, device) for item, device in _counted(picture, Term.CAPACITY))
        if not claimed <= shown * (1 + DUST) + DUST:
            facts = {"capacity_rps": shown, "capacity_rps_claimed": claimed}
            yield fatal(FindingCode.CAPACITY_OVERSTATED, cluster, **facts)
    claimed = objective.training_rate
    if not claimed <= 0.0:
        shown = sum(_job_rate(picture, item, device) for item, device in _counted(picture, Term.TRAINING))
        if not claimed <= shown * (1 + DUST) + DUST:
            facts = {"training_rate": shown, "training_rate_claimed": claimed}
            yield fatal(FindingCode.TRAINING_OVERSTATED, cluster, **facts)


def _counted(picture: Picture, term: Term) -> Iterator[tuple[Assignment, Device]]:
    for item in picture.plan.assignments:
        host = picture.host(item)
        mine = item.workload in picture.movable and picture.known(item.kind, item.workload)
        if host is not None and mine and term in picture.policy_for(item.workload).terms:
            yield item, host[0]


def _full_rps(picture: Picture, item: Assignment, device: Device) -> float:
    """What full batches of a service's replica carry, if it keeps its promise at all."""
    if item.kind is not WorkloadKind.SERVICE or item.batch < 1:
        return 0.0
    service = token_service(picture, item)
    if service is not None:
        return tokens_rps(picture, service, item, device, item.batch)
    bound = execution(picture, item, device, item.batch)
    if bound is None or not keeps_promise(picture.services[item.workload].slo, bound, item.batch):
        return 0.0
    return 1000 * item.batch / bound.mean_ms


def _job_rate(picture: Picture, item: Assignment, device: Device) -> float:
    """Seconds of the reference GPU's work that a job does in a second."""
    if item.kind is not WorkloadKind.JOB:
        return 0.0
    job, gpu_type = picture.jobs[item.workload], picture.types[device.gpu_type]
    reference = picture.types.get(job.gpu_type_reference)
    peak = 1.0 if reference is None else gpu_type.fp32_tflops / reference.fp32_tflops
    clock = picture.clock_mhz_sm(device) / max(gpu_type.clocks_mhz_sm)
    return peak * picture.share_of_gpu_pct(item, device) / 100 * clock / slowdown(picture, item, device)


# --- All checks


def everything(snapshot: Snapshot) -> tuple[WorkloadId, ...]:
    services = (WorkloadId(item.id) for item in snapshot.services)
    jobs = (WorkloadId(item.id) for item in snapshot.jobs)
    return (*services, *jobs, *(WorkloadId(item.id) for item in snapshot.tasks))


def verify(snapshot: Snapshot, plan: Plan, movable: tuple[WorkloadId, ...] | None = None) -> tuple[Finding, ...]:
    """All findings, ordered by code, subject and severity; equal findings once. Without `movable` all may move. Where
    the plan only makes room for another one, that one's too.
    """
    picture = Picture(snapshot, plan, everything(snapshot) if movable is None else movable)
    found = {
        *check_structure(picture),
        *check_devices(picture),
        *check_rules(picture),
        *check_promises(picture),
        *check_rising(picture),
        *(() if plan.toward is None else verify(snapshot, plan.arrived, movable)),
    }
    return tuple(sorted(found, key=lambda item: (item.code, item.subject, item.severity, repr(item.facts))))
