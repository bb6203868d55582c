"""What a replica of a plan can be shown to do: how long it executes beside its neighbours, what it may be given, what
it needs and draws; and what the plan costs by that.

The slowdown by neighbours and the product's queueing rule are documented in docs/reference/planning.md and written here
a second time on purpose; what measurements prove of a replica alone is `proof`. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solvers.domain.device import Device, DeviceMode
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.telemetry import DemandOrigin
from solvers.domain.workload import Slo, SloKind, SloScope, WorkloadKind
from solvers.verify.picture import Picture

UTILISATION_MIN = 0.05
"""A promise that holds only for an emptier server counts as broken."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Proven upper bounds of the execution time of one batch, slowed by the neighbours."""

    mean_ms: float
    tail_ms: float


def latency_limit_ms(slo: Slo) -> float | None:
    """What the SLO allows one request; None when it bounds no latency that profiles can prove."""
    if slo.kind is SloKind.DEADLINE:
        return None if slo.deadline_s is None else slo.deadline_s * 1000
    return slo.latency_ms


def execution(
    picture: Picture, item: Assignment, device: Device, batch: int, clock_mhz: int | None = None
) -> Execution | None:
    """Bound for this replica at some batch and clock (None: the planned one); None when nothing measured proves one."""
    proof = picture.proof(item, device)
    if proof is None:
        return None
    clock = picture.clock_mhz_sm(device) if clock_mhz is None else clock_mhz
    alone = proof.execution_ms(picture.share_of_gpu_pct(item, device), clock, batch)
    if alone is None:
        return None
    factor = slowdown(picture, item, device)
    return Execution(mean_ms=factor * alone[0], tail_ms=factor * alone[1])


def slowdown(picture: Picture, item: Assignment, device: Device) -> float:
    """How many times as long as alone a replica of the plan executes beside its neighbours. Where the pressure of a
    neighbour, or how this one suffers, is not known, the policy's margin comes on top; and where no shares keep them
    apart, replicas of which that is not known take turns.
    """
    replicas = len(picture.on_device[device.id])
    if replicas < 2:
        return 1.0
    pressure, unknown = picture.company(device)
    margin = picture.policy_at(device.id).interference_margin if unknown else 1.0
    if unknown and picture.mode(device) is DeviceMode.TIME_SLICED:
        margin *= replicas
    known = picture.interference(item, device)
    if known is None:
        return margin
    return margin * (1 + known.sensitivity * max(0.0, pressure - picture.pressure(item, device)))


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
    utilisation = 1.0 if _nobody_counts(picture, item, slo) else picture.policy_at(item.device).utilisation_max
    limit_ms = latency_limit_ms(slo)
    if limit_ms is not None and slo.scope is not SloScope.EXECUTION:
        spare = max(0.0, limit_ms / bound.tail_ms - 2)
        bearable = 2 * item.batch * spare / (_burst(slo) + 2 * item.batch * spare)
        utilisation = min(utilisation, max(bearable, UTILISATION_MIN))
    return utilisation * 1000 * item.batch / bound.mean_ms


def _nobody_counts(picture: Picture, item: Assignment, slo: Slo) -> bool:
    """Whether a queue breaks no promise and is seen by nobody: then being busy all the time is no risk."""
    demand = picture.demands.get(item.workload)
    if demand is not None and demand.origin is DemandOrigin.OBSERVED:
        return False
    return slo.kind is SloKind.THROUGHPUT or (slo.kind is SloKind.LATENCY and slo.scope is SloScope.EXECUTION)


def memory_needed_mib(picture: Picture, item: Assignment, device: Device) -> float:
    """Memory that was measured at no larger a batch than the replica may grow to; at least the model's weights."""
    proof = picture.proof(item, device)
    used = proof.memory_needed_mib(picture.clock_mhz_sm(device), item.envelope.batch_max) if proof is not None else None
    if used is not None:
        return used
    model = picture.models.get(item.model)
    return 0.0 if model is None else model.memory_mib_weights


