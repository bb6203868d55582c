"""All that was learned of replicas alone, as a value, and how it is learned from samples.

The value: curves by form, model and GPU type, what GPU types have in common (fields), tails and reference clocks.
Decided here: which priors are tried for a model, and how measurements of a model on one GPU type serve on another.
Questions are answered in `solo`.

A tail is how far a model's 99th percentile lies above its mean: one ratio per model and GPU type, whose logarithm is a
Gaussian, learned from measured pairs and held to what is usual. It is the spread of execution alone, without queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Origin, Samples
from solvers.models.belief import curve as curves
from solvers.models.belief import intake, learning, siblings
from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import (
    LATENCY,
    MEMORY,
    POWER,
    SHAPE_VERSION,
    Form,
    ShapePrior,
    memory_prior,
    power_prior,
    weak_prior,
)
from solvers.models.belief.intake import Key, Points
from solvers.models.belief.learning import UNTAUGHT, Field, Lesson
from solvers.models.belief.siblings import STRANGER, Sibling, Told
from solvers.models.belief.transfer import Scaling
from solvers.models.library import gpu_key, name_key, spelled

_USUAL, _USUAL_SPREAD = 0.12, 0.12
_SCATTER = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Mean of the ratio's logarithm, how sure it is (variance), scatter of single ratios, and how many told it."""

    mean: float = _USUAL
    variance: float = _USUAL_SPREAD**2
    scatter: float = _SCATTER
    count: int = 0

    def after(self, ratios: Floats) -> Tail:
        """Having seen more logarithms of ratios; a wild one counts little."""
        wildness = (ratios - self.mean) ** 2 / (self.variance + self.scatter**2)
        # Many ratios at once are judged by their own middle, single ones by what is known.
        if len(ratios) > 3:
            middle = np.median(ratios)
            wildness = (ratios - middle) ** 2 / (self.scatter**2 + np.median(np.abs(ratios - middle)) ** 2)
        weight = np.where(wildness > 9.0, 5.0 / (wildness + 4.0), 1.0)
        told = float(weight.sum())
        centre = float((weight * ratios).sum() / told)
        spread = float((weight * (ratios - centre) ** 2).sum())
        scatter = float(np.sqrt((self.scatter**2 * (self.count + 4) + spread) / (self.count + 4 + told)))
        precision = 1 / self.variance + told / scatter**2
        mean = (self.mean / self.variance + told * centre / scatter**2) / precision
        # A percentile of a drifting machine is never known better than this.
        variance = max(1 / precision, (scatter / 5) ** 2)
        return Tail(mean=mean, variance=variance, scatter=scatter, count=self.count + len(ratios))

    @property
    def ratio(self) -> float:
        """99th percentile over mean."""
        return float(np.exp(max(self.mean, 0.0)))

    @property
    def log_std(self) -> float:
        """Standard deviation of the logarithm of the next ratio."""
        return float(np.sqrt(self.variance + self.scatter**2))


# --- All that was learned


