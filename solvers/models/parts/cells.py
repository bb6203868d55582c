"""Cells of one model on one GPU type over clock x SM share x batch, before they become part of a lattice.

Holes between measured cells are filled, and noise is made to respect what physics says (latency never rises with share,
for one). Between cells `lattice` interpolates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.models.base import Queries

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
