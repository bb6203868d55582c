"""What measurements prove about a configuration, by monotony alone: no interpolation, no models, standard library only.

A point with no more share, no fewer inputs per batch and no higher clock cannot be faster than the configuration asked
about, so its latency is an upper bound; the best such bound counts. Power and memory are bounded from below by points
with no more share and no more inputs at the nearest clock. The queueing rule is the product's documented one
(docs/planning.md), written here a second time on purpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solvers.domain.device import Device, DeviceMode
from solvers.domain.plan import Assignment
from solvers.domain.profile import ProfilePoint
from solvers.domain.workload import Slo, SloKind, SloScope, WorkloadKind
from solvers.verify.picture import Picture

UTILISATION_MIN = 0.05
"""A promise that holds only for an emptier server counts as broken."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Proven upper bounds of the execution time of one batch, interference margin included."""

    mean_ms: float
    tail_ms: float


def latency_limit_ms(slo: Slo) -> float | None:
    """What the SLO allows one request; None when it bounds no latency that profiles can prove."""
    if slo.kind is SloKind.DEADLINE:
        return None if slo.deadline_s is None else slo.deadline_s * 1000
    return slo.latency_ms


def execution(picture: Picture, item: Assignment, device: Device, batch: int) -> Execution | None:
    """Bound for this replica at some batch; None when nothing measured proves one."""
    share, clock = picture.share_of_gpu_pct(item, device) + 1e-6, picture.clock_mhz_sm(device)
    slower = [
        point
        for point in picture.points.get((item.model, device.gpu_type), ())
        if point.share_pct_sm <= share and point.batch >= batch and point.clock_mhz_sm <= clock
    ]
    if not slower:
        return None
    margin = 1.0 if _alone(picture, item, device) else picture.snapshot.policy.interference_margin
    return Execution(
        mean_ms=margin * min(point.latency_ms_mean for point in slower),
        tail_ms=margin * min(point.latency_ms_p99 or point.latency_ms_mean for point in slower),
    )


def _alone(picture: Picture, item: Assignment, device: Device) -> bool:
    service = picture.services.get(item.workload)
    return device.mode is not DeviceMode.MPS or (service is not None and service.affinity.dedicated)


def keeps_promise(slo: Slo, bound: Execution, batch: int) -> bool:
    """Whether the execution leaves room to wait for the batch in flight and the backlog of a nearly idle server."""
    limit_ms = latency_limit_ms(slo)
    if slo.kind is SloKind.TOKENS:
        return False
    if limit_ms is None:
        return True
    if slo.scope is SloScope.EXECUTION:
        return bound.tail_ms <= limit_ms * (1 + 1e-6)
    executions = 2 + _burst(slo) * UTILISATION_MIN / (2 * (1 - UTILISATION_MIN) * batch)
    return executions * bound.tail_ms <= limit_ms * (1 + 1e-6)


def _burst(slo: Slo) -> float:
    return -math.log(1 - min(slo.percentile, 99.99) / 100)


def capacity_rps(picture: Picture, item: Assignment, slo: Slo, bound: Execution) -> float:
    """The highest rate that measurements prove this replica to serve within its promise."""
    if item.kind is WorkloadKind.TASK:
        return 1000 * item.batch / bound.mean_ms
    if item.batch < 1 or not keeps_promise(slo, bound, item.batch):
        return 0.0
    utilisation = picture.snapshot.policy.utilisation_max
    limit_ms = latency_limit_ms(slo)
    if limit_ms is not None and slo.scope is not SloScope.EXECUTION:
        spare = max(0.0, limit_ms / bound.tail_ms - 2)
        bearable = 2 * item.batch * spare / (_burst(slo) + 2 * item.batch * spare)
        utilisation = min(utilisation, max(bearable, UTILISATION_MIN))
    return utilisation * 1000 * item.batch / bound.mean_ms


def memory_needed_mib(picture: Picture, item: Assignment, device: Device) -> float:
    """Memory that was measured at no larger a batch than the replica may grow to; at least the model's weights."""
    points = _nearest_clock(picture, item, device)
    used = [point.memory_mib for point in points if point.memory_mib and point.batch <= item.envelope.batch_max]
    weights = [model.memory_mib_weights for model in picture.snapshot.models if model.name == item.model]
    return max(used or weights, default=0.0)


def dynamic_power_w(picture: Picture, item: Assignment, device: Device) -> float:
    """Power above idle at full load that the plan must reckon with at least."""
    gpu_type = picture.types[device.gpu_type]
    span_w = gpu_type.power_limit_w_max - gpu_type.idle_w
    before = picture.standing.get(item.replica)
    ceiling = before.power_w_planned if before is not None and picture.stands(item) else math.inf
    if item.kind is WorkloadKind.JOB:
        return min(ceiling, span_w * picture.gpu_part(device) * item.share_pct_sm / 100)
    share = picture.share_of_gpu_pct(item, device) + 1e-6
    below = [point for point in _nearest_clock(picture, item, device) if point.share_pct_sm <= share]
    readings = [(point.batch, point.power_w) for point in below if point.power_w is not None]
    if readings:
        # Below the smallest measured batch nothing is proven; the smallest one is the nearest that is known.
        largest = max(item.batch, min(point.batch for point in below))
        known = [power_w for batch, power_w in readings if batch <= largest]
        return min(ceiling, max(known, default=0.0))
    measured_share = max((point.share_pct_sm for point in below), default=0)
    return min(ceiling, span_w * measured_share / 100)


def _nearest_clock(picture: Picture, item: Assignment, device: Device) -> list[ProfilePoint]:
    points = picture.points.get((item.model, device.gpu_type), ())
    clock = picture.clock_mhz_sm(device)
    nearest = max((point.clock_mhz_sm for point in points if point.clock_mhz_sm <= clock), default=None)
    return [point for point in points if point.clock_mhz_sm == nearest]
