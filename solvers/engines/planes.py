"""Whole numbers within a box where planes from below are least: what cutting planes have left of a convex function.

What every plane says together is a small integer programme; its bound holds for all numbers in the box, however early
it was stopped. A box without one of its points is boxes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.base import Limits, Program, create
from solvers.engines.highs import Columns

TIME_LEAST_S, NODES_MAX, GAP = 0.05, 200, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Whole numbers between two sides, both included."""

    least: Floats
    most: Floats

    @property
    def point(self) -> bool:
        """Whether there is one only."""
        return bool((self.least >= self.most).all())

    def beside(self, at: Floats) -> Iterator[Box]:
        """All but these numbers, none twice."""
        least, most = self.least.copy(), self.most.copy()
        for place, number in enumerate(at.tolist()):
            for low, high in ((least[place], number - 1), (number + 1, most[place])):
                if low <= high:
                    box = Box(least=least.copy(), most=most.copy())
                    box.least[place], box.most[place] = low, high
                    yield box
            least[place] = most[place] = number

    def lowest(self, rest: Floats, each: Floats, time_s: float) -> tuple[float, Floats]:
        """What the highest of the planes `rest + each x` is at least in this box, and where; that is never below 0."""
        if self.point:
            return float((rest + each @ self.least).max(initial=0.0)), self.least
        planes, places = np.arange(len(rest)), 1 + np.arange(len(self.least))
        columns = Columns.of(
            np.append(1.0, np.zeros(len(places))),
            column=np.concatenate([np.zeros(len(rest), np.int64), np.repeat(places, len(rest))]),
            row=np.concatenate([planes, np.tile(planes, len(places))]),
            value=np.concatenate([np.ones(len(rest)), -each.T.ravel()]),
            upper=np.append(np.inf, self.most),
        )
        program = Program(
            cost=columns.cost,
            lower=np.append(0.0, self.least),
            upper=columns.upper,
            integer=np.arange(len(columns)) > 0,
            start=columns.start,
            row=columns.row,
            value=columns.value,
            row_lower=rest,
            row_upper=np.full(len(rest), np.inf),
        )
        answer = create("highs").solve(program, Limits(time_s=max(TIME_LEAST_S, time_s), work=NODES_MAX, gap=GAP))
        if answer.values is None:
            return 0.0, self.least
        numbers = np.rint(answer.values[1:])
        return min(answer.bound, float((rest + each @ numbers).max(initial=0.0))), numbers
