"""The lattice that surfaces are compiled on: its axes, what is monotone on it, and interpolation between its nodes.

Nodes are usual ones and measured ones, within a budget. Latency is close to linear in batch, in 1/share and in
slowness, so the axes are these and interpolation is linear, which keeps what is monotone monotone.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.models.belief.points import Points

Axes = tuple[Floats, Floats, Floats]
"""Batch, 1/share and slowness, each rising."""

_POWERS: Floats = np.exp2(np.arange(13, dtype=np.float64))
_BATCHES = np.unique(np.concatenate([_POWERS, 1.5 * _POWERS[1:-1]]))
_SHARES = np.concatenate([np.arange(1, 5), np.arange(5, 101, 5)]) / 100
_SHARES_CLOCKED = np.array([1, 2, 3, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100]) / 100
_SLOWNESSES = np.array([1.0, 1.3, 2.0, 4.0, 10.0])
_NODES_MAX = 3000
_AXIS_MAX = (36, 20, 12)
_ON_NODE = 1e-6


def axes(points: Points, *, shared: bool, clocked: bool) -> Axes:
    """The axes for a curve with these points; without shares or clocks, those have one node."""
    if not shared:
        return _axis(_BATCHES, points.batch, _NODES_MAX), np.ones(1), np.ones(1)
    if clocked:
        narrow = _axis(_SHARES_CLOCKED, points.share, _AXIS_MAX[1])
        slow = _axis(_SLOWNESSES, points.slowness, _AXIS_MAX[2])
        usual = _POWERS
    else:
        narrow, slow, usual = _axis(_SHARES, points.share, _AXIS_MAX[0]), np.ones(1), _BATCHES
    room = max(len(usual) + 2, _NODES_MAX // (len(narrow) * len(slow)))
    return _axis(usual, points.batch, room), np.sort(1 / narrow), slow


def _axis(usual: Floats, seen: Floats, limit: int) -> Floats:
    """Usual nodes and those measured; of too many, measured ones are thinned evenly."""
    own = np.unique(seen.round(9))
    room = max(2, limit - len(usual))
    if len(own) > room:
        own = own[np.unique(np.linspace(0, len(own) - 1, room).round().astype(np.int64))]
    return np.unique(np.concatenate([usual, own]))


def configurations(of: Axes, wanted: Whole | slice) -> tuple[Floats, Floats, Floats]:
    """Batch, share and slowness of some nodes."""
    grid = np.meshgrid(*of, indexing="ij")
    return grid[0].ravel()[wanted], 1 / grid[1].ravel()[wanted], grid[2].ravel()[wanted]


def nearest(of: Axes, points: Points) -> Whole:
    """Number of the node nearest to each point."""
    found = np.zeros(len(points), dtype=np.int64)
    for axis, wanted in zip(of, (points.batch, 1 / points.share, points.slowness), strict=True):
        found = found * len(axis) + np.abs(np.log(axis / wanted[:, None])).argmin(axis=1)
    return found


def bounds(values: Floats, rises: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """The lowest monotone surface above and the highest below; both are the surface itself where it is monotone."""
    above, below = values, values
    for axis, way in enumerate(rises):
        if values.shape[axis] < 2:
            continue
        highest = np.flip(above, axis) if way < 0 else above
        lowest = below if way < 0 else np.flip(below, axis)
        highest = np.maximum.accumulate(highest, axis=axis)
        lowest = np.minimum.accumulate(lowest, axis=axis)
        above = np.flip(highest, axis) if way < 0 else highest
        below = lowest if way < 0 else np.flip(lowest, axis)
    return above, below


def lookup(of: Axes, table: Floats, at: tuple[Floats, Floats, Floats]) -> tuple[Floats, Flags]:
    """Rows of a table with a row per node, interpolated at configurations (batch, share, slowness), and which of them
    are nodes. Beyond the largest batch the last step goes on; narrower shares and slower clocks than the last node's
    are answered as the last.
    """
    index, parts, strides = np.zeros(len(at[0]), dtype=np.int64), [], []
    on_node = np.ones(len(at[0]), dtype=np.bool_)
    sizes = [len(axis) for axis in of]
    for number, (axis, values) in enumerate(zip(of, (at[0], 1 / at[1], at[2]), strict=True)):
        if len(axis) == 1:
            continue
        cell = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
        part = (values - axis[cell]) / (axis[cell + 1] - axis[cell])
        on_node &= (np.abs(part) < _ON_NODE) | (np.abs(part - 1) < _ON_NODE)
        stride = int(np.prod(sizes[number + 1 :]))
        index += cell * stride
        parts.append(np.clip(part, 0.0, np.inf if number == 0 else 1.0))
        strides.append(stride)
    found = np.zeros((len(at[0]), table.shape[1]))
    for corner in range(2 ** len(parts)):
        weight, node = np.ones(len(at[0])), index
        for number, (part, stride) in enumerate(zip(parts, strides, strict=True)):
            upper = corner >> number & 1
            weight = weight * (part if upper else 1 - part)
            node = node + upper * stride
        found += weight[:, None] * table[node]
    return found, on_node
