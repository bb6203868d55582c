"""Forms of a quantity of a replica alone, what is believed of their parameters before any measurement, and their fit.

The physical shape of latency has ten parameters and one formula. With b inputs, a share s of the device's SMs (1 = all)
and slowness c = (highest clock / clock) of the SMs:

    width    = fill * b^growth                                    SMs (share of the device) that b inputs can keep busy
    compute  = work_ms * b * (s^-sharpness + width^-sharpness)^(1/sharpness)
    device   = launch_ms + input_ms * b + (compute + weights_ms / s) * c^clock
    latency  = (host_ms^floor + device^floor)^(1/floor)           the host prepares the next batch beside the device

so that latency never rises with share or clock and never falls with batch, whatever the parameters. Power above idle:
still_w + reach_w * min(share, fill * batch^growth) * c^-clock, with a soft minimum. Memory: weights_mib + input_mib *
batch. Everything learned is on the learned scale: logarithms, for `growth` its logit; a form's logarithm is learned.
Which way it may move with batch, share and slowness belongs to it, and answers keep to that.

A prior is a Gaussian over a form's parameters on their learned scale; one model is fitted to its samples under a prior,
and many fitted models make a population.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Origin

SHAPE_VERSION = "1"
"""Of the list and the formula; parameters of another version mean something else."""

NAMES = (
    "host_ms", "launch_ms", "input_ms", "work_ms", "weights_ms", "fill", "growth", "sharpness", "floor", "clock",
)  # fmt: skip
"""In this order everywhere. `work_ms`: one input on the whole device at its highest clock if it could fill it;
`weights_ms`: work of a batch that does not depend on its size; `fill`: share of the device that one input keeps busy
(1 = all); `growth`: within 0 and 1; the last three are exponents.
"""

COUNT = len(NAMES)
TIMES = slice(0, 5)
"""The parameters that are times: a model twice as slow in everything has them all doubled."""
ALL_TIMES = np.repeat([1.0, 0.0], [TIMES.stop, COUNT - TIMES.stop])
WORK, WEIGHTS, FILL, GROWTH = range(3, 7)


def natural(parameters: Sequence[float] | Floats) -> Floats:
    values = np.asarray(parameters, dtype=np.float64)
    found = np.exp(values)
    found[..., GROWTH] = 1 / (1 + np.exp(-values[..., GROWTH]))
    return found


def log_latency(parameters: Floats, batch: ArrayLike, share: ArrayLike, slowness: ArrayLike = 1.0) -> Floats:
    """Logarithm of latency in ms. `parameters` are on the learned scale, the last axis runs over `NAMES`; what comes
    before it broadcasts against the other arguments. `share` is a fraction, `slowness` highest clock over clock.
    """
    host, launch, per_input, work, weights, fill, growth, sharpness, floor, clock = np.moveaxis(
        natural(np.asarray(parameters)), -1, 0
    )
    inputs, part = np.asarray(batch, dtype=np.float64), np.asarray(share, dtype=np.float64)
    log_width = np.log(fill) + growth * np.log(inputs)
    log_narrow = np.logaddexp(-sharpness * np.log(part), -sharpness * log_width) / sharpness
    busy = (work * inputs * np.exp(log_narrow) + weights / part) * np.asarray(slowness, dtype=np.float64) ** clock
    device = launch + per_input * inputs + busy
    return np.asarray(np.logaddexp(floor * np.log(host), floor * np.log(device)) / floor)


# --- Priors, and how measurements change them


LogValue = Callable[[Floats, Floats, Floats, Floats], Floats]
"""(parameters, batch, share, slowness) -> logarithm of a quantity; the parameters' last axis runs over their names and
what comes before it broadcasts.
"""

_DIFFERENCE = 1e-4
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
_NO_SPREAD = np.zeros(COUNT)
_WEAK_SPREAD = np.array([1.2, 1.2, 1.6, 1.2, 1.5, 1.2, 1.0, 0.45, 0.45, 0.3])


def joint_covariance(common: float, single: ArrayLike = _NO_SPREAD) -> Floats:
    """Of parameters whose times all err together by `common`, and each by its own; on the learned scale."""
    return np.diag(np.square(single)) + common**2 * np.outer(ALL_TIMES, ALL_TIMES)


def weak_prior(latency_ms_typical: float, scale_spread: float = 1.0) -> ShapePrior:
    """What holds of any model: all its times are some part of a typical latency, known within `scale_spread` (of the
    logarithm).
    """
    mean = _WEAK_MEAN.copy()
    mean[TIMES] += np.log(latency_ms_typical)
    covariance = joint_covariance(scale_spread, _WEAK_SPREAD)
    return ShapePrior(mean=mean, covariance=covariance, origin=Origin.SCALED, source="any model")


def sensitivity(log_value: LogValue, parameters: Floats, at: tuple[Floats, Floats, Floats]) -> Floats:
    """Derivatives of the logarithm by the parameters, one row per configuration (batch, share, slowness)."""
    steps = _DIFFERENCE * np.eye(len(parameters))
    around = (parameters + np.concatenate([steps, -steps]))[:, None, :]
    values = log_value(around, *at)
    return np.asarray((values[: len(parameters)] - values[len(parameters) :]).T / (2 * _DIFFERENCE))


def fit_parameters(
    log_value: LogValue, at: tuple[Floats, Floats, Floats], target: Floats, prior: ShapePrior, search: Search = WIDE
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


def host_bound(at: tuple[Floats, Floats, Floats], log_latency: Floats, mean: Floats) -> Floats:
    """Where a search for latency's parameters starts a second time: the fastest cell is the host's time, since a device
    that is never full explains a level latency nearly as well and would be the answer too often.
    """
    start = mean.copy()
    start[0] = log_latency.min()
    start[WORK] = np.median(log_latency - np.log(at[0])) - np.log(4.0)
    start[FILL], start[GROWTH] = np.log(0.5), 0.0
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


# --- Forms of all quantities


Start = Callable[[tuple[Floats, Floats, Floats], Floats, Floats], Floats]
"""(configurations, logarithms there, the prior's mean) -> parameters."""

_STEP = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`rises` says for batch, share and slowness whether the quantity may only rise (1) or only fall (-1) with it,
    or does not depend on it (0).
    """

    name: str
    log_value: LogValue
    rises: tuple[int, int, int]
    has_floor: bool = False
    """Whether there are regions that more share does not change, which scatter in their own way."""
    second_start: Start | None = None
    """Where else a search for the parameters should start."""

    def starts(self, at: tuple[Floats, Floats, Floats], target: Floats, mean: Floats) -> tuple[Floats, ...]:
        """Where a search starts beside the prior's mean."""
        return (self.second_start(at, target, mean),) if self.second_start and len(target) else ()

    def sensitivity(self, parameters: Floats, at: tuple[Floats, Floats, Floats]) -> Floats:
        """Derivatives of the logarithm by the parameters, one row per configuration."""
        return sensitivity(self.log_value, parameters, at)

    def elasticity(self, parameters: Floats, at: tuple[Floats, Floats, Floats]) -> Floats:
        """How much of the quantity follows the share: 0 none, 1 all of it."""
        batch, share, slowness = at
        if not self.has_floor:
            return np.ones(np.broadcast(batch, share).shape)
        more = self.log_value(parameters, batch, share * np.exp(_STEP), slowness)
        less = self.log_value(parameters, batch, share * np.exp(-_STEP), slowness)
        return np.asarray(np.clip(np.abs(less - more) / (2 * _STEP), 0.0, 1.0))


def _log_power(parameters: Floats, batch: Floats, share: Floats, slowness: Floats) -> Floats:
    still, reach, fill, growth, clock = np.moveaxis(parameters, -1, 0)
    exponent = 1 / (1 + np.exp(-growth))
    width = fill + exponent * np.log(batch)
    busy = -np.logaddexp(-2 * np.log(share), -2 * width) / 2
    return np.asarray(np.logaddexp(still, reach + busy - np.exp(clock) * np.log(slowness)))


def _log_memory(parameters: Floats, batch: Floats, share: Floats, slowness: Floats) -> Floats:
    weights, per_input = np.moveaxis(parameters, -1, 0)
    return np.asarray(np.logaddexp(weights, per_input + np.log(batch)) + 0.0 * share * slowness)


LATENCY = Form(name="latency", log_value=log_latency, rises=(1, -1, 1), has_floor=True, second_start=host_bound)
POWER = Form(name="power", log_value=_log_power, rises=(1, 1, -1))
MEMORY = Form(name="memory", log_value=_log_memory, rises=(1, 0, 0))


def _independent(mean: list[float], spread: list[float], source: str) -> ShapePrior:
    return ShapePrior(
        mean=np.array(mean), covariance=np.diag(np.array(spread) ** 2), origin=Origin.SCALED, source=source
    )


def power_prior(gpu_type: GpuType | None, highest_w: float) -> ShapePrior | None:
    """Power from the specifications, else from the highest power seen (NaN: none); None when neither is known."""
    if gpu_type is None and not highest_w > 0:
        return None
    if gpu_type is None:
        full, spread, source = highest_w, 0.5, "measured powers"
    else:
        full, spread, source = 0.75 * (gpu_type.tdp_w - gpu_type.idle_w), 0.4, "the GPU type's power limit"
    return _independent([np.log(0.12 * full), np.log(full), -0.7, 0.0, 0.4], [0.8, spread, 1.0, 1.0, 0.4], source)


def memory_prior(model: ModelVariant | None, lowest_mib: float) -> ShapePrior | None:
    """Memory from the model's description, else from the lowest seen (NaN: none); None when neither is known."""
    if model is None and not lowest_mib > 0:
        return None
    if model is None:
        return _independent([np.log(0.8 * lowest_mib), np.log(0.05 * lowest_mib)], [0.7, 2.0], "measured memory")
    # A process holds some hundred MiB of context beside the weights, whatever the model.
    resident = model.memory_mib_weights + 450.0
    if model.memory_mib_per_input > 0:
        mean, spread = [np.log(resident), np.log(model.memory_mib_per_input)], [0.35, 0.6]
    else:
        mean, spread = [np.log(resident), np.log(0.02 * resident)], [0.35, 1.5]
    return _independent(mean, spread, "the model's description")