def dynamic_power_w(picture: Picture, item: Assignment, device: Device) -> float:
    """Power above idle at full load that the plan must reckon with at least."""
    gpu_type = picture.types[device.gpu_type]
    span_w = gpu_type.power_limit_w_max - gpu_type.idle_w
    before = picture.standing.get(item.replica)
    ceiling = before.power_w_planned if before is not None and picture.stands(item) else math.inf
    owner = picture.services.get(item.workload)
    answers_tokens = item.kind is WorkloadKind.SERVICE and owner is not None and owner.slo.kind is SloKind.TOKENS
    if item.kind is WorkloadKind.JOB or answers_tokens:
        return min(ceiling, span_w * picture.gpu_part(device) * item.share_pct_sm / 100)
    proof = picture.proof(item, device)
    if proof is None:
        return 0.0
    share, clock = picture.share_of_gpu_pct(item, device), picture.clock_mhz_sm(device)
    power_w, measured_share = proof.power_w(share, clock, item.batch)
    return min(ceiling, span_w * measured_share / 100 if power_w is None else power_w)


# --- What a plan costs by the policy's basis, and what its devices draw; a plan's own sums are not believed
#
# By share: the price of each device times the share of it that each replica has, and the whole of it at most. By
# memory: likewise with the memory that each uses with its batch, as far as that was measured, else may use, and all of
# it where one has the whole share. By device: the whole price of every device in use, and the energy of its idle power
# and of all that its replicas are planned to draw. Prices carry what interruptions are expected to cost.


def usd_per_h(picture: Picture) -> float:
    hosts = [
        (picture.devices[device], items)
        for device, items in picture.on_device.items()
        if picture.host(items[0]) is not None
    ]
    return sum(_of_device(picture, device, items) for device, items in hosts)


def _of_device(picture: Picture, device: Device, items: list[Assignment]) -> float:
    """By the basis and the prices of the policy that decides there."""
    policy, price = picture.policy_at(device.id), picture.expected_usd_per_h(device)
    if policy.cost_basis is CostBasis.SHARE:
        return price * min(100, sum(item.share_pct_sm for item in items)) / 100
    if policy.cost_basis is CostBasis.MEMORY:
        alone = picture.mode(device) is not DeviceMode.TIME_SLICED and any(item.share_pct_sm >= 100 for item in items)
        used = device.memory_mib if alone else sum(_used_mib(picture, item, device) for item in items)
        return price * min(1.0, used / device.memory_mib)
    usd_per_wh = policy.usd_per_wh(picture.snapshot.taken_at_s)
    return price + usd_per_wh * draw_w(picture, device, sum(item.power_w_planned for item in items))


def _used_mib(picture: Picture, item: Assignment, device: Device) -> float:
    """Never more than its limit; its limit where nothing was measured with so small a batch, and of a training job."""
    profile = None if item.kind is WorkloadKind.JOB else picture.profiles.get((item.model, device.gpu_type))
    most = 0.0
    if profile is not None and profile.grid is not None:
        for batch, memory_mib in zip(profile.grid.batches, profile.grid.memory_mib, strict=True):
            most = max(most, memory_mib if batch <= item.batch else 0.0)
    elif profile is not None:
        for point in profile.points:
            most = max(most, point.memory_mib or 0.0 if point.batch <= item.batch else 0.0)
    return min(item.memory_mib_limit, most or item.memory_mib_limit)


def draw_w(picture: Picture, device: Device, dynamic_w: float) -> float:
    """Power of a device whose replicas add so much to its idle power: never above its limit."""
    gpu_type, part = picture.types[device.gpu_type], picture.gpu_part(device)
    setting = picture.settings.get(device.id)
    limit_w = gpu_type.power_limit_w_max * part
    if setting is not None and setting.power_limit_w is not None:
        limit_w = min(limit_w, setting.power_limit_w)
    return min(limit_w, gpu_type.idle_w * part + dynamic_w)


def reckoned_w(picture: Picture, device: Device) -> float:
    """What a device must be reckoned to draw: what its replicas are planned to add, at least what was measured."""
    if not picture.draws_power(device):
        return 0.0
    items = picture.on_device.get(device.id, [])
    return draw_w(
        picture, device, sum(max(item.power_w_planned, dynamic_power_w(picture, item, device)) for item in items)
    )
