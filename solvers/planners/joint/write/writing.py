"""A seated floor as a plan: names, knobs, device settings, reasons, what is short, the objective.

Owns the last step of joint planning. Clocks are those of the kinds (none at the highest), power limits those that caps
on single devices ask for; what is pinned or kept stays to the letter, but for the numbers believed of it today. It
refuses to change a decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from solvers.domain.codec import picture_digest
from solvers.domain.device import DeviceMode, PowerScope
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import DeviceId, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Envelope, Plan
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.token_options import token_facts
from solvers.models.worth import worth_of
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.facts import Basis, rounded_ms, rounded_rps, rounded_w
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.floor import NO_DOMAIN
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.write.members import Member, members
from solvers.planners.joint.write.short import shortages
from solvers.planners.seating import name_places
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is written: the reading with its seats."""

    request: PlanRequest
    reading: Reading
    seats: Seats
    first: Plan | None = None
    """Another planner's plan for the same request: whoever is short there too has the same reasons."""
    open_ended: frozenset[WorkloadId] = frozenset()
    """Services that can always use more."""


def write(spec: PlannerSpec, draft: Draft) -> Plan:
    """The complete plan, its bound left open."""
    snapshot, request = draft.request.snapshot, draft.request
    first = draft.first
    hints = {} if first is None else {item.workload: item.reasons for item in first.unplaced}
    assignments = tuple(sorted((*_staying(draft), *_seated(draft)), key=lambda item: item.replica))
    settings = _settings(draft, assignments)
    return Plan(
        snapshot=picture_digest(snapshot) if first is None else first.snapshot,
        parent=snapshot.target.generation,
        planner=spec.name,
        planner_version=spec.version,
        seed=request.seed,
        assignments=assignments,
        settings=settings,
        unplaced=shortages(draft.reading, draft.seats, assignments, hints),
        objective=worth_of(snapshot, request.movable, assignments, settings).objective,
    )


def _staying(draft: Draft) -> Iterator[Assignment]:
    """Pinned replicas to the letter; kept ones with what they are believed to serve today."""
    reading, movable = draft.reading, set(draft.request.movable)
    for item in reading.pinned:
        code = ReasonCode.KEPT_STANDING if item.workload in movable else ReasonCode.PINNED_BY_MODE
        yield replace(item, reasons=(Reason(code=code, subject=item.workload),))
    if not reading.kept:
        return
    held = {item.device: item for item in reading.snapshot.target.settings}
    fleet = open_fleet(reading.snapshot, held)
    together = (*reading.pinned, *reading.kept)
    appraisal = Appraisal.of(fleet, reading.snapshot.profiles_by_key(), reading.snapshot.policy, (together, held))
    needs = {need.workload: need for need in reading.needs}
    for item in reading.kept:
        reason = Reason(code=ReasonCode.KEPT_STANDING, subject=item.workload)
        need = needs[item.workload]
        capacity = item.capacity_rps
        if need.kind is not WorkloadKind.JOB:
            capacity = min(capacity, appraisal.capacities_rps(need, [item])[0] or 0.0)
        yield replace(item, capacity_rps=rounded_rps(capacity), reasons=(reason,))


def _seated(draft: Draft) -> Iterator[Assignment]:
    """Every replica of every device, under the slot that changes least."""
    reading, floor = draft.reading, draft.seats.floor
    needs = {need.workload: need for need in reading.needs}
    stays = {item.replica for item in (*reading.pinned, *reading.kept)}
    open_slots: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    taken: dict[WorkloadId, list[tuple[DeviceId, ReplicaId | None]]] = defaultdict(list)
    for item in reading.snapshot.target.assignments:
        if item.replica in stays:
            taken[item.workload].append((item.device, item.replica))
        elif item.workload in needs:
            open_slots[item.workload].append(item)
    ground = _Ground(Basis(reading.snapshot.profiles_by_key()), _sm_parts(reading))
    for workload, found in sorted(_members_by_workload(draft).items()):
        ordered = sorted(found, key=lambda item: (item.standing is None, floor.names[item.device], item.share_pct))
        fixed = taken[workload]
        wanted = [(floor.names[at.device], at.standing.replica if at.standing else None) for at in ordered]
        slots = name_places(workload, [*fixed, *wanted], open_slots[workload])[len(fixed) :]
        for replica, member in zip(slots, ordered, strict=True):
            yield _assignment(draft, needs[workload], (replica, member, len(ordered)), ground)


@dataclass(frozen=True, slots=True)
class _Ground:
    """What replicas rest on: profiles, and the part of a GPU's SMs that each pool's devices have."""

    basis: Basis
    sm_parts: tuple[float, ...]


def _sm_parts(reading: Reading) -> tuple[float, ...]:
    devices, types = reading.snapshot.devices_by_id(), reading.snapshot.gpu_types_by_name()
    first = [devices[names[0]] for names in reading.pool_devices]
    return tuple(1.0 if item.mig is None else item.sm_count / types[item.gpu_type].sm_count for item in first)


def _members_by_workload(draft: Draft) -> dict[WorkloadId, list[Member]]:
    floor, reading = draft.seats.floor, draft.reading
    problem = floor.problem
    found: dict[WorkloadId, list[Member]] = defaultdict(list)
    for device, name in enumerate(floor.names):
        standing = [
            (item.variant, item.assignment) for item in reading.standing.get(name, ()) if item.variant is not None
        ]
        governed = _governed(draft, device)
        for member in members(draft.seats, device, standing, governed=governed):
            found[problem.workloads[problem.variants[member.variant].workload].id].append(member)
    return found


