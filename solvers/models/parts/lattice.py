"""Measurements of many models at once, as look-up over clock x SM share x batch in one pass over all rows.

The arrays are flat: one per column, all (model, GPU type) keys one after another. Interpolation is linear in batch and
clock and linear in 1/share, because latency is work over share. Outside the measured box it clamps and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.models.base import Facts, Queries
from solvers.models.parts.cells import AXES, Grid, Signs, coordinate, in_steps


def highest_clocks(queries: Queries, facts: Facts) -> dict[str, float]:
    """The clock that NaN stands for, by GPU type: the catalogue's highest, else the highest seen, else 1."""
    found: dict[str, float] = {}
    for index, name in enumerate(queries.gpu_types):
        seen = queries.clock_mhz[queries.gpu_type == index]
        seen = seen[np.isfinite(seen)]
        known = facts.gpu_types.get(name)
        found[name] = float(known.clock_mhz_sm_max) if known else float(seen.max(initial=1.0))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bracket:
    """Neighbours within the key, weight of the upper one, steps to the nearer one, inside or not: of every row."""

    low: Whole
    high: Whole
    weight: Floats
    steps: Floats
    inside: Flags

    def side(self, upper: int) -> tuple[Whole, Floats]:
        """One neighbour and its weight."""
        return (self.high, self.weight) if upper else (self.low, 1.0 - self.weight)

    def nearest(self) -> Whole:
        """The nearer neighbour."""
        return np.where(self.weight > 0.5, self.high, self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Rising values of every key, one key after another. `coded` rises over all keys, so one search serves all."""

    name: str
    coordinate: Floats
    steps: Floats
    coded: Floats
    start: Whole
    count: Whole
    low: float
    span: float

    @staticmethod
    def of(name: str, values: list[Floats]) -> _Axis:
        count = np.array([len(item) for item in values], dtype=np.int64)
        flat = np.concatenate(values)
        places = coordinate(name, flat)
        low = float(places.min())
        span = 2.0 * float(places.max() - low) + 1.0
        key = np.repeat(np.arange(len(values)), count)
        return _Axis(
            name=name,
            coordinate=places,
            steps=in_steps(name, flat),
            coded=places - low + key * span,
            start=np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int64),
            count=count,
            low=low,
            span=span,
        )

    def bracket(self, key: Whole, wanted: Floats) -> _Bracket:
        """Where every row lies between the values of its key."""
        place = coordinate(self.name, wanted)
        code = np.clip(place - self.low, 0.0, 0.75 * self.span) + key * self.span
        start = self.start[key]
        last = start + self.count[key] - 1
        low = np.clip(np.searchsorted(self.coded, code, side="right") - 1, start, np.maximum(last - 1, start))
        high = np.minimum(low + 1, last)
        below, above = self.coordinate[low], self.coordinate[high]
        # A key with one value has no upper neighbour to give weight to.
        weight = np.where(above > below, (place - below) / np.where(above > below, above - below, 1.0), 0.0)
        weight = np.clip(weight, 0.0, 1.0)
        return _Bracket(
            low=low - start,
            high=high - start,
            weight=weight,
            steps=np.abs(in_steps(self.name, wanted) - self.steps[np.where(weight > 0.5, high, low)]),
            inside=(place >= self.coordinate[start]) & (place <= above),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where rows of questions lie in a lattice. `weights` and `cells` are corner x row; `known` is False where there is
    no such key. `lowest_clock_mhz` is that of the key.
    """

    cells: tuple[Whole, ...]
    weights: tuple[Floats, ...]
    known: Flags
    inside: Flags
    distance: Floats
    clock_mhz: Floats
    lowest_clock_mhz: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Columns over the cells of every key."""

    keys: tuple[tuple[str, str], ...]
    tops_mhz: Floats
    axes: tuple[_Axis, ...]
    start: Whole
    gap: Floats
    """Of every cell: steps to the nearest measured one."""
    between: Floats
    """1 where a cell was measured or lies between measured ones, else 0."""
    columns: Mapping[str, Floats]

    @staticmethod
    def of(
        queries: Queries, columns: Mapping[str, tuple[Floats, Signs]], tops_mhz: Mapping[str, float]
    ) -> Lattice | None:
        """Lattice of all rows; None without any. Cells measured more than once hold the mean."""
        keys = queries.keys()
        if not keys:
            return None
        grids = [Grid.of(queries.take(rows), tops_mhz[gpu_type]) for (_, gpu_type), rows in keys.items()]
        sizes = [grid.measured.size for grid in grids]
        return Lattice(
            keys=tuple(keys),
            tops_mhz=np.array([tops_mhz[gpu_type] for _, gpu_type in keys]),
            axes=tuple(_Axis.of(name, [grid.axes[index] for grid in grids]) for index, name in enumerate(AXES)),
            start=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
            gap=np.concatenate([grid.gap() for grid in grids]),
            between=np.concatenate([grid.between().ravel().astype(np.float64) for grid in grids]),
            columns={
                name: np.concatenate(
                    [grid.column(values[rows], signs).ravel() for grid, rows in zip(grids, keys.values(), strict=True)]
                )
                for name, (values, signs) in columns.items()
            },
        )

    def key_index(self, queries: Queries) -> Whole:
        """Key of every row; -1 where there is none."""
        table = {key: index for index, key in enumerate(self.keys)}
        codes = np.array(
            [[table.get((model, gpu_type), -1) for gpu_type in queries.gpu_types] for model in queries.models],
            dtype=np.int64,
        ).reshape(len(queries.models), len(queries.gpu_types))
        return np.asarray(codes[queries.model, queries.gpu_type])

    def places(self, queries: Queries) -> Places:
        """Find every row."""
        found = self.key_index(queries)
        known = found >= 0
        key = np.maximum(found, 0)
        clock = np.where(np.isnan(queries.clock_mhz), self.tops_mhz[key], queries.clock_mhz)
        wanted = (clock, queries.share_pct, queries.batch)
        brackets = [axis.bracket(key, values) for axis, values in zip(self.axes, wanted, strict=True)]
        sizes = [axis.count[key] for axis in self.axes]
        base = self.start[key]
        # Most tables know one clock; their upper plane weighs nothing and is left out.
        planes = (0, 1) if int(self.axes[0].count.max()) > 1 else (0,)
        cells, weights = [], []
        covered = np.zeros(len(key))
        for corner in ((plane, row, side) for plane in planes for row in (0, 1) for side in (0, 1)):
            sides = [bracket.side(upper) for bracket, upper in zip(brackets, corner, strict=True)]
            cell = base + _cell([index for index, _ in sides], sizes)
            weight = sides[0][1] * sides[1][1] * sides[2][1]
            covered += weight * self.between[cell]
            cells.append(cell)
            weights.append(weight)
        steps = np.sqrt(brackets[0].steps ** 2 + brackets[1].steps ** 2 + brackets[2].steps ** 2)
        nearest = base + _cell([bracket.nearest() for bracket in brackets], sizes)
        inside = brackets[0].inside & brackets[1].inside & brackets[2].inside
        return Places(
            cells=tuple(cells),
            weights=tuple(weights),
            known=known,
            inside=known & inside & (covered > 1.0 - 1e-9),
            distance=np.where(known, steps + self.gap[nearest], np.inf),
            clock_mhz=clock,
            lowest_clock_mhz=self.axes[0].coordinate[self.axes[0].start[key]],
        )

    def column(self, places: Places, name: str) -> Floats:
        """A column's values; NaN without a key, or where the key has none measured."""
        cells = self.columns[name]
        total = np.where(places.known, 0.0, np.nan)
        for weight, cell in zip(places.weights, places.cells, strict=True):
            total += weight * cells[cell]
        return total


def _cell(index: list[Whole], sizes: list[Whole]) -> Whole:
    return np.asarray((index[0] * sizes[1] + index[1]) * sizes[2] + index[2])