FORMS: dict[str, Form] = {
    intake.LATENCY: LATENCY, intake.CYCLE: LATENCY, intake.POWER: POWER, intake.MEMORY: MEMORY,
}  # fmt: skip
_SCALE_SPREAD = 1.5
_CYCLE_SPREAD = 0.3
_BORROWING_MAX = 40
"""Beyond so many points of its own, a model needs nothing from other GPU types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What is known without measuring, made ready for look-ups by any spelling of a name."""

    facts: Facts
    scaling: Scaling
    gpu_types: Mapping[str, GpuType]
    models: Mapping[str, ModelVariant]
    clocks: Mapping[str, float]

    @staticmethod
    def of(facts: Facts) -> Background:
        return Background(
            facts=facts,
            scaling=Scaling.of(facts),
            gpu_types={gpu_key(name): gpu_type for name, gpu_type in facts.gpu_types.items()},
            models={name_key(name): model for name, model in facts.models.items()},
            clocks=intake.listed_clocks(facts),
        )

    def gpu_type(self, name: str) -> GpuType | None:
        """The specification, however the name is written."""
        return self.gpu_types.get(gpu_key(name))

    def model(self, name: str) -> ModelVariant | None:
        """The description, however the name is written."""
        return self.models.get(name_key(name))

    def sibling(self, model: str, gpu_type: str) -> Sibling:
        """What is known of a model on a GPU type beside measurements."""
        network = spelled(model, self.facts.models)
        library = self.facts.library
        return Sibling(
            variant=self.facts.models[network] if network is not None else None,
            entry=library.entry(model, gpu_type) if library is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """`clocks`: what slowness 1 means; `fields` by form and GPU type; `curves` by form and key."""

    clocks: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[tuple[str, str], Field] = field(default_factory=dict)
    curves: Mapping[tuple[str, Key], Curve] = field(default_factory=dict)
    tails: Mapping[Key, Tail] = field(default_factory=dict)

    def field(self, form: str, gpu_type: str) -> Field:
        """What is common on a GPU type, as far as known."""
        return self.fields.get((form, gpu_type), UNTAUGHT)

    def tail(self, key: Key) -> Tail:
        """The model's tail, else what other models on the GPU type have in the middle, else the usual one."""
        if key in self.tails:
            return self.tails[key]
        others = [tail.mean for (_, gpu_type), tail in sorted(self.tails.items()) if gpu_type == key[1]]
        return Tail(mean=float(np.median(others))) if others else Tail()


def studied(background: Background, samples: Samples, seed: int) -> Knowledge:
    clocks = intake.references(background.clocks, samples, {})
    gathered = intake.gathered(samples, clocks)
    known = Knowledge(clocks=clocks, tails={key: Tail().after(ratios) for key, ratios in gathered.tails.items()})
    for form, points in gathered.points.items():
        for gpu_type in sorted({key[1] for key in points}):
            here = {key[0]: found for key, found in points.items() if key[1] == gpu_type}
            known = _with_gpu_type(background, known, form, gpu_type, here, seed)
        if form == intake.LATENCY:
            known = _borrowed(background, known)
    return known


def _with_gpu_type(
    background: Background, known: Knowledge, form: str, gpu_type: str, here: Mapping[str, Points], seed: int
) -> Knowledge:
    typical = float(np.concatenate([points.log_value for points in here.values()]).mean())
    usual = weak_prior(float(np.exp(typical)), _SCALE_SPREAD)
    if form == intake.POWER:
        highest = max(float(points.log_value.max()) for points in here.values())
        usual = power_prior(background.gpu_type(gpu_type), float(np.exp(highest))) or usual
    lessons = {
        model: Lesson(
            points=points,
            priors=_priors(background, known, form, (model, gpu_type), points, usual),
            sibling=background.sibling(model, gpu_type) if form == intake.LATENCY else STRANGER,
        )
        for model, points in here.items()
    }
    common, curves_here = learning.learn(FORMS[form], lessons, seed)
    return replace(
        known,
        fields={**known.fields, (form, gpu_type): common},
        curves={**known.curves, **{(form, (model, gpu_type)): curve for model, curve in curves_here.items()}},
    )


def _priors(
    background: Background, known: Knowledge, form: str, key: Key, points: Points, usual: ShapePrior
) -> tuple[ShapePrior, ...]:
    """What may hold of a model beside what others on the GPU type say; the last one always may."""
    model, gpu_type = key
    if form == intake.MEMORY:
        lowest = float(np.exp(points.log_value.min()))
        return tuple(prior for of in (background.model(model), None) if (prior := memory_prior(of, lowest)) is not None)
    if form == intake.POWER:
        return (usual,)
    if form == intake.CYCLE:
        latency = known.curves.get((intake.LATENCY, (model, gpu_type)))
        return (_nearby(latency), usual) if latency is not None else (usual,)
    scaled = background.scaling.prior(model, gpu_type, {})
    everywhere = library_population(background.facts)
    return tuple(prior for prior in (scaled, everywhere, usual) if prior is not None)


def _nearby(latency: Curve) -> ShapePrior:
    spread = np.full(len(latency.parameters), _CYCLE_SPREAD)
    return ShapePrior(
        mean=latency.parameters, covariance=np.diag(spread**2), origin=Origin.MEASURED, source="the model's latency"
    )


def library_population(facts: Facts) -> ShapePrior | None:
    """What the library's models have in common, where it speaks of this shape."""
    library = facts.library
    if library is None or library.shape_version != SHAPE_VERSION:
        return None
    return ShapePrior(
        mean=np.array(library.population_mean),
        covariance=np.array(library.population_covariance),
        origin=Origin.SCALED,
        source=f"the built-in library {library.version}",
    )


def posterior(curve: Curve) -> ShapePrior:
    """What a curve says of its parameters, as a prior for elsewhere."""
    task = curves.task(curve)
    slope = curve.form.evaluate(curve.parameters, *curve.points.at).slope @ curve.prior.covariance
    total = curves.total_covariance(curve.kernel, task)
    covariance = curve.prior.covariance - slope.T @ np.linalg.solve(total, slope)
    return ShapePrior(
        mean=curve.parameters,
        covariance=(covariance + covariance.T) / 2 + 1e-6 * np.eye(len(covariance)),
        origin=Origin.MEASURED,
        source="measured here",
    )


def measured(known: Knowledge) -> dict[Key, ShapePrior]:
    """Beliefs about latency's parameters of everything that was measured."""
    return {
        key: posterior(curve)
        for (form, key), curve in sorted(known.curves.items())
        if form == intake.LATENCY and len(curve.points)
    }


def _borrowed(background: Background, known: Knowledge) -> Knowledge:
    """Let models with few points on a GPU type learn from where they were measured better."""
    few = [
        key
        for (form, key), curve in sorted(known.curves.items())
        if form == intake.LATENCY and len(curve.points) <= _BORROWING_MAX
    ]
    models = [model for form, (model, _) in known.curves if form == intake.LATENCY]
    few = [key for key in few if models.count(key[0]) > 1]
    if not few:
        return known
    elsewhere, better = measured(known), dict(known.curves)
    for key in few:
        own = known.curves[intake.LATENCY, key]
        others = {other: prior for other, prior in elsewhere.items() if other != key}
        scaled = background.scaling.prior(*key, others)
        if scaled is not None:
            kernel = known.field(intake.LATENCY, key[1]).kernel
            better[intake.LATENCY, key] = learning.best(LATENCY, own.points, (own.prior, scaled), kernel)
    return replace(known, curves=better)


def prior_of(background: Background, known: Knowledge, form: str, key: Key) -> ShapePrior | None:
    """What is believed of a model that was not measured; None when nothing is."""
    model, gpu_type = key
    common = known.field(form, gpu_type).population
    if form == intake.MEMORY:
        variant = background.model(model)
        return memory_prior(variant, np.nan) if variant is not None else common
    if form == intake.POWER:
        return common or power_prior(background.gpu_type(gpu_type), np.nan)
    latency = known.curves.get((intake.LATENCY, key))
    if form == intake.CYCLE and latency is not None:
        return _nearby(latency)
    told = measured(known)
    near, scaled = _near(background, told, key), background.scaling.prior(model, gpu_type, told)
    if not near or scaled is None:
        return near[0] if near else scaled or common
    elsewhere = any(name_key(name) == name_key(model) for name, _ in told)
    return siblings.joined(scaled, near[-1]) if elsewhere else near[0]


def _near(background: Background, told: Mapping[Key, ShapePrior], key: Key) -> tuple[ShapePrior, ...]:
    """What the models measured on the same GPU type say of one that was not."""
    others = {
        model: Told(sibling=background.sibling(model, gpu_type), belief=belief)
        for (model, gpu_type), belief in told.items()
        if gpu_type == key[1] and model != key[0]
    }
    return siblings.voices(background.sibling(*key), others)


def first_curve(background: Background, known: Knowledge, form: str, key: Key, points: Points) -> Curve:
    """The curve of a model of which nothing was known before these points."""
    usual = weak_prior(float(np.exp(points.log_value.mean())), _SCALE_SPREAD)
    if form == intake.POWER:
        usual = power_prior(None, float(np.exp(points.log_value.max()))) or usual
    priors = _priors(background, known, form, key, points, usual)
    if form == intake.LATENCY:
        priors = _near(background, measured(known), key) + priors
    return learning.best(FORMS[form], points, priors, known.field(form, key[1]).kernel)
