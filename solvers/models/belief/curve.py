"""Posterior of one quantity of one model on one GPU type: form, residual and measurements together.

What a form leaves unexplained is a Gaussian process over batch, share and clock on the logarithm of the quantity. Its
covariance and the scatter of measurements are learned: scales from all models of a GPU type together (marginal
likelihood), amplitudes for each model by itself within what the others show. Where latency follows the share, residuals
are small and smooth; where the host or launches bound it, it scatters more and may step with the share, for all batches
alike. The weight `w` (0..1, how much the quantity follows the share) blends the two.

Parameters and residual are fitted jointly, wild measurements discounted; a curve answers at any configuration with a
Gaussian over the logarithm. The form enters linearised at its most probable parameters, so that everything after is
exact linear algebra and measurements can be appended one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Parallel
from solvers.models.belief.forms import Form, Search, ShapePrior, fit_parameters
from solvers.models.belief.intake import Points

BATCH, SHARE, CLOCK, BUSY, STEP, STEP_SCALE, FLAT, NOISE_BUSY, NOISE_FLAT = range(9)
"""Of a kernel, all logarithms: scales over batch, share and clock (doublings), amplitude where the share counts,
amplitude and scale (tenths of the device) of steps with the share, amplitude where it does not count, and scatter in
both regions.
"""

KERNEL_USUAL = np.array([0.3, 0.3, 0.0, -3.2, -3.0, 1.8, -3.4, -4.2, -3.6])
KERNEL_SPREAD = np.array([1.0, 1.0, 0.7, 1.5, 1.5, 0.7, 1.5, 1.0, 1.0])
_BOUNDS = ((-1, 3), (-2, 3), (-1, 2), (-7, -1), (-7, -0.5), (-1, 4), (-7, -1), (-7.5, -1.5), (-7.5, -1.5))
_AMPLITUDES, _NOISES = (BUSY, STEP, FLAT), (NOISE_BUSY, NOISE_FLAT)
_LASTING, _PECULIAR = 0.035, 0.05
_REPEATS_USUAL = 3.0
"""What is known without repeats of a configuration counts like so many of them."""
_OWN_SPREAD = (0.5, 0.5)
_OWN_STEPS = (np.arange(-1.5, 1.76, 0.25), np.arange(-3.0, 1.01, 0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places(Parallel):
    """Configurations as the covariance sees them: logarithms to base 2, the share, and the weight."""

    log_batch: Floats
    log_share: Floats
    log_slowness: Floats
    share: Floats
    weight: Floats


def places(at: tuple[Floats, Floats, Floats], weight: Floats) -> Places:
    logs = [np.log2(axis) for axis in at]
    return Places(log_batch=logs[0], log_share=logs[1], log_slowness=logs[2], share=at[1], weight=weight)


def covariance(kernel: Floats, one: Places, two: Places) -> Floats:
    """Covariance of the residuals of every place of `one` with every place of `two`."""
    scale = np.exp(kernel)
    apart = np.square(np.subtract.outer(one.log_batch, two.log_batch) / scale[BATCH])
    apart += np.square(np.subtract.outer(one.log_share, two.log_share) / scale[SHARE])
    apart += np.square(np.subtract.outer(one.log_slowness, two.log_slowness) / scale[CLOCK])
    distance = np.sqrt(3 * apart)
    smooth = (1 + distance) * np.exp(-distance)
    steps = np.exp(-10 * np.abs(np.subtract.outer(one.share, two.share)) / scale[STEP_SCALE])
    busy = np.multiply.outer(one.weight * scale[BUSY] ** 2, two.weight) * smooth
    flat = np.multiply.outer(1 - one.weight, 1 - two.weight)
    return np.asarray(busy + flat * (scale[STEP] ** 2 * steps + scale[FLAT] ** 2 * smooth))


def variance(kernel: Floats, weight: Floats) -> Floats:
    scale = np.exp(2 * kernel)
    return np.asarray(weight**2 * scale[BUSY] + (1 - weight) ** 2 * (scale[STEP] + scale[FLAT]))


def noise(kernel: Floats, weight: Floats) -> Floats:
    """Variance of single measurements."""
    scale = np.exp(2 * kernel)
    return np.asarray(weight * scale[NOISE_BUSY] + (1 - weight) * scale[NOISE_FLAT])


def typical(kernel: Floats) -> float:
    """Standard deviation of a single measurement about the form, half of the places being where the share counts."""
    half = np.full(1, 0.5)
    return float(np.sqrt(variance(kernel, half) + noise(kernel, half))[0])


def lasting(scatter: Floats) -> Floats:
    """The part of scatter's variance that belongs to the configuration (which kernels it happens to run) and comes
    again when it is measured again. Small scatter is mostly that, large scatter mostly is not.
    """
    return np.asarray(scatter * _LASTING**2 / (scatter + _LASTING**2))


def peculiar(extra: Floats) -> Floats:
    """The part of a wild point's extra variance that belongs to its configuration: most of a small surprise, nearly
    nothing of a large one, which is a measurement gone wrong.
    """
    return np.asarray(extra * _PECULIAR**2 / (extra + _PECULIAR**2))


def passing(scatter: Floats) -> Floats:
    """The part of scatter's variance that every measurement has anew."""
    return np.asarray(scatter**2 / (scatter + _LASTING**2))


