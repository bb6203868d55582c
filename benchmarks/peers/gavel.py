"""Gavel's cost under deadlines: the least cost of what has a deadline, beside filling the cluster for throughput."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.instances.gavel import TYPES, USD_PER_H, Jobs, gavel_jobs
from benchmarks.peers.record import Record, timed
from solvers.engines.base import Answer, Limits
from solvers.engines.registry import create
from solvers.planners.counting.rows import Rows

PEER = 1123.84
SECONDS = 20.0


def records() -> Iterator[Record]:
    """1,024 jobs of our own draw."""
    jobs = gavel_jobs(1024, seed=1)
    cheapest, seconds = timed(lambda: stints(jobs, -np.tile(USD_PER_H, (len(jobs.gpus), 1)) * jobs.gpus[:, None]))
    # Progress per dollar summed over jobs is what the other objective maximises.
    filled = stints(jobs, jobs.speed / USD_PER_H)
    assert cheapest.values is not None
    assert filled.values is not None
    yield Record(
        case="Gavel's form, 1,024 jobs on 768 GPUs, deadlines kept",
        unit="$/h",
        peer=PEER,
        same_inputs=False,
        yardstick=usd(jobs, filled),
        yardstick_is="progress per dollar, the cluster filled",
        ours=usd(jobs, cheapest),
        bound=cheapest.bound,
        unserved=0,
        seconds=seconds,
    )


def usd(jobs: Jobs, answer: Answer) -> float:
    """What the time shares of an answer cost."""
    assert answer.values is not None
    return float((answer.values.reshape(-1, len(TYPES)) * USD_PER_H * jobs.gpus[:, None]).sum())


def stints(jobs: Jobs, worth: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Answer:
    """Time shares (job x type) of most worth that keep every deadline."""
    rows = Rows()
    count = len(jobs.gpus)
    share = rows.add_columns(-worth.ravel(), np.ones(count * len(TYPES)), integer=False).reshape(count, len(TYPES))
    whole = rows.add_rows(np.full(count, -np.inf), np.ones(count))
    rows.enter(whole[:, None], share, 1.0)
    due = np.nonzero(jobs.needed > 0)[0]
    kept = rows.add_rows(jobs.needed[due], np.full(len(due), np.inf))
    rows.enter(kept[:, None], share[due], jobs.speed[due])
    room = rows.add_rows(np.full(len(TYPES), -np.inf), jobs.devices.astype(np.float64))
    rows.enter(np.broadcast_to(room, share.shape), share, jobs.gpus[:, None].astype(np.float64))
    return create("highs").solve(rows.program(), Limits(time_s=SECONDS))
