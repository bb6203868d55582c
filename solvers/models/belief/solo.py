"""Headroom's own model of a replica alone: a physical shape, a learned residual, calibrated intervals.

Questions are answered from compiled surfaces, and single measurements are taken in. Latency never rises with share or
clock and never falls with batch, power and memory never fall with batch, whatever was measured. Fitting is in
`knowledge`; where nothing at all is known of a model the answer is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Answer, Facts, ModelSpec, Origin, Quantity, Queries, Samples, refuse_quantity
from solvers.models.belief import curve as curves
from solvers.models.belief import intake, knowledge, learning
from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import ShapePrior
from solvers.models.belief.intake import Key, Points
from solvers.models.belief.knowledge import FORMS, Background, Knowledge, Tail
from solvers.models.belief.learning import Field, Widening
from solvers.models.belief.surface import Surface, appended, compiled, lookup
from solvers.models.library import gpu_key

# --- What was learned as plain JSON data, and back
#
# The layout: numbers as lists, matrices as lists of rows, keys spelled out. What can be computed again is left out.
# Data that is not of this layout is refused.


T = TypeVar("T")
_POINTS = ("batch", "share", "slowness", "log_value", "count")


def to_plain(known: Knowledge) -> Plain:
    """All that was learned as JSON data."""
    return {
        # An unknown clock is left out.
        "clocks": {name: clock for name, clock in sorted(known.clocks.items()) if np.isfinite(clock)},
        "fields": [
            {
                "form": form,
                "gpu_type": gpu_type,
                "population": _prior_to_plain(field.population) if field.population is not None else None,
                "kernel": field.kernel.tolist(),
                "inside": list(field.widening.inside),
                "outside": list(field.widening.outside),
            }
            for (form, gpu_type), field in sorted(known.fields.items())
        ],
        "curves": [_curve_to_plain(form, key, curve) for (form, key), curve in sorted(known.curves.items())],
        "tails": [
            {
                "model": model,
                "gpu_type": gpu_type,
                "mean": tail.mean,
                "variance": tail.variance,
                "scatter": tail.scatter,
                "count": tail.count,
            }
            for (model, gpu_type), tail in sorted(known.tails.items())
        ],
    }


def read(plain: Plain) -> tuple[int, Knowledge]:
    """Seed and knowledge of a dumped model. Raises InputError when it is none."""
    try:
        seed, known = _member(plain, "seed"), _member(plain, "known")
        return _whole(seed), _knowledge(known)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("this fitted model of replicas alone cannot be read") from error


def _knowledge(plain: Plain) -> Knowledge:
    clocks = _member(plain, "clocks")
    if not isinstance(clocks, dict):
        raise TypeError("clocks")
    return Knowledge(
        clocks={name: _number(clock) for name, clock in clocks.items()},
        fields=dict(_listed(plain, "fields", _field)),
        curves=dict(_listed(plain, "curves", _curve)),
        tails=dict(_listed(plain, "tails", _tail)),
    )


def _field(plain: Plain) -> tuple[tuple[str, str], Field]:
    population = _member(plain, "population")
    return (_text(plain, "form"), _text(plain, "gpu_type")), Field(
        population=_prior(population) if population is not None else None,
        kernel=_numbers(plain, "kernel"),
        widening=Widening(
            inside=tuple(_numbers(plain, "inside").tolist()), outside=tuple(_numbers(plain, "outside").tolist())
        ),
    )


def _curve_to_plain(form: str, key: tuple[str, str], curve: Curve) -> Plain:
    return {
        "form": form,
        "model": key[0],
        "gpu_type": key[1],
        "prior": _prior_to_plain(curve.prior),
        "kernel": curve.kernel.tolist(),
        "parameters": curve.parameters.tolist(),
        "points": {name: getattr(curve.points, name).tolist() for name in _POINTS},
        "extra": curve.extra.tolist(),
        "fitted": curve.fitted,
    }


def _curve(plain: Plain) -> tuple[tuple[str, tuple[str, str]], Curve]:
    form, columns = _text(plain, "form"), _member(plain, "points")
    return (form, (_text(plain, "model"), _text(plain, "gpu_type"))), Curve(
        form=FORMS[form],
        prior=_prior(_member(plain, "prior")),
        kernel=_numbers(plain, "kernel"),
        parameters=_numbers(plain, "parameters"),
        points=Points(**{name: _numbers(columns, name) for name in _POINTS}),
        extra=_numbers(plain, "extra"),
        fitted=_whole(_member(plain, "fitted")),
    )


def _prior_to_plain(prior: ShapePrior) -> Plain:
    return {
        "mean": prior.mean.tolist(),
        "covariance": prior.covariance.tolist(),
        "origin": int(prior.origin),
        "source": prior.source,
    }


def _prior(plain: Plain) -> ShapePrior:
    return ShapePrior(
        mean=_numbers(plain, "mean"),
        covariance=_numbers(plain, "covariance"),
        origin=Origin(_whole(_member(plain, "origin"))),
        source=_text(plain, "source"),
    )


def _tail(plain: Plain) -> tuple[tuple[str, str], Tail]:
    return (_text(plain, "model"), _text(plain, "gpu_type")), Tail(
        mean=_number(_member(plain, "mean")),
        variance=_number(_member(plain, "variance")),
        scatter=_number(_member(plain, "scatter")),
        count=_whole(_member(plain, "count")),
    )


def _member(plain: Plain, name: str) -> Plain:
    if not isinstance(plain, Mapping):
        raise TypeError(name)
    return plain[name]


def _listed(plain: Plain, name: str, convert: Callable[[Plain], T]) -> list[T]:
    found = _member(plain, name)
    if not isinstance(found, list):
        raise TypeError(name)
    return [convert(item) for item in found]


def _text(plain: Plain, name: str) -> str:
    found = _member(plain, name)
    if not isinstance(found, str):
        raise TypeError(name)
    return found


def _number(plain: Plain) -> float:
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise TypeError("number")
    return float(plain)


def _whole(plain: Plain) -> int:
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise TypeError("whole number")
    return plain


def _numbers(plain: Plain, name: str) -> Floats:
    return np.array(_member(plain, name), dtype=np.float64)


SPEC = ModelSpec(
    name="headroom",
    version="1",
    formula="physical shape with learned residual and conformal intervals",
    quantities=tuple(Quantity),
    online=True,
)
_FORM_OF = {
    Quantity.LATENCY_MS: intake.LATENCY,
    Quantity.LATENCY_MS_P99: intake.LATENCY,
    Quantity.THROUGHPUT_RPS: intake.CYCLE,
    Quantity.POWER_W: intake.POWER,
    Quantity.MEMORY_MIB: intake.MEMORY,
}
_AT_ONCE_MAX = 8
"""More new points than this of one curve at a time are fitted, not appended."""
_EARLY, _APPENDED_MAX = 4, 96
"""A curve is fitted again when its points have doubled, at the latest after so many, so that its cost stays bounded."""
_LIBRARY_DISTANCE = 3.0

Rows = NDArray[np.intp]


@dataclass(slots=True)
class _Memory:
    """What was computed on the way and can be computed again: no part of the model's value."""

    surfaces: dict[tuple[str, Key], Surface] = field(default_factory=dict)
    priors: dict[tuple[str, Key], Curve | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomSolo:
    """A belief about replicas alone."""

    background: Background
    seed: int
    known: Knowledge = field(default_factory=Knowledge)
    memory: _Memory = field(default_factory=_Memory, compare=False, repr=False)

    @property
    def spec(self) -> ModelSpec:
        """Name, version, what it answers."""
        return SPEC

    def fit(self, samples: Samples) -> HeadroomSolo:
        """Learn from these samples, the facts and the library."""
        known = knowledge.studied(self.background, samples, self.seed)
        return HeadroomSolo(background=self.background, seed=self.seed, known=known)

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        """Answer every row; NaN where nothing is known or where the row is no configuration."""
        refuse_quantity(SPEC, quantity)
        answer = Answer.unknown(len(queries))
        for key, rows in queries.keys().items():
            self._answer(answer, key, rows, queries, quantity)
        return answer

    def update(self, samples: Samples) -> HeadroomSolo:
        """Take in more samples: single ones by conditioning the compiled belief, many of a model by fitting it again.

        Fields, populations and intervals stay as they were fitted.
        """
        clocks = intake.references(self.background.clocks, samples, self.known.clocks)
        gathered = intake.gathered(samples, clocks)
        tails = dict(self.known.tails)
        for key, ratios in gathered.tails.items():
            tails[key] = self.known.tail(key).after(ratios)
        learned, surfaces = dict(self.known.curves), dict(self.memory.surfaces)
        for form, by_key in gathered.points.items():
            for key, points in by_key.items():
                surface = self._taken_in(form, key, points)
                learned[form, key] = surface.curve
                surfaces[form, key] = surface
        known = replace(self.known, clocks=clocks, tails=tails, curves=learned)
        return replace(self, known=known, memory=_Memory(surfaces=surfaces))

    def dump(self) -> Plain:
        """Everything needed to answer again, as JSON data."""
        return {"seed": self.seed, "known": to_plain(self.known)}

    def _answer(self, answer: Answer, key: Key, rows: Rows, queries: Queries, quantity: Quantity) -> None:
        form = self._form(_FORM_OF[quantity], key)
        clock = self.known.clocks.get(key[1], self.background.clocks.get(gpu_key(key[1]), np.nan))
        batch, share, slow = intake.places(queries, rows, clock)
        if form == intake.MEMORY:
            share, slow = np.where(np.isnan(share), np.nan, 1.0), np.ones(len(rows))
        possible = np.isfinite(batch) & np.isfinite(share)
        rows, batch, share, slow = rows[possible], batch[possible], share[possible], slow[possible]
        curve = self._curve(form, key)
        if curve is None or not len(rows):
            return
        at = (batch, share, slow)
        found = lookup(self._surface(form, key, clocked=bool(np.any(slow != 1.0))), at)
        value, std = self._converted(found, batch, quantity, key)
        origin = Origin.MEASURED if len(curve.points) else curve.prior.origin
        answer.mean[rows], answer.std[rows] = value, std
        answer.origin[rows] = origin
        if origin is Origin.MEASURED:
            answer.distance[rows] = found[:, 2]
            answer.support[rows] = intake.within(at, curve.points)
        elif origin is Origin.LIBRARY:
            answer.distance[rows] = _LIBRARY_DISTANCE

    def _converted(self, found: Floats, batch: Floats, quantity: Quantity, key: Key) -> tuple[Floats, Floats]:
        """Value and std of the quantity from those of its curve."""
        value, std = found[:, 0], found[:, 1]
        if quantity is Quantity.THROUGHPUT_RPS:
            rate = 1000.0 * batch / value
            return rate, rate * std / value
        if quantity is Quantity.LATENCY_MS_P99:
            tail = self.known.tail(key)
            return value * tail.ratio, value * tail.ratio * np.hypot(std / value, tail.log_std)
        return value, std

    def _form(self, form: str, key: Key) -> str:
        """Cycles that were not measured are latencies."""
        return intake.LATENCY if form == intake.CYCLE and (form, key) not in self.known.curves else form

    def _curve(self, form: str, key: Key) -> Curve | None:
        """What was fitted, else what is believed before any measurement, else None."""
        if (form, key) in self.known.curves:
            return self.known.curves[form, key]
        if (form, key) not in self.memory.priors:
            prior = knowledge.prior_of(self.background, self.known, form, key)
            kernel = self.known.field(form, key[1]).kernel
            self.memory.priors[form, key] = (
                curves.prior_curve(FORMS[form], prior, kernel) if prior is not None else None
            )
        return self.memory.priors[form, key]

    def _surface(self, form: str, key: Key, *, clocked: bool) -> Surface:
        """The compiled curve; one that knows clocks serves those who do not ask for any."""
        kept = self.memory.surfaces.get((form, key))
        if kept is not None and (len(kept.axes[2]) > 1 or not clocked):
            return kept
        curve = self._curve(form, key)
        assert curve is not None
        surface = self._compiled(form, key, curve, clocked=clocked)
        self.memory.surfaces[form, key] = surface
        return surface

    def _compiled(self, form: str, key: Key, curve: Curve, *, clocked: bool) -> Surface:
        clocked = clocked or bool(np.any(curve.points.slowness != 1.0))
        # Priors bring their own width; what is appended changes no factor, so that it does not matter when it came.
        widening = self.known.field(form, key[1]).widening.of(curve.fitted) if curve.fitted else (1.0, 1.0)
        return compiled(curve, widening, clocked=clocked)

    def _taken_in(self, form: str, key: Key, points: Points) -> Surface:
        """The surface of a curve after more points."""
        curve = self._curve(form, key)
        if curve is None:
            first = knowledge.first_curve(self.background, self.known, form, key, points)
            return self._compiled(form, key, first, clocked=False)
        late = len(curve.points) - curve.fitted + len(points)
        if len(points) > _AT_ONCE_MAX or late > min(max(curve.fitted, _EARLY), _APPENDED_MAX):
            refitted = learning.best(
                FORMS[form], curve.points.joined(points), (curve.prior,), self.known.field(form, key[1]).kernel
            )
            return self._compiled(form, key, refitted, clocked=False)
        surface = self._surface(form, key, clocked=bool(np.any(points.slowness != 1.0)))
        for row in range(len(points)):
            surface = appended(surface, points.take(np.array([row])))
        return surface


def make(facts: Facts, seed: int) -> HeadroomSolo:
    """An unfitted model: it answers from the library and by scaling."""
    return HeadroomSolo(background=Background.of(facts), seed=seed)


def load(plain: Plain, facts: Facts) -> HeadroomSolo:
    """The model that was dumped. Raises InputError when it is none."""
    seed, known = read(plain)
    return HeadroomSolo(background=Background.of(facts), seed=seed, known=known)