def scattered(scatter: Floats, count: Floats) -> Floats:
    """Variance of the mean of `count` measurements of one configuration."""
    return lasting(scatter) + passing(scatter) / count


def repeated(kernel: Floats, points: Points) -> Floats:
    """The kernel with no less scatter than repeats of configurations show; a wild one among them counts little."""
    freedom = points.count - 1.0
    if not freedom.any():
        return kernel
    usual = passing(noise(kernel, np.full(1, 0.5)))[0]
    spread = np.minimum(points.spread, _WILD * np.median(points.spread[freedom > 0]))
    shown = (freedom @ spread + _REPEATS_USUAL * usual) / (freedom.sum() + _REPEATS_USUAL)
    # The scatter of which so much passes.
    scatter = (shown + np.sqrt(shown**2 + 4.0 * shown * _LASTING**2)) / 2.0
    raised = kernel.copy()
    raised[list(_NOISES)] = np.maximum(kernel[list(_NOISES)], np.log(scatter) / 2.0)
    return raised


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One model to learn from: what the form leaves (`error`), what the form's own doubt explains of it, and where."""

    error: Floats
    explained: Floats
    at: Places
    count: Floats
    extra: Floats


def log_evidence(total: Floats, error: Floats) -> float:
    """Logarithm of the density of `error` under a zero-mean Gaussian of this covariance (constant left out)."""
    try:
        root = np.linalg.cholesky(total)
    except np.linalg.LinAlgError:
        return -1e9
    from scipy.linalg import solve_triangular

    white = solve_triangular(root, error, lower=True)
    return float(-0.5 * white @ white - np.log(np.diag(root)).sum())


def total_covariance(kernel: Floats, task: Task) -> Floats:
    """Of the errors: the form's doubt, the residual, the scatter."""
    scatter = scattered(noise(kernel, task.at.weight), task.count) + task.extra
    return np.asarray(task.explained + covariance(kernel, task.at, task.at) + np.diag(scatter))


def learned_kernel(tasks: Sequence[Task], start: Floats = KERNEL_USUAL) -> Floats:
    """The kernel under which the tasks are most probable, held to what is usual."""
    if not tasks:
        return start
    from scipy.optimize import minimize

    def cost(kernel: Floats) -> float:
        held = 0.5 * float((((kernel - KERNEL_USUAL) / KERNEL_SPREAD) ** 2).sum())
        return held - sum(log_evidence(total_covariance(kernel, task), task.error) for task in tasks)

    found = minimize(cost, start, method="L-BFGS-B", bounds=_BOUNDS, options={"maxiter": 15})
    return np.asarray(found.x)


