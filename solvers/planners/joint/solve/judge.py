"""What a device may carry and what it then serves, draws and costs, judged by the thousand in `engines.contents`.

Everything that asks comes here: pricing and its neighbourhood, packing, seating, the bound. Empty places are
-1 and 0, and a row's members stand in the order of (variant, share). A test holds this and a judgement in Python, one
device at a time, together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solvers.domain.arrays import Whole
from solvers.engines.contents import PROCESSORS, Contents
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Judged, Layout, Pattern, Patterns, ordered

Member = tuple[int, int]
"""Variant and share, in percent."""
_CHUNK = 20_000
"""Rows judged at a time, for the sake of memory."""


class Judge:
    """A problem's numbers laid out for judging many rows; build once, ask often. `eager`: batches are chosen by what
    they carry when full instead of by what is granted; `lanes`: so many pools are priced at a time.
    """

    def __init__(self, problem: JointProblem, *, eager: bool = False, lanes: int = PROCESSORS) -> None:
        self.problem, self.eager = problem, eager
        self.width = max((pool.clients for pool in problem.pools), default=1)
        self.idle_w = np.array([item.idle_w for item in problem.pools], dtype=np.float64)
        self.contents = Contents(problem, lanes)

    def judge(self, rows: Patterns) -> Judged:
        """Every row. Members may stand in any place; the answer's rows are in order. An empty device is lawful."""
        starts = range(0, max(1, len(rows)), _CHUNK)
        parts = (ordered(rows.take(np.s_[at : at + _CHUNK])) for at in starts)
        return Judged.chained([self.contents.judge(part, None, eager=self.eager) for part in parts])

    def alone(self, kinds: Whole, variants: Whole, shares_pct: Whole) -> Judged:
        """Single replicas alone on devices, every variant with every share on every kind: those that are lawful."""
        judged = self.judge(Patterns.singles(kinds, variants, shares_pct))
        return judged.take(judged.lawful)

    def alone_of(self, workload: int) -> Judged:
        """All of one workload."""
        problem = self.problem
        mine = np.flatnonzero(problem.variant_workload == workload)
        return self.alone(np.arange(problem.kinds), mine, problem.shares_pct)

    def one(self, kind: int, members: Sequence[Member]) -> Pattern | None:
        """A device with these members, in any order; None where there is none, or anything forbids it."""
        if not 0 < len(members) <= self.width:
            return None
        judged = self.judge(Patterns.listed([kind], [members], self.width))
        return self.patterns(judged)[0] if judged.lawful[0] else None

    def layout(self, rows: Patterns, counts: Whole, like: Layout = EMPTY) -> Layout:
        """Judge so many devices of each row, leave out what is unlawful or empty, put equal patterns together; bound,
        prices and facts are those of another layout.
        """
        judged = self.judge(rows)
        kept = np.flatnonzero(judged.lawful & (counts > 0) & (judged.rows.variants[:, 0] >= 0))
        keys = judged.rows.take(kept).keys
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        total = np.bincount(inverse.ravel(), weights=counts[kept], minlength=len(first))
        patterns = self.patterns(judged.take(kept[first]))
        return replace(like, patterns=tuple(patterns), counts=tuple(total.astype(np.int64).tolist()))

    def patterns(self, judged: Judged) -> list[Pattern]:
        batches, sizes = self.problem.batches, np.count_nonzero(judged.rows.variants >= 0, axis=1).tolist()
        return [
            Pattern(
                kind=int(judged.rows.kind[row]),
                variants=tuple(judged.rows.variants[row, :size].tolist()),
                shares_pct=tuple(judged.rows.shares_pct[row, :size].tolist()),
                batches=tuple(batches[judged.column[row, :size]].tolist()),
                latency_ms=tuple(judged.latency_ms[row, :size].tolist()),
                capacity_rps=tuple(judged.capacity_rps[row, :size].tolist()),
                power_w=tuple(judged.power_w[row, :size].tolist()),
                memory_mib=tuple(judged.memory_mib[row, :size].tolist()),
                usd_per_h=float(judged.usd_per_h[row]),
                draw_w=float(judged.draw_w[row]),
            )
            for row, size in enumerate(sizes)
        ]
