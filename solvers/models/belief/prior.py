"""What is believed of a model's shape before its own measurements, and how measurements change that.

Owns the Gaussian prior over the shape's parameters (on their learned scale), the fit of one model to its samples under
a prior, and the population that many fitted models make. It refuses to know names of models or where priors are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.models.base import Flags, Floats, Origin
from solvers.models.belief import shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePrior:
    """A Gaussian over the shape's parameters on their learned scale, in the order of `shape.NAMES`.

    `source` says in words where it comes from.
    """

    mean: Floats
    covariance: Floats
    origin: Origin
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Measured latencies of one model on one GPU type; `share` a fraction, `slowness` highest clock over clock."""

    batch: Floats
    share: Floats
    slowness: Floats
    latency_ms: Floats

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, rows: Flags) -> Cells:
        """Some of them."""
        return Cells(
            batch=self.batch[rows],
            share=self.share[rows],
            slowness=self.slowness[rows],
            latency_ms=self.latency_ms[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFit:
    """Posterior of the parameters (Laplace), and the residuals of log latency that the shape leaves."""

    mean: Floats
    covariance: Floats
    residual: Floats
    noise: float


# Of any network on any GPU, times relative to one batch's typical latency: weak, but enough to fit a single cell.
_WEAK_MEAN = np.array([-0.9, -1.3, -3.4, -1.5, -2.6, -0.7, 0.2, 1.2, 2.2, -0.22])
_WEAK_SPREAD = np.array([1.2, 1.2, 1.6, 1.2, 1.5, 1.2, 1.0, 0.45, 0.45, 0.3])


def weak_prior(latency_ms_typical: float, scale_spread: float = 1.0) -> ShapePrior:
    """What holds of any model: all its times are some part of a typical latency, known within `scale_spread` (of the
    logarithm).
    """
    mean, times = _WEAK_MEAN.copy(), np.zeros(shape.COUNT)
    times[shape.TIMES] = 1.0
    mean[shape.TIMES] += np.log(latency_ms_typical)
    covariance = np.diag(_WEAK_SPREAD**2) + scale_spread**2 * np.outer(times, times)
    return ShapePrior(mean=mean, covariance=covariance, origin=Origin.SCALED, source="any model")


def fit_shape(cells: Cells, prior: ShapePrior, noise: float = 0.03) -> ShapeFit:
    """The most probable parameters given the cells, robust against single wild ones. `noise` is the standard deviation
    of log latency about the shape.
    """
    from scipy.optimize import least_squares

    root = np.linalg.cholesky(prior.covariance + 1e-9 * np.eye(shape.COUNT))
    target = np.log(cells.latency_ms)

    def misfit(step: Floats) -> Floats:
        believed = shape.log_latency(prior.mean + root @ step, cells.batch, cells.share, cells.slowness)
        error = (believed - target) / noise
        # Beyond three deviations a cell pulls ever less (Huber), the prior keeps its full weight.
        far = np.abs(error) > 3.0
        error = np.where(far, np.sign(error) * np.sqrt(np.maximum(6.0 * np.abs(error) - 9.0, 0.0)), error)
        return np.concatenate([error, step])

    starts = (np.zeros(shape.COUNT), np.linalg.solve(root, _host_bound(cells, prior.mean) - prior.mean))
    found = min((least_squares(misfit, start, max_nfev=80) for start in starts), key=lambda found: float(found.cost))
    mean = prior.mean + root @ found.x
    spread = root @ np.linalg.inv(found.jac.T @ found.jac) @ root.T
    residual = target - shape.log_latency(mean, cells.batch, cells.share, cells.slowness)
    return ShapeFit(
        mean=mean, covariance=(spread + spread.T) / 2, residual=residual, noise=float(np.sqrt(np.mean(residual**2)))
    )


def _host_bound(cells: Cells, mean: Floats) -> Floats:
    """Where the search starts a second time: the fastest cell is the host's time, since a device that is never full
    explains a level latency nearly as well and would be the answer too often.
    """
    start = mean.copy()
    start[0] = np.log(cells.latency_ms.min())
    start[shape.WORK] = np.log(np.median(cells.latency_ms / cells.batch) / 4.0)
    start[shape.FILL], start[shape.GROWTH] = np.log(0.5), 0.0
    return start


def population(fits: list[ShapeFit], weak: ShapePrior, weight: float = 3.0) -> ShapePrior:
    """Mean and covariance over models, pulled to the weak prior as if `weight` models had told it."""
    means = np.stack([fit.mean for fit in fits])
    centre = (means.sum(axis=0) + weight * weak.mean) / (len(fits) + weight)
    apart = means - centre
    shift = np.outer(weak.mean - centre, weak.mean - centre)
    within = sum((fit.covariance for fit in fits), np.zeros((shape.COUNT, shape.COUNT)))
    covariance = (apart.T @ apart + 0.5 * within + weight * (weak.covariance + shift)) / (len(fits) + weight)
    return ShapePrior(
        mean=centre, covariance=covariance, origin=Origin.SCALED, source=f"population of {len(fits)} models"
    )
