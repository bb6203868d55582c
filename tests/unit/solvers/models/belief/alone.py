"""Made-up replicas alone, for tests of the belief: known shapes with known scatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Queries, Samples
from solvers.models.belief import forms

NATURAL = np.array([4.0, 0.4, 0.03, 0.9, 0.3, 0.5, 0.5, 3.0, 8.0, 0.8])
BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0)
SHARES = (10.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def learned(natural: Floats) -> Floats:
    """Parameters in units on the scale that they are learned on."""
    values = np.asarray(natural, dtype=np.float64)
    found = np.log(np.maximum(values, 1e-12))
    growth = np.clip(values[..., forms.GROWTH], 1e-6, 1 - 1e-6)
    found[..., forms.GROWTH] = np.log(growth / (1 - growth))
    return found


def parameters(size: float = 1.0, host: float = 1.0) -> Floats:
    """Parameters on the learned scale of a network `size` times as large with a host `host` times as slow."""
    natural = NATURAL.copy()
    natural[3:6] *= size
    natural[0] *= host
    return learned(natural)


def grid(models: Sequence[str], gpu_type: str = "v100", clock_mhz: Sequence[float] = (np.nan,)) -> Queries:
    """Every batch, share and clock of every model."""
    rows = [
        (model, batch, share, clock) for model in models for batch in BATCHES for share in SHARES for clock in clock_mhz
    ]
    columns = np.array([row[1:] for row in rows])
    return Queries.of([row[0] for row in rows], gpu_type, columns[:, 0], columns[:, 1], columns[:, 2])


def truth(queries: Queries, clock_mhz_max: float = 1500.0) -> Floats:
    """Latency in ms: the k-th model is 1.5^k times as large."""
    slowness = clock_mhz_max / np.where(np.isnan(queries.clock_mhz), clock_mhz_max, queries.clock_mhz)
    found = np.zeros(len(queries))
    for index in range(len(queries.models)):
        rows = queries.model == index
        at = queries.batch[rows], queries.share_pct[rows] / 100, slowness[rows]
        found[rows] = np.exp(forms.log_latency(parameters(1.5**index), *at))
    return found


def samples(models: Sequence[str], scatter: float = 0.01, seed: int = 1, **others: float) -> Samples:
    """The whole grid, measured with scatter; `others` are constant columns."""
    queries = grid(models)
    noise = np.random.default_rng(seed).normal(0.0, scatter, len(queries))
    columns = {name: np.full(len(queries), number) for name, number in others.items()}
    return Samples.of(queries, truth(queries) * np.exp(noise), **columns)
