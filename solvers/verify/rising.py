"""Checks of what a plan says services would carry and how fast it says jobs run: no more than can be shown.

Owns both sums, over the workloads that may move and whose policy names the term. Standard library only. It refuses to
blame a plan that says less.
"""

from __future__ import annotations

from collections.abc import Iterator

from solvers.domain.device import Device
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.plan import Assignment
from solvers.domain.policy import Term
from solvers.domain.workload import WorkloadKind
from solvers.verify.bounds import execution, keeps_promise, slowdown
from solvers.verify.picture import Picture
from solvers.verify.report import fatal
from solvers.verify.token_promises import token_service, tokens_rps

DUST = 1e-6


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
    """Replicas on known devices that count for a term."""
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
