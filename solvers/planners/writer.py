"""The one writer of plans: from replicas on devices to a `Plan`, whoever planned them.

Replicas are named so that as many as possible keep the slot that they have, every device in use gets its setting, and
the whole is judged by the objective. Predictions are rounded (latency to a microsecond, capacity down, power up), so
that equal decisions have equal digests and no rounding promises more than was found; facts say where nobody measured.
What is read stays as it was, and no decision is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count

from solvers.domain.codec import picture_digest
from solvers.domain.device import DeviceMode, PowerScope
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, Digest, GpuTypeName, ModelName, ReplicaId, WorkloadId, replica_id
from solvers.domain.plan import Assignment, DeviceSetting, Envelope, Plan, Unplaced
from solvers.domain.profile import Profile, ProfileOrigin
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.serving.token_plans import token_facts
from solvers.models.table import Tables
from solvers.models.worth import pinned_settings, worth_of
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.seating import Placed, Settled
from solvers.problems.choice import Option
from solvers.problems.needs import Need, iterations_per_s

LIMIT_DUST = 1e-6
"""Part of a limit that nobody minds; the verifier's is the same."""
RATE_STEPS = 1e7
"""Steps of a request per second in which capacities are told."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What choices rest on; says so where nobody measured it."""

    profiles: dict[tuple[ModelName, GpuTypeName], Profile]

    def told(self, made: PlannedReplica, gpu_type: GpuTypeName, sm_part: float) -> tuple[Fact, ...]:
        """What a service's or a task's replica rests on: origin and source of what judged its configuration, if it was
        believed. `sm_part`: of its GPU, the part that its device has.
        """
        if made.need.kind is WorkloadKind.JOB:
            return ()
        if made.need.tokens is not None:
            return token_facts(made.need, made.model, gpu_type, made.batch, made.capacity_rps)
        profile = self.profiles.get((made.model, gpu_type))
        if profile is None:
            return ()
        if profile.grid is not None:
            return _told(profile.grid.origin, profile.grid.source)
        points = [
            point
            for point in profile.points
            if point.batch == made.batch
            and point.share_pct_sm <= made.share_pct * sm_part + 1e-9
            and point.clock_mhz_sm <= made.clock_mhz
            and not point.neighbours
        ]
        judged = max(points, key=lambda point: (point.clock_mhz_sm, point.share_pct_sm), default=None)
        return () if judged is None else _told(judged.origin, judged.source)


def _told(origin: ProfileOrigin, source: str) -> tuple[Fact, ...]:
    if not origin.is_believed:
        return ()
    return Fact(name="profile_origin", value=origin.value), Fact(name="profile_source", value=source)


def rounded_ms(latency_ms: float) -> float:
    """To a microsecond."""
    return round(latency_ms, 3)


def _stated_ms(latency_ms: float, limit_ms: float | None) -> float:
    """Rounded, but never over a limit that is kept: what is stated is what is verified."""
    rounded = rounded_ms(latency_ms)
    return rounded if limit_ms is None or latency_ms > limit_ms * (1 + LIMIT_DUST) else min(rounded, limit_ms)


def rounded_rps(rate_rps: float) -> float:
    """Down: a capacity is a promise. What a thousand replicas lose by it is less than a verifier lets pass."""
    return math.floor(rate_rps * RATE_STEPS) / RATE_STEPS


def rounded_w(power_w: float) -> float:
    """Up: a draw is a burden."""
    return math.ceil(power_w * 1e3 - 1e-6) / 1e3


