"""Every pattern of a very small problem, and the best layout of them, by plain enumeration and one programme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from solvers.engines.base import EngineStatus, Limits, Program, create
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Judged, Patterns

Key = tuple[int, tuple[int, ...], tuple[int, ...]]


def keys_of(found: Patterns) -> list[Key]:
    """Kind, members and shares of every row, for judging each by itself."""
    sizes = (found.variants >= 0).sum(axis=1).tolist()
    rows = zip(found.kind.tolist(), found.variants.tolist(), found.shares_pct.tolist(), sizes, strict=True)
    return [(kind, tuple(member[:size]), tuple(share[:size])) for kind, member, share, size in rows]


def every_pattern(problem: JointProblem, step_pct: int) -> Judged:
    """All lawful patterns whose shares are multiples of a step, or all of a device."""
    width, shares = problem.members_max, replace(problem, share_step_pct=step_pct).lone_pct.tolist()
    found = [
        (kind, members) for kind in range(problem.kinds) for members in _members(len(problem.variants), shares, width)
    ]
    member = np.full((len(found), width), -1, dtype=np.int64)
    share = np.zeros((len(found), width), dtype=np.int64)
    for row, (_, members) in enumerate(found):
        for place, (variant, pct) in enumerate(members):
            member[row, place], share[row, place] = variant, pct
    judged = Judge(problem).judge(
        Patterns(kind=np.array([kind for kind, _ in found]), variants=member, shares_pct=share)
    )
    return judged.take(judged.lawful)


def every_choice(problem: JointProblem) -> Judged:
    """All that a plan may have: patterns with whichever batches, each of which is a variant of its own meanwhile."""
    batches, pools = len(problem.batches), problem.pools
    roomy = replace(problem, pools=tuple(replace(item, memory_mib=np.inf, capped=False) for item in pools))
    rows = every_pattern(roomy, problem.share_step_pct).rows
    apart = problem.of_variants(np.repeat(np.arange(len(problem.variants)), batches))
    others = np.arange(len(apart.variants))[:, None, None] % batches != np.arange(batches)
    apart = replace(apart, mean_ms=np.where(others, np.inf, apart.mean_ms), tail_ms=apart.tail_ms.copy())
    sizes, found = (rows.variants >= 0).sum(axis=1), []
    for size in range(1, problem.members_max + 1):
        some, chosen = rows.take(sizes == size), np.array([*product(range(batches), repeat=size)])
        wide = replace(some, variants=some.variants * batches).take(np.repeat(np.arange(len(some)), len(chosen)))
        wide.variants[:, :size] += np.tile(chosen, (len(some), 1))
        found.append(wide)
    judged = Judge(apart).judge(Patterns.chained(found))
    judged = judged.take(judged.lawful)
    rows = replace(judged.rows, variants=np.where(judged.rows.variants < 0, -1, judged.rows.variants // batches))
    return replace(judged, rows=rows, usd_per_h=Judge(problem).contents.usd_per_h(rows, judged.draw_w))


def _members(
    variants: int, shares: list[int], width: int, left: int = 100, least: tuple[int, int] = (0, 0)
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Members in order, so that each set comes once."""
    for variant in range(least[0], variants):
        for pct in shares:
            if pct > left or (variant, pct) < least:
                continue
            yield ((variant, pct),)
            if width > 1:
                for rest in _members(variants, shares, width - 1, left - pct, (variant, pct)):
                    yield ((variant, pct), *rest)


def optimum(problem: JointProblem, every: Judged) -> float:
    """The least that any layout of these patterns costs, unserved demand priced in."""
    rows = Rows(problem)
    slack, columns = rows.slack(), rows.columns(every)
    program = Program(
        cost=np.concatenate([slack.cost, columns.cost]),
        lower=np.zeros(len(slack) + len(columns)),
        upper=np.concatenate([slack.upper, np.full(len(columns), 20.0)]),
        integer=np.arange(len(slack) + len(columns)) >= len(slack),
        start=np.concatenate([slack.start[:-1], columns.start + slack.start[-1]]),
        row=np.concatenate([slack.row, columns.row]),
        value=np.concatenate([slack.value, columns.value]),
        row_lower=rows.lower,
        row_upper=rows.upper,
    )
    answer = create("highs").solve(program, Limits(time_s=20, gap=1e-6))
    assert answer.status is EngineStatus.OPTIMAL
    return answer.objective
