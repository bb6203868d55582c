"""What a user waits: quantiles of the latency of a batching server under Poisson and bursty arrivals.

Owns the look-up of a table that simulates single requests (`benchmarks/build_queue_table.py`). A server holds at most
`batch` inputs at once; a batch of k takes `fixed_ms + per_input_ms * k`. When it is free and something waits, it starts
as soon as the batch is full or `wait_ms` after it could have started (0: at once). Burstiness is the dispersion of
arrivals, variance over mean of counts: 1 for Poisson, above for bursts. Latency is end to end: waiting for the batch
to fill and for the server, then execution. It refuses utilisations beyond the table: latency there is infinite.

The answer grows with load, bursts and percentile by construction. Everything is vectorised.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

ZERO_LOG2 = -8.0
STEP_LOG2 = 1 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Grid of the table, in the order of its dimensions; times in executions of a full batch."""

    batch: tuple[float, ...]
    dispersion: tuple[float, ...]
    fixed: tuple[float, ...]
    """Part of a full batch's time that does not shrink with the number of inputs."""
    utilisation: tuple[float, ...]
    """Arrivals over what full batches back to back can serve."""
    wait: tuple[float, ...]
    percentile: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the table."""
        axes = (self.batch, self.dispersion, self.fixed, self.utilisation, self.wait, self.percentile)
        return tuple(len(axis) for axis in axes)


AXES = Axes(
    batch=(1, 2, 4, 8, 16, 32, 64, 128),
    dispersion=(1, 2, 4, 8),
    fixed=(0.0, 0.06, 0.2, 0.5, 1.0),
    utilisation=(0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96),
    wait=(0.0, 0.5, 1.5, 4.0, 8.0),
    percentile=(50, 90, 95, 98, 99, 99.9),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Batching servers, element-wise (arrays broadcast against each other)."""

    batch: ArrayLike
    fixed_ms: ArrayLike
    per_input_ms: ArrayLike
    wait_ms: ArrayLike = 0.0
    dispersion: ArrayLike = 1.0


@cache
def _table() -> Floats:
    from solvers.models.serving.queue_table import PACKED

    planes = np.frombuffer(zlib.decompress(base64.b85decode(PACKED)), dtype=np.uint8).reshape(2, -1)
    deltas = np.ascontiguousarray(planes.T).view("<i2").ravel().astype(np.int64)
    return np.asarray(np.cumsum(deltas).reshape(AXES.shape) * STEP_LOG2 + ZERO_LOG2)


