"""A seated fleet as a plan: what goes on as it stands, each replica's last small choices, its reasons, and what is
short.

What is pinned or kept stays to the letter, but for the numbers believed of it today. Batch, memory limit and what a
governor may move between change no process: a replica that stands keeps its batch as long as its workload is still
served what it is sized for, and its memory limit as long as that is enough. Where a device's controller is to seek the
best clock under a cap, replicas begin with the smallest batch that serves nearly as much as the best, go no higher, and
the clock may fall as far as these batches keep every promise. Shares stay as seated. Where another planner found the
same workload short, its reasons are told; else the owner's own bounds, else what every pool lacks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode, facts_of
from solvers.domain.grouping import grouped
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment, Envelope, Plan, Unplaced
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.joint.reading.formulation import Reading, Stands
from solvers.planners.joint.seat.seats import DUST, Seats, members_of
from solvers.planners.writer import (
    RATE_STEPS,
    Basis,
    Contents,
    Lack,
    PlannedReplica,
    deviceless,
    limited,
    pinned_as,
    rounded_ms,
    rounded_rps,
    unplaced_of,
    write_plan,
)
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.needs import Need
from solvers.problems.patterns import Pattern, between, serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    request: PlanRequest
    reading: Reading
    seats: Seats
    first: Plan | None = None
    """Another planner's plan for the same request: whoever is short there too has the same reasons."""
    eager: bool = False
    """Whether what stands goes on with the largest batches that it bears, instead of its own."""


def write(spec: PlannerSpec, seated: Seated) -> Plan:
    """The complete plan, its bound left open."""
    reading, snapshot = seated.reading, seated.reading.snapshot
    known = {need.workload for need in reading.needs}
    staying = tuple(
        pinned_as(item, ReasonCode.KEPT_STANDING if item.workload in known else ReasonCode.PINNED_BY_MODE)
        for item in (*reading.pinned, *reading.kept)
    )
    replicas, on_devices = tuple(_replicas(seated)), {item.device for item in staying}
    contents = Contents(
        replicas=replicas,
        staying=staying,
        held={item.device: item for item in snapshot.target.settings if item.device in on_devices},
        unplaced=tuple(_unplaced(seated, staying, replicas)),
        picture=None if seated.first is None else seated.first.snapshot,
    )
    return write_plan(seated.request, spec, contents)


def _replicas(seated: Seated) -> Iterator[PlannedReplica]:
    reading, floor, problem = seated.reading, seated.seats.floor, seated.seats.floor.problem
    batches = Batches(seated.seats, eager=seated.eager)
    found: dict[WorkloadId, list[tuple[int, Member]]] = defaultdict(list)
    for device, name in enumerate(floor.names):
        standing = reading.standing.get(name, ())
        for member in batches.members(device, standing, governed=_governed(seated, device)):
            found[problem.workloads[member.read.workload].id].append((device, member))
    needs, basis = {need.workload: need for need in reading.needs}, Basis(reading.snapshot.profiles_by_key())
    alike = dict[tuple[int, int, bool, float], tuple[Reason, ...]]()
    for workload, members in sorted(found.items()):
        for device, item in members:
            pattern, name, read, column = seated.seats.patterns[device], floor.names[device], item.read, item.column
            assert pattern is not None
            pool, kind = problem.pools[int(floor.pool_of[device])], reading.fleet.class_at(reading.fleet.index[name])
            made = PlannedReplica(
                need=needs[workload],
                device=name,
                model=problem.variants[read.variant].model,
                share_pct=read.share_pct,
                memory_mib=int(item.limit_mib),
                batch=int(problem.batches[column]),
                envelope=item.envelope,
                clock_mhz=int(problem.kind_clock_mhz[pattern.kind]),
                latency_ms=float(read.latency_ms[column]),
                capacity_rps=float(read.rate_rps[column]),
                power_w=float(read.power_w[column]),
                standing=item.standing,
            )
            key = id(read), column, item.standing is None, kind.sm_part
            if key not in alike:
                facts = (*_facts(made, pool.usd_per_h, len(members)), *basis.told(made, pool.gpu_type, kind.sm_part))
                job = made.need.kind is WorkloadKind.JOB
                fresh = ReasonCode.FILLS_SPARE_SHARE if job else ReasonCode.CHEAPEST_FEASIBLE
                code = fresh if item.standing is None else ReasonCode.KEPT_STANDING
                alike[key] = (Reason(code=code, subject=pool.gpu_type, facts=facts),)
            yield replace(made, reasons=alike[key])


