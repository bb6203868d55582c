"""From measured points of many models on one GPU type to a curve for each, and how much its intervals are widened.

The order of learning: a first fit of every model by itself, what they have in common, the kernel of residuals, then
each model's curve under the prior that foretells its measurements best, and the widening of intervals. A model's prior
never contains its own measurements.

How much wider than computed intervals must be is learned by playing newcomer. Factors stand by number of measurements,
inside and outside the box they span, and a game fills the table: of well-measured models some measurements are kept,
the rest foretold, and the errors compared with what was promised. The 95 % interval counts most, the 80 % one second.
The model whose intervals will be widened is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.models.belief import curve as curves
from solvers.models.belief import intake, siblings
from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import Form, ShapeFit, ShapePrior, fit_parameters, population
from solvers.models.belief.intake import Points
from solvers.models.belief.siblings import STRANGER, Sibling, Told
from solvers.models.belief.surface import compiled, lookup

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
_USUAL = (1.3, 1.5)
_MODELS_USUAL = 3.0
"""As many models as this say what is usual: errors of one model go together, so its many surprises count as one voice.
"""
_FEW = 0.5
"""Quantiles from one voice alone are too narrow by so much of themselves for the next model."""
_LOWEST, _HIGHEST = 0.6, 4.0
_MODELS_MAX = 14
_QUANTILES = (
    3.1824463052837078, 3.1824463052837078, 2.7764451051977934, 2.306004135204166,
    2.1199052992212546, 2.0369333434601016, 1.997729654317693, 1.978670849837835,
)  # fmt: skip
"""Student's at 97.5 %, by `COUNTS`: of three degrees of freedom for fewer measurements, too, since what is believed
besides stands for these. Written out, for the library that knows them takes a quarter of a second to load.
"""
_CALM = 0.2
"""What is left at least of a standard deviation where repeats take their part away."""


def _usual(settled: float) -> tuple[float, ...]:
    """Of `COUNTS` measurements: what is usual of many, and more of few, whose own scatter is hardly known."""
    return tuple(settled * quantile / 1.96 for quantile in _QUANTILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """Factors on the standard deviation for `COUNTS` measurements: inside the box that they span, and outside."""

    inside: tuple[float, ...] = _usual(_USUAL[0])
    outside: tuple[float, ...] = _usual(_USUAL[1])

    def __post_init__(self) -> None:
        if not len(self.inside) == len(self.outside) == len(COUNTS):
            raise ValueError("a factor is needed for every count")

    def of(self, count: int) -> tuple[float, float]:
        """The factors for a number of measurements, between and beyond the table's rows."""
        place, rows = np.log2(max(count, 1)), np.log2(COUNTS)
        return float(np.interp(place, rows, self.inside)), float(np.interp(place, rows, self.outside))


