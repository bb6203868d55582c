"""Remedies for a seating: what stands is spared, and what power domains and budgets do not bear is taken away.

A node starts what replaces a standing replica before it ends that, unless memory does not hold both (shares overlap) or
one has its device to itself; then what it served counts as unserved while the other launches. So contents that would
interrupt go to an idle device of the same pool, and where share costs nothing, what starts anew gets spare share. Where
a domain or a budget is exceeded patterns change places, then replicas become smaller or go, least unserved first;
`seating.mend` makes up what is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, product

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.grouping import grouped, summed
from solvers.domain.ids import DeviceId
from solvers.planners.joint.seat.seats import (
    DUST,
    DUST_USD,
    DUST_W,
    NO_DOMAIN,
    Delta,
    Floor,
    Held,
    Move,
    Seats,
    gpus_of,
    members_of,
    usd_of,
    without,
)
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Layout, Pattern

PAIRS_MAX = 400
"""Changes of place that are looked at two by two."""


def breaks_usd(seats: Seats, period_s: float) -> float:
    """What is left unserved while replacements launch, $/h: so long interrupted counts as never served (`period_s`)."""
    works = seats.floor.problem.workloads
    broken = ((works[number], rate_rps * for_s) for number, (rate_rps, for_s) in interruptions(seats).items())
    return sum((work.unserved_usd * (lost / period_s) / work.rate_least_rps for work, lost in broken), start=0.0)


def interruptions(seats: Seats) -> dict[int, tuple[float, float]]:
    """By workload that interrupts: the rate that is missing, and for how many seconds."""
    floor, problem, found = seats.floor, seats.floor.problem, dict[int, tuple[float, float]]()

    def owner(item: Held) -> int:
        return problem.variants[item.variant].workload

    stands_rps = summed(chain.from_iterable(floor.held.values()), owner, lambda item: item.capacity_rps)
    ends = grouped((item for at in floor.held for item in seats.ended(at, seats.patterns[at])), owner)
    for workload, items in sorted(ends.items()):
        least, before = problem.workloads[workload].rate_least_rps, stands_rps[workload]
        missing_rps = min(least, before) - min(least, before - sum(item.capacity_rps for item in items))
        if missing_rps > 0.0:
            found[workload] = missing_rps, max(item.launch_s for item in items)
    return found


def replaced(seats: Seats, jobs: Collection[int]) -> dict[int, list[Held]]:
    """By device, standing replicas that go while others of their workload start; no job is waited for."""
    owners, turnovers = seats.floor.problem.variant_workload, [*map(seats.turnover, count(), seats.patterns)]
    starting = {int(owners[variant]) for item in turnovers for variant, _ in item.starts} - set(jobs)
    return {
        device: [item for item in turnovers[device].ends if int(owners[item.variant]) in starting]
        for device in seats.floor.held
    }


def make_before_break(seats: Seats, jobs: Collection[int] = ()) -> None:
    """Contents that would interrupt go where nothing stands and nothing is planned but these jobs, if power allows:
    jobs are seated last, wherever there is room then.
    """
    floor, owners = seats.floor, seats.floor.problem.variant_workload

    def only_jobs(variants: Iterable[int]) -> bool:
        return all(int(owners[variant]) in jobs for variant in variants)

    stands = {device: {item.variant for item in held} for device, held in floor.held.items()}
    free = [other for other in range(len(floor.names)) if only_jobs(stands.get(other, ()))]
    of_pool = grouped(free, lambda other: int(floor.pool_of[other]))
    for device in sorted(floor.held):
        pattern = seats.patterns[device]
        if pattern is None or only_jobs(item.variant for item in seats.ended(device, pattern)):
            continue
        idle = dict[int, int]()
        for other in of_pool[int(floor.pool_of[device])]:
            planned = {variant for variant, _ in members_of(seats.patterns[other])}
            if other == device or not only_jobs(planned):
                continue
            same = floor.domains[other] == floor.domains[device]
            if same or floor.dynamic_w(pattern) <= seats.left_at(other) + DUST_W:
                idle[other] = len(planned | stands.get(other, set()))
        if idle:
            seats.put(device, None)
            seats.put(min(idle, key=lambda other: (idle[other], other)), pattern)


def seated_as(floor: Floor, contents: Iterable[tuple[DeviceId, Pattern]]) -> Seats:
    """With these contents, on devices that are still there."""
    seats, number = Seats(floor), {name: at for at, name in enumerate(floor.names)}
    for name, pattern in contents:
        if number.get(name) in floor.devices(int(floor.problem.kind_pool[pattern.kind])):
            seats.put(number[name], pattern)
    return seats


def stopover(stands: Seats, toward: Seats, meanwhile: Callable[[JointProblem], Layout]) -> Seats | None:
    """What stands, with what is to come on idle devices, so that a better seating can follow without a break; and on
    idle ones that neither needs what would be missing until all of that is ready, as `meanwhile` solves it. None where
    nothing is interrupted, or there is no such room. `stands` becomes it.
    """
    broken, before_rps = interruptions(toward), stands.served_rps.copy()
    for device, pattern in enumerate(toward.patterns):
        if pattern is None or stands.patterns[device] is not None:
            continue
        if stands.floor.dynamic_w(pattern) <= stands.left_at(device) + DUST_W:
            stands.put(device, pattern)
    missing_rps = before_rps - stands.served_rps
    missing_rps[list(broken)] += [rate_rps for rate_rps, _ in broken.values()]
    if broken and (missing_rps[list(broken)] > DUST).any():
        asked = _missing(stands, toward, missing_rps)
        layout = meanwhile(asked)
        for pattern, devices in layout.pairs:
            for device in _free(stands, toward, int(asked.kind_pool[pattern.kind]))[:devices]:
                stands.put(device, pattern)
    more_rps = stands.served_rps - before_rps
    enough = all(rate_rps * (1 - DUST) <= more_rps[number] + DUST for number, (rate_rps, _) in broken.items())
    return stands if broken and enough and lawful(stands) else None


def _free(seats: Seats, toward: Seats, pool: int) -> list[int]:
    """Devices where nothing stands, is planned or to come, and which may all draw what they can."""
    floor, left_w, found = seats.floor, seats.left_w.copy(), list[int]()
    most_w = floor.problem.pools[pool].limit_w - floor.problem.pools[pool].idle_w
    both = ((at, seats.patterns[at], toward.patterns[at]) for at in floor.devices(pool) if at not in floor.held)
    idle = [at for at, now, then in both if now is None and then is None]
    for device in sorted(idle, key=lambda at: -seats.left_at(at)):
        domains = [*floor.domains[device]]
        if (left_w[domains] >= most_w - DUST_W).all():
            left_w[domains] -= most_w
            found.append(device)
    return found


def _missing(seats: Seats, toward: Seats, missing_rps: Floats) -> JointProblem:
    """What is missing, asked of what is idle; of whom nothing is, nothing counts."""
    problem = seats.floor.problem
    works = (
        replace(
            work,
            rate_rps=max(rate_rps, DUST),
            rate_least_rps=max(rate_rps, 0.0),
            unserved_usd=work.unserved_usd * (rate_rps > DUST),
            replicas_min=0,
            domains_min=1,
        )
        for work, rate_rps in zip(problem.workloads, missing_rps.tolist(), strict=True)
    )
    pools = (replace(pool, devices=len(_free(seats, toward, at))) for at, pool in enumerate(problem.pools))
    return replace(problem, workloads=tuple(works), pools=tuple(pools), caps=(), quotas=())


def lawful(seats: Seats) -> bool:
    """Whether power, bounds on replicas, budgets and quotas bear it."""
    works = seats.floor.problem.workloads
    return (
        not (seats.left_w < -DUST_W).any()
        and all(seats.replicas[number] <= work.replicas_max for number, work in enumerate(works))
        and all(seats.spent_usd(number) <= work.budget_usd_per_h + DUST_USD for number, work in enumerate(works))
        and all(seats.gpus(project) <= quota + DUST for project, quota in seats.floor.problem.quotas)
    )


def shed(seats: Seats, jobs: Collection[int]) -> None:
    """What would start and nobody needs does not: without it every workload still has what it is sized for. Jobs, and
    whoever wants several failure domains, keep all they have.
    """
    problem = seats.floor.problem
    for device, before in enumerate(seats.patterns):
        for member in sorted(seats.turnover(device, before).starts, key=lambda item: item[1]):
            now, work = seats.patterns[device], int(problem.variant_workload[member[0]])
            assert now is not None
            members, item = members_of(now), problem.workloads[work]
            place = members.index(member)
            left_rps = float(seats.served_rps[work]) - now.capacity_rps[place]
            needed = work in jobs or item.domains_min > 1 or seats.replicas[work] <= max(1, item.replicas_min)
            if needed or left_rps < item.rate_rps * (1 - DUST):
                continue
            move = Move(device=device, after=seats.floor.judge.one(now.kind, without(members, place)))
            if (move.after is not None or len(members) == 1) and not seats.lowers(move, problem.rate_rps):
                seats.put(move.device, move.after)


def widen(seats: Seats, jobs: Collection[int]) -> None:
    """Spare share for what starts anew, where share costs nothing until a device is all one's own: on every device
    where only such replicas are planned that do not stand there. `jobs`: workloads left alone.
    """
    problem = seats.floor.problem
    for device, before in enumerate(seats.patterns if problem.by_memory else ()):
        if before is None or len(seats.turnover(device, before).starts) < len(before.variants):
            continue
        works = {problem.variants[item].workload for item in before.variants}
        move = Move(device=device, after=None if works & set(jobs) else _wider(seats, before))
        if move.after is not None and seats.powers(move) and all(seats.affords(move, work) for work in works):
            seats.put(move.device, move.after)


def _wider(seats: Seats, before: Pattern) -> Pattern | None:
    """With what is left, less one step, in equal parts, if all then serve as much and it costs no more."""
    problem = seats.floor.problem
    step = max(1, problem.share_step_pct)
    spare = (WHOLE_PCT - 1) // step * step - sum(before.shares_pct)
    more = spare // len(before.variants) // step * step
    if more <= 0:
        return None
    after = seats.floor.judge.one(before.kind, [(variant, share + more) for variant, share in members_of(before)])
    if after is None or after.usd_per_h > before.usd_per_h + DUST:
        return None
    # Members of one network stay in their order, since all grow alike.
    pairs = zip(before.capacity_rps, after.capacity_rps, strict=True)
    return after if all(now >= then * (1 - DUST) for then, now in pairs) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relief:
    """A move that saves some of what is too much."""

    move: Move
    saved: float
    loss_usd: float


def _lost(item: _Relief, most: float = np.inf) -> tuple[float, float, int]:
    """Least lost for what is saved, then most saved; of more than so much no more is any use."""
    saved = min(item.saved, most)
    return item.loss_usd / saved, -saved, item.move.device


FEW = 64
"""Of so many replicas they are taken from one by one, each time where least is lost."""


def within_bounds(seats: Seats) -> None:
    """Take from every workload that has more replicas or spends more than its owner lets it, and from those of projects
    beyond their quota. Bounds may have come since it was placed.
    """
    problem = seats.floor.problem
    for number, work in enumerate(problem.workloads):
        more = float(seats.replicas[number] - work.replicas_max)
        _take(seats, [number], more, lambda _, delta: delta.replicas)
    for number, work in enumerate(problem.workloads):
        more = seats.spent_usd(number) - work.budget_usd_per_h
        _take(seats, [number], more, partial(usd_of, problem))
    for project, quota in problem.quotas:
        mine = [number for number, work in enumerate(problem.workloads) if work.project == project]
        _take(seats, mine, seats.gpus(project) - quota, partial(gpus_of, problem))


def _take(seats: Seats, workloads: list[int], more: float, of: Callable[[int, Delta], float]) -> None:
    """From these workloads, until they have so much less of something, which is told by pool and what a move adds. Of
    many replicas whole ones end, several at a time.
    """
    mine = frozenset(workloads)
    while more > DUST_USD:
        few = sum(seats.replicas[number] for number in workloads) <= FEW
        moves = chain.from_iterable(_less(seats, device, mine, smaller=few) for device in range(len(seats.patterns)))
        useful = list[_Relief]()
        for move in moves:
            pool, changed = int(seats.floor.pool_of[move.device]), seats.change(move).items()
            saved = -sum(of(pool, delta) for number, delta in changed if number in mine)
            if saved > DUST_USD:
                useful.append(_Relief(move=move, saved=saved, loss_usd=seats.loss_usd(move)))
        taken = set[int]()
        for relief in sorted(useful, key=lambda item: _lost(item, more))[: 1 if few else max(1, len(useful) // 8)]:
            if relief.move.device not in taken and more > DUST_USD:
                taken.add(relief.move.device)
                seats.put(relief.move.device, relief.move.after)
                more -= relief.saved
        if not taken:
            return


def _less(seats: Seats, device: int, workloads: frozenset[int], *, smaller: bool) -> Iterator[Move]:
    """Contents with one replica of these workloads less, or a smaller one."""
    before, problem = seats.patterns[device], seats.floor.problem
    members = members_of(before)
    for place, (variant, share) in enumerate(members):
        if before is None or problem.variants[variant].workload not in workloads:
            continue
        rest = without(members, place)
        steps = (int(step) for step in problem.shares_pct if smaller and step < share)
        for kept in (rest, *([*rest, (variant, step)] for step in steps)):
            after = seats.floor.judge.one(before.kind, kept)
            if after is not None or not kept:
                yield Move(device=device, after=after)


def within_power(seats: Seats) -> bool:
    """Change places, clocks and at last contents until no domain is exceeded; whether places were not enough."""
    relieved = False
    over = np.flatnonzero(seats.left_w < -DUST_W).tolist()
    stays = np.array([_stays(seats, device) for device in range(len(seats.patterns) if over else 0)], dtype=np.int64)
    for domain in over:
        inside = np.flatnonzero((seats.floor.domain_of == domain).any(axis=1))
        while seats.left_w[domain] < -DUST_W:
            swapped = _swap(seats, domain, inside, stays)
            stays[swapped] = [_stays(seats, device) for device in swapped]
            if swapped:
                continue
            reliefs = (item for device in inside.tolist() for item in _lighter(seats, device))
            relief = min(reliefs, key=_lost, default=None)
            if relief is None:
                break
            relieved = True
            seats.put(relief.move.device, relief.move.after)
            stays[relief.move.device] = _stays(seats, relief.move.device)
    return relieved


def _stays(seats: Seats, device: int) -> int:
    """Replicas that go on as they stand."""
    pattern = seats.patterns[device]
    return 0 if pattern is None else len(pattern.variants) - len(seats.turnover(device, pattern).starts)


def _lighter(seats: Seats, device: int) -> Iterator[_Relief]:
    """A device at a lower clock, or with one replica less."""
    before, problem = seats.patterns[device], seats.floor.problem
    if before is None:
        return
    pool, clock, members = problem.kind_pool[before.kind], problem.kind_clock_mhz[before.kind], members_of(before)
    slower = np.flatnonzero((problem.kind_pool == pool) & (problem.kind_clock_mhz < clock)).tolist()
    fewer = [without(members, place) for place in range(len(members))]
    for kind, kept in (*product(slower, [members]), *product([before.kind], fewer)):
        move = Move(device=device, after=seats.floor.judge.one(kind, kept))
        saved_w = seats.dynamic_w(device) - seats.floor.dynamic_w(move.after)
        if (move.after is not None or not kept) and saved_w > DUST_W:
            lost = seats.loss_usd(move) + 0.01 * (before.usd_per_h + sum(before.capacity_rps) * DUST_W)
            yield _Relief(move=move, saved=saved_w, loss_usd=max(lost, DUST_W))


def _swap(seats: Seats, domain: int, inside: Whole, stays: Whole) -> list[int]:
    """Change a device of the domain with a lighter one outside, or two; just enough if that is possible, else most; and
    first where fewest have to start anew for it. Which devices those are.
    """
    floor, over_w = seats.floor, -float(seats.left_w[domain])
    outside = np.flatnonzero(np.isin(floor.pool_of, floor.pool_of[inside]) & (floor.domain_of != domain).all(axis=1))
    mine, other = np.nonzero(floor.pool_of[inside][:, None] == floor.pool_of[outside])
    here, there = inside[mine], outside[other]
    ours, theirs = (np.array([*map(seats.dynamic_w, some.tolist())]) for some in (inside, outside))
    relief = ours[mine] - theirs[other]
    able = np.flatnonzero((relief > DUST_W) & (relief <= _spare_w(seats, here, there) + DUST_W))
    here, there, relief = here[able], there[able], relief[able]
    moved = stays[here] + stays[there]
    chosen = np.lexsort((there, here, relief, moved, -np.minimum(relief, over_w)))[:1]
    if len(able) and relief[chosen[0]] < over_w:
        near = np.argsort(np.abs(relief - over_w / 2), kind="stable")[:PAIRS_MAX]
        two = _two(seats, here[near], there[near], relief[near], over_w, moved[near])
        chosen = near[two] if len(two) else chosen
    for device, partner in zip(here[chosen].tolist(), there[chosen].tolist(), strict=True):
        for at, pattern in ((device, seats.patterns[partner]), (partner, seats.patterns[device])):
            seats.put(at, pattern)
    return [*here[chosen].tolist(), *there[chosen].tolist()]


def _two(seats: Seats, here: Whole, there: Whole, relief: Floats, over_w: float, moved: Whole) -> Whole:
    """Which two changes together are just enough; none where no two are."""
    spare, domains, total = _spare_w(seats, here, there), seats.floor.domain_of[there], relief[:, None] + relief
    apart = ((domains[:, None] != domains) | (domains == NO_DOMAIN)).all(axis=2)
    able = (total >= over_w) & (here[:, None] != here) & (there[:, None] != there)
    able &= apart | (total <= np.minimum(spare[:, None], spare) + DUST_W)
    few = able & (moved[:, None] + moved == np.where(able, moved[:, None] + moved, np.iinfo(np.int64).max).min())
    best = np.unravel_index(int(np.argmin(np.where(few, total, np.inf))), able.shape)
    return np.array(best) if able[best] else np.zeros(0, dtype=np.int64)


def _spare_w(seats: Seats, devices: Whole, others: Whole) -> Floats:
    """What the others' domains leave, those aside that each shares with its device."""
    left, domains = np.append(seats.left_w, np.inf), seats.floor.domain_of
    return np.asarray(np.where(domains[others] == domains[devices], np.inf, left[domains[others]]).min(axis=1))