def _facts(made: PlannedReplica, usd_per_h: float, replicas: int) -> tuple[Fact, ...]:
    rate_rps, latency_ms = rounded_rps(made.capacity_rps), rounded_ms(made.latency_ms or 0.0)
    told = {"usd_per_h": round(usd_per_h * made.share_pct / 100, 6), "share_pct_sm": float(made.share_pct)}
    told["clock_mhz_sm"] = float(made.clock_mhz)
    if made.need.kind is WorkloadKind.JOB:
        return facts_of(**told, iterations_per_s=rate_rps)
    told |= {"latency_ms": latency_ms, "capacity_rps": rate_rps, "batch": float(made.batch)}
    return facts_of(**told, replicas=float(replicas), rate_rps=round(made.need.rate_rps, 4))


def _governed(seated: Seated, device: int) -> bool:
    """Whether a controller is to seek the clock: under a cap that its board holds, where everybody can use more."""
    floor, pattern, fleet = seated.seats.floor, seated.seats.patterns[device], seated.reading.fleet
    pool, board = floor.problem.pools[int(floor.pool_of[device])], fleet.devices[fleet.index[floor.names[device]]]
    if pattern is None or not pool.capped or board.mig is not None:
        return False
    lowest_w = seated.reading.snapshot.gpu_types_by_name()[pool.gpu_type].power_limit_w_min
    inside = {floor.problem.workloads[number].id for number in floor.problem.variant_workload[list(pattern.variants)]}
    return pool.limit_w >= lowest_w and not floor.domains[device] and inside <= seated.reading.open_ended


def _unplaced(seated: Seated, staying: Sequence[Assignment], replicas: Sequence[PlannedReplica]) -> Iterator[Unplaced]:
    """Who lacks rate, replicas or failure domains, and jobs that wait, each with what blocks it."""
    reading = seated.reading
    nodes, devices = reading.snapshot.nodes_by_id(), reading.snapshot.devices_by_id()
    stays = ((item.workload, item.device, item.capacity_rps) for item in staying)
    planned = ((item.need.workload, item.device, rounded_rps(item.capacity_rps)) for item in replicas)
    each = grouped((*stays, *planned), lambda item: item[0])
    numbers = {item.id: number for number, item in enumerate(seated.seats.floor.problem.workloads)}
    for need in reading.needs:
        mine, spread = each[need.workload], need.affinity.failure_domains_min
        domains = {nodes[devices[device].node].failure_domain for _, device, _ in mine}
        # What a promise loses by being rounded down is no shortage.
        dust_rps = 1e-6 * max(1.0, need.rate_rps_least) + len(mine) / RATE_STEPS
        short_rps = max(0.0, need.rate_rps_least - sum(rate_rps for _, _, rate_rps in mine))
        missing, is_job = max(0, need.replicas_min - len(mine)), need.kind is WorkloadKind.JOB
        lack = Lack(
            rate_rps=0.0 if is_job or short_rps <= dust_rps else short_rps,
            replicas=0 if is_job else missing,
            failure_domains_min=spread if mine and len(domains) < spread else 0,
        )
        if lack or missing:
            yield unplaced_of(need, lack, _blockers(seated, need, numbers.get(need.workload)))


def _blockers(seated: Seated, need: Need, number: int | None) -> Iterator[Reason]:
    """Why nothing more is placed of a need; `number`: of its workload, where it is part of the problem."""
    reading, first = seated.reading, seated.first
    if need.refusal is not None:
        yield need.refusal
        return
    owners = () if number is None else tuple(_of_owner(seated.seats, number))
    yield from owners
    # What the other planner told of its own plan's books or of its own careful beliefs says nothing of this one's.
    gaps = [gap for gap in (first.unplaced if first else ()) if gap.workload == need.workload]
    every = (reason for gap in gaps for reason in gap.reasons if reason.subject != need.workload)
    told = [reason for reason in every if reason.code not in _OF_THE_OTHER]
    yield from told or deviceless(reading.snapshot)
    room = () if number is None or owners else _of_room(seated.seats, number)
    own = {item.subject: item for item in sorted(room, key=lambda item: item.code is not ReasonCode.COSTLIER)}
    own |= {at: reason for (of, at), reason in sorted(reading.refusals.items()) if of == need.workload}
    yield from (reason for at, reason in own.items() if at not in {item.subject for item in told})