def own_kernel(kernel: Floats, task: Task) -> Floats:
    """The kernel with amplitudes and scatter as this one task shows them, held to those of the others."""
    signal = covariance(kernel, task.at, task.at)
    scatter = np.diag(scattered(noise(kernel, task.at.weight), task.count))
    unusual = task.explained + np.diag(task.extra)

    def cost(shift: tuple[float, float]) -> float:
        total = unusual + np.exp(2 * shift[0]) * signal + np.exp(2 * shift[1]) * scatter
        held = 0.5 * sum((part / spread) ** 2 for part, spread in zip(shift, _OWN_SPREAD, strict=True))
        return held - log_evidence(total, task.error)

    best = (0.0, 0.0)
    for _ in range(2):
        best = (min(_OWN_STEPS[0], key=lambda step: cost((step, best[1]))), best[1])
        best = (best[0], min(_OWN_STEPS[1], key=lambda step: cost((best[0], step))))
    found = kernel.copy()
    found[list(_AMPLITUDES)] += best[0]
    found[list(_NOISES)] += best[1]
    return found


# --- The posterior


POINTS_MAX = 256
"""Points that a curve keeps; of more, a subset spread over all of them."""
_WILD, _GROSS = 9.0, 60.0
_FREEDOM = 4.0
_CAUTION = 1.5
"""A first search trusts measurements less, lest scatter among few of them pass for physics."""
_STEPS_MAX, _GAIN_MIN = 4, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Everything that decides the answers. The first `fitted` points were fitted together, later ones appended in their
    order. `extra` is variance that discounts a point beyond the usual scatter. Without points it is the prior.
    """

    form: Form
    prior: ShapePrior
    kernel: Floats
    parameters: Floats
    points: Points
    extra: Floats
    fitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight(Parallel):
    """A curve's prior at some configurations: the form's `value` at the curve's parameters, the prior's `mean` by the
    form's straight line there, `doubt` (its square is the form's covariance), residual's places, and variance of single
    measurements.
    """

    value: Floats
    mean: Floats
    doubt: Floats
    places: Places
    scatter: Floats

    def covariance(self, other: Sight, kernel: Floats) -> Floats:
        """Prior covariance of these configurations with others."""
        return np.asarray(self.doubt @ other.doubt.T + covariance(kernel, self.places, other.places))

    def variance(self, kernel: Floats) -> Floats:
        return np.asarray((self.doubt**2).sum(axis=1) + variance(kernel, self.places.weight))


def sight(curve: Curve, at: tuple[Floats, Floats, Floats]) -> Sight:
    """How a curve's prior sees configurations (batch, share, slowness)."""
    slope = curve.form.sensitivity(curve.parameters, at)
    root = np.linalg.cholesky(curve.prior.covariance + 1e-9 * np.eye(len(curve.prior.mean)))
    weight = curve.form.elasticity(curve.parameters, at)
    value = curve.form.log_value(curve.parameters, *at)
    return Sight(
        value=value,
        mean=value + slope @ (curve.prior.mean - curve.parameters),
        doubt=slope @ root,
        places=places(at, weight),
        scatter=noise(curve.kernel, weight),
    )


def prior_curve(form: Form, prior: ShapePrior, kernel: Floats) -> Curve:
    empty = np.zeros(0)
    nothing = Points(batch=empty, share=empty, slowness=empty, log_value=empty, count=empty, spread=empty)
    return Curve(form=form, prior=prior, kernel=kernel, parameters=prior.mean, points=nothing, extra=empty, fitted=0)


