"""From measured points of many models on one GPU type to a curve for each.

The order of learning: a first fit of every model by itself, what they have in common, the kernel of residuals, then
each model's curve under the prior that foretells its measurements best, and the widening of intervals. A model's prior
never contains its own measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.belief import calibration, residual, siblings
from solvers.models.belief import curve as curves
from solvers.models.belief.calibration import Widening
from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import Form
from solvers.models.belief.points import Points
from solvers.models.belief.prior import Search, ShapeFit, ShapePrior, fit_parameters, population
from solvers.models.belief.siblings import STRANGER, Sibling, Told

_TELLING = 6
"""Points from which a model says something about others."""
_NEIGHBOURS, _ALIKE = 6.0, 20.0
"""Lead (of the logarithm of evidence) of what other models measured here tell, since they ran with the same software:
of what all of them have in common, and of what those of its size and family say.
"""
_SETTLED = 40
"""With more points than this it hardly matters what was believed before."""
_LEARNERS_MAX = 12
_LEARNER_POINTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What all models on a GPU type tell about one quantity. `population` is None where too few told anything."""

    population: ShapePrior | None
    kernel: Floats
    widening: Widening


UNTAUGHT = Field(population=None, kernel=residual.KERNEL_USUAL, widening=Widening())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Points of one model, and the priors that may hold for it beside what the other models tell; at least one."""

    points: Points
    priors: tuple[ShapePrior, ...]
    sibling: Sibling = STRANGER


def learn(form: Form, lessons: Mapping[str, Lesson], seed: int) -> tuple[Field, dict[str, Curve]]:
    """The field and every model's curve. Deterministic in the seed, whatever the order of the lessons."""
    names = sorted(lessons)
    fits = _first_fits(form, {name: lessons[name] for name in names})
    weak = {name: lessons[name].priors[-1] for name in names}
    common = {name: _others(name, fits, weak[name]) for name in names}
    told = {name: Told(sibling=lessons[name].sibling, belief=fit) for name, fit in fits.items()}
    near = {name: siblings.voices(lessons[name].sibling, _without(told, name)) for name in names}
    priors = {name: _candidates(lessons[name], near[name], common[name]) for name in names}
    telling = [name for name in names if name in fits]
    kernel = _kernel(form, [(lessons[name].points, priors[name][0]) for name in telling])
    lead = _NEIGHBOURS if len(fits) > 2 else 0.0
    found = {
        name: best(form, lessons[name].points, priors[name], kernel, _ALIKE if near[name] else lead) for name in names
    }
    examples = [found[name] for name in telling if len(found[name].points) >= 2 * _TELLING]
    return (
        Field(
            population=population(list(fits.values()), weak[names[0]]) if len(fits) > 1 else None,
            kernel=kernel,
            widening=calibration.learned(examples, kernel, np.random.default_rng(seed)),
        ),
        found,
    )


def best(form: Form, points: Points, priors: Sequence[ShapePrior], kernel: Floats, lead: float = 0.0) -> Curve:
    """The curve under the prior with the most evidence, when the first of them has a lead."""
    if len(priors) == 1:
        return curves.fit(form, points, priors[0], kernel)
    tried = [curves.settle(curves.draft(form, points, prior, kernel)) for prior in priors]
    scores = [curves.evidence(one) for one in tried]
    scores[0] += lead
    return curves.fit(form, points, priors[int(np.argmax(scores))], kernel)


def _first_fits(form: Form, lessons: Mapping[str, Lesson]) -> dict[str, ShapeFit]:
    fits = {}
    for name, lesson in lessons.items():
        points = lesson.points.merged().spread_out(curves.POINTS_MAX)
        if len(points) < _TELLING:
            continue
        prior = lesson.priors[-1]
        starts = form.starts(points.at, points.log_value, prior.mean)
        fits[name] = fit_parameters(form.log_value, points.at, points.log_value, prior, Search(starts=starts))
    return fits


def _others(name: str, fits: Mapping[str, ShapeFit], weak: ShapePrior) -> tuple[ShapePrior, ...]:
    """What the other models tell, where there are enough of them."""
    others = [fit for other, fit in fits.items() if other != name]
    return (population(others, weak),) if len(others) > 1 else ()


def _candidates(lesson: Lesson, near: tuple[ShapePrior, ...], common: tuple[ShapePrior, ...]) -> tuple[ShapePrior, ...]:
    """The priors to try, the surest first."""
    if not near:
        return common + lesson.priors
    return near[:1] if len(lesson.points) > _SETTLED else near + common


def _without(told: Mapping[str, Told], name: str) -> dict[str, Told]:
    return {other: found for other, found in told.items() if other != name}


def _kernel(form: Form, learners: Sequence[tuple[Points, ShapePrior]]) -> Floats:
    """Scales of the residual over some models, once about first curves and once about settled ones."""
    chosen = learners[:: max(1, len(learners) // _LEARNERS_MAX)]
    drafts = [
        curves.draft(form, points.merged().spread_out(_LEARNER_POINTS_MAX), prior, residual.KERNEL_USUAL)
        for points, prior in chosen
    ]
    kernel = residual.learn([curves.task(one) for one in drafts])
    settled = [curves.discount(curves.settle(replace(one, kernel=kernel))) for one in drafts]
    return residual.learn([curves.task(one) for one in settled], kernel)