def learned_widening(examples: Sequence[Curve], kernel: Floats, random: np.random.Generator) -> Widening:
    """Play newcomer with these curves; too few surprises leave what is usual."""
    surprises: dict[tuple[int, bool], list[Floats]] = {}
    step = max(1, len(examples) // _MODELS_MAX)
    for example in examples[::step]:
        for row, kept in _openings(example.points, random):
            size, inside = _surprises(example, kept, kernel)
            for where in (True, False):
                surprises.setdefault((row, where), []).append(size[inside == where])
    factors = [
        tuple(
            _widened_by(surprises.get((row, where), []), usual) for row, usual in enumerate(_usual(_USUAL[not where]))
        )
        for where in (True, False)
    ]
    return Widening(inside=factors[0], outside=factors[1])


def _openings(points: Points, random: np.random.Generator) -> list[tuple[int, Flags]]:
    """Which points a newcomer has, with the row of the table they belong to: random ones, and all
    but the largest or smallest batch, the narrowest share, or a batch between."""
    found = []
    for row, count in enumerate(COUNTS):
        if count <= 0.85 * len(points):
            kept = np.zeros(len(points), dtype=np.bool_)
            kept[random.permutation(len(points))[:count]] = True
            found.append((row, kept))
    low = points.batch < points.batch.max()
    high = points.batch > points.batch.min()
    wide = points.share > points.share.min()
    between = np.unique(points.batch)[1:-1]
    gap = points.batch != between[random.integers(len(between))] if len(between) else low
    for kept in (low, high, wide, gap):
        if 2 <= kept.sum() < len(points):
            found.append((int(np.argmin(np.abs(np.log2(COUNTS) - np.log2(kept.sum())))), kept))
    return found


def _surprises(example: Curve, kept: Flags, kernel: Floats) -> tuple[Floats, Flags]:
    """Errors over promised standard deviations at the points that the newcomer lacks, and which lie inside."""
    newcomer = curves.fit(example.form, example.points.take(kept), example.prior, kernel)
    rest = example.points.take(~kept)
    clocked = bool(np.any(example.points.slowness != 1.0))
    found = lookup(compiled(newcomer, (1.0, 1.0), clocked=clocked), rest.at)
    # Of several measurements the middle surprises less than the next one will.
    passing = curves.passing(
        curves.noise(newcomer.kernel, newcomer.form.evaluate(newcomer.parameters, *rest.at).elasticity)
    )
    calm = found[:, 0] ** 2 * passing * (1.0 - 1.0 / rest.count)
    std = np.sqrt(np.maximum(found[:, 1] ** 2 - calm, (_CALM * found[:, 1]) ** 2))
    return np.abs(np.exp(rest.log_value) - found[:, 0]) / std, intake.within(rest.at, newcomer.points)


def _widened_by(parts: Sequence[Floats], usual: float) -> float:
    heard = [part for part in parts if len(part)]
    if not heard:
        return usual
    # What a newcomer lacks at random is plenty, a missing batch is few cells: each game counts the same.
    together, weight = np.concatenate(heard), np.concatenate([np.full(len(part), 1 / len(part)) for part in heard])
    order = np.argsort(together, kind="stable")
    reached = (np.cumsum(weight[order]) - weight[order] / 2) / len(heard)
    # Conformal: of n surprises the k-th smallest with k = level * (n + 1).
    high, middle = np.interp([level * (1 + 1 / len(together)) for level in (0.95, 0.8)], reached, together[order])
    raw = float(np.clip(0.75 * high / 1.96 + 0.25 * middle / 1.2816, _LOWEST, _HIGHEST))
    voices = len(heard)
    trust = voices / (voices + _MODELS_USUAL)
    return float(np.exp(trust * np.log(raw) + (1 - trust) * np.log(usual))) * (1 + _FEW / voices)


# --- From points to curves


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


UNTAUGHT = Field(population=None, kernel=curves.KERNEL_USUAL, widening=Widening())


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
    near = {
        name: siblings.voices(lessons[name].sibling, {other: said for other, said in told.items() if other != name})
        for name in names
    }
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
            widening=learned_widening(examples, kernel, np.random.default_rng(seed)),
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
    return curves.completed(tried[int(np.argmax(scores))])


def _first_fits(form: Form, lessons: Mapping[str, Lesson]) -> dict[str, ShapeFit]:
    fits = {}
    for name, lesson in lessons.items():
        points = lesson.points.merged().spread_out(curves.POINTS_MAX)
        if len(points) < _TELLING:
            continue
        fits[name] = fit_parameters(form, points.at, points.log_value, lesson.priors[-1])
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


def _kernel(form: Form, learners: Sequence[tuple[Points, ShapePrior]]) -> Floats:
    """Scales of the residual over some models, once about first curves and once about settled ones."""
    chosen = learners[:: max(1, len(learners) // _LEARNERS_MAX)]
    drafts = [
        curves.draft(form, points.merged().spread_out(_LEARNER_POINTS_MAX), prior, curves.KERNEL_USUAL)
        for points, prior in chosen
    ]
    kernel = curves.learned_kernel([curves.task(one) for one in drafts])
    settled = [curves.discount(curves.settle(replace(one, kernel=kernel))) for one in drafts]
    return curves.learned_kernel([curves.task(one) for one in settled], kernel)
