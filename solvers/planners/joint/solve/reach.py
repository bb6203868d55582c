"""Patterns that a better layout could be made of, where replicas are paid and devices are not.

Owns that search. Where a device costs nothing in itself, a replica more that must stand is placed well or badly by
cents, and the patterns of the relaxed optimum hardly ever fill whole devices alike. No pattern whose reduced cost is
above what the best layout costs beyond the relaxed optimum can be in a better one; the others are looked for step by
step from those that are known: another batch, a share more or less, a member more or less, another kind of device. It
refuses to choose among them: polishing does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.engines.columns import Relaxed
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.judge import Patterns
from solvers.planners.joint.solve.master import Master
from solvers.problems.joint import Flags, Floats, Whole

ROUNDS = 12
COLUMNS_MAX = 2_000
CANDIDATES_AT_ONCE = 6_000
PARENTS_MAX = 60
"""Whose neighbours are looked at in one round, least reduced cost first."""
STEP_PART = 0.3
"""Of what the layout costs: a step on the way may be so much worse."""
CANDIDATES_PER_UNIT = 400
DUST = 1e-9


def reach(master: Master, relaxed: Relaxed, best: tuple[float, float], deadline: Deadline) -> Relaxed:
    """Add what is found of them to the master, and the relaxed optimum then. `best`: what the best layout costs, what
    it leaves undone priced in, and the part of that which is paid, $/h.
    """
    problem, begun, asked = master.problem, len(master.pool), set[int]()
    added = len(problem.variants) * len(problem.shares_pct)
    most = int(np.clip(CANDIDATES_AT_ONCE // max(1, added), 1, PARENTS_MAX))
    for _ in range(ROUNDS):
        gap_usd = max(0.0, best[0] - relaxed.value) + STEP_PART * best[1]
        cost = _reduced(master, relaxed)
        order = np.argsort(cost, kind="stable")
        near = order[cost[order] <= gap_usd].tolist()
        parents = [item for item in near if item not in asked][:most]
        first = len(master.pool)
        if not parents or first - begun > COLUMNS_MAX or deadline.over:
            break
        asked |= set(parents)
        found = Patterns.joined([*_stepped(master, master.pool.judged.rows.take(np.array(parents)))])
        deadline.spend(1 + len(found) // CANDIDATES_PER_UNIT)
        master.offer(found, relaxed.row_duals, -gap_usd)
        if (_reduced(master, relaxed)[first:] < -DUST).any():
            relaxed = master.solve(max(0.1, deadline.left_s)) or relaxed
    return relaxed


def _reduced(master: Master, relaxed: Relaxed) -> Floats:
    """Reduced cost of every column of the pool."""
    return master.rows.reduced(master.columns, relaxed.row_duals)[master.slacks :]


def _stepped(master: Master, rows: Patterns) -> Iterator[Patterns]:
    """All that is one step away; shares by the grid."""
    problem = master.problem
    shares = problem.shares_pct
    for kind in range(problem.kinds):
        yield rows.take(rows.kind != kind).of_kind(kind)
    for place in range(master.width):
        some = rows.take(rows.variants[:, place] >= 0)
        yield _placed(some, place, -1, 0)
        column = np.searchsorted(shares, some.shares_pct[:, place])
        for step in (-1, 1):
            yield _placed(some, place, some.variants[:, place], shares[np.clip(column + step, 0, len(shares) - 1)])
        for variant, network in enumerate(problem.network.tolist()):
            twin = problem.network[some.variants[:, place]] == network
            yield _placed(some, place, variant, some.shares_pct[:, place], twin & (some.variants[:, place] != variant))
    some = rows.take(rows.variants[:, -1] < 0)
    for share in shares.tolist():
        fits = some.take(some.shares_pct.sum(axis=1) + share <= shares[-1])
        for variant in range(len(problem.variants)):
            yield _placed(fits, master.width - 1, variant, share)


def _placed(
    rows: Patterns, place: int, variant: Whole | int, share_pct: Whole | int, chosen: Flags | None = None
) -> Patterns:
    """With another one at a place (-1: nobody); of some rows only."""
    member, share = rows.variants.copy(), rows.shares_pct.copy()
    member[:, place], share[:, place] = variant, share_pct
    kept = np.flatnonzero((member[:, 0] >= 0) | (member[:, 1:] >= 0).any(axis=1))
    if chosen is not None:
        kept = kept[chosen[kept]]
    return Patterns(kind=rows.kind[kept], variants=member[kept], shares_pct=share[kept])
