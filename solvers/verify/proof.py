"""What the measurements of one model on one GPU type prove, looked up fast: points and grids alike.

*Monotony*: a point with no more share, no fewer inputs per batch and no higher clock cannot be faster, so its latency
is an upper bound. *Diminishing returns*: a larger share brings ever less (the rate is concave in the share), so between
two measured shares of one batch and clock the rate is no less than the line through theirs. *Power* rises with share
and batch, so what less of either draws is a lower bound. The best bound counts. Nothing is extrapolated. Standard
library only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from solvers.domain.profile import Profile, ProfileGrid, ProfilePoint

T = TypeVar("T")
SHARE_DUST = 1e-6
_Row = tuple[int, float, float, float | None]
"""Share, mean, tail, power."""


@dataclass(frozen=True, slots=True)
class Column:
    """Everything measured at one clock and batch, by rising share."""

    shares_pct: Sequence[int]
    mean_ms: Sequence[float]
    tail_ms: Sequence[float]
    power_w: Sequence[float | None]

    def place(self, share_pct: float) -> int:
        """Index of the highest share not above this one; -1 when there is none."""
        return bisect_right(self.shares_pct, share_pct + SHARE_DUST) - 1

    def latency_ms(self, share_pct: float) -> tuple[float, float] | None:
        """Upper bounds of mean and tail at a share; None below the lowest."""
        at = self.place(share_pct)
        if at < 0:
            return None
        mean, tail = min(self.mean_ms[: at + 1]), min(self.tail_ms[: at + 1])
        if at + 1 == len(self.shares_pct):
            return mean, tail
        low, high = self.shares_pct[at], self.shares_pct[at + 1]
        upper = max(0.0, (share_pct - low) / (high - low))
        lower = 1 - upper
        return (
            min(mean, 1 / (lower / self.mean_ms[at] + upper / self.mean_ms[at + 1])),
            min(tail, 1 / (lower / self.tail_ms[at] + upper / self.tail_ms[at + 1])),
        )

    def able(self) -> Column:
        """The same without what cannot run."""
        places = [place for place, number in enumerate(self.mean_ms) if number > 0]
        return Column(
            [self.shares_pct[place] for place in places],
            [self.mean_ms[place] for place in places],
            [self.tail_ms[place] for place in places],
            [self.power_w[place] for place in places],
        )


@dataclass(slots=True)
class ColumnProof:
    """All columns of one model on one GPU type: by clock, then by batch, both rising."""

    columns: dict[int, dict[int, Column]]
    memory_mib: dict[int, dict[int, float]]
    """By clock and batch, where it was measured."""
    _execution: dict[tuple[float, int, int], tuple[float, float] | None] = field(default_factory=dict)
    _power: dict[tuple[float, int, int], tuple[float | None, int]] = field(default_factory=dict)

    @staticmethod
    def of(profile: Profile) -> ColumnProof:
        if profile.grid is not None:
            return _of_grid(profile.grid)
        return _of_points([point for point in profile.points if not point.neighbours])

    def execution_ms(self, share_pct: float, clock_mhz: int, batch: int) -> tuple[float, float] | None:
        """Upper bounds of mean and tail of executing a batch alone; None when nothing measured proves one."""
        key = (share_pct, clock_mhz, batch)
        if key not in self._execution:
            bounds = [
                bound
                for clock, by_batch in self.columns.items()
                if clock <= clock_mhz
                for size, column in by_batch.items()
                if size >= batch and (bound := column.latency_ms(share_pct)) is not None
            ]
            self._execution[key] = (
                (min(mean for mean, _ in bounds), min(tail for _, tail in bounds)) if bounds else None
            )
        return self._execution[key]

    def power_w(self, share_pct: float, clock_mhz: int, batch: int) -> tuple[float | None, int]:
        """Lower bound of the power above idle, None when there is no reading; and the highest share measured not above
        this one.
        """
        key = (share_pct, clock_mhz, batch)
        if key not in self._power:
            below = [
                (size, column, at)
                for size, column in self._nearest(self.columns, clock_mhz).items()
                if (at := column.place(share_pct)) >= 0
            ]
            self._power[key] = _power_of(below, batch)
        return self._power[key]

    def memory_needed_mib(self, clock_mhz: int, batch_max: int) -> float | None:
        """The most that was measured at no larger a batch; None when nothing was."""
        known = self._nearest(self.memory_mib, clock_mhz)
        return max((memory for batch, memory in known.items() if batch <= batch_max), default=None)

    def _nearest(self, by_clock: dict[int, dict[int, T]], clock_mhz: int) -> dict[int, T]:
        """What is known at the highest measured clock not above this one."""
        nearest = max((clock for clock in self.columns if clock <= clock_mhz), default=None)
        return {} if nearest is None else by_clock.get(nearest, {})


def _power_of(below: Sequence[tuple[int, Column, int]], batch: int) -> tuple[float | None, int]:
    measured_share = max((column.shares_pct[at] for _, column, at in below), default=0)
    readings = [(size, power) for size, column, at in below for power in column.power_w[: at + 1] if power is not None]
    if not readings:
        return None, measured_share
    # Below the smallest measured batch nothing is proven; the smallest one is the nearest that is known.
    largest = max(batch, min(size for size, _, _ in below))
    return max((power for size, power in readings if size <= largest), default=0.0), measured_share


def _of_points(points: Sequence[ProfilePoint]) -> ColumnProof:
    rows: dict[tuple[int, int], dict[int, _Row]] = defaultdict(dict)
    memory: dict[int, dict[int, float]] = defaultdict(dict)
    for point in points:
        cell, share = (point.clock_mhz_sm, point.batch), point.share_pct_sm
        mean, tail, power = point.latency_ms_mean, point.latency_ms_p99 or point.latency_ms_mean, point.power_w
        if share in rows[cell]:
            # Measured twice: the slower one, and the one that draws more.
            _, mean_before, tail_before, power_before = rows[cell][share]
            mean, tail = max(mean, mean_before), max(tail, tail_before)
            power = power_before if power is None else max(power, power_before or 0.0)
        rows[cell][share] = (share, mean, tail, power)
        if point.memory_mib:
            held = memory[point.clock_mhz_sm]
            held[point.batch] = max(held.get(point.batch, 0.0), point.memory_mib)
    columns: dict[int, dict[int, Column]] = defaultdict(dict)
    for clock, batch in sorted(rows):
        by_share = rows[clock, batch]
        columns[clock][batch] = Column(*zip(*(by_share[share] for share in sorted(by_share)), strict=True))
    return ColumnProof(columns=dict(columns), memory_mib=dict(memory))


def _of_grid(grid: ProfileGrid) -> ColumnProof:
    width, height = len(grid.batches), len(grid.shares_pct_sm)
    columns: dict[int, dict[int, Column]] = {}
    memory: dict[int, dict[int, float]] = {}
    for layer, clock in enumerate(grid.clocks_mhz_sm):
        columns[clock], memory[clock] = {}, {}
        for column, batch in enumerate(grid.batches):
            cells = slice(layer * width * height + column, (layer + 1) * width * height, width)
            mean = grid.latency_ms[cells]
            tail = grid.latency_ms_p99[cells] if grid.latency_ms_p99 else mean
            power = grid.power_w[cells] if grid.power_w else (None,) * height
            held = Column(grid.shares_pct_sm, mean, tail, power)
            held = held if all(mean) else held.able()
            if held.shares_pct:
                columns[clock][batch] = held
                memory[clock][batch] = grid.memory_mib[column]
    return ColumnProof(columns=columns, memory_mib=memory)
