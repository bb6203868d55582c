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
from solvers.models.belief.forms import Form, ShapePrior, fit_parameters
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Of some places with others: squared distances over batch, share and clock in the kernel's scales, their root,
    and how far apart shares are in the scale of steps.
    """

    squares: tuple[Floats, Floats, Floats]
    distance: Floats
    steps: Floats

    @staticmethod
    def of(kernel: Floats, one: Places, two: Places) -> Nearness:
        scale = np.exp(kernel)
        batch = np.square(np.subtract.outer(one.log_batch, two.log_batch) / scale[BATCH])
        share = np.square(np.subtract.outer(one.log_share, two.log_share) / scale[SHARE])
        clock = np.square(np.subtract.outer(one.log_slowness, two.log_slowness) / scale[CLOCK])
        return Nearness(
            squares=(batch, share, clock),
            distance=np.sqrt(3 * (batch + share + clock)),
            steps=10 * np.abs(np.subtract.outer(one.share, two.share)) / scale[STEP_SCALE],
        )

    def covariance(self, kernel: Floats, one: Floats, two: Floats) -> Floats:
        """Of the residuals at places with these weights; sets of weights may be stacked."""
        scale, smooth = np.exp(kernel), (1 + self.distance) * np.exp(-self.distance)
        busy = (one * scale[BUSY] ** 2)[..., :, None] * two[..., None, :] * smooth
        flat = (1 - one)[..., :, None] * (1 - two)[..., None, :]
        return np.asarray(busy + flat * (scale[STEP] ** 2 * np.exp(-self.steps) + scale[FLAT] ** 2 * smooth))


def covariance(kernel: Floats, one: Places, two: Places) -> Floats:
    """Covariance of the residuals of every place of `one` with every place of `two`."""
    return Nearness.of(kernel, one, two).covariance(kernel, one.weight, two.weight)


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


_ENDLESS, _NO_EVIDENCE = 1e300, -1e9


def log_evidence(total: Floats, error: Floats) -> Floats:
    """Logarithm of the density of `error` under zero-mean Gaussians of these covariances (constant left out)."""
    # The last row of this root is the whitened error.
    whole = np.empty((*total.shape[:-2], len(error) + 1, len(error) + 1))
    whole[..., :-1, :-1], whole[..., -1, :-1], whole[..., -1, -1] = total, error, _ENDLESS
    try:
        root = np.linalg.cholesky(whole)
    except np.linalg.LinAlgError:
        return np.full((), _NO_EVIDENCE) if total.ndim == 2 else np.stack([log_evidence(one, error) for one in total])
    return np.asarray(
        -0.5 * (root[..., -1, :-1] ** 2).sum(axis=-1)
        - np.log(np.diagonal(root, axis1=-2, axis2=-1)[..., :-1]).sum(axis=-1)
    )


def total_covariance(kernel: Floats, task: Task) -> Floats:
    """Of the errors: the form's doubt, the residual, the scatter."""
    return _total(kernel, task, Nearness.of(kernel, task.at, task.at))


def _total(kernel: Floats, task: Task, near: Nearness) -> Floats:
    weight = task.at.weight
    scatter = scattered(noise(kernel, weight), task.count) + task.extra
    return np.asarray(task.explained + near.covariance(kernel, weight, weight) + np.diag(scatter))


def learned_kernel(tasks: Sequence[Task], start: Floats = KERNEL_USUAL) -> Floats:
    """The kernel under which the tasks are most probable, held to what is usual."""
    if not tasks:
        return start
    from scipy.optimize import minimize

    def cost(kernel: Floats) -> tuple[float, Floats]:
        unusual = (kernel - KERNEL_USUAL) / KERNEL_SPREAD
        total, slope = 0.5 * float((unusual**2).sum()), unusual / KERNEL_SPREAD
        for task in tasks:
            evidence, its_slope = evidence_under(kernel, task)
            total, slope = total - evidence, slope - its_slope
        return total, slope

    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=_BOUNDS, options={"maxiter": 15})
    return np.asarray(found.x)


