"""A seated floor as a plan: what goes on as it stands, every device's replicas with their reasons, and what is short.

What is pinned or kept stays to the letter, but for the numbers believed of it today. Where another planner found the
same workload short, its reasons are told; else the owner's own bounds, else what every pool lacks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment, Envelope, Plan, Unplaced
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.serving.token_plans import token_facts
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.floor import NO_DOMAIN
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.write.members import Batches, Member
from solvers.planners.writer import (
    RATE_STEPS,
    Basis,
    Contents,
    Lack,
    PlannedReplica,
    pinned_as,
    rounded_ms,
    rounded_rps,
    unplaced_of,
    write_plan,
)
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """What is written: a reading with its seats."""

    request: PlanRequest
    reading: Reading
    seats: Seats
    first: Plan | None = None
    """Another planner's plan for the same request: whoever is short there too has the same reasons."""
    open_ended: frozenset[WorkloadId] = frozenset()
    """Services that can always use more."""


def write(spec: PlannerSpec, seated: Seated) -> Plan:
    """The complete plan, its bound left open."""
    reading = seated.reading
    staying = tuple(_staying(reading))
    replicas = tuple(_replicas(seated))
    on_devices = {item.device for item in staying}
    contents = Contents(
        replicas=replicas,
        staying=staying,
        held={item.device: item for item in reading.snapshot.target.settings if item.device in on_devices},
        unplaced=tuple(_unplaced(seated, staying, replicas)),
        picture=None if seated.first is None else seated.first.snapshot,
    )
    return write_plan(seated.request, spec, contents)


def _staying(reading: Reading) -> Iterator[Assignment]:
    """Pinned replicas to the letter; kept ones with what they are believed to serve today."""
    needs = {need.workload: need for need in reading.needs}
    for item in reading.pinned:
        yield pinned_as(item, ReasonCode.KEPT_STANDING if item.workload in needs else ReasonCode.PINNED_BY_MODE)
    if not reading.kept:
        return
    held = {item.device: item for item in reading.snapshot.target.settings}
    fleet = open_fleet(reading.snapshot, held)
    together = (*reading.pinned, *reading.kept)
    appraisal = Appraisal.of(fleet, reading.snapshot.profiles_by_key(), reading.snapshot.policy, together, held)
    for item in reading.kept:
        need, capacity = needs[item.workload], item.capacity_rps
        if need.kind is not WorkloadKind.JOB:
            capacity = min(capacity, appraisal.capacities_rps(need, [item])[0] or 0.0)
        yield replace(pinned_as(item, ReasonCode.KEPT_STANDING), capacity_rps=rounded_rps(capacity))


def _replicas(seated: Seated) -> Iterator[PlannedReplica]:
    """Of every device, by workload."""
    reading, seats, problem = seated.reading, seated.seats, seated.seats.floor.problem
    batches = Batches(seats)
    found: dict[WorkloadId, list[Member]] = defaultdict(list)
    for device, name in enumerate(seats.floor.names):
        standing = reading.standing.get(name, ())
        for member in batches.members(device, standing, governed=_governed(seated, device)):
            found[problem.workloads[problem.variants[member.variant].workload].id].append(member)
    needs = {need.workload: need for need in reading.needs}
    ground = _Ground.of(reading)
    for workload, members in sorted(found.items()):
        yield from (_replica(seats, needs[workload], item, len(members), ground) for item in members)


