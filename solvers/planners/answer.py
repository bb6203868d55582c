"""Write a plan: names, knobs, device settings, reasons, what stays unplaced, objective.

Owns the last step that every planner shares, from seated replicas to a `Plan`. Numbers that are only predictions are
rounded (latency to a microsecond, capacity down), so that equal decisions have equal digests. It refuses to change a
decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from solvers.domain.codec import picture_digest
from solvers.domain.device import DeviceMode, PowerScope
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import DeviceId, ReplicaId, WorkloadId
from solvers.domain.plan import (
    Assignment,
    DeviceSetting,
    Envelope,
    Plan,
    Unplaced,
)
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.token_options import token_facts
from solvers.models.worth import pinned_settings, worth_of
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.facts import Basis, rounded_ms, rounded_rps, rounded_w
from solvers.planners.seating import Placed, Settled, name_replicas
from solvers.problems.choice import Option
from solvers.problems.needs import Need, iterations_per_s

Explain = Callable[[Settled], tuple[Reason, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a planner decided: settled workloads, pinned replicas, and how to explain a workload's alternatives."""

    settled: tuple[Settled, ...]
    pinned: tuple[Assignment, ...]
    standing: dict[WorkloadId, list[Assignment]]
    explain: Explain


def write_plan(request: PlanRequest, spec: PlannerSpec, answer: Answer) -> Plan:
    """The complete plan, on offered GPUs too."""
    snapshot = request.snapshot.with_offers()
    basis = Basis(snapshot.profiles_by_key())
    jobs = {WorkloadId(job.id): job for job in snapshot.jobs}
    pinned = (replace(item, reasons=(_pinned_reason(item),)) for item in answer.pinned)
    assignments = [*pinned]
    for settled in answer.settled:
        if settled.need.kind is WorkloadKind.JOB:
            job = jobs[settled.need.workload]
            named = name_replicas(settled, answer.standing.get(settled.need.workload, []))
            assignments.extend(_job_assignment(snapshot, settled, each, job) for each in named)
        else:
            assignments.extend(_assignments(settled, answer, basis))
    ordered = tuple(sorted(assignments, key=lambda item: item.replica))
    settings = _settings(snapshot, request.movable, ordered, _unlimited(answer.settled))
    return Plan(
        snapshot=picture_digest(request.snapshot),
        parent=snapshot.target.generation,
        planner=spec.name,
        planner_version=spec.version,
        seed=request.seed,
        assignments=ordered,
        settings=settings,
        unplaced=tuple(sorted(_unplaced(answer.settled), key=lambda item: (item.kind, item.workload))),
        objective=worth_of(snapshot, request.movable, ordered, settings).objective,
    )


def _pinned_reason(item: Assignment) -> Reason:
    return Reason(code=ReasonCode.PINNED_BY_MODE, subject=item.workload)


def _assignments(settled: Settled, answer: Answer, basis: Basis) -> Iterable[Assignment]:
    alternatives = answer.explain(settled)
    for replica, placed in name_replicas(settled, answer.standing.get(settled.need.workload, [])):
        if placed.option is None:
            yield _blind_assignment(placed, alternatives)
        else:
            yield _measured_assignment(settled, (replica, placed), alternatives, basis)


def _measured_assignment(
    settled: Settled, named: tuple[ReplicaId, Placed], alternatives: tuple[Reason, ...], basis: Basis
) -> Assignment:
    replica, placed = named
    option, need = placed.option, settled.need
    assert option is not None
    chosen = ReasonCode.KEPT_STANDING if placed.standing is not None else ReasonCode.CHEAPEST_FEASIBLE
    facts = (
        Fact(name="usd_per_h", value=round(option.usd_per_h, 6)),
        Fact(name="latency_ms", value=rounded_ms(option.latency_ms)),
        Fact(name="capacity_rps", value=rounded_rps(option.capacity_rps)),
        Fact(name="share_pct_sm", value=float(option.share_pct)),
        Fact(name="batch", value=float(option.batch)),
        Fact(name="replicas", value=float(len(settled.placed))),
        Fact(name="rate_rps", value=round(need.rate_rps, 4)),
        *_basis_facts(settled, placed.seat.device, option, basis),
    )
    chosen_here = Reason(code=chosen, subject=option.gpu_type, facts=facts)
    item = assignment_of(need, option, (replica, settled.fleet.devices[placed.seat.device].id))
    return replace(item, reasons=(chosen_here, *alternatives))


def assignment_of(need: Need, option: Option, where: tuple[ReplicaId, DeviceId]) -> Assignment:
    """A replica in a configuration on a device, without reasons."""
    replica, device = where
    return Assignment(
        replica=replica,
        kind=need.kind,
        workload=need.workload,
        model=need.model,
        device=device,
        share_pct_sm=option.share_pct,
        memory_mib_limit=option.memory_mib,
        batch=option.batch,
        envelope=Envelope(
            batch_min=option.batch_min,
            batch_max=option.batch_max,
            clock_mhz_sm_min=option.clock_mhz_sm,
            clock_mhz_sm_max=option.clock_mhz_sm,
        ),
        latency_ms_planned=rounded_ms(option.latency_ms) if need.limit_ms is not None else None,
        capacity_rps=rounded_rps(option.capacity_rps),
        power_w_planned=rounded_w(option.power_w),
    )


