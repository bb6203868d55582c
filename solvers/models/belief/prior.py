"""What is believed of a model's shape before its own measurements, and how measurements change that.

A prior is a Gaussian over the shape's parameters on their learned scale; one model is fitted to its samples under a
prior, and many fitted models make a population.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.models.base import Origin
from solvers.models.belief import shape

LogValue = Callable[[Floats, Floats, Floats, Floats], Floats]
"""(parameters, batch, share, slowness) -> logarithm of a quantity; the parameters' last axis runs over their names and
what comes before it broadcasts.
"""

_STEP = 1e-4
_FAR = 2.0
_NOISE = 0.03
"""Standard deviation of the logarithm about a form, for the search only, where nothing better is known; residuals are
learned later.
"""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to search for parameters beside the prior's mean, and what the form leaves of a measured logarithm."""

    starts: Sequence[Floats] = ()
    noise: float = _NOISE


WIDE = Search()


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


def sensitivity(log_value: LogValue, parameters: Floats, at: tuple[Floats, Floats, Floats]) -> Floats:
    """Derivatives of the logarithm by the parameters, one row per configuration (batch, share, slowness)."""
    steps = _STEP * np.eye(len(parameters))
    around = (parameters + np.concatenate([steps, -steps]))[:, None, :]
    values = log_value(around, *at)
    return np.asarray((values[: len(parameters)] - values[len(parameters) :]).T / (2 * _STEP))


def fit_parameters(
    log_value: LogValue,
    at: tuple[Floats, Floats, Floats],
    target: Floats,
    prior: ShapePrior,
    search: Search = WIDE,
) -> ShapeFit:
    """The most probable parameters of any form given logarithms measured at configurations, robust against single wild
    ones.
    """
    from scipy.optimize import least_squares

    count, noise = len(prior.mean), search.noise
    root = np.linalg.cholesky(prior.covariance + 1e-9 * np.eye(count))

    def misfit(step: Floats) -> Floats:
        error = (log_value(prior.mean + root @ step, *at) - target) / noise
        # Beyond some deviations a cell pulls ever less (Huber), the prior keeps its full weight.
        far = np.abs(error) > _FAR
        bent = np.sign(error) * np.sqrt(np.maximum(2 * _FAR * np.abs(error) - _FAR**2, 0.0))
        return np.concatenate([np.where(far, bent, error), step])

    def slope(step: Floats) -> Floats:
        parameters = prior.mean + root @ step
        error = np.abs(log_value(parameters, *at) - target) / noise
        weight = np.where(error > _FAR, _FAR / np.sqrt(np.maximum(2 * _FAR * error - _FAR**2, _FAR**2)), 1.0)
        return np.concatenate(
            [(weight / noise)[:, None] * sensitivity(log_value, parameters, at) @ root, np.eye(count)]
        )

    searches = (np.linalg.solve(root, start - prior.mean) for start in (prior.mean, *search.starts))
    tries = [least_squares(misfit, search, jac=slope, max_nfev=60) for search in searches]
    found = min(tries, key=lambda one: float(one.cost))
    mean = prior.mean + root @ found.x
    spread = root @ np.linalg.inv(found.jac.T @ found.jac) @ root.T
    residual = target - log_value(mean, *at)
    return ShapeFit(
        mean=mean,
        covariance=(spread + spread.T) / 2,
        residual=residual,
        noise=float(np.sqrt(np.mean(residual**2))) if len(residual) else noise,
    )


def fit_shape(cells: Cells, prior: ShapePrior) -> ShapeFit:
    """The most probable parameters of latency's shape given the cells."""
    at, target = (cells.batch, cells.share, cells.slowness), np.log(cells.latency_ms)
    return fit_parameters(shape.log_latency, at, target, prior, Search(starts=(host_bound(at, target, prior.mean),)))


def host_bound(at: tuple[Floats, Floats, Floats], log_latency: Floats, mean: Floats) -> Floats:
    """Where a search for latency's parameters starts a second time: the fastest cell is the host's time, since a device
    that is never full explains a level latency nearly as well and would be the answer too often.
    """
    start = mean.copy()
    start[0] = log_latency.min()
    start[shape.WORK] = np.median(log_latency - np.log(at[0])) - np.log(4.0)
    start[shape.FILL], start[shape.GROWTH] = np.log(0.5), 0.0
    return start


def population(fits: Sequence[ShapeFit], weak: ShapePrior, weight: float = 3.0) -> ShapePrior:
    """Mean and covariance over models, pulled to the weak prior as if `weight` models had told it."""
    centre = (sum(fit.mean for fit in fits) + weight * weak.mean) / (len(fits) + weight)
    covariance = weight * (weak.covariance + np.outer(weak.mean - centre, weak.mean - centre))
    for fit in fits:
        covariance = covariance + np.outer(fit.mean - centre, fit.mean - centre) + 0.5 * fit.covariance
    return ShapePrior(
        mean=centre,
        covariance=covariance / (len(fits) + weight),
        origin=Origin.SCALED,
        source=f"population of {len(fits)} models",
    )
