"""Checks of what a plan promises: latency, envelope and memory of each replica; rate, replicas, spread, budget and
quota of each workload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.ids import ProjectName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import governor_of
from solvers.domain.workload import Service, Slo, SloKind, WorkloadKind
from solvers.verify.bounds import Execution, capacity_rps, execution, keeps_promise, latency_limit_ms, memory_needed_mib
from solvers.verify.picture import Picture, about, fatal, promise, shortage, warning
from solvers.verify.tokens import check_tokens, token_memory_mib, token_service, tokens_rps

BATCH_MAX = 1_048_576


def check_promises(picture: Picture) -> Iterator[Finding]:
    proven: dict[WorkloadId, float] = defaultdict(float)
    for item in picture.plan.assignments:
        if picture.host(item) is None or not picture.known(item.kind, item.workload):
            continue
        yield from _knobs(picture, item)
        service = token_service(picture, item)
        if service is not None:
            shown = tokens_rps(picture, service, item, picture.devices[item.device], item.batch)
            yield from check_tokens(picture, service, item, shown)
            proven[item.workload] += min(shown, item.capacity_rps) if item.capacity_rps > 0 else 0.0
        elif item.kind is not WorkloadKind.JOB:
            bound = execution(picture, item, picture.devices[item.device], item.batch)
            yield from _replica(picture, item, bound)
            if bound is not None:
                shown = capacity_rps(picture, item, _slo(picture, item), bound)
                proven[item.workload] += min(shown, item.capacity_rps) if item.capacity_rps > 0 else 0.0
    for service in picture.snapshot.services:
        yield from _service(picture, service, proven)
    yield from _finite_work(picture, proven)
    yield from _quotas(picture)


def _slo(picture: Picture, item: Assignment) -> Slo:
    owner = picture.services if item.kind is WorkloadKind.SERVICE else picture.tasks
    return owner[item.workload].slo


def _knobs(picture: Picture, item: Assignment) -> Iterator[Finding]:
    device = picture.devices[item.device]
    clocks, envelope = picture.types[device.gpu_type].clocks_mhz_sm, item.envelope
    if not 1 <= item.batch <= BATCH_MAX:
        yield promise(picture, FindingCode.BATCH_INVALID, item, batch=float(item.batch))
    for clock in sorted({envelope.clock_mhz_sm_min, envelope.clock_mhz_sm_max}):
        if clock not in clocks:
            yield promise(picture, FindingCode.CLOCK_UNSUPPORTED, item, clock_mhz_sm=float(clock))
    inside = envelope.batch_min <= item.batch <= envelope.batch_max and envelope.batch_min >= 1
    running = picture.clock_mhz_sm(device)
    if not inside or not envelope.clock_mhz_sm_min <= running <= envelope.clock_mhz_sm_max:
        yield promise(picture, FindingCode.ENVELOPE_INVALID, item, batch=float(item.batch), clock_mhz_sm=float(running))
    service = token_service(picture, item)
    needed = (
        memory_needed_mib(picture, item, device)
        if service is None
        else token_memory_mib(picture, service, item, device)
    )
    if item.kind is WorkloadKind.JOB:
        job = picture.jobs[item.workload]
        # The limit is what is resident; only a program that keeps the rest on its host may have less than all.
        needed = float(job.memory_mib_resident_min or job.memory_mib)
    if item.memory_mib_limit < needed or item.memory_mib_limit <= 0:
        yield promise(picture, FindingCode.MEMORY_TOO_SMALL, item, memory_mib_needed=needed)


def _replica(picture: Picture, item: Assignment, bound: Execution | None) -> Iterator[Finding]:
    slo, device = _slo(picture, item), picture.devices[item.device]
    limit_ms = latency_limit_ms(slo) if item.kind is WorkloadKind.SERVICE else None
    if bound is None or (item.kind is WorkloadKind.SERVICE and not keeps_promise(slo, bound, max(1, item.batch))):
        proven_ms = "unproven" if bound is None else round(bound.tail_ms, 3)
        yield promise(picture, FindingCode.LATENCY_EXCEEDED, item, execution_ms=proven_ms)
        return
    planned_ms = item.latency_ms_planned
    # These are written so that a claim that is not a number breaks the promise.
    if limit_ms is not None and planned_ms is not None and not planned_ms <= limit_ms * (1 + 1e-6):
        yield promise(picture, FindingCode.LATENCY_EXCEEDED, item, latency_ms_planned=planned_ms)
    shown = capacity_rps(picture, item, slo, bound)
    if not item.capacity_rps <= shown * (1 + 1e-6) + 1e-6:
        yield promise(
            picture, FindingCode.CAPACITY_SHORT, item, capacity_rps_claimed=item.capacity_rps, capacity_rps=shown
        )
    widest = execution(picture, item, device, item.envelope.batch_max)
    reach = item.envelope.batch_max
    if item.kind is WorkloadKind.SERVICE and (widest is None or not keeps_promise(slo, widest, max(1, reach))):
        yield promise(picture, FindingCode.ENVELOPE_INVALID, item, batch_max=float(reach))
    yield from _kept_by_nobody(picture, item)


def _kept_by_nobody(picture: Picture, item: Assignment) -> Iterator[Finding]:
    """Below the planned clock a promise holds by proof, in the corner of the largest batch and the lowest clock, or by
    a controller that heeds it: that one comes back towards the planned setting, where all of it is proven above.
    """
    device, lowest = picture.devices[item.device], item.envelope.clock_mhz_sm_min
    governor = governor_of(picture.policy_at(device.id).governor)
    if governor.keeps_latency or lowest >= picture.clock_mhz_sm(device) or item.kind is not WorkloadKind.SERVICE:
        return
    corner = execution(picture, item, device, item.envelope.batch_max, lowest)
    if corner is None or not keeps_promise(_slo(picture, item), corner, max(1, item.envelope.batch_max)):
        facts = {"clock_mhz_sm_min": float(lowest), "batch_max": float(item.envelope.batch_max)}
        yield warning(FindingCode.ENVELOPE_UNKEPT, item.replica, governor=governor.name, **facts)


def _service(picture: Picture, service: Service, proven: dict[WorkloadId, float]) -> Iterator[Finding]:
    workload = WorkloadId(service.id)
    items = picture.of_workload.get(workload, [])
    usd_per_h = sum(_usd_per_h(picture, item) for item in items)
    budget = service.budget_usd_per_h
    if budget is not None and usd_per_h > budget * (1 + 1e-9) + 1e-9:
        yield about(picture, FindingCode.BUDGET_EXCEEDED, service.id, items, usd_per_h=usd_per_h)
    if workload not in picture.movable:
        return
    yield from _rate(picture, workload, _wanted_rps(picture, service), proven[workload])
    if len(items) > service.replicas_max:
        yield about(picture, FindingCode.REPLICAS_OUT_OF_RANGE, service.id, items, replicas=float(len(items)))
    elif len(items) < service.replicas_min:
        yield shortage(picture, FindingCode.REPLICAS_OUT_OF_RANGE, workload, replicas=float(len(items)))
    hosts = [host for host in map(picture.host, items) if host is not None]
    domains = {node.failure_domain for _, _, node in hosts}
    if items and len(domains) < service.affinity.failure_domains_min:
        yield shortage(picture, FindingCode.FAILURE_DOMAINS_SHORT, workload, failure_domains=float(len(domains)))


def _wanted_rps(picture: Picture, service: Service) -> float:
    demand = picture.demands.get(service.id)
    rate = service.rate_rps_declared if demand is None else demand.rate_rps_upper
    if service.slo.kind is SloKind.THROUGHPUT:
        rate = max(rate, service.slo.throughput_rps_min or 0.0)
    return rate


def _rate(picture: Picture, workload: WorkloadId, wanted_rps: float, proven_rps: float) -> Iterator[Finding]:
    tolerance = 1e-3 + 1e-5 * wanted_rps
    declared = picture.short_rps.get(workload, 0.0)
    facts = {"rate_rps": wanted_rps, "capacity_rps": proven_rps, "rate_rps_short_declared": declared}
    if proven_rps + tolerance >= wanted_rps:
        return
    if proven_rps + declared + tolerance < wanted_rps:
        yield fatal(FindingCode.CAPACITY_SHORT, workload, **facts)
    else:
        yield shortage(picture, FindingCode.CAPACITY_SHORT, workload, **facts)


def _finite_work(picture: Picture, proven: dict[WorkloadId, float]) -> Iterator[Finding]:
    done = {status.workload: status.done for status in picture.snapshot.job_statuses}
    for task in picture.snapshot.tasks:
        workload = WorkloadId(task.id)
        if workload in picture.movable and done.get(workload, 0) < task.inputs_total:
            rate = task.slo.throughput_rps_min or task.inputs_total / (task.slo.deadline_s or 1.0)
            yield from _rate(picture, workload, rate, proven[workload])
    for job in picture.snapshot.jobs:
        workload = WorkloadId(job.id)
        items = picture.of_workload.get(workload, [])
        if len(items) > 1:
            yield about(picture, FindingCode.REPLICAS_OUT_OF_RANGE, job.id, items, replicas=float(len(items)))
        # To wait is no fault of a plan that says so.
        silent = workload in picture.movable and not items and workload not in picture.short_rps
        if silent and done.get(workload, 0) < job.iterations_total:
            yield fatal(FindingCode.REPLICAS_OUT_OF_RANGE, workload, replicas=0.0)


def _quotas(picture: Picture) -> Iterator[Finding]:
    gpus: dict[ProjectName, float] = defaultdict(float)
    involved: dict[ProjectName, list[Assignment]] = defaultdict(list)
    for item in picture.plan.assignments:
        host = picture.host(item)
        project = ProjectName(item.workload.partition("/")[0])
        involved[project].append(item)
        if host is not None:
            gpus[project] += picture.gpu_part(host[0]) * item.share_pct_sm / 100
    for row in picture.snapshot.projects:
        if row.quota_gpus is not None and gpus[row.name] > row.quota_gpus + 1e-6:
            yield about(picture, FindingCode.QUOTA_EXCEEDED, row.name, involved[row.name], gpus=gpus[row.name])


def _usd_per_h(picture: Picture, item: Assignment) -> float:
    host = picture.host(item)
    return 0.0 if host is None else picture.price_usd_per_h(host[0]) * item.share_pct_sm / 100