_OF_THE_OTHER = frozenset({ReasonCode.QUOTA, ReasonCode.BUDGET, ReasonCode.SLO_UNREACHABLE, ReasonCode.NO_PROFILE})


def _of_owner(seats: Seats, number: int) -> Iterator[Reason]:
    """The owner's bounds that leave no room for the smallest replica, wherever it would be."""
    problem = seats.floor.problem
    work = problem.workloads[number]
    if seats.replicas[number] >= work.replicas_max:
        most = facts_of(replicas_max=float(work.replicas_max))
        yield Reason(code=ReasonCode.REPLICAS_MAX, subject=work.id, facts=most)
        return
    quota = dict(problem.quotas).get(work.project, math.inf)
    usd, gpus = seats.floor.least_alone(number) if min(quota, work.budget_usd_per_h) < math.inf else (0.0, 0.0)
    for code, needed, left in (
        (ReasonCode.BUDGET, usd, work.budget_usd_per_h - seats.spent_usd(number)),
        (ReasonCode.QUOTA, gpus, quota - seats.gpus(work.project)),
    ):
        if math.isfinite(needed) and needed > left + DUST:
            yield limited(code, work.id, needed, left)


def _of_room(seats: Seats, number: int) -> Iterator[Reason]:
    """By GPU type: what a job is not worth there, else which room is missing, if any is."""
    problem, alone = seats.floor.problem, seats.floor.judge.alone_of(number)
    work, mine = problem.workloads[number], problem.variant_workload == number
    worth_usd, pool_of = work.worth_usd(alone.capacity_rps[:, 0]), problem.kind_pool[alone.rows.kind]
    # Who wants several failure domains may have what is idle already.
    unused = ReasonCode.NO_SHARE_LEFT if work.domains_min > 1 else ReasonCode.ROOM_UNUSED
    needs_w = alone.draw_w - seats.floor.judge.idle_w[pool_of]
    allowed = np.flatnonzero(problem.allowed[:, mine].any(axis=1)).tolist()
    for gpu_type in dict.fromkeys(problem.pools[pool].gpu_type for pool in allowed):
        pools = [pool for pool in allowed if problem.pools[pool].gpu_type == gpu_type]
        room = [(pool, at) for pool in pools for at in seats.floor.devices(pool)]
        spare = [(pool, at) for pool, at in room if seats.spare_pct(at) >= problem.shares_pct[0]]
        idle, left_w = [it for it in spare if seats.patterns[it[1]] is None], np.full(len(problem.pools), -math.inf)
        for pool, at in idle:
            left_w[pool] = max(left_w[pool], seats.left_at(at))
        here = np.flatnonzero(np.isin(pool_of, pools) & (needs_w <= left_w[pool_of] + DUST))
        numbers = (("devices_idle", float(len(idle))), ("power_w_left", float(left_w.max())))
        code = ReasonCode.NO_SHARE_LEFT if not idle else unused if len(here) else ReasonCode.POWER_CAP
        if spare and all(len(members_of(seats.patterns[at])) >= problem.pools[pool].clients for pool, at in spare):
            code = ReasonCode.CLIENTS_MAX
        if len(here) and (gains := worth_usd[here] - alone.usd_per_h[here]).max() <= 0:
            code, best = ReasonCode.COSTLIER, here[gains.argmax()]
            numbers = ("usd_per_h", float(alone.usd_per_h[best])), ("usd_per_h_worth", float(worth_usd[best]))
        facts = tuple(Fact(name=name, value=value) for name, value in numbers if math.isfinite(value))
        yield Reason(code=code, subject=gpu_type, facts=facts)


NO_ENVELOPE = Envelope(batch_min=1, batch_max=1, clock_mhz_sm_min=1, clock_mhz_sm_max=1)
CEILING_PART = 0.99
"""Of the best rate."""
CLOCK_ROOM_PART = 0.75
"""Of the planned clock: so far a controller shall be able to go down."""


