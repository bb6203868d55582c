"""Posterior of one quantity of one model on one GPU type: form, residual and measurements together.

Parameters and residual are fitted jointly, wild measurements discounted; a curve answers at any configuration with a
Gaussian over the logarithm. The form enters linearised at its most probable parameters, so that everything after is
exact linear algebra and measurements can be appended one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.belief import residual
from solvers.models.belief.forms import Form
from solvers.models.belief.points import Points
from solvers.models.belief.prior import Search, ShapePrior, fit_parameters
from solvers.models.belief.residual import Places, Task

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
class Sight:
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
        return np.asarray(self.doubt @ other.doubt.T + residual.covariance(kernel, self.places, other.places))

    def variance(self, kernel: Floats) -> Floats:
        """Prior variance of each configuration."""
        return np.asarray((self.doubt**2).sum(axis=1) + residual.variance(kernel, self.places.weight))


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
        places=residual.places(at, weight),
        scatter=residual.noise(curve.kernel, weight),
    )


def prior_curve(form: Form, prior: ShapePrior, kernel: Floats) -> Curve:
    """What is believed without any measurement."""
    empty = np.zeros(0)
    nothing = Points(batch=empty, share=empty, slowness=empty, log_value=empty, count=empty)
    return Curve(form=form, prior=prior, kernel=kernel, parameters=prior.mean, points=nothing, extra=empty, fitted=0)


def draft(form: Form, points: Points, prior: ShapePrior, kernel: Floats) -> Curve:
    """A curve with the form fitted alone; the kernel is taken as it is."""
    kept = points.merged().spread_out(POINTS_MAX)
    search = Search(starts=form.starts(kept.at, kept.log_value, prior.mean), noise=_CAUTION * residual.typical(kernel))
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
    scatter = residual.scattered(here.scatter, curve.points.count) + curve.extra
    unexplained = residual.covariance(curve.kernel, here.places, here.places) + np.diag(scatter)
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
    weights = np.linalg.solve(residual.total_covariance(curve.kernel, this), this.error)
    slope = curve.form.sensitivity(curve.parameters, curve.points.at)
    return curve.prior.mean + curve.prior.covariance @ slope.T @ weights - curve.parameters


def discount(curve: Curve, wild: float = _WILD) -> Curve:
    """Give points that the others contradict wildly (squared deviations beyond `wild`) more variance, as a heavy-tailed
    scatter would.
    """
    this = replace(task(curve), extra=np.zeros(len(curve.points)))
    for _ in range(3):
        inverse = np.linalg.inv(residual.total_covariance(curve.kernel, this))
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
    curve = replace(curve, kernel=residual.own(kernel, task(curve)))
    return discount(settle(curve))
