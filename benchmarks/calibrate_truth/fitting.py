"""One search for a network's numbers, by the simulated world's own law of a batch, whatever the source.

Owns how cells of a published table become coefficients: least squares on the logarithm of time, wild cells discounted,
from a few beginnings; the best is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import least_squares

from solvers.sim.truth.catalogue import GpuTruth, ModelTruth
from solvers.sim.truth.truth import Resident, parts

FITTED = ("host_ms", "io_ms_per_input", "work_ms_sm_per_input", "sms_needed_first", "spread")
TRAFFIC = ("traffic_gb_weights", "traffic_gb_per_input")
"""Searched for within factors of what a network's size tells."""
WILD = 0.05
"""Errors beyond this part of a time are discounted."""
WIDTH_MAX = 400.0


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the search may go from what a network's size tells of its traffic, how little work an input may be, and
    how narrow kernels: a batch of one and a host that is slower than it tell nothing of narrower ones.
    """

    width_min: float = 4.0
    spread_max: float = 4.0
    traffic_min: float = 0.3
    traffic_max: float = 4.0
    work_min: float = 1e-2


USUAL = Reach()
Where = tuple[GpuTruth, int, int]
"""GPU or slice, share of it, batch."""


def batch_ms(model: ModelTruth, where: Where) -> float:
    gpu, share, batch = where
    one = Resident(model=model.name, share_pct_sm=share, batch=batch)
    return parts(gpu, model, one, gpu.clock_mhz_sm_max).total_ms


def fitted(base: ModelTruth, cells: Mapping[Where, float], reach: Reach = USUAL) -> ModelTruth:
    """The network with the numbers that tell these times best."""
    times = np.array(list(cells.values()))
    gpu, share, batch = largest = max(cells, key=lambda where: cells[where] / where[2])
    work = 0.8 * cells[largest] / batch * gpu.sm_count * share / 100 * gpu.sm_speed
    known = np.maximum([base.traffic_gb_weights, base.traffic_gb_per_input], [1e-3, 0.02])
    low = np.log([1e-2, 1e-4, reach.work_min, reach.width_min, 1.01, *(reach.traffic_min * known)])
    high = np.log([1e3, 1e2, 1e5, WIDTH_MAX, reach.spread_max, *(reach.traffic_max * known)])

    def told(point: np.ndarray) -> ModelTruth:
        return replace(base, **dict(zip(FITTED + TRAFFIC, map(float, np.exp(point)), strict=True)))

    def residual(point: np.ndarray) -> np.ndarray:
        model = told(point)
        return np.log(np.array([batch_ms(model, where) for where in cells]) / times)

    hosts = gpu.host_speed * np.array([0.3 * times.min(), 0.95 * times.min(), 0.95 * np.median(times)])
    tries = [
        least_squares(
            residual,
            np.clip(np.log([host, 0.02, work, width, 2.5, *known]), low + 1e-6, high - 1e-6),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=WILD,
            diff_step=1e-4,
        )
        for host, width in product(hosts, (6.0, 60.0))
    ]
    return told(min(tries, key=lambda found: found.cost).x)


def row(model: ModelTruth) -> str:
    """The fitted numbers as the catalogue has them."""
    return " ".join(f"{getattr(model, name):.4g}" for name in FITTED + TRAFFIC)


def errors(model: ModelTruth, cells: Mapping[Where, float]) -> np.ndarray:
    return np.array([abs(batch_ms(model, where) / time_ms - 1.0) for where, time_ms in cells.items()])