class Batches:
    """Chooses device by device. What is served changes with every choice and decides the next ones, so it is counted
    here, beginning with what the seats say; they stay as they are.
    """

    def __init__(self, seats: Seats, *, eager: bool = False) -> None:
        self.served_rps: Floats = seats.served_rps.copy()
        self._seats, self._problem, self._eager = seats, seats.floor.problem, eager
        unlike = {item.key: item for item in seats.patterns if item is not None}
        self._reads = dict(zip(unlike, _reads(self._problem, list(unlike.values())), strict=True))
        """By pattern: many devices have the same."""
        self._fresh = dict[Pattern, list[Member]]()
        """By pattern, on devices where nothing stands."""

    def members(self, device: int, standing: Sequence[Stands], *, governed: bool = False) -> list[Member]:
        """The replicas of one device. `standing`: what stands on it; `governed`: whether its clock is open."""
        pattern = self._seats.patterns[device]
        if pattern is None:
            return []
        if not (standing or governed) and pattern in self._fresh:
            return self._fresh[pattern]
        chosen = self._chosen(pattern, standing)
        self._fit_limits(pattern, chosen)
        self._widen_limits(device, chosen, standing)
        ceilings = [len(self._problem.batches)] * len(chosen)
        if governed:
            ceilings = _ceilings(self._problem, pattern, chosen)
            self._lower(chosen, ceilings)
        batches, planned = self._problem.batches, int(self._problem.kind_clock_mhz[pattern.kind])
        windows = [item.window(ceiling) for item, ceiling in zip(chosen, ceilings, strict=True)]
        clocks = _clocks(self._problem, pattern, [high for _, high in windows]) if governed else [planned]
        for item, (low, high) in zip(chosen, windows, strict=True):
            item.envelope = Envelope(
                batch_min=int(batches[low]),
                batch_max=int(batches[high]),
                clock_mhz_sm_min=clocks[0],
                clock_mhz_sm_max=clocks[-1],
            )
            if item.standing is not None:
                item.envelope = _as_it_stands(item.envelope, int(batches[item.column]), item.standing.envelope)
        if not (standing or governed):
            self._fresh[pattern] = chosen
        return chosen

    def _chosen(self, pattern: Pattern, standing: Sequence[Stands]) -> list[Member]:
        """For every member the replica that it is already, if any, and its batch: same share, and a memory limit with a
        batch in it that serves enough.
        """
        problem, network = self._problem, self._problem.network
        capped = problem.pools[int(problem.kind_pool[pattern.kind])].capped
        left = sorted(standing, key=lambda item: (-item.assignment.memory_mib_limit, item.assignment.replica))
        chosen = list[Member]()
        for read, batch, memory_mib in zip(self._reads[pattern.key], pattern.batches, pattern.memory_mib, strict=True):
            item = Member(read=read, column=int(np.searchsorted(problem.batches, batch)), limit_mib=memory_mib)
            chosen.append(item)
            known = (each for each in left if each.assignment.share_pct_sm == read.share_pct)
            alike = ((each, each.variant) for each in known if each.variant is not None)
            same = next((each for each, of in alike if network[of] == network[read.variant]), None)
            column = None if same is None else self._column_beside(item, same.assignment, capped=capped)
            if same is not None and column is not None:
                left.remove(same)
                item.standing, item.limit_mib = same.assignment, float(same.assignment.memory_mib_limit)
                self._serve(item, column)
        return chosen

    def _column_beside(self, item: Member, before: Assignment, *, capped: bool) -> int | None:
        """The batch that a standing replica goes on with: its own (or, where full batches count, the largest that keeps
        the promise) where its workload can spare what that loses, else the chosen one, else the best that its memory
        limit allows; None where none serves enough. Under a power cap none may draw more than the chosen one.
        """
        read, column = item.read, item.column
        if capped:
            read = replace(read, rate_rps=np.where(read.power_w <= read.power_w[column] + DUST, read.rate_rps, 0.0))
        work = self._problem.workloads[read.workload]
        spare = self._spare_rps(read.workload, work.rate_least_rps if self._eager else work.rate_rps)
        fine = read.fits(before.memory_mib_limit)
        first = np.flatnonzero(fine)[::-1] if self._eager else np.flatnonzero(self._problem.batches == before.batch)
        best = int(np.argmax(np.where(fine, read.rate_rps, -1.0)))
        for choice in (*first.tolist(), column, best):
            lost = float(read.rate_rps[column] - read.rate_rps[choice])
            if fine[choice] and (choice == column or lost <= spare):
                return int(choice)
        return None

    def _fit_limits(self, pattern: Pattern, chosen: Sequence[Member]) -> None:
        """Start those anew whose limits have most above their need, until all limits fit on the device."""
        room = self._problem.pools[int(self._problem.kind_pool[pattern.kind])].memory_mib
        while True:
            more = [item.limit_mib - need for item, need in zip(chosen, pattern.memory_mib, strict=True)]
            if sum(pattern.memory_mib) + sum(more) <= room + DUST:
                return
            place = int(np.argmax(more))
            worst = chosen[place]
            self._serve(worst, int(np.searchsorted(self._problem.batches, pattern.batches[place])))
            worst.standing, worst.limit_mib = None, pattern.memory_mib[place]

    def _widen_limits(self, device: int, chosen: Sequence[Member], standing: Sequence[Stands]) -> None:
        """Where memory is paid limits cost nothing, and a batch grows in place while its limit bears it: what starts
        anew has that of the largest, as far as a device full of replicas would bear it and what ends leaves room.
        """
        pool = self._problem.pools[int(self._seats.floor.pool_of[device])]
        stay = {item.standing.replica for item in chosen if item.standing is not None}
        going = sum(i.assignment.memory_mib_limit for i in standing if i.assignment.replica not in stay)
        kept = sum(item.memory_mib for item in self._seats.kept.get(device, ()))
        room = pool.memory_mib - sum(item.limit_mib for item in chosen) - max(going, kept)
        for item in chosen if self._problem.by_memory else ():
            largest = float(item.read.memory_mib[np.isfinite(item.read.memory_mib)].max())
            more = min(largest, pool.memory_mib / max(1, pool.clients)) - item.limit_mib
            if item.standing is None and 0 < more <= room:
                item.limit_mib, room = item.limit_mib + more, room - more

    def _lower(self, chosen: Sequence[Member], ceilings: Sequence[int]) -> None:
        """What starts anew begins with its ceiling, where its workload can spare what that loses."""
        for item, ceiling in zip(chosen, ceilings, strict=True):
            workload = item.read.workload
            spare = self._spare_rps(workload, self._problem.workloads[workload].rate_least_rps)
            lost = float(item.read.rate_rps[item.column] - item.read.rate_rps[ceiling])
            if item.standing is None and ceiling < item.column and lost <= spare:
                self._serve(item, ceiling)

    def _spare_rps(self, workload: int, rate_rps: float) -> float:
        return max(0.0, float(self.served_rps[workload]) - rate_rps * (1 - DUST))

    def _serve(self, item: Member, column: int) -> None:
        self.served_rps[item.read.workload] += float(item.read.rate_rps[column] - item.read.rate_rps[item.column])
        item.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One member by batch: latency at the granted rate, the rate (0 where no promise keeps), power and memory limit."""

    variant: int
    workload: int
    share_pct: int
    latency_ms: Floats
    rate_rps: Floats
    power_w: Floats
    memory_mib: Floats

    def fits(self, limit_mib: float) -> Flags:
        """Batches that keep the promise within a memory limit."""
        return np.asarray((self.rate_rps > 0) & (self.memory_mib <= limit_mib + DUST))


def _reads(problem: JointProblem, patterns: Sequence[Pattern]) -> list[list[_Read]]:
    """Of each the members beside each other, on a device of its kind."""
    size = np.array([len(item.variants) for item in patterns], dtype=np.int64)
    of, table = np.repeat(np.arange(len(size)), size), problem.kind_table[[item.kind for item in patterns]].repeat(size)
    variant = np.array([member for item in patterns for member in item.variants], dtype=np.int64)
    share = np.array([part for item in patterns for part in item.shares_pct], dtype=np.int64)
    press = problem.pressure[table, variant] * (share / WHOLE_PCT) ** problem.exponent[table, variant]
    felt = problem.sensitivity[table, variant] * (np.bincount(of, weights=press)[of] - press)
    slow = np.where(size[of] > 1, problem.crowd[table, variant] * (1 + felt), 1.0)[:, None]
    # The measured shares around each, by place, and the upper one's weight.
    shares_pct, high = problem.shares_pct, np.searchsorted(problem.shares_pct, share)
    low = np.where(shares_pct[high] > share, high - 1, high)
    part = (share - shares_pct[low]) / np.maximum(1, shares_pct[high] - shares_pct[low])
    weight = np.where(low < high, part, 1.0)[:, None]
    mean, tail, power = (
        (cells[table, variant, low], cells[table, variant, high])
        for cells in (problem.mean_ms, problem.tail_ms, problem.power_w)
    )
    latency_ms, rate_rps = serve(problem, variant, between(*mean, weight) * slow, between(*tail, weight) * slow)
    with np.errstate(invalid="ignore"):
        power_w = np.where(weight < 1, (1 - weight) * power[0] + weight * power[1], power[1])
    found: list[list[_Read]] = [[] for _ in patterns]
    for row, number in enumerate(of.tolist()):
        found[number].append(
            _Read(
                variant=int(variant[row]),
                workload=problem.variants[variant[row]].workload,
                share_pct=int(share[row]),
                latency_ms=latency_ms[row],
                rate_rps=rate_rps[row],
                power_w=power_w[row],
                memory_mib=problem.memory_mib[table[row], variant[row]],
            )
        )
    return found


@dataclass(slots=True, kw_only=True)
class Member:
    """One replica, its batch by column. `standing` is the replica that it is, unless it starts anew."""

    read: _Read
    column: int
    limit_mib: float
    standing: Assignment | None = None
    envelope: Envelope = NO_ENVELOPE
    """Clocks are equal where the clock is fixed."""

    def window(self, ceiling: int) -> tuple[int, int]:
        """First and last column around the chosen one between which every batch keeps the promise within the memory;
        the last is no higher than the ceiling, unless the chosen one is.
        """
        fine = self.read.fits(self.limit_mib)
        broken = np.concatenate([[-1], np.flatnonzero(~fine), [len(fine)]])
        low, high = broken[broken < self.column][-1] + 1, broken[broken > self.column][0] - 1
        return int(low), min(int(high), max(self.column, ceiling))


def _as_it_stands(made: Envelope, batch: int, before: Envelope) -> Envelope:
    """The envelope that stands, where that lies within what keeps the promise."""
    inside = made.batch_min <= before.batch_min <= batch <= before.batch_max <= made.batch_max
    same_clock = replace(made, batch_min=before.batch_min, batch_max=before.batch_max) == before
    return before if inside and same_clock else made


def _clocks(problem: JointProblem, pattern: Pattern, highest: Sequence[int]) -> list[int]:
    """From the lowest clock at which the largest batches of all keep every promise to the highest there is."""
    planned = int(problem.kind_clock_mhz[pattern.kind])
    listed = problem.clocks_mhz(int(problem.kind_pool[pattern.kind]))
    for clock in listed:
        at_clock = zip(*_reads(problem, [_at_clock(problem, pattern, clock)]), highest, strict=True)
        if clock >= planned or all(read.rate_rps[column] > 0 for read, column in at_clock):
            return [min(clock, planned), listed[-1]]
    return [planned]


def _at_clock(problem: JointProblem, pattern: Pattern, clock_mhz: int) -> Pattern:
    """Of the kind at another clock for the same neighbours."""
    pool, planned = int(problem.kind_pool[pattern.kind]), int(problem.kind_clock_mhz[pattern.kind])
    return replace(pattern, kind=problem.like(pool, clock_mhz)[problem.like(pool, planned).index(pattern.kind)])


def _ceilings(problem: JointProblem, pattern: Pattern, chosen: Sequence[Member]) -> list[int]:
    """For every member the smallest batch that serves nearly as much as the best of those that leave the clock room to
    fall: beyond, more batch brings only latency and power.
    """
    pool, planned = int(problem.kind_pool[pattern.kind]), int(problem.kind_clock_mhz[pattern.kind])
    slower = next(clock for clock in problem.clocks_mhz(pool) if clock >= CLOCK_ROOM_PART * planned)
    found = []
    for item, slow in zip(chosen, *_reads(problem, [_at_clock(problem, pattern, slower)]), strict=True):
        rate_rps = item.read.rate_rps
        rates = np.where(slow.rate_rps > 0, rate_rps, 0.0) if (slow.rate_rps > 0).any() else rate_rps
        found.append(int(np.argmax(rates >= CEILING_PART * rates.max())))
    return found