def _coordinate(axis: tuple[float, ...], wanted: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Lower node and the weight of the upper one, clamped to the axis."""
    nodes = np.asarray(axis)
    low = np.clip(np.searchsorted(nodes, wanted, side="right") - 1, 0, len(nodes) - 2)
    return low, np.clip((wanted - nodes[low]) / (nodes[low + 1] - nodes[low]), 0.0, 1.0)


def _scaled(axis: tuple[float, ...], wanted: Floats, scale: np.ufunc) -> tuple[NDArray[np.intp], Floats]:
    return _coordinate(tuple(float(scale(node)) for node in axis), scale(wanted))


@dataclass(frozen=True, slots=True)
class _Place:
    """Servers on the table's axes, all but utilisation and percentile."""

    batch: Floats
    full_ms: Floats
    fixed: Floats
    wait: Floats
    dispersion: Floats

    @staticmethod
    def of(server: Server) -> _Place:
        numbers = (server.batch, server.fixed_ms, server.per_input_ms, server.wait_ms, server.dispersion)
        columns = np.broadcast_arrays(*(np.asarray(number, dtype=np.float64) for number in numbers))
        batch, fixed_ms, per_input_ms, wait_ms, dispersion = columns
        full_ms = fixed_ms + per_input_ms * batch
        return _Place(batch, full_ms, fixed_ms / full_ms, wait_ms / full_ms, dispersion)


def _fixed_coordinate(place: _Place) -> tuple[NDArray[np.intp], Floats]:
    """On the scale of the time that a batch of one takes, which rules light load."""
    nodes = np.asarray(AXES.fixed)
    low = np.clip(np.searchsorted(nodes, place.fixed, side="right") - 1, 0, len(nodes) - 2)
    single, below, above = (
        np.log2(part + (1.0 - part) / np.maximum(place.batch, 1.0 + 1e-9))
        for part in (place.fixed, nodes[low], nodes[low + 1])
    )
    return low, np.clip(np.where(above > below, (single - below) / np.maximum(above - below, 1e-12), 0.0), 0.0, 1.0)


def _look_up(place: _Place, utilisation: Floats, percentile: float) -> Floats:
    """Latency in executions of a full batch at utilisations within the table."""
    quantile = 1.0 - min(percentile, 99.9) / 100.0
    level, part = _coordinate(
        tuple(-math.log(1.0 - node / 100.0) for node in AXES.percentile), np.asarray(-math.log(quantile))
    )
    plane = (1.0 - part) * _table()[..., level] + part * _table()[..., level + 1]
    ends = (
        _scaled(AXES.batch, place.batch, np.log2),
        _scaled(AXES.dispersion, place.dispersion, np.log2),
        _fixed_coordinate(place),
        # Queues grow like 1 / (1 - utilisation), so that is the scale on which they are nearly straight.
        _coordinate(tuple(-math.log1p(-node) for node in AXES.utilisation), -np.log1p(-utilisation)),
        _coordinate(AXES.wait, place.wait),
    )
    shape = AXES.shape[:-1]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    flat = plane.ravel()
    base = sum((low * stride for (low, _), stride in zip(ends, strides, strict=True)), start=np.zeros((), np.intp))
    total = np.zeros(np.broadcast(utilisation, place.batch).shape)
    for corner in product((0, 1), repeat=len(ends)):
        weight: Floats | float = 1.0
        for side, (_, upper) in zip(corner, ends, strict=True):
            weight = weight * (upper if side else 1.0 - upper)
        offset = sum(side * stride for side, stride in zip(corner, strides, strict=True))
        total += weight * flat[base + offset]
    # Beyond the longest tabulated wait, every further moment counts whole until the batch is full.
    filling = (place.batch - 1.0) / np.maximum(utilisation * place.batch, 1e-12)
    beyond = np.maximum(np.minimum(place.wait, filling) - AXES.wait[-1], 0.0)
    return np.asarray(np.exp2(total) + beyond)


def latency_ms(server: Server, rate_rps: ArrayLike, percentile: float) -> Floats:
    """End-to-end latency at a percentile (50 to 99.9) of servers under `rate_rps`; infinite beyond the table's load."""
    place = _Place.of(server)
    rate = np.asarray(rate_rps, dtype=np.float64)
    utilisation = rate / 1000.0 * place.full_ms / place.batch
    within = np.clip(utilisation, AXES.utilisation[0], AXES.utilisation[-1])
    found = _look_up(place, within, percentile) * place.full_ms
    return np.where(utilisation <= AXES.utilisation[-1], found, np.inf)


def rate_rps_max(server: Server, limit_ms: ArrayLike, percentile: float, utilisation_max: float = 0.96) -> Floats:
    """The highest rate whose latency at the percentile stays within the limit; 0 where none does."""
    place = _Place.of(server)
    limit = np.asarray(limit_ms, dtype=np.float64) / place.full_ms
    nodes = [node for node in AXES.utilisation if node < utilisation_max] + [min(utilisation_max, AXES.utilisation[-1])]
    latencies = np.stack([_look_up(place, np.full(place.batch.shape, node), percentile) for node in nodes])
    # A long wait for a batch makes light load slow: latency may first fall with the rate. The last kept node counts.
    kept = latencies <= limit
    last = len(nodes) - 1 - np.argmax(kept[::-1], axis=0)
    after = np.minimum(last + 1, len(nodes) - 1)
    low, high = (np.take_along_axis(latencies, row[None], axis=0)[0] for row in (last, after))
    part = np.where(high > low, (limit - low) / np.where(high > low, high - low, 1.0), 0.0)
    levels = np.asarray(nodes)
    utilisation = levels[last] + np.clip(part, 0.0, 1.0) * (levels[after] - levels[last])
    return np.where(kept.any(axis=0), utilisation * place.batch / place.full_ms * 1000.0, 0.0)


def dispersion_of(counts: ArrayLike) -> float:
    """Variance over mean of arrivals per window, at least 1 (too few counts say Poisson)."""
    numbers = np.asarray(counts, dtype=np.float64)
    if len(numbers) < 2 or numbers.mean() <= 0:
        return 1.0
    return max(1.0, float(numbers.var(ddof=1) / numbers.mean()))