def evidence_under(kernel: Floats, task: Task) -> tuple[float, Floats]:
    """`log_evidence` of a task under a kernel, and its derivatives by the kernel."""
    near = Nearness.of(kernel, task.at, task.at)
    total = _total(kernel, task, near)
    evidence = float(log_evidence(total, task.error))
    if evidence <= _NO_EVIDENCE:
        return evidence, np.zeros(len(kernel))
    inverse, scale, weight = np.linalg.inv(total), np.exp(kernel), task.at.weight
    drawn = inverse @ task.error
    # How much the evidence gains with each covariance.
    gain = 0.5 * (np.multiply.outer(drawn, drawn) - inverse)
    fading = np.exp(-near.distance)
    busy = gain * scale[BUSY] ** 2 * np.multiply.outer(weight, weight)
    flat = gain * np.multiply.outer(1 - weight, 1 - weight)
    still, stepping = flat * scale[FLAT] ** 2, flat * scale[STEP] ** 2 * np.exp(-near.steps)
    slope = np.empty(len(kernel))
    for axis, square in zip((BATCH, SHARE, CLOCK), near.squares, strict=True):
        slope[axis] = ((busy + still) * 3 * square * fading).sum()
    smooth = 2 * (1 + near.distance) * fading
    slope[BUSY], slope[FLAT] = (busy * smooth).sum(), (still * smooth).sum()
    slope[STEP], slope[STEP_SCALE] = 2 * stepping.sum(), (stepping * near.steps).sum()
    # Of `scattered`, by the variance of single measurements.
    scatter = noise(kernel, weight)
    by_scatter = (_LASTING**4 + (scatter**2 + 2 * scatter * _LASTING**2) / task.count) / (scatter + _LASTING**2) ** 2
    by_noise = 2 * np.diag(gain) * by_scatter
    slope[NOISE_BUSY] = (by_noise * weight).sum() * scale[NOISE_BUSY] ** 2
    slope[NOISE_FLAT] = (by_noise * (1 - weight)).sum() * scale[NOISE_FLAT] ** 2
    return evidence, slope


def own_kernel(kernel: Floats, task: Task) -> Floats:
    """The kernel with amplitudes and scatter as this one task shows them, held to those of the others."""
    signal = covariance(kernel, task.at, task.at)
    scatter = np.diag(scattered(noise(kernel, task.at.weight), task.count))
    unusual = task.explained + np.diag(task.extra)

    def cheapest(amplitudes: Floats, noises: Floats) -> int:
        shifts = amplitudes[:, None, None], noises[:, None, None]
        total = unusual + np.exp(2 * shifts[0]) * signal + np.exp(2 * shifts[1]) * scatter
        held = 0.5 * ((amplitudes / _OWN_SPREAD[0]) ** 2 + (noises / _OWN_SPREAD[1]) ** 2)
        return int(np.argmin(held - log_evidence(total, task.error)))

    best = np.zeros(2)
    for _ in range(2):
        best[0] = _OWN_STEPS[0][cheapest(_OWN_STEPS[0], np.full(len(_OWN_STEPS[0]), best[1]))]
        best[1] = _OWN_STEPS[1][cheapest(np.full(len(_OWN_STEPS[1]), best[0]), _OWN_STEPS[1])]
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
_PARTS = (1.0, 0.3, 0.1)


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
    found = curve.form.evaluate(curve.parameters, *at)
    return Sight(
        value=found.value,
        mean=found.value + found.slope @ (curve.prior.mean - curve.parameters),
        doubt=found.slope @ _root(curve.prior),
        places=places(at, found.elasticity),
        scatter=noise(curve.kernel, found.elasticity),
    )


def _root(prior: ShapePrior) -> Floats:
    return np.asarray(np.linalg.cholesky(prior.covariance + 1e-9 * np.eye(len(prior.mean))), dtype=np.float64)


def prior_curve(form: Form, prior: ShapePrior, kernel: Floats) -> Curve:
    empty = np.zeros(0)
    nothing = Points(batch=empty, share=empty, slowness=empty, log_value=empty, count=empty, spread=empty)
    return Curve(form=form, prior=prior, kernel=kernel, parameters=prior.mean, points=nothing, extra=empty, fitted=0)


