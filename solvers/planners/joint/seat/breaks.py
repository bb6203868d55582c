"""What a seating interrupts: replicas that must end before what replaces them is ready, because both do not fit.

Owns the judgement which standing replicas go on until they are replaced, as nodes carry plans out; what the others'
launches leave unserved, in dollars; and one remedy: contents that would interrupt go to an idle device of the same
pool, so that what stands serves until they are ready. It refuses to change contents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

from solvers.planners.joint.seat.floor import Held
from solvers.planners.joint.seat.power import DUST_W
from solvers.planners.joint.seat.seats import Seats
from solvers.problems.patterns import Pattern


def ended(seats: Seats, device: int, pattern: Pattern | None) -> tuple[Held, ...]:
    """Standing replicas of a device that end before their replacements are ready if it is to carry this."""
    if pattern is None:
        return ()
    going = leaving(seats, device, pattern)
    pool = seats.floor.problem.pools[int(seats.floor.pool_of[device])]
    share_pct = sum(pattern.shares_pct) + sum(item.share_pct for item in going)
    memory_mib = sum(pattern.memory_mib) + sum(item.memory_mib for item in going)
    return () if share_pct <= 100 and memory_mib <= pool.memory_mib else going


def leaving(seats: Seats, device: int, pattern: Pattern | None) -> tuple[Held, ...]:
    """Standing replicas of a device that are no part of what it is to carry."""
    kept = (
        Counter[tuple[int, int]]()
        if pattern is None
        else Counter(zip(seats.floor.problem.networks(pattern.variants), pattern.shares_pct, strict=True))
    )
    going: list[Held] = []
    for item in seats.floor.held.get(device, ()):
        if kept[item.variant, item.share_pct] > 0:
            kept[item.variant, item.share_pct] -= 1
        else:
            going.append(item)
    return tuple(going)


def breaks_usd(seats: Seats, period_s: float) -> float:
    """What is left unserved while replacements launch, $/h: so long interrupted counts as never served (`period_s`)."""
    work = seats.floor.problem.workloads
    parts = (
        work[number].unserved_usd * rate / work[number].rate_least_rps
        for number, rate in interrupted_rps(seats, period_s).items()
    )
    return sum(parts, start=0.0)


def interrupted_rps(seats: Seats, period_s: float) -> dict[int, float]:
    """By workload that interrupts: the rate never served in `period_s` that counts as much."""
    floor, problem = seats.floor, seats.floor.problem
    stands_rps: dict[int, float] = defaultdict(float)
    lost_rps: dict[int, float] = defaultdict(float)
    launch_s: dict[int, float] = defaultdict(float)
    for device, held in floor.held.items():
        for item in held:
            stands_rps[problem.variants[item.variant].workload] += item.capacity_rps
        for item in ended(seats, device, seats.patterns[device]):
            workload = problem.variants[item.variant].workload
            lost_rps[workload] += item.capacity_rps
            launch_s[workload] = max(launch_s[workload], item.launch_s)
    found = dict[int, float]()
    for workload in sorted(lost_rps):
        least = problem.workloads[workload].rate_least_rps
        before, after = stands_rps[workload], stands_rps[workload] - lost_rps[workload]
        missing_rps = min(least, before) - min(least, after)
        if missing_rps > 0.0:
            found[workload] = missing_rps * launch_s[workload] / period_s
    return found


def replaced(seats: Seats, jobs: Collection[int]) -> dict[int, tuple[int, float]]:
    """Share and memory (MiB), by device, of standing replicas that go while others of their workload start; jobs wait
    for nobody.
    """
    floor, owners = seats.floor, seats.floor.problem.variant_workload
    starting: set[int] = set()
    for device, pattern in enumerate(seats.patterns):
        if pattern is not None:
            stand = Counter((item.variant, item.share_pct) for item in floor.held.get(device, ()))
            planned = Counter(zip(pattern.variants, pattern.shares_pct, strict=True))
            starting |= {int(owners[variant]) for variant, _ in planned - stand}
    found: dict[int, tuple[int, float]] = {}
    for device in floor.held:
        going = [
            item
            for item in leaving(seats, device, seats.patterns[device])
            if (owner := int(owners[item.variant])) in starting and owner not in jobs
        ]
        if going:
            found[device] = sum(item.share_pct for item in going), float(sum(item.memory_mib for item in going))
    return found


def make_before_break(seats: Seats, jobs: Collection[int] = ()) -> None:
    """Contents that would interrupt go where nothing stands and nothing is planned but these jobs, if power allows:
    jobs are seated last, wherever there is room then.
    """
    for device in sorted(seats.floor.held):
        pattern = seats.patterns[device]
        if pattern is None or not _interrupts(seats, device, pattern, jobs):
            continue
        idle = min(_idle(seats, device, pattern, jobs), default=None)
        if idle is not None:
            seats.put(device, None)
            seats.put(idle[-1], pattern)


def _interrupts(seats: Seats, device: int, pattern: Pattern, jobs: Collection[int]) -> bool:
    """Whether anybody but a job ends before what replaces it is ready."""
    owners = seats.floor.problem.variant_workload
    return any(int(owners[item.variant]) not in jobs for item in ended(seats, device, pattern))


def _idle(seats: Seats, device: int, pattern: Pattern, jobs: Collection[int]) -> Iterator[tuple[int, int]]:
    """Devices of the same pool with nobody on them but jobs, of which few are best, that bear these contents."""
    floor, owners = seats.floor, seats.floor.problem.variant_workload
    mine = floor.domain_of[device].tolist()
    for other in floor.devices(int(floor.pool_of[device])):
        planned = seats.patterns[other]
        there = {item.variant for item in floor.held.get(other, ())} | set(() if planned is None else planned.variants)
        if other == device or any(int(owners[variant]) not in jobs for variant in there):
            continue
        if floor.domain_of[other].tolist() == mine or floor.dynamic_w(pattern) <= seats.left_at(other) + DUST_W:
            yield len(there), other
