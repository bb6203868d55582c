"""Makes `solvers/models/serving/queue_table.py`: latencies of a batching server, by simulating single requests.

Every cell of the table is one run. Time is counted in executions of a full batch; a batch of k of b takes
`fixed + (1 - fixed) * k / b`. A server that is free and has waiting requests starts when the batch is full or `wait`
after it could have started. Bursts arrive at Poisson moments and bring a geometric number of requests at once, so that
counts over any window have variance / mean = `dispersion`. The same seed gives the same table.
"""

from __future__ import annotations

import base64
import sys
import zlib
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from solvers.models.serving.queueing import AXES, STEP_LOG2, ZERO_LOG2, Axes

Floats = NDArray[np.float64]
TARGET = Path(__file__).parent.parent / "solvers" / "models" / "serving" / "queue_table.py"
SEED = 20_240
LINE = 114
REQUESTS = 30_000
"""Of one run."""
WARM_PART = 0.25
"""Of the requests of a run, at its start, that are not counted."""


def runs_wanted(utilisation: float) -> int:
    """Long queues forget slowly, so busy servers are watched in more runs."""
    return max(6, round(2.0 / (1.0 - utilisation)))


def arrivals(rng: np.random.Generator, rate: Floats, dispersion: float, count: int) -> Floats:
    """Moments of `count` requests for every rate (rows), bursts included."""
    size_mean = (dispersion + 1.0) / 2.0
    gaps = rng.exponential(size_mean, (len(rate), count))
    if size_mean > 1.0:
        # A request opens a new burst with chance 1 / size_mean; the others come with the one before.
        gaps = np.where(rng.random(gaps.shape) < 1.0 / size_mean, gaps, 0.0)
    return np.asarray(np.cumsum(gaps, axis=1) / rate[:, None])


def finished(arrived: Floats, batch: int, fixed: Floats, wait: Floats) -> Floats:
    """When each request is done; rows are servers."""
    rows, count = arrived.shape
    span = arrived.max() * 2.0 + 1e3
    flat = (arrived + np.arange(rows)[:, None] * span).ravel()
    done = np.zeros_like(arrived)
    head, free = np.zeros(rows, dtype=np.int64), np.zeros(rows)
    active = np.arange(rows)
    while len(active):
        first = head[active]
        able = np.maximum(free[active], arrived[active, first])
        last = first + batch - 1
        full = np.where(last < count, arrived[active, np.minimum(last, count - 1)], np.inf)
        start = np.maximum(able, np.minimum(full, able + wait[active]))
        waiting = np.searchsorted(flat, start + active * span, side="right") - active * count - first
        taken = np.minimum(batch, waiting)
        end = start + fixed[active] + (1.0 - fixed[active]) * taken / batch
        done[active, first] = end
        free[active], head[active] = end, first + taken
        active = active[head[active] < count]
    # Requests of a batch end together, and later batches end later.
    return np.asarray(np.maximum.accumulate(done, axis=1))


def quantiles(axes: Axes, batch: int, dispersion: float, rng: np.random.Generator) -> Floats:
    """Latency by (fixed, utilisation, wait, percentile)."""
    runs = [(column, load) for column, load in enumerate(axes.utilisation) for _ in range(runs_wanted(load))]
    moments = arrivals(rng, np.array([load for _, load in runs]) * batch, dispersion, REQUESTS)
    found = np.zeros((len(axes.fixed), len(axes.utilisation), len(axes.wait), len(axes.percentile)))
    for (row, fixed), (deep, wait) in product(enumerate(axes.fixed), enumerate(axes.wait)):
        # All servers see the same arrivals, which keeps differences between them smooth.
        done = finished(moments, batch, np.full(len(runs), fixed), np.full(len(runs), wait))
        latency = (done - moments)[:, int(WARM_PART * REQUESTS) :]
        for column in range(len(axes.utilisation)):
            seen = latency[[index for index, run in enumerate(runs) if run[0] == column]]
            found[row, column, deep] = np.quantile(seen, np.array(axes.percentile) / 100.0)
        if batch == 1:
            found[:] = found[:1, :, :1]
            break
    return found


def build() -> NDArray[np.uint16]:
    """The whole table as steps of the logarithm."""
    axes = AXES
    table = np.zeros(axes.shape)
    for (i, batch), (j, dispersion) in product(enumerate(axes.batch), enumerate(axes.dispersion)):
        rng = np.random.default_rng([SEED, i, j])
        table[i, j] = quantiles(axes, int(batch), dispersion, rng)
        print(f"batch {batch:g}, dispersion {dispersion:g}", flush=True)
    # More load, more bursts and a higher percentile never shorten a wait; what says otherwise is noise.
    table = np.maximum.accumulate(table, axis=1)
    table = np.maximum.accumulate(table, axis=5)
    steps = np.rint((np.log2(table) - ZERO_LOG2) / STEP_LOG2)
    return np.asarray(steps, dtype=np.uint16)


def main() -> int:
    """Write the module."""
    steps = build()
    deltas = np.diff(steps.astype(np.int32).ravel(), prepend=0).astype("<i2")
    planes = np.ascontiguousarray(deltas.view(np.uint8).reshape(-1, 2).T)
    text = base64.b85encode(zlib.compress(planes.tobytes(), 9)).decode()
    lines = [text[start : start + LINE] for start in range(0, len(text), LINE)]
    body = "\n".join(f'    "{line}"' for line in lines)
    TARGET.write_text(
        '"""Latency quantiles of a batching server, packed. Made by benchmarks/build_queue_table.py."""\n\n'
        "from __future__ import annotations\n\n"
        f"PACKED = (\n{body}\n)\n",
        encoding="utf-8",
    )
    print(f"{TARGET.name}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