def draft(form: Form, points: Points, prior: ShapePrior, kernel: Floats) -> Curve:
    """A curve with the form fitted alone; the kernel is taken as it is."""
    kept = points.merged().spread_out(POINTS_MAX)
    found = fit_parameters(form, kept.at, kept.log_value, prior, _CAUTION * typical(kernel))
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
    return _task(curve, sight(curve, curve.points.at))


def _task(curve: Curve, seen: Sight) -> Task:
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
    return float(_evidences(curve, curve.parameters[None])[0])


def _evidences(curve: Curve, parameters: Floats) -> Floats:
    """The curve's `evidence` at other parameters, a row each."""
    points, kernel = curve.points, curve.kernel
    found = curve.form.evaluate(parameters[:, None], *points.at)
    weight, here = found.elasticity, places(points.at, found.elasticity)
    unexplained = Nearness.of(kernel, here, here).covariance(kernel, weight, weight)
    own = np.arange(len(points))
    unexplained[:, own, own] += scattered(noise(kernel, weight), points.count) + curve.extra
    error, moved = points.log_value - found.value, parameters - curve.prior.mean
    doubt = found.slope @ _root(curve.prior)
    drawn = np.linalg.solve(unexplained, error[..., None])[..., 0]
    held = np.linalg.solve(curve.prior.covariance, moved.T).T
    volume = np.linalg.slogdet(unexplained + doubt @ doubt.transpose(0, 2, 1))[1]
    return np.asarray(-0.5 * ((error * drawn).sum(axis=1) + (moved * held).sum(axis=1) + volume))


def settle(curve: Curve) -> Curve:
    """The same curve with parameters and residual found together: steps of Gauss and Newton while they help."""
    best = evidence(curve)
    for _ in range(_STEPS_MAX):
        tried = curve.parameters + np.multiply.outer(_PARTS, _newton_step(curve))
        # A wild step leads out of what can be computed.
        with np.errstate(all="ignore"):
            scores = _evidences(curve, tried)
        scores[~np.isfinite(scores)] = -np.inf
        chosen = int(np.argmax(scores))
        if scores[chosen] < best + _GAIN_MIN:
            break
        curve, best = replace(curve, parameters=tried[chosen]), scores[chosen]
    return curve


def _newton_step(curve: Curve) -> Floats:
    seen = sight(curve, curve.points.at)
    this = _task(curve, seen)
    weights = np.linalg.solve(total_covariance(curve.kernel, this), this.error)
    return curve.prior.mean + _root(curve.prior) @ (seen.doubt.T @ weights) - curve.parameters


def discount(curve: Curve, wild: float = _WILD) -> Curve:
    """Give points that the others contradict wildly (squared deviations beyond `wild`) more variance, as a heavy-tailed
    scatter would.
    """
    this = replace(task(curve), extra=np.zeros(len(curve.points)))
    usually = total_covariance(curve.kernel, this)
    for _ in range(3):
        inverse = np.linalg.inv(usually + np.diag(this.extra))
        spread = 1 / np.diag(inverse)
        # Leaving a point out: its error and its variance follow from the inverse of all.
        usual = np.maximum(spread - this.extra, 1e-12)
        wildness = (spread * (inverse @ this.error)) ** 2 / usual
        this = replace(this, extra=np.where(wildness > wild, usual * (wildness - 1) / (1 + _FREEDOM), 0.0))
    return replace(curve, extra=this.extra)


def fit(form: Form, points: Points, prior: ShapePrior, kernel: Floats) -> Curve:
    """The curve of these points; amplitudes of the kernel are the curve's own, within what `kernel` says of others."""
    return completed(settle(draft(form, points, prior, kernel)))


def completed(curve: Curve) -> Curve:
    """A settled curve with what is its own."""
    kernel = curve.kernel
    if not len(curve.points):
        return prior_curve(curve.form, curve.prior, kernel)
    # What is grossly wrong must not pass for a lively residual.
    curve = discount(curve, _GROSS)
    curve = replace(curve, kernel=repeated(own_kernel(kernel, task(curve)), curve.points))
    return discount(settle(curve))
