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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Logarithm of a quantity, its derivatives by the parameters (last axis), and how much of it follows the share: 0
    none, 1 all of it.
    """

    value: Floats
    slope: Floats
    elasticity: Floats


Evaluate = Callable[[Floats, Floats, Floats, Floats], Evaluated]
"""(parameters, batch, share, slowness) -> a quantity there; the parameters' last axis runs over their names and what
comes before it broadcasts.
"""


def log_latency(parameters: Floats, batch: ArrayLike, share: ArrayLike, slowness: ArrayLike = 1.0) -> Floats:
    """Logarithm of latency in ms. `parameters` are on the learned scale, the last axis runs over `NAMES`; what comes
    before it broadcasts against the other arguments. `share` is a fraction, `slowness` highest clock over clock.
    """
    at = (np.asarray(axis, dtype=np.float64) for axis in (batch, share, slowness))
    return _latency(np.asarray(parameters), *at).value


def _latency(parameters: Floats, inputs: Floats, share: Floats, slowness: Floats) -> Evaluated:
    values = natural(parameters)
    host, launch, per_input, work, weights, fill, growth, sharpness, floor, clock = (
        values[..., number] for number in range(COUNT)
    )
    log_inputs, log_share = np.log(inputs), np.log(share)
    log_width = np.log(fill) + growth * log_inputs
    log_narrow = np.logaddexp(-sharpness * log_share, -sharpness * log_width) / sharpness
    pace = slowness**clock
    compute, read = work * inputs * np.exp(log_narrow), weights / share
    busy = (compute + read) * pace
    device = launch + per_input * inputs + busy
    log_host, log_device = np.log(host), np.log(device)
    value = np.asarray(np.logaddexp(floor * log_host, floor * log_device) / floor)
    # What each side of both soft bounds has in them: share and width, host and device.
    of_share, of_device = np.exp(-sharpness * (log_share + log_narrow)), np.exp(floor * (log_device - value))
    of_width, of_host = 1 - of_share, 1 - of_device
    per_ms = of_device / device
    computing, reading = per_ms * compute * pace, per_ms * read * pace
    slopes = (
        of_host,
        per_ms * launch,
        per_ms * per_input * inputs,
        computing,
        reading,
        -computing * of_width,
        -computing * of_width * log_inputs * growth * (1 - growth),
        -computing * (log_narrow + of_share * log_share + of_width * log_width),
        of_host * log_host + of_device * log_device - value,
        per_ms * busy * np.log(slowness) * clock,
    )
    elasticity = np.minimum(computing * of_share + reading, 1.0)
    return Evaluated(value=value, slope=_stacked(value, slopes), elasticity=elasticity)


def _stacked(value: Floats, slopes: Sequence[Floats]) -> Floats:
    found = np.empty((*value.shape, len(slopes)))
    for number, slope in enumerate(slopes):
        found[..., number] = slope
    return found


# --- Priors, and how measurements change them


_FAR = 2.0
_LOOKS_MAX = 100
_DAMPING, _DAMPING_LESS = 0.1, 0.03
"""Of a search: at first, where 1 makes steps about as long as the way to the prior's mean, and by how much at most a
good step lessens it.
"""
_ENOUGH = 1e-6
"""A step that gains less than such a part of the misfit is the last."""
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


def fit_parameters(
    form: Form, at: tuple[Floats, Floats, Floats], target: Floats, prior: ShapePrior, noise: float = _NOISE
) -> ShapeFit:
    """The most probable parameters of any form given logarithms measured at configurations, robust against single wild
    ones. `noise` is what the form leaves of a measured logarithm, for the search.
    """
    root = np.linalg.cholesky(prior.covariance + 1e-9 * np.eye(len(prior.mean)))

    def misfit(steps: Floats) -> tuple[Floats, Floats, Floats]:
        found = form.evaluate((prior.mean + steps @ root.T)[:, None], *at)
        error = (found.value - target) / noise
        size, slope = np.abs(error), found.slope @ root / noise
        # Beyond some deviations a cell pulls ever less (Huber), the prior keeps its full weight.
        weight = _FAR / np.maximum(size, _FAR)
        cost = np.where(size > _FAR, 2 * _FAR * size - _FAR**2, size**2).sum(axis=1) + (steps**2).sum(axis=1)
        pull = ((weight * error)[:, None] @ slope)[:, 0] + steps
        return cost, pull, slope.transpose(0, 2, 1) @ (weight[..., None] * slope) + np.eye(len(root))

    starts = np.stack([prior.mean, *form.starts(at, target, prior.mean)]) - prior.mean
    mean = prior.mean + root @ _least(misfit, np.linalg.solve(root, starts.T).T)
    found = form.evaluate(mean, *at)
    residual = target - found.value
    size = np.maximum(np.abs(residual) / noise, _FAR)
    slope = (_FAR / np.sqrt(2 * _FAR * size - _FAR**2) / noise)[:, None] * found.slope @ root
    spread = root @ np.linalg.inv(slope.T @ slope + np.eye(len(root))) @ root.T
    return ShapeFit(
        mean=mean,
        covariance=(spread + spread.T) / 2,
        residual=residual,
        noise=float(np.sqrt(np.mean(residual**2))) if len(residual) else noise,
    )


Misfit = Callable[[Floats], tuple[Floats, Floats, Floats]]
"""Steps, a row for each search -> what it costs there, and half of the cost's first and second derivatives."""