def _basis_facts(settled: Settled, device: int, option: Option, basis: Basis) -> tuple[Fact, ...]:
    need = settled.need
    if need.tokens is not None:
        return token_facts(need, need.model, option.gpu_type, (option.batch, option.capacity_rps))
    share_of_gpu_pct = option.share_pct * settled.fleet.class_at(device).sm_part
    return basis.facts((need.model, option.gpu_type), share_of_gpu_pct, option.batch, option.clock_mhz_sm)


def _blind_assignment(placed: Placed, alternatives: tuple[Reason, ...]) -> Assignment:
    """A standing replica that cannot be shown to keep its promise, kept because the workload would be worse off without
    it.
    """
    assert placed.standing is not None
    kept = Reason(code=ReasonCode.KEPT_STANDING, subject=placed.standing.workload)
    return replace(placed.standing, reasons=(kept, *alternatives))


def _job_assignment(
    snapshot: Snapshot, settled: Settled, named: tuple[ReplicaId, Placed], job: TrainingJob
) -> Assignment:
    replica, placed = named
    fleet, seat = settled.fleet, placed.seat
    kind = fleet.class_at(seat.device)
    clock = kind.clock_mhz_sm
    whole_per_s = iterations_per_s(job, snapshot.gpu_types_by_name(), kind.gpu_type)
    progress_per_s = whole_per_s * kind.sm_part * seat.share_pct / 100
    facts = (
        Fact(name="share_pct_sm", value=float(seat.share_pct)),
        Fact(name="usd_per_h", value=round(kind.usd_per_h * seat.share_pct / 100, 6)),
        Fact(name="iterations_per_s", value=rounded_rps(progress_per_s)),
    )
    return Assignment(
        replica=replica,
        kind=WorkloadKind.JOB,
        workload=settled.need.workload,
        model=job.model,
        device=fleet.devices[seat.device].id,
        share_pct_sm=seat.share_pct,
        memory_mib_limit=seat.memory_mib,
        batch=1,
        envelope=Envelope(batch_min=1, batch_max=1, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
        latency_ms_planned=None,
        capacity_rps=rounded_rps(progress_per_s),
        power_w_planned=rounded_w(seat.power_w),
        reasons=(Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=kind.gpu_type, facts=facts),),
    )


def _unlimited(settled: Iterable[Settled]) -> frozenset[DeviceId]:
    """Devices that were planned without limits on shares."""
    seats = ((item.fleet, placed.seat.device) for item in settled for placed in item.placed)
    return frozenset(fleet.devices[number].id for fleet, number in seats if fleet.class_at(number).unlimited)


def _settings(
    snapshot: Snapshot,
    movable: tuple[WorkloadId, ...],
    assignments: tuple[Assignment, ...],
    unlimited: frozenset[DeviceId],
) -> tuple[DeviceSetting, ...]:
    """One setting per device in use; a device with a pinned replica keeps the one that stands."""
    devices, types = snapshot.devices_by_id(), snapshot.gpu_types_by_name()
    settings = pinned_settings(snapshot, movable)
    dedicated: set[str] = {item.id for item in snapshot.services if item.affinity.dedicated}
    caps = {cap.subject: cap.limit_w for cap in snapshot.power_caps if cap.scope is PowerScope.DEVICE}
    for assignment in assignments:
        device = devices.get(DeviceId(assignment.device))
        if device is None or device.id in settings:
            continue
        mode = DeviceMode.TIME_SLICED if device.id in unlimited else device.mode
        if assignment.workload in dedicated:
            mode = DeviceMode.DEDICATED
        limit_w: float | None = None
        gpu_type = types[device.gpu_type]
        if device.id in caps and device.mig is None:
            limit_w = min(gpu_type.power_limit_w_max, max(gpu_type.power_limit_w_min, caps[device.id]))
        clock = assignment.envelope.clock_mhz_sm_max
        settings[device.id] = DeviceSetting(
            device=device.id,
            mode=mode,
            clock_mhz_sm=clock if clock < gpu_type.clock_mhz_sm_max else None,
            power_limit_w=limit_w,
        )
    return tuple(settings[device] for device in sorted(settings))


def _unplaced(settled: Iterable[Settled]) -> Iterable[Unplaced]:
    for item in settled:
        need = item.need
        spread = need.affinity.failure_domains_min
        lacks_domains = bool(item.placed) and len(item.domains) < spread
        if not (item.rate_rps_short or item.replicas_missing or item.replicas_at_risk or lacks_domains):
            continue
        blockers = list(dict.fromkeys(item.blockers))
        if need.kind is WorkloadKind.JOB:
            blockers.insert(0, Reason(code=ReasonCode.WAITS_IN_LINE, subject=need.workload))
        if item.replicas_missing:
            facts = (Fact(name="replicas_missing", value=float(item.replicas_missing)),)
            blockers.append(Reason(code=ReasonCode.REPLICAS_MIN, subject=need.workload, facts=facts))
        if item.replicas_at_risk:
            facts = (Fact(name="replicas_at_risk", value=float(item.replicas_at_risk)),)
            blockers.append(Reason(code=ReasonCode.KEPT_STANDING, subject=need.workload, facts=facts))
        if lacks_domains:
            facts = (Fact(name="failure_domains_min", value=float(spread)),)
            blockers.append(Reason(code=ReasonCode.ANTI_AFFINITY, subject=need.workload, facts=facts))
        yield Unplaced(
            kind=need.kind, workload=need.workload, rate_rps_short=_up(item.rate_rps_short), reasons=tuple(blockers)
        )


def _up(rate_rps: float) -> float:
    return math.ceil(rate_rps * 1e4) / 1e4
