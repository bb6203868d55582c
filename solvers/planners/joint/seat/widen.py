"""Spare share for what starts anew, where share costs nothing until a device is all one's own.

Owns that gift: whoever starts gets as large a share as the device has left, less one step. Later demand is then served
by a larger batch in place, where a larger share would be another process. It refuses to touch what stands, training
jobs, budgets, quotas and power.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from solvers.planners.joint.seat.mend import affordable
from solvers.planners.joint.seat.power import DUST_W
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.joint import WHOLE_PCT
from solvers.problems.patterns import Pattern, judge


def widen(seats: Seats, jobs: Collection[int], quotas: Mapping[str, float]) -> None:
    """On every device where only such replicas are planned that do not stand there. `jobs`: workloads left alone."""
    problem = seats.floor.problem
    if not problem.by_memory:
        return
    for device, before in enumerate(seats.patterns):
        if before is None or _stands(seats, device, before):
            continue
        works = {problem.variants[item].workload for item in before.variants}
        after = None if works & set(jobs) else _wider(seats, before)
        if after is not None and (
            seats.floor.dynamic_w(after) - seats.dynamic_w(device) <= seats.left_at(device) + DUST_W
            and all(affordable(seats, work, (before, after), quotas) for work in works)
        ):
            seats.put(device, after)


def _stands(seats: Seats, device: int, pattern: Pattern) -> bool:
    members = set(zip(seats.floor.problem.networks(pattern.variants), pattern.shares_pct, strict=True))
    return any((item.variant, item.share_pct) in members for item in seats.floor.held.get(device, ()))


def _wider(seats: Seats, before: Pattern) -> Pattern | None:
    """With what is left in equal parts, if everybody then serves as much and it costs no more."""
    problem = seats.floor.problem
    step = max(1, problem.share_step_pct)
    spare = (WHOLE_PCT - 1) // step * step - sum(before.shares_pct)
    more = spare // len(before.variants) // step * step
    if more <= 0:
        return None
    after = judge(problem, before.kind, before.variants, [share + more for share in before.shares_pct])
    if after is None or after.usd_per_h > before.usd_per_h + DUST:
        return None
    # Members of one network stay in their order, since all grow alike.
    pairs = zip(before.capacity_rps, after.capacity_rps, strict=True)
    return after if all(now >= then * (1 - DUST) for then, now in pairs) else None