Explain = Callable[[Settled], tuple[Reason, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplica:
    """One replica that has no name yet: whose it is, its device, its knobs, and what is expected of it there."""

    need: Need
    device: DeviceId
    model: ModelName
    share_pct: int
    memory_mib: int
    batch: int
    envelope: Envelope
    clock_mhz: int
    """Of its device."""
    latency_ms: float | None
    capacity_rps: float
    power_w: float
    standing: Assignment | None = None
    """The replica that it is, unless it starts anew."""
    reasons: tuple[Reason, ...] = ()

    def named(self, replica: ReplicaId) -> Assignment:
        latency_ms = None if self.need.limit_ms is None else self.latency_ms
        return Assignment(
            replica=replica,
            kind=self.need.kind,
            workload=self.need.workload,
            model=self.model,
            device=self.device,
            share_pct_sm=self.share_pct,
            memory_mib_limit=self.memory_mib,
            batch=self.batch,
            envelope=self.envelope,
            latency_ms_planned=None if latency_ms is None else _stated_ms(latency_ms, self.need.limit_ms),
            capacity_rps=rounded_rps(self.capacity_rps),
            power_w_planned=rounded_w(self.power_w),
            reasons=self.reasons,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a planner decided."""

    replicas: tuple[PlannedReplica, ...]
    staying: tuple[Assignment, ...]
    """To the letter, each with its reason."""
    held: Mapping[DeviceId, DeviceSetting]
    """Settings that stay."""
    unplaced: tuple[Unplaced, ...]
    unlimited: frozenset[DeviceId] = frozenset()
    """Devices that were planned without limits on shares."""
    picture: Digest | None = None
    """The snapshot's digest, where it is known already."""


def write_plan(request: PlanRequest, spec: PlannerSpec, contents: Contents) -> Plan:
    """The complete plan, on offered GPUs too, its bound left open."""
    snapshot = request.snapshot.with_offers()
    assignments = tuple(sorted((*contents.staying, *_named(snapshot, contents)), key=lambda item: item.replica))
    settings = _settings(snapshot, contents, assignments)
    return Plan(
        snapshot=contents.picture or picture_digest(request.snapshot),
        parent=snapshot.target.generation,
        planner=spec.name,
        planner_version=spec.version,
        seed=request.seed,
        assignments=assignments,
        settings=settings,
        unplaced=tuple(sorted(contents.unplaced, key=lambda item: (item.kind, item.workload))),
        objective=worth_of(snapshot, request.movable, assignments, settings).objective,
    )


def _named(snapshot: Snapshot, contents: Contents) -> Iterator[Assignment]:
    """Every replica under the slot that changes least; what stays has its own."""
    slots = grouped(snapshot.target.assignments, lambda item: item.workload)
    staying = grouped(contents.staying, lambda item: item.workload)
    for workload, found in grouped(contents.replicas, lambda item: item.need.workload).items():
        ordered = sorted(found, key=lambda item: (item.standing is None, item.device, item.share_pct))
        names = _names(ordered, staying[workload], slots[workload])
        yield from (item.named(name) for item, name in zip(ordered, names, strict=True))


def _names(
    places: Sequence[PlannedReplica], staying: Sequence[Assignment], slots: Sequence[Assignment]
) -> list[ReplicaId]:
    """A slot for each of a workload's places: whoever stands there as it is keeps its own, then same device, then any
    standing slot, then the lowest new one. Where more of a service start elsewhere than leave, those take the slots of
    who carries most beyond the place on its device, which is a new one: so they serve until the others had time to
    start.
    """
    named = {at: item.standing.replica for at, item in enumerate(places) if item.standing is not None}
    used = {*named.values(), *(item.replica for item in staying)}
    free = sorted((item for item in slots if item.replica not in used), key=lambda item: item.replica)
    here: dict[int, Assignment] = {}
    for at, item in enumerate(places):
        same = None if at in named else next((slot for slot in free if slot.device == item.device), None)
        if same is not None:
            free.remove(same)
            here[at] = same
    moving = [at for at in range(len(places)) if at not in named and at not in here]
    lost = sorted(((_lost_rps(slot, places[at]), at) for at, slot in here.items()), reverse=True)
    handing = [at for lost_rps, at in lost[: max(0, len(moving) - len(free))] if lost_rps > 0]
    named |= {at: slot.replica for at, slot in here.items() if at not in handing}
    free = sorted((*free, *(here[at] for at in handing)), key=lambda item: item.replica)
    left = iter([item.replica for item in free])
    used |= {*named.values(), *(item.replica for item in free)}
    fresh = (name for name in map(partial(replica_id, places[0].need.workload), count()) if name not in used)
    named |= {at: next(left, None) or next(fresh) for at in moving}
    named |= {at: next(fresh) for at in handing}
    return [named[at] for at in range(len(places))]


def _lost_rps(slot: Assignment, place: PlannedReplica) -> float:
    """What ends with a service's process that makes way for this one on its device. A job never has two processes."""
    return slot.capacity_rps - place.capacity_rps if place.need.kind is WorkloadKind.SERVICE else 0.0


def _settings(snapshot: Snapshot, contents: Contents, assignments: tuple[Assignment, ...]) -> tuple[DeviceSetting, ...]:
    """One setting per device in use."""
    devices, types = snapshot.devices_by_id(), snapshot.gpu_types_by_name()
    settings = dict(contents.held)
    dedicated: set[str] = {item.id for item in snapshot.services if item.affinity.dedicated}
    caps = {cap.subject: cap.limit_w for cap in snapshot.power_caps if cap.scope is PowerScope.DEVICE}
    clocks = {item.device: item.clock_mhz for item in contents.replicas}
    for item in assignments:
        device = devices.get(item.device)
        if device is None or device.id in settings:
            continue
        mode = DeviceMode.TIME_SLICED if device.id in contents.unlimited else device.mode
        limit_w: float | None = None
        gpu_type = types[device.gpu_type]
        if device.id in caps and device.mig is None:
            limit_w = min(gpu_type.power_limit_w_max, max(gpu_type.power_limit_w_min, caps[device.id]))
        clock = clocks.get(device.id, item.envelope.clock_mhz_sm_max)
        settings[device.id] = DeviceSetting(
            device=device.id,
            mode=DeviceMode.DEDICATED if item.workload in dedicated else mode,
            clock_mhz_sm=clock if clock < gpu_type.clock_mhz_sm_max else None,
            power_limit_w=limit_w,
        )
    return tuple(settings[device] for device in sorted(settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    rate_rps: float = 0.0
    replicas: int = 0
    """Below its owner's floor."""
    replicas_at_risk: int = 0
    """Kept although they cannot be shown to keep their promise."""
    failure_domains_min: int = 0
    """0 where its replicas lie in enough of them."""

    def __bool__(self) -> bool:
        return bool(self.rate_rps or self.replicas or self.replicas_at_risk or self.failure_domains_min)


def deviceless(snapshot: Snapshot) -> tuple[Reason, ...]:
    """Why nothing is placed anywhere, where there is nowhere."""
    return () if snapshot.devices else (Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject="any"),)


LIMIT_FACTS = {
    ReasonCode.BUDGET: ("usd_per_h", "budget_usd_per_h_left"),
    ReasonCode.QUOTA: ("gpus_needed", "quota_gpus_left"),
}


def limited(code: ReasonCode, subject: str, *numbers: float) -> Reason:
    """A bound of the owner in the way: what the smallest replica would need, and what is left."""
    facts = (Fact(name=name, value=round(number, 6)) for name, number in zip(LIMIT_FACTS[code], numbers, strict=True))
    return Reason(code=code, subject=subject, facts=tuple(facts))


def _numbers(reason: Reason) -> tuple[float, ...]:
    return tuple(fact.value for fact in reason.facts if not isinstance(fact.value, str))


def least(blockers: Iterable[Reason]) -> list[Reason]:
    """What left no place, of several that differ in numbers alone the least. Alternatives are each told."""
    found: dict[object, Reason] = {}
    for item in blockers:
        alike = item if item.code is ReasonCode.REJECTED_ALTERNATIVE else (item.code, item.subject)
        known = found.setdefault(alike, item)
        if _numbers(item) < _numbers(known):
            found[alike] = item
    return list(found.values())


def unplaced_of(need: Need, lack: Lack, blockers: Iterable[Reason]) -> Unplaced:
    """Say what is lacking, after what left no place for it. A GPU type some of whose devices were looked at is not told
    to have none.
    """
    told = least(blockers)
    looked_at = {item.subject for item in told if item.code is not ReasonCode.NO_DEVICE_OF_TYPE}
    reasons = [item for item in told if item.code is not ReasonCode.NO_DEVICE_OF_TYPE or item.subject not in looked_at]
    if need.kind is WorkloadKind.JOB:
        reasons.insert(0, Reason(code=ReasonCode.WAITS_IN_LINE, subject=need.workload))
    for code, name, number in (
        (ReasonCode.REPLICAS_MIN, "replicas_missing", lack.replicas),
        (ReasonCode.KEPT_AT_RISK, "replicas_at_risk", lack.replicas_at_risk),
        (ReasonCode.ANTI_AFFINITY, "failure_domains_min", lack.failure_domains_min),
    ):
        if number:
            reasons.append(Reason(code=code, subject=need.workload, facts=(Fact(name=name, value=float(number)),)))
    return Unplaced(
        kind=need.kind,
        workload=need.workload,
        rate_rps_short=math.ceil(lack.rate_rps * 1e4) / 1e4,
        reasons=tuple(dict.fromkeys(reasons)),
    )


def pinned_as(item: Assignment, code: ReasonCode = ReasonCode.PINNED_BY_MODE) -> Assignment:
    """A replica that stays to the letter, saying why."""
    return replace(item, reasons=(Reason(code=code, subject=item.workload),))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialAnswer:
    """What a planner of one workload after another decided: the fleet's books as they ended, and how to explain a
    workload's alternatives.
    """

    settled: tuple[Settled, ...]
    pinned: tuple[Assignment, ...]
    explain: Explain = field(default=lambda settled: tuple(least(settled.blockers)))


def write_answer(request: PlanRequest, spec: PlannerSpec, answer: SequentialAnswer) -> Plan:
    """The plan of workloads that were settled one after another."""
    snapshot = request.snapshot.with_offers()
    basis = Basis(snapshot.profiles_by_key())
    replicas: list[PlannedReplica] = []
    staying = [pinned_as(item) for item in answer.pinned]
    decided = _as_shown(snapshot, answer, pinned_settings(snapshot, request.movable))
    for settled in decided:
        alternatives = answer.explain(settled)
        for placed in settled.placed:
            if settled.need.kind is WorkloadKind.JOB:
                replicas.append(_training(snapshot, settled, placed))
            elif placed.option is not None:
                replicas.append(_serving(settled, placed, placed.option, basis, alternatives))
            elif placed.standing is not None:
                # It cannot be shown to keep its promise, but its workload would be worse off without it.
                kept = pinned_as(placed.standing, ReasonCode.KEPT_AT_RISK)
                staying.append(replace(kept, reasons=(*kept.reasons, *alternatives)))
    unplaced = ((item.need, _lack(item), item.blockers or deviceless(snapshot)) for item in decided)
    seats = ((item.fleet, placed.seat.device) for item in decided for placed in item.placed)
    contents = Contents(
        replicas=tuple(replicas),
        staying=tuple(staying),
        held=pinned_settings(snapshot, request.movable),
        unplaced=tuple(unplaced_of(*item) for item in unplaced if item[1]),
        unlimited=frozenset(fleet.devices[number].id for fleet, number in seats if fleet.class_at(number).unlimited),
    )
    return write_plan(request, spec, contents)


def _as_shown(
    snapshot: Snapshot, answer: SequentialAnswer, held: Mapping[DeviceId, DeviceSetting]
) -> tuple[Settled, ...]:
    """Who is short claims as much as his replicas can be shown to serve beside their very neighbours where no other can
    come: a choice reckons with any there might be.
    """
    if not any(item.rate_rps_short and item.placed for item in answer.settled):
        return answer.settled
    planned = [[_nameless(snapshot, item, each) for each in item.placed] for item in answer.settled]
    tables, everybody = Tables.of(snapshot.profiles), (*answer.pinned, *chain.from_iterable(planned))
    appraisal = Appraisal.of(answer.settled[0].fleet, tables, snapshot.policy, everybody, held)
    return tuple(
        replace(item, placed=list(map(partial(_claiming, item), item.placed, shown)))
        for item, its in zip(answer.settled, planned, strict=True)
        for shown in (appraisal.capacities_rps(item.need, its) if item.rate_rps_short else [None] * len(its),)
    )


def _nameless(snapshot: Snapshot, settled: Settled, placed: Placed) -> Assignment:
    if settled.need.kind is WorkloadKind.JOB:
        return _training(snapshot, settled, placed).named(ReplicaId(""))
    if placed.option is None:
        assert placed.standing is not None
        return placed.standing
    device = settled.fleet.devices[placed.seat.device].id
    return replica_of(settled.need, placed.option, device).named(ReplicaId(""))


def _claiming(settled: Settled, placed: Placed, shown_rps: float | None) -> Placed:
    option, need, fleet, device = placed.option, settled.need, settled.fleet, placed.seat.device
    full = fleet.share_free[device] < 1 or fleet.clients_free[device] < 1 or fleet.closed[device] > 0
    if option is None or shown_rps is None or shown_rps <= option.capacity_rps or not full:
        return placed
    # A request takes as long as is promised where as much is asked as the promise bears.
    latency_ms = need.limit_ms if need.end_to_end and need.limit_ms is not None else option.latency_ms
    return replace(placed, option=replace(option, capacity_rps=shown_rps, latency_ms=latency_ms))


def _lack(settled: Settled) -> Lack:
    spread = settled.need.affinity.failure_domains_min
    return Lack(
        rate_rps=settled.rate_rps_short,
        replicas=settled.replicas_missing,
        replicas_at_risk=settled.replicas_at_risk,
        failure_domains_min=spread if settled.placed and len(settled.domains) < spread else 0,
    )


def _serving(
    settled: Settled, placed: Placed, option: Option, basis: Basis, alternatives: tuple[Reason, ...]
) -> PlannedReplica:
    need, device = settled.need, placed.seat.device
    made = replica_of(need, option, settled.fleet.devices[device].id)
    facts = (
        Fact(name="usd_per_h", value=round(option.usd_per_h, 6)),
        Fact(name="latency_ms", value=rounded_ms(option.latency_ms)),
        Fact(name="capacity_rps", value=rounded_rps(option.capacity_rps)),
        Fact(name="share_pct_sm", value=float(option.share_pct)),
        Fact(name="batch", value=float(option.batch)),
        Fact(name="replicas", value=float(len(settled.placed))),
        Fact(name="rate_rps", value=round(need.rate_rps, 4)),
        *basis.told(made, option.gpu_type, settled.fleet.class_at(device).sm_part),
    )
    code = ReasonCode.KEPT_STANDING if placed.standing is not None else ReasonCode.CHEAPEST_FEASIBLE
    chosen = Reason(code=code, subject=option.gpu_type, facts=facts)
    return replace(made, standing=placed.standing, reasons=(chosen, *alternatives))


def replica_of(need: Need, option: Option, device: DeviceId) -> PlannedReplica:
    """A replica in a configuration on a device, without reasons."""
    clock = option.clock_mhz_sm
    return PlannedReplica(
        need=need,
        device=device,
        model=need.model,
        share_pct=option.share_pct,
        memory_mib=option.memory_mib,
        batch=option.batch,
        envelope=Envelope(
            batch_min=option.batch_min, batch_max=option.batch_max, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock
        ),
        clock_mhz=clock,
        latency_ms=option.latency_ms,
        capacity_rps=option.capacity_rps,
        power_w=option.power_w,
    )


def _training(snapshot: Snapshot, settled: Settled, placed: Placed) -> PlannedReplica:
    job = {WorkloadId(item.id): item for item in snapshot.jobs}[settled.need.workload]
    seat = placed.seat
    kind = settled.fleet.class_at(seat.device)
    clock = kind.clock_mhz_sm
    whole_per_s = iterations_per_s(job, snapshot.gpu_types_by_name(), kind.gpu_type)
    progress_per_s = whole_per_s * kind.sm_part * seat.share_pct / 100
    facts = (
        Fact(name="share_pct_sm", value=float(seat.share_pct)),
        Fact(name="usd_per_h", value=round(kind.usd_per_h * seat.share_pct / 100, 6)),
        Fact(name="iterations_per_s", value=rounded_rps(progress_per_s)),
    )
    return PlannedReplica(
        need=settled.need,
        device=settled.fleet.devices[seat.device].id,
        model=job.model,
        share_pct=seat.share_pct,
        memory_mib=seat.memory_mib,
        batch=1,
        envelope=Envelope(batch_min=1, batch_max=1, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
        clock_mhz=clock,
        latency_ms=None,
        capacity_rps=progress_per_s,
        power_w=seat.power_w,
        standing=placed.standing,
        reasons=(Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=kind.gpu_type, facts=facts),),
    )
