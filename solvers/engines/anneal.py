"""Local search over what groups of devices take: the binding of `anneal.c`, see there.

Two searches with different chance begin at the same counts; the better one is the answer. That they run side by side
where there are two processors changes nothing in it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.compiled import CompilerError, loaded
from solvers.engines.contents import Record, at_of, threads
from solvers.engines.highs import Columns
from solvers.errors import EngineError

SEARCHES = 2
DUST = 1e-7
HARD_USD = 1e9
"""A unit of what may not be short, or over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEnds:
    """By row: its ends; up to how much is short at the first price, what the rest costs, and that there is any; and the
    same of what is over the upper end. Prices without end are those of what may not be.
    """

    lower: Floats
    upper: Floats
    first: Floats
    first_usd: Floats
    short_usd: Floats
    once_usd: Floats
    over_usd: Floats
    over_once_usd: Floats

    def usd(self, held: Floats) -> float:
        """What all rows cost with so much; without end where that is not lawful."""
        lacks, over = np.maximum(0.0, self.lower - held), np.maximum(0.0, held - self.upper)
        lacks, over = np.where(lacks > DUST, lacks, 0.0), np.where(over > DUST, over, 0.0)
        first = np.minimum(lacks, self.first)
        rest = lacks - first
        return float(
            first @ self.first_usd
            + _usd(np.where(rest > DUST, rest, 0.0), self.short_usd, self.once_usd)
            + _usd(over, self.over_usd, self.over_once_usd)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoices:
    """Columns with the group of devices that may take them, and how many devices each group has."""

    columns: Columns
    group: Whole
    devices: Whole
    ends: RowEnds

    def usd(self, counts: Whole) -> float:
        """What so many devices of each column cost; without end where that is not lawful."""
        columns = self.columns
        owed = columns.value * counts[columns.number]
        held: Floats = np.bincount(columns.row, weights=owed, minlength=len(self.ends.lower)).astype(np.float64)
        return float(columns.cost @ counts) + self.ends.usd(held)

    def take(self, chosen: Whole) -> GroupChoices:
        """Some of the columns, in the order asked for."""
        return replace(self, columns=self.columns.take(chosen), group=self.group[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """$/h that a move may lose at first, at most, and at last; elementary steps of all searches; and which chance."""

    hot_usd: float
    cold_usd: float
    steps: int
    seed: int = 0


@cache
def _library() -> ctypes.CDLL:
    try:
        library = loaded("anneal")
    except CompilerError as error:
        raise EngineError(str(error), engine="anneal") from error
    library.anneal.restype = ctypes.c_int64
    return library


def annealed(choices: GroupChoices, counts: Whole, price: Floats, how: Heat) -> Whole:
    """The best counts that were found; those given at worst. `price`: by row, of a unit that is short or over, by the
    relaxed optimum.
    """
    order = np.argsort(choices.group, kind="stable")
    found = list(
        threads().map(lambda number: _searched(choices.take(order), counts[order], price, how, number), range(SEARCHES))
    )
    best = counts.copy()
    best[order] = min(found, key=lambda item: item[0])[1]
    return best


def _searched(choices: GroupChoices, counts: Whole, price: Floats, how: Heat, number: int) -> tuple[float, Whole]:
    """`choices` in order of their groups."""
    columns, ends = choices.columns, choices.ends
    begin = np.searchsorted(choices.group, np.arange(len(choices.devices) + 1))
    sides = [np.minimum(getattr(ends, item.name), HARD_USD) for item in fields(ends)]
    soft = (ends.once_usd < HARD_USD) | (ends.over_once_usd < HARD_USD)
    given = Record(
        len(columns), len(choices.devices), len(ends.lower), choices.group, columns.start, columns.row, columns.cost,
        columns.value, choices.devices, begin, *sides, np.abs(price), soft.astype(np.uint8),
    )  # fmt: skip
    plan = Record(float(how.hot_usd), float(how.cold_usd), how.steps // SEARCHES, 1 + SEARCHES * how.seed + number)
    best, told = counts.astype(np.int64), np.zeros(2)
    if _library().anneal(given.pointer, plan.pointer, at_of(best), at_of(told)):
        raise EngineError("there is no memory left", engine="anneal")
    return float(told[0]), best


def _usd(much: Floats, each: Floats, once: Floats) -> float:
    hit = np.flatnonzero(much)
    return float((much[hit] * each[hit] + once[hit]).sum())