def _governed(seated: Seated, device: int) -> bool:
    """Whether a device's controller is to seek the clock: under a cap of its own, where everybody can use more."""
    floor, pattern = seated.seats.floor, seated.seats.patterns[device]
    pool, problem = int(floor.pool_of[device]), floor.problem
    return (
        pattern is not None
        and problem.pools[pool].capped
        and bool((floor.domain_of[device] == NO_DOMAIN).all())
        and all(problem.workloads[problem.variants[item].workload].id in seated.open_ended for item in pattern.variants)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What replicas rest on: profiles, and the part of a GPU's SMs that each pool's devices have."""

    basis: Basis
    sm_parts: tuple[float, ...]

    @staticmethod
    def of(reading: Reading) -> _Ground:
        devices, types = reading.snapshot.devices_by_id(), reading.snapshot.gpu_types_by_name()
        first = [devices[names[0]] for names in reading.pool_devices]
        parts = (1.0 if item.mig is None else item.sm_count / types[item.gpu_type].sm_count for item in first)
        return _Ground(basis=Basis(reading.snapshot.profiles_by_key()), sm_parts=tuple(parts))


def _replica(seats: Seats, need: Need, item: Member, replicas: int, ground: _Ground) -> PlannedReplica:
    problem, pattern = seats.floor.problem, seats.patterns[item.device]
    assert pattern is not None
    number, clock = int(problem.kind_pool[pattern.kind]), int(problem.kind_clock_mhz[pattern.kind])
    pool, model = problem.pools[number], problem.variants[item.variant].model
    facts = [
        Fact(name="usd_per_h", value=round(pool.usd_per_h * item.share_pct / 100, 6)),
        Fact(name="share_pct_sm", value=float(item.share_pct)),
        Fact(name="clock_mhz_sm", value=float(clock)),
    ]
    if need.kind is WorkloadKind.JOB:
        facts.append(Fact(name="iterations_per_s", value=rounded_rps(item.capacity_rps)))
    else:
        facts += [
            Fact(name="latency_ms", value=rounded_ms(item.latency_ms)),
            Fact(name="capacity_rps", value=rounded_rps(item.capacity_rps)),
            Fact(name="batch", value=float(item.batch)),
            Fact(name="replicas", value=float(replicas)),
            Fact(name="rate_rps", value=round(need.rate_rps, 4)),
        ]
        facts += (
            ground.basis.facts(model, pool.gpu_type, item.share_pct * ground.sm_parts[number], item.batch, clock)
            if need.tokens is None
            else token_facts(need, model, pool.gpu_type, item.batch, item.capacity_rps)
        )
    fresh = ReasonCode.FILLS_SPARE_SHARE if need.kind is WorkloadKind.JOB else ReasonCode.CHEAPEST_FEASIBLE
    code = fresh if item.standing is None else ReasonCode.KEPT_STANDING
    return PlannedReplica(
        need=need,
        device=seats.floor.names[item.device],
        model=model,
        share_pct=item.share_pct,
        memory_mib=item.memory_mib,
        batch=item.batch,
        envelope=_envelope(item),
        clock_mhz=clock,
        latency_ms=item.latency_ms,
        capacity_rps=item.capacity_rps,
        power_w=item.power_w,
        standing=item.standing,
        reasons=(Reason(code=code, subject=pool.gpu_type, facts=tuple(facts)),),
    )


def _envelope(item: Member) -> Envelope:
    """As it stands, where that lies within what keeps the promise."""
    made = Envelope(
        batch_min=item.batch_min,
        batch_max=item.batch_max,
        clock_mhz_sm_min=item.clock_mhz_min,
        clock_mhz_sm_max=item.clock_mhz_max,
    )
    before = item.standing.envelope if item.standing is not None else made
    inside = made.batch_min <= before.batch_min <= item.batch <= before.batch_max <= made.batch_max
    same_clock = replace(made, batch_min=before.batch_min, batch_max=before.batch_max) == before
    return before if inside and same_clock else made


def _unplaced(seated: Seated, staying: Sequence[Assignment], replicas: Sequence[PlannedReplica]) -> Iterator[Unplaced]:
    """Who lacks rate, replicas or failure domains, and jobs that wait, each with what blocks it."""
    reading = seated.reading
    nodes, devices = reading.snapshot.nodes_by_id(), reading.snapshot.devices_by_id()
    served_rps: dict[WorkloadId, float] = defaultdict(float)
    count: Counter[WorkloadId] = Counter()
    domains: dict[WorkloadId, set[str]] = defaultdict(set)
    planned = [(item.need.workload, item.device, rounded_rps(item.capacity_rps)) for item in replicas]
    for workload, device, rate_rps in (
        *((item.workload, item.device, item.capacity_rps) for item in staying),
        *planned,
    ):
        served_rps[workload] += rate_rps
        count[workload] += 1
        domains[workload].add(nodes[devices[device].node].failure_domain)
    numbers = {item.id: number for number, item in enumerate(seated.seats.floor.problem.workloads)}
    for need in reading.needs:
        replicas_of, spread = count[need.workload], need.affinity.failure_domains_min
        # What a promise loses by being rounded down is no shortage.
        dust_rps = 1e-6 * max(1.0, need.rate_rps_least) + replicas_of / RATE_STEPS
        short_rps = max(0.0, need.rate_rps_least - served_rps[need.workload])
        missing, is_job = max(0, need.replicas_min - replicas_of), need.kind is WorkloadKind.JOB
        lack = Lack(
            rate_rps=0.0 if is_job or short_rps <= dust_rps else short_rps,
            replicas=0 if is_job else missing,
            failure_domains_min=spread if replicas_of and len(domains[need.workload]) < spread else 0,
        )
        if lack or missing:
            yield unplaced_of(need, lack, _blockers(seated, need, numbers.get(need.workload)))


def _blockers(seated: Seated, need: Need, number: int | None) -> Iterator[Reason]:
    """Why nothing more is placed of a need; `number`: of its workload, where it is part of the problem."""
    reading, first = seated.reading, seated.first
    if need.refusal is not None:
        yield need.refusal
        return
    told = () if first is None else [item.reasons for item in first.unplaced if item.workload == need.workload]
    if told:
        yield from told[0]
        return
    if number is not None:
        yield from _of_owner_or_room(seated.seats, number)
    yield from (reason for (workload, _), reason in sorted(reading.refusals.items()) if workload == need.workload)


def _of_owner_or_room(seats: Seats, number: int) -> Iterator[Reason]:
    problem = seats.floor.problem
    work = problem.workloads[number]
    if seats.replicas[number] >= work.replicas_max:
        facts = (Fact(name="replicas_max", value=float(work.replicas_max)),)
        yield Reason(code=ReasonCode.REPLICAS_MAX, subject=work.id, facts=facts)
        return
    if math.isfinite(work.budget_usd_per_h):
        facts = (Fact(name="budget_usd_per_h", value=round(work.budget_usd_per_h, 6)),)
        yield Reason(code=ReasonCode.BUDGET, subject=work.id, facts=facts)
    quota = dict(problem.quotas).get(work.project)
    if quota is not None:
        facts = (Fact(name="quota_gpus_left", value=round(quota, 6)),)
        yield Reason(code=ReasonCode.QUOTA, subject=work.id, facts=facts)
    variants = [at for at, item in enumerate(problem.variants) if item.workload == number]
    told: set[str] = set()
    for pool, item in enumerate(problem.pools):
        if item.gpu_type in told or not problem.allowed[pool, variants].any():
            continue
        told.add(item.gpu_type)
        idle = sum(seats.patterns[device] is None for device in seats.floor.devices(pool))
        code = ReasonCode.POWER_CAP if idle and problem.caps else ReasonCode.NO_SHARE_LEFT
        yield Reason(code=code, subject=item.gpu_type, facts=(Fact(name="devices_idle", value=float(idle)),))