def draft(form: Form, points: Points, prior: ShapePrior, kernel: Floats) -> Curve:
    """A curve with the form fitted alone; the kernel is taken as it is."""
    kept = points.merged().spread_out(POINTS_MAX)
    search = Search(starts=form.starts(kept.at, kept.log_value, prior.mean), noise=_CAUTION * typical(kernel))
    found = fit_parameters(form.log_value, kept.at, kept.log_value, prior, search)
    return Curve(
        form=form,
        prior=prior,
        kernel=kernel,
        parameters=found.mean,
        points=kept,
        extra=np.zeros(len(kept)),
        fitted=len(kept),
    )


def task(curve: Curve) -> Task:
    """The curve's points as the learning of kernels takes them."""
    seen = sight(curve, curve.points.at)
    return Task(
        error=curve.points.log_value - seen.mean,
        explained=seen.doubt @ seen.doubt.T,
        at=seen.places,
        count=curve.points.count,
        extra=curve.extra,
    )


def evidence(curve: Curve) -> float:
    """How well prior and kernel foretold the points, at the curve's parameters (Laplace, constants left out).

    The form enters here as it is, not linearised: far from the points a straight line promises too much.
    """
    here = sight(curve, curve.points.at)
    scatter = scattered(here.scatter, curve.points.count) + curve.extra
    unexplained = covariance(curve.kernel, here.places, here.places) + np.diag(scatter)
    error = curve.points.log_value - here.value
    moved = curve.parameters - curve.prior.mean
    return float(
        -0.5 * error @ np.linalg.solve(unexplained, error)
        - 0.5 * moved @ np.linalg.solve(curve.prior.covariance, moved)
        - 0.5 * np.linalg.slogdet(unexplained + here.doubt @ here.doubt.T)[1]
    )


def settle(curve: Curve) -> Curve:
    """The same curve with parameters and residual found together: steps of Gauss and Newton while they help."""
    best = evidence(curve)
    for _ in range(_STEPS_MAX):
        step = _newton_step(curve)
        tried = [replace(curve, parameters=curve.parameters + part * step) for part in (1.0, 0.3, 0.1)]
        scores = [evidence(one) for one in tried]
        chosen = int(np.argmax(scores))
        if scores[chosen] < best + _GAIN_MIN:
            break
        curve, best = tried[chosen], scores[chosen]
    return curve


def _newton_step(curve: Curve) -> Floats:
    this = task(curve)
    weights = np.linalg.solve(total_covariance(curve.kernel, this), this.error)
    slope = curve.form.sensitivity(curve.parameters, curve.points.at)
    return curve.prior.mean + curve.prior.covariance @ slope.T @ weights - curve.parameters


def discount(curve: Curve, wild: float = _WILD) -> Curve:
    """Give points that the others contradict wildly (squared deviations beyond `wild`) more variance, as a heavy-tailed
    scatter would.
    """
    this = replace(task(curve), extra=np.zeros(len(curve.points)))
    for _ in range(3):
        inverse = np.linalg.inv(total_covariance(curve.kernel, this))
        spread = 1 / np.diag(inverse)
        # Leaving a point out: its error and its variance follow from the inverse of all.
        usual = np.maximum(spread - this.extra, 1e-12)
        wildness = (spread * (inverse @ this.error)) ** 2 / usual
        this = replace(this, extra=np.where(wildness > wild, usual * (wildness - 1) / (1 + _FREEDOM), 0.0))
    return replace(curve, extra=this.extra)


def fit(form: Form, points: Points, prior: ShapePrior, kernel: Floats) -> Curve:
    """The curve of these points; amplitudes of the kernel are the curve's own, within what `kernel` says of others."""
    curve = settle(draft(form, points, prior, kernel))
    if not len(curve.points):
        return prior_curve(form, prior, kernel)
    # What is grossly wrong must not pass for a lively residual.
    curve = discount(curve, _GROSS)
    curve = replace(curve, kernel=repeated(own_kernel(kernel, task(curve)), curve.points))
    return discount(settle(curve))