def _governed(draft: Draft, device: int) -> bool:
    """Whether a device's controller is to seek the clock: under a cap of its own, where everybody can use more."""
    floor, pattern = draft.seats.floor, draft.seats.patterns[device]
    pool, problem = int(floor.pool_of[device]), floor.problem
    return (
        pattern is not None
        and problem.pools[pool].capped
        and bool((floor.domain_of[device] == NO_DOMAIN).all())
        and all(problem.workloads[problem.variants[item].workload].id in draft.open_ended for item in pattern.variants)
    )


def _assignment(draft: Draft, need: Need, named: tuple[ReplicaId, Member, int], ground: _Ground) -> Assignment:
    replica, item, replicas = named
    problem, floor = draft.seats.floor.problem, draft.seats.floor
    pattern = draft.seats.patterns[item.device]
    assert pattern is not None
    number = int(problem.kind_pool[pattern.kind])
    pool, of_gpu_pct = problem.pools[number], item.share_pct * ground.sm_parts[number]
    model, clock = problem.variants[item.variant].model, int(problem.kind_clock_mhz[pattern.kind])
    is_job = need.kind is WorkloadKind.JOB
    facts = [
        Fact(name="usd_per_h", value=round(pool.usd_per_h * item.share_pct / 100, 6)),
        Fact(name="share_pct_sm", value=float(item.share_pct)),
        Fact(name="clock_mhz_sm", value=float(clock)),
    ]
    if is_job:
        facts.append(Fact(name="iterations_per_s", value=rounded_rps(item.capacity_rps)))
    else:
        facts += [
            Fact(name="latency_ms", value=rounded_ms(item.latency_ms)),
            Fact(name="capacity_rps", value=rounded_rps(item.capacity_rps)),
            Fact(name="batch", value=float(item.batch)),
            Fact(name="replicas", value=float(replicas)),
            Fact(name="rate_rps", value=round(need.rate_rps, 4)),
            *(
                token_facts(need, model, pool.gpu_type, (item.batch, item.capacity_rps))
                if need.tokens is not None
                else ground.basis.facts((model, pool.gpu_type), of_gpu_pct, item.batch, clock)
            ),
        ]
    code = ReasonCode.KEPT_STANDING if item.standing is not None else ReasonCode.CHEAPEST_FEASIBLE
    if is_job and item.standing is None:
        code = ReasonCode.FILLS_SPARE_SHARE
    return Assignment(
        replica=replica,
        kind=need.kind,
        workload=need.workload,
        model=model,
        device=floor.names[item.device],
        share_pct_sm=item.share_pct,
        memory_mib_limit=item.memory_mib,
        batch=item.batch,
        envelope=_envelope(item),
        latency_ms_planned=rounded_ms(item.latency_ms) if need.limit_ms is not None and not is_job else None,
        capacity_rps=rounded_rps(item.capacity_rps),
        power_w_planned=rounded_w(item.power_w),
        reasons=(Reason(code=code, subject=pool.gpu_type, facts=tuple(facts)),),
    )


def _envelope(item: Member) -> Envelope:
    """As it stands, where that lies within what keeps the promise."""
    low, high = item.clocks_mhz
    made = Envelope(batch_min=item.batch_min, batch_max=item.batch_max, clock_mhz_sm_min=low, clock_mhz_sm_max=high)
    before = item.standing.envelope if item.standing is not None else made
    inside = made.batch_min <= before.batch_min <= item.batch <= before.batch_max <= made.batch_max
    same_clock = (before.clock_mhz_sm_min, before.clock_mhz_sm_max) == item.clocks_mhz
    return before if inside and same_clock else made


def _settings(draft: Draft, assignments: Iterable[Assignment]) -> tuple[DeviceSetting, ...]:
    """One setting per device in use; beside what is pinned or kept, the one that stands."""
    snapshot, problem = draft.reading.snapshot, draft.seats.floor.problem
    types, devices = snapshot.gpu_types_by_name(), snapshot.devices_by_id()
    staying = {item.device for item in (*draft.reading.pinned, *draft.reading.kept)}
    settings = {item.device: item for item in snapshot.target.settings if item.device in staying}
    dedicated: set[str] = {item.id for item in snapshot.services if item.affinity.dedicated}
    caps = {cap.subject: cap.limit_w for cap in snapshot.power_caps if cap.scope is PowerScope.DEVICE}
    clocks: dict[DeviceId, int] = {}
    for name, pattern in zip(draft.seats.floor.names, draft.seats.patterns, strict=True):
        if pattern is not None:
            clocks[name] = int(problem.kind_clock_mhz[pattern.kind])
    for item in assignments:
        device = devices.get(item.device)
        if device is None or device.id in settings:
            continue
        gpu_type = types[device.gpu_type]
        clock = clocks.get(device.id, gpu_type.clock_mhz_sm_max)
        limit_w: float | None = None
        if device.id in caps and device.mig is None:
            limit_w = min(gpu_type.power_limit_w_max, max(gpu_type.power_limit_w_min, caps[device.id]))
        settings[device.id] = DeviceSetting(
            device=device.id,
            mode=DeviceMode.DEDICATED if item.workload in dedicated else device.mode,
            clock_mhz_sm=None if clock == gpu_type.clock_mhz_sm_max else clock,
            power_limit_w=limit_w,
        )
    return tuple(settings[device] for device in sorted(settings))
