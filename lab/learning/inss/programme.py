"""What InSS' actor is compared with: the integer programme of problem (1), whose neighbours are a caution on all times.

Owns the columns (model, GPU, units, batch) of a setting at given rates and the best choice of them. The programme is
linear, so it cannot know who meets whom: it is solved under several cautions. It refuses to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from lab.learning.inss.truth import BATCH_MAX, Truth
from solvers.control.bisect import task_latency_ms
from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.policies.inss.actor import NOWHERE
from solvers.policies.inss.placing import exact
from solvers.problems.knapsack import Knapsack

CAUTIONS = (1.0, 1.2, 1.4, 1.6, 2.0)
"""Factors on everybody's times."""
GAP = 1e-4
NODES_MAX = 5000.0


@dataclass(frozen=True, slots=True)
class Placement:
    """By model; NOWHERE and no units for whom there is no column left."""

    places: tuple[int, ...]
    units: tuple[int, ...]


def optimum(truth: Truth, rates_rps: Sequence[float], caution: float) -> Placement:
    """The best placement while everybody takes `caution` times as long as alone."""
    problem, units = _columns(truth, rates_rps, caution)
    allowed = np.ones(len(problem), dtype=np.bool_)
    chosen = exact(problem, allowed, create("highs"), Limits(work=NODES_MAX, gap=GAP))
    places, given = [NOWHERE] * len(rates_rps), [0] * len(rates_rps)
    for column in np.flatnonzero(allowed if chosen is None else chosen):
        model = int(problem.model[column])
        places[model], given[model] = int(problem.gpu[column]), units[column]
    return Placement(tuple(places), tuple(given))


def _columns(truth: Truth, rates_rps: Sequence[float], caution: float) -> tuple[Knapsack, list[int]]:
    shape, highest = truth.shape, truth.highest_rps()
    rows: list[tuple[int, int, float, float, float]] = []
    units: list[int] = []
    every = product(range(len(rates_rps)), range(len(shape.units)), range(1, shape.levels + 1))
    for model, gpu, size in every:
        runs = (model, truth.kind_of[gpu], size)
        batch = _batch(truth, runs, rates_rps[model], caution) if size <= shape.units[gpu] else None
        if batch is None:
            continue
        worth = 1000.0 * batch / (truth.alone_ms(*runs)[batch - 1] * caution) / highest[model]
        rows.append((model, gpu, float(size) / shape.units[gpu], truth.memory_mib(model, batch), worth))
        units.append(size)
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    problem = Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=table[:, 1].astype(np.int64),
        share_pct=table[:, 2],
        memory_mib=table[:, 3],
        throughput_rps=table[:, 4],
        served=np.ones(len(table)),
        wanted=np.ones(len(rates_rps), dtype=np.int64),
        share_room_pct=np.ones(len(shape.units)),
        memory_room_mib=np.array(shape.memory_mib),
    )
    return problem, units


def _batch(truth: Truth, runs: tuple[int, int, int], rate_rps: float, caution: float) -> int | None:
    """The largest batch that keeps limit and rate; throughput rises with the batch."""
    alone, limit = truth.alone_ms(*runs), truth.setting.served[runs[0]].limit_ms
    for batch in range(BATCH_MAX, 0, -1):
        took = alone[batch - 1] * caution
        timely = task_latency_ms(batch, 1, took, rate_rps, took) <= limit
        if timely and 1000.0 * batch / took >= rate_rps:
            return batch
    return None
