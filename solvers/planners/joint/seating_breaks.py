"""What a seating interrupts: replicas that must end before what replaces them is ready, because both do not fit.

Owns the judgement which standing replicas go on until they are replaced, as nodes carry plans out; what the others'
launches leave unserved, in dollars; and one remedy: contents that would interrupt go to an idle device of the same
pool, so that what stands serves until they are ready. It refuses to change contents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from solvers.planners.joint.seating_floor import Held
from solvers.planners.joint.seating_power import DUST_W
from solvers.planners.joint.seating_seats import Seats
from solvers.problems.patterns import Pattern

PERIOD_S = 60.0
"""Demand that a plan leaves unserved for so long counts as if the plan never served it: what a plan saves is worth an
interruption of seconds only where it is much.
"""


def ended(seats: Seats, device: int, pattern: Pattern | None) -> tuple[Held, ...]:
    """Standing replicas of a device that end before their replacements are ready if it is to carry this."""
    held = seats.floor.held.get(device, ())
    if pattern is None or not held:
        return ()
    kept = Counter(zip(pattern.variants, pattern.shares_pct, strict=True))
    going: list[Held] = []
    for item in held:
        if kept[item.variant, item.share_pct] > 0:
            kept[item.variant, item.share_pct] -= 1
        else:
            going.append(item)
    pool = seats.floor.problem.pools[int(seats.floor.pool_of[device])]
    share_pct = sum(pattern.shares_pct) + sum(item.share_pct for item in going)
    memory_mib = sum(pattern.memory_mib) + sum(item.memory_mib for item in going)
    return () if share_pct <= 100 and memory_mib <= pool.memory_mib else tuple(going)


def breaks_usd(seats: Seats, period_s: float = PERIOD_S) -> float:
    """What is left unserved while replacements launch, $/h: as if for a part of the time for which the plan stands."""
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
    total = 0.0
    for workload in sorted(lost_rps):
        work = problem.workloads[workload]
        before, after = stands_rps[workload], stands_rps[workload] - lost_rps[workload]
        missing_rps = min(work.rate_least_rps, before) - min(work.rate_least_rps, after)
        if missing_rps > 0.0:
            total += work.unserved_usd * missing_rps / work.rate_least_rps * launch_s[workload] / period_s
    return total


def make_before_break(seats: Seats) -> None:
    """Contents that would interrupt go where nothing stands and nothing is planned, if power allows."""
    for device in sorted(seats.floor.held):
        pattern = seats.patterns[device]
        if pattern is None or not ended(seats, device, pattern):
            continue
        idle = next(_idle(seats, device, pattern), None)
        if idle is not None:
            seats.put(device, None)
            seats.put(idle, pattern)


def _idle(seats: Seats, device: int, pattern: Pattern) -> Iterator[int]:
    """Devices of the same pool with nothing on them that bear these contents."""
    floor = seats.floor
    mine = floor.domain_of[device].tolist()
    for other in floor.devices(int(floor.pool_of[device])):
        if seats.patterns[other] is not None or other in floor.held:
            continue
        if floor.domain_of[other].tolist() == mine or floor.dynamic_w(pattern) <= seats.left_at(other) + DUST_W:
            yield other
