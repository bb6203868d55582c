"""Measurements of many models at once, as look-up over clock x SM share x batch in one pass over all rows.

Of every (model, GPU type) key the holes between measured cells are filled, and noise is made to respect what physics
says (latency never rises with share, for one). The arrays are flat: one per column, all keys one after another.
Interpolation is linear in batch and clock and linear in 1/share, because latency is work over share. Outside the
measured box it clamps and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.models.base import Facts, Queries

SHARE_STEP_PCT = 20.0
CLOCK_STEP = 0.1
"""Usual steps of a grid, in which distances are counted: 20 points of share, a tenth of clock, a doubling of batch."""

Signs = tuple[int, int, int]
"""How a column runs along clock, share and batch: 1 never falls, -1 never rises, 0 free."""
FREE: Signs = (0, 0, 0)
AXES = ("clock_mhz", "share_pct", "batch")


def in_steps(axis: str, values: Floats) -> Floats:
    """Coordinates in usual grid steps."""
    if axis == "share_pct":
        return values / SHARE_STEP_PCT
    logs = np.log2(np.maximum(values, 1e-3))
    return logs if axis == "batch" else logs / np.log2(1.0 + CLOCK_STEP)


def coordinate(axis: str, values: Floats) -> Floats:
    """Where values lie on the axis that is interpolated along."""
    return -100.0 / np.maximum(values, 0.1) if axis == "share_pct" else values


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One key's cells, clock x share x batch."""

    axes: tuple[Floats, Floats, Floats]
    index: NDArray[np.intp]
    """Of every row: its cell."""
    measured: Flags

    @staticmethod
    def of(queries: Queries, top_mhz: float) -> Grid:
        clock = np.where(np.isnan(queries.clock_mhz), top_mhz, queries.clock_mhz)
        pairs = [np.unique(values, return_inverse=True) for values in (clock, queries.share_pct, queries.batch)]
        axes = (pairs[0][0], pairs[1][0], pairs[2][0])
        shape = (len(axes[0]), len(axes[1]), len(axes[2]))
        index = np.ravel_multi_index((pairs[0][1], pairs[1][1], pairs[2][1]), shape)
        measured = np.zeros(shape, dtype=np.bool_)
        measured.ravel()[index] = True
        return Grid(axes=axes, index=index, measured=measured)

    def between(self) -> Flags:
        """Measured, or with measured cells on both sides along an axis."""
        found = self.measured.copy()
        for axis in range(3):
            left = np.logical_or.accumulate(self.measured, axis=axis)
            right = np.flip(np.logical_or.accumulate(np.flip(self.measured, axis), axis=axis), axis)
            found |= left & right
        return found

    def gap(self) -> Floats:
        """Steps from every cell to the nearest measured one."""
        if self.measured.all():
            return np.zeros(self.measured.size)
        from scipy.spatial import cKDTree

        steps = np.meshgrid(*(in_steps(name, axis) for name, axis in zip(AXES, self.axes, strict=True)), indexing="ij")
        points = np.stack([part.ravel() for part in steps], axis=1)
        gap: Floats = cKDTree(points[self.measured.ravel()]).query(points)[0]
        return gap

    def column(self, values: Floats, signs: Signs) -> Floats:
        """Mean of every cell's rows, holes filled, then running as the signs say; all NaN where nothing is known."""
        rows = np.isfinite(values)
        if not rows.any():
            return np.full(self.measured.shape, np.nan)
        size = self.measured.size
        counts = np.bincount(self.index[rows], minlength=size)
        sums = np.bincount(self.index[rows], weights=values[rows], minlength=size)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).reshape(self.measured.shape)
        return ordered(filled(means, self.axes), signs)


def filled(cells: Floats, axes: tuple[Floats, Floats, Floats]) -> Floats:
    """Cells without NaN, at least one being known: between known ones along batch or share; what is left follows the
    course of the nearest row of batches that is complete, scaled to what the row itself knows.
    """
    if np.isfinite(cells).all():
        return cells
    cells = cells.copy()
    shares = coordinate("share_pct", axes[1])
    for plane in cells:
        for row in plane:
            _fill_line(row, axes[2])
        for line in plane.T:
            _fill_line(line, shares)
    rows = cells.reshape(-1, len(axes[2]))
    places = np.array([(a, b) for a in in_steps("clock_mhz", axes[0]) for b in in_steps("share_pct", axes[1])])
    known = np.isfinite(rows)
    order = np.argsort(-known.sum(axis=1), kind="stable").tolist()
    rows[order[0]] = np.interp(axes[2], axes[2][known[order[0]]], rows[order[0]][known[order[0]]])
    for done, row in enumerate(order[1:], start=1):
        if known[row].all():
            continue
        away = np.linalg.norm(places[order[:done]] - places[row], axis=1)
        model = rows[order[int(np.argmin(away))]]
        here = known[row]
        base = float(model[here].sum())
        scale = float(rows[row][here].sum()) / base if base > 0 else 1.0
        rows[row] = np.where(here, rows[row], model * scale)
    return rows.reshape(cells.shape)


def _fill_line(line: Floats, axis: Floats) -> None:
    known = np.isfinite(line)
    if known.all() or known.sum() < 2:
        return
    inside = ~known & (axis > axis[known].min()) & (axis < axis[known].max())
    line[inside] = np.interp(axis[inside], axis[known], line[known])


def ordered(cells: Floats, signs: Signs) -> Floats:
    """The middle between the lowest ordered cells above and the highest ordered ones below: ordered, and unchanged
    where nothing disagreed.
    """
    if not any(signs):
        return cells
    above, below = monotone_bounds(cells, signs)
    return (above + below) / 2.0


def monotone_bounds(cells: Floats, signs: Signs) -> tuple[Floats, Floats]:
    """The lowest ordered cells above and the highest below; both are the cells themselves where they are ordered."""
    above, below = cells, cells
    for axis, sign in enumerate(signs):
        if sign:
            above = _flipped(np.maximum.accumulate(_flipped(above, axis, sign), axis=axis), axis, sign)
            below = _flipped(np.minimum.accumulate(_flipped(below, axis, -sign), axis=axis), axis, -sign)
    return above, below


def _flipped(cells: Floats, axis: int, sign: int) -> Floats:
    return np.flip(cells, axis) if sign < 0 else cells


# --- All keys


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
        return (self.high, self.weight) if upper else (self.low, 1.0 - self.weight)

    def nearest(self) -> Whole:
        return np.where(self.weight > 0.5, self.high, self.low)


class _Axis:
    """Rising values of every key, one key after another. `coded` rises over all keys, so one search serves all."""

    def __init__(self, name: str, values: list[Floats]) -> None:
        self.name, self.count = name, np.array([len(item) for item in values], dtype=np.int64)
        flat = np.concatenate(values)
        self.coordinate, self.steps = coordinate(name, flat), in_steps(name, flat)
        self.low = float(self.coordinate.min())
        self.span = 2.0 * float(self.coordinate.max() - self.low) + 1.0
        self.coded = self.coordinate - self.low + np.repeat(np.arange(len(values)), self.count) * self.span
        self.start = np.concatenate([[0], np.cumsum(self.count)[:-1]]).astype(np.int64)

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
            axes=tuple(_Axis(name, [grid.axes[index] for grid in grids]) for index, name in enumerate(AXES)),
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
