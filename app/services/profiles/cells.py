"""Cells of the CSV forms as numbers and names, a whole column at a time.

Owns what a number may look like and the ranges. A column without surprises is converted at once; only one that has any
is looked at cell by cell, to say which cell it is. It refuses NaN, infinities, underscores and digits of other scripts,
all of which Python would take for numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats

NAME_LENGTH_MAX = 256
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SURPRISE = re.compile(r"[^0-9eE+. \t\r-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a number must be."""

    low: float
    high: float
    whole: bool = False

    def refusal(self, number: float) -> str | None:
        """What is wrong with a number, or None."""
        if number < self.low:
            return f"{number:.12g} must be at least {self.low:g}"
        if number > self.high:
            return f"{number:.12g} must be at most {self.high:g}"
        if self.whole and number != math.floor(number):
            return f"{number:.12g} must be a whole number"
        return None


def checked_numbers(cells: Sequence[str], rule: Rule, *, required: bool) -> tuple[Floats, dict[int, str]]:
    """The column's numbers (NaN where empty or wrong) and what is wrong, by row."""
    numbers = _converted(cells)
    if numbers is not None:
        out = (numbers < rule.low) | (numbers > rule.high)
        if rule.whole:
            out |= ~np.isnan(numbers) & (numbers != np.floor(numbers))
        if required:
            out |= np.isnan(numbers)
        out |= np.isinf(numbers)
        suspects = np.flatnonzero(out).tolist()
    else:
        numbers = np.full(len(cells), np.nan)
        suspects = list(range(len(cells)))
    wrong: dict[int, str] = {}
    for row in suspects:
        found = _number(cells[row], rule, required=required)
        if isinstance(found, str):
            wrong[row] = found
            numbers[row] = np.nan
        else:
            numbers[row] = found
    return numbers, wrong


def checked_names(cells: Sequence[str]) -> tuple[list[str], dict[int, str]]:
    """The column's names without surrounding blanks, and what is wrong, by row."""
    refusals = {cell: _refused_name(cell.strip()) for cell in dict.fromkeys(cells)}
    stripped = {cell: cell.strip() for cell in refusals}
    wrong = {row: text for row, cell in enumerate(cells) if (text := refusals[cell]) is not None}
    return [stripped[cell] for cell in cells], wrong


def _converted(cells: Sequence[str]) -> Floats | None:
    """All cells at once; None when any has to be looked at by itself."""
    if _SURPRISE.search("".join(cells)):
        return None
    try:
        return np.array([float(cell) if cell else math.nan for cell in cells], dtype=np.float64)
    except ValueError:
        return None


def _number(cell: str, rule: Rule, *, required: bool) -> float | str:
    text = cell.strip()
    if not text:
        return "a number must stand here" if required else math.nan
    if not _NUMBER.fullmatch(text):
        return f"{text[:40]!r} is not a number"
    number = float(text)
    if math.isinf(number):
        return f"{text[:40]!r} is too large"
    return rule.refusal(number) or number


def _refused_name(name: str) -> str | None:
    if not name:
        return "a name must stand here"
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        return f"a name is at most {NAME_LENGTH_MAX} printable characters"
    return None
