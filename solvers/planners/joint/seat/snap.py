"""Shares as they stand, where they are good enough: a replica with another share is another process.

Owns one trade: on devices that carry nearly what stands there, the shares that stand instead of those that were chosen,
as long as every promise keeps, nobody is served less than he is sized for, and what it costs more is worth the launches
saved. It refuses to move anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from solvers.planners.joint.seat.floor import Held
from solvers.planners.joint.seat.mend import within_quotas
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.patterns import Pattern, judge


def snap(seats: Seats, devices: Iterable[int], launch_usd_per_s: float, quotas: Mapping[str, float]) -> None:
    """Snap these devices to what stands on them, as far as quotas bear it."""
    for device in devices:
        before, held = seats.patterns[device], seats.floor.held.get(device, ())
        if before is None or not held:
            continue
        for shares, saved_s in _nearer((before, seats.floor.problem.networks(before.variants)), held):
            after = judge(seats.floor.problem, before.kind, before.variants, shares)
            if (
                after is not None
                and _worth_it(seats, before, after, launch_usd_per_s * saved_s)
                and within_quotas(seats, (before, after), quotas)
            ):
                seats.put(device, after)
                break


def _nearer(what: tuple[Pattern, tuple[int, ...]], held: Sequence[Held]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Shares nearer to what stands, and launch seconds that they save: all of them at once, then one by one. `what`: a
    pattern with the networks of its members.
    """
    pattern, networks = what
    left = [(item.variant, item.share_pct, item.launch_s) for item in held]
    members = list(zip(networks, pattern.shares_pct, strict=True))
    open_places: list[int] = []
    for place, member in enumerate(members):
        same = next((item for item in left if item[:2] == member), None)
        if same is None:
            open_places.append(place)
        else:
            left.remove(same)
    changes: list[tuple[int, int, float]] = []
    for place in open_places:
        near = next((item for item in left if item[0] == members[place][0]), None)
        if near is not None:
            left.remove(near)
            changes.append((place, near[1], near[2]))
    room = 100 - sum(pattern.shares_pct)
    grows = {place: share - pattern.shares_pct[place] for place, share, _ in changes}
    if len(changes) > 1 and sum(grows.values()) <= room:
        yield _with(pattern, changes), sum(saved for _, _, saved in changes)
    for change in sorted(changes, key=lambda item: (-item[2], item[0])):
        if grows[change[0]] <= room:
            yield _with(pattern, [change]), change[2]


def _with(pattern: Pattern, changes: Iterable[tuple[int, int, float]]) -> tuple[int, ...]:
    shares = list(pattern.shares_pct)
    for place, share, _ in changes:
        shares[place] = share
    return tuple(shares)


def _worth_it(seats: Seats, before: Pattern, after: Pattern, worth_usd: float) -> bool:
    if after.usd_per_h > before.usd_per_h + worth_usd:
        return False
    problem = seats.floor.problem
    change: dict[int, float] = {}
    for pattern, sign in ((before, -1), (after, 1)):
        for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True):
            workload = problem.variants[variant].workload
            change[workload] = change.get(workload, 0.0) + sign * capacity
    return all(
        by_rps >= 0 or seats.served_rps[workload] + by_rps >= problem.workloads[workload].rate_rps * (1 - DUST)
        for workload, by_rps in change.items()
    )
