"""Whole devices exchanged until fewer or cheaper ones serve everybody: `engines.exchange` on a layout.

Who is in haste takes one short walk. A longer one is asked for some work at a time, so that it ends with the deadline,
and goes on from the best so far. Whatever is found is judged once more, and is never worse than what it began with.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.deadline import Deadline
from solvers.engines.exchange import WALKS, Exchange, Rooms, Walk
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Patterns, Prices

HEAT, COLD = 0.004, 0.0004
"""Parts of what a device costs on average that a move may lose, at the beginning and at the end of an attempt."""
SLICE_UNITS = 100.0
"""Of each walk: so long nobody looks at the clock."""
ATTEMPT_UNITS, DEVICES_EVEN = 80.0, 32.0
"""Of an attempt at first, at most; of so many devices one each, of fewer less: another try is worth more there."""
PATIENCE = 30
"""Attempts in vain after which it ends by itself, of each walk; or as much as went before the last gain, if that is
more: who gains seldom is waited for as long again.
"""
HASTE_UNITS, HASTE_UNITS_EACH, HASTE_PATIENCE = 10.0, 0.2, 10
"""Of who is in haste: of the walk, for each workload besides, and attempts in all."""
GAIN_LEAST = 1e-6
PRICE_LEAST = 0.01
"""Of a device: so much any rate is worth at least, for what is free may be short, too."""


def improved(
    judge: Judge, layout: Layout, prices: Prices | None, deadline: Deadline, seed: int, *, serves: bool = False
) -> Layout:
    """A layout worth at least as much, with no more left short; `serves`: the first that serves everybody."""
    begun, rows = _begun(judge, layout)
    if len(rows) < 2:
        return layout
    mean_usd = begun.usd_per_h / len(rows)
    usd = _guessed(judge.problem, begun) if prices is None else prices.demand_usd
    price = np.minimum(np.maximum(usd, PRICE_LEAST * mean_usd), judge.problem.unserved_usd)
    exchange = Exchange(judge.contents, _rooms(judge, price))
    attempt = shortest = min(ATTEMPT_UNITS, len(rows) ** 2 / DEVICES_EVEN)
    spent, gained, best_usd, turn = 0.0, 0.0, np.inf, 0
    while not deadline.over and spent - gained < max(gained, PATIENCE * shortest * WALKS):
        left = deadline.units_until(0.0) / (1 if deadline.work_units is None else WALKS)
        walk = Walk(
            heat_usd=HEAT * mean_usd,
            cold_usd=COLD * mean_usd,
            units=min(left, max(SLICE_UNITS, attempt)),
            attempt_units=attempt,
            patience=PATIENCE,
            seed=seed * 10_000 + turn,
            closes=turn > 0 and not serves,
            serves=serves,
        )
        answer = exchange.run(rows, walk)
        deadline.spend(max(1, round(answer.units)))
        if answer.usd_per_h < best_usd - GAIN_LEAST * mean_usd:
            best_usd, gained = answer.usd_per_h, spent + answer.units
        rows, attempt, spent, turn = answer.rows, answer.attempt_units, spent + answer.units, turn + 1
        if answer.served:
            break
    return _better(judge, begun, rows) or layout


def improved_at_once(judge: Judge, layout: Layout) -> Layout:
    """Likewise, however late it is: one short walk, in which every rate is worth what it costs to leave it."""
    (begun, rows), problem = _begun(judge, layout), judge.problem
    if len(rows) < 2:
        return layout
    mean_usd = begun.usd_per_h / len(rows)
    units = HASTE_UNITS + HASTE_UNITS_EACH * len(problem.workloads)
    walk = Walk(
        heat_usd=COLD * mean_usd,
        cold_usd=COLD * mean_usd,
        units=units,
        attempt_units=units / HASTE_PATIENCE,
        patience=HASTE_PATIENCE,
        seed=0,
        closes=False,
    )
    exchange = Exchange(judge.contents, _rooms(judge, problem.unserved_usd))
    return _better(judge, begun, exchange.run(rows, walk).rows) or layout


def _begun(judge: Judge, layout: Layout) -> tuple[Layout, Patterns]:
    """Judged once more, in this problem; and its devices one by one."""
    begun = judge.layout(Patterns.of(layout.patterns, judge.width), np.array(layout.counts, dtype=np.int64), layout)
    devices = np.repeat(np.arange(len(begun.counts)), begun.counts)
    return begun, Patterns.of(begun.patterns, judge.width).take(devices)


def worth(problem: JointProblem, layout: Layout) -> float:
    """What no step may raise, $/h: cost, `unserved_usd` of a workload for the part of its rate that lacks, and as much
    again for the part of its least replicas that lack.
    """
    lacking = layout.missing(problem) + layout.fewer(problem)
    return layout.usd_per_h + float(lacking @ problem.unserved_usd)


def _better(judge: Judge, begun: Layout, rows: Patterns) -> Layout | None:
    """What these devices carry, unless it is worth less, or breaks a rule."""
    after = judge.layout(rows, np.ones(len(rows), dtype=np.int64), begun)
    worse = worth(judge.problem, after) >= worth(judge.problem, begun)
    return None if worse or (keeps_limits(judge, begun) and not keeps_limits(judge, after)) else after


def keeps_limits(judge: Judge, layout: Layout) -> bool:
    """Whether no row of the master behind the demands is over its limit, up to those that count least replicas."""
    rows = Rows(judge.problem)
    rules, judged = slice(rows.pool_at, rows.floor_at), judge.judge(Patterns.of(layout.patterns, judge.width))
    usage, upper = rows.activity(judged, np.array(layout.counts))[rules], rows.upper[rules]
    return bool(np.all(usage <= upper + 1e-6 * np.maximum(1.0, np.abs(upper))))


def _rooms(judge: Judge, price: Floats) -> Rooms:
    """What limits all devices together. That anybody who must be served is short costs a device at least."""
    problem, rows = judge.problem, Rows(judge.problem)
    return Rooms(
        cap_pools=rows.cap_pools,
        cap_watt=rows.cap_room,
        quota=np.where(rows.quota >= 0, rows.quota - rows.quota_at, -1),
        quota_gpus=np.array([gpus for _, gpus in problem.quotas], dtype=np.float64),
        pool_part=np.array([pool.gpu_part for pool in problem.pools], dtype=np.float64),
        missed_usd=np.where(problem.must_serve, problem.dearest_usd, 0.0),
        price_usd=price,
    )


def _guessed(problem: JointProblem, layout: Layout) -> Floats:
    """What each whole rate is worth, by what its replicas' share of the devices costs."""
    total = np.zeros(len(problem.workloads))
    for item, count in layout.pairs:
        for variant, share in zip(item.variants, item.shares_pct, strict=True):
            total[problem.variants[variant].workload] += share / sum(item.shares_pct) * item.usd_per_h * count
    return np.asarray(np.where(total > 0, total, problem.unserved_usd))