def _least(misfit: Misfit, starts: Floats) -> Floats:
    """The step that costs least, searched from all starts at once (Levenberg and Marquardt, damping after Nielsen)."""
    steps, one = starts.copy(), np.eye(starts.shape[1])
    rise = np.full(len(steps), 2.0)
    with np.errstate(all="ignore"):
        cost, pull, curvature = misfit(steps)
        damping = _DAMPING * np.linalg.norm(pull, axis=1) / np.maximum(np.linalg.norm(steps, axis=1), 1.0)
        going = np.isfinite(cost)
        for _ in range(_LOOKS_MAX):
            move = -np.linalg.solve(curvature + damping[:, None, None] * one, pull[..., None])[..., 0]
            promised = (move * (damping[:, None] * move - pull)).sum(axis=1)
            looked = misfit(steps + move)
            gain = (cost - looked[0]) / np.maximum(promised, 1e-300)
            better = going & (gain > 0)
            going &= ~((promised < _ENOUGH * cost) | (better & (cost - looked[0] < _ENOUGH * cost) & (gain > 0.25)))
            steps[better] += move[better]
            for kept, found in zip((cost, pull, curvature), looked, strict=True):
                kept[better] = found[better]
            less = np.maximum(_DAMPING_LESS, 1 - (2 * np.minimum(gain, 1.0) - 1) ** 3)
            damping, rise = damping * np.where(better, less, rise), np.where(better, 2.0, 2 * rise)
            if not going.any():
                break
    return np.asarray(steps[np.argmin(np.where(np.isfinite(cost), cost, np.inf))])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`rises` says for batch, share and slowness whether the quantity may only rise (1) or only fall (-1) with it,
    or does not depend on it (0). Where more share changes nothing, a quantity scatters in its own way; one whose
    elasticity is 1 everywhere has no such regions.
    """

    name: str
    evaluate: Evaluate
    rises: tuple[int, int, int]
    second_start: Start | None = None
    """Where else a search for the parameters should start."""

    def starts(self, at: tuple[Floats, Floats, Floats], target: Floats, mean: Floats) -> tuple[Floats, ...]:
        """Where a search starts beside the prior's mean."""
        return (self.second_start(at, target, mean),) if self.second_start and len(target) else ()


def _power(parameters: Floats, batch: Floats, share: Floats, slowness: Floats) -> Evaluated:
    still, reach, fill, growth, clock = (parameters[..., number] for number in range(5))
    exponent, log_batch, slower = 1 / (1 + np.exp(-growth)), np.log(batch), np.exp(clock) * np.log(slowness)
    width = fill + exponent * log_batch
    busy = -np.logaddexp(-2 * np.log(share), -2 * width) / 2
    moving = reach + busy - slower
    value = np.asarray(np.logaddexp(still, moving))
    of_moving = np.exp(moving - value)
    of_width = of_moving * np.exp(2 * (busy - width))
    slopes = (1 - of_moving, of_moving, of_width, of_width * log_batch * exponent * (1 - exponent), -of_moving * slower)
    return Evaluated(value=value, slope=_stacked(value, slopes), elasticity=np.ones(value.shape))


def _memory(parameters: Floats, batch: Floats, share: Floats, slowness: Floats) -> Evaluated:
    weights, per_input = parameters[..., 0], parameters[..., 1]
    value = np.asarray(np.logaddexp(weights, per_input + np.log(batch)) + 0.0 * share * slowness)
    of_weights = np.exp(weights - value)
    return Evaluated(value=value, slope=_stacked(value, (of_weights, 1 - of_weights)), elasticity=np.ones(value.shape))


LATENCY = Form(name="latency", evaluate=_latency, rises=(1, -1, 1), second_start=host_bound)
POWER = Form(name="power", evaluate=_power, rises=(1, 1, -1))
MEMORY = Form(name="memory", evaluate=_memory, rises=(1, 0, 0))


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
