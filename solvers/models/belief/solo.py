"""Headroom's own model of a replica alone: a physical shape, a learned residual, calibrated intervals.

Questions are answered from compiled surfaces, and single measurements are taken in. Latency never rises with share or
clock and never falls with batch, power and memory never fall with batch, whatever was measured. Fitting is in
`knowledge`; where nothing at all is known of a model the answer is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Answer, Facts, ModelSpec, Origin, Quantity, Queries, Samples, refuse_quantity
from solvers.models.belief import curve as curves
from solvers.models.belief import intake, knowledge, learning
from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import Form, ShapePrior
from solvers.models.belief.intake import Key, Points
from solvers.models.belief.knowledge import FORMS, Background, Knowledge, Tail
from solvers.models.belief.learning import Field, Widening
from solvers.models.belief.surface import Surface, appended, compiled, lookup
from solvers.models.library import gpu_key

# --- What was learned as plain JSON data, and back
#
# The layout: records as objects of their fields, arrays as lists, keys spelled out. What can be computed again is left
# out. Data that is not of this layout is refused.


R = TypeVar("R", ShapePrior, Curve, Points, Widening, Tail)
T = TypeVar("T")


def to_plain(known: Knowledge) -> Plain:
    return {
        # An unknown clock is left out.
        "clocks": {name: clock for name, clock in sorted(known.clocks.items()) if np.isfinite(clock)},
        "fields": [
            {
                "form": form,
                "gpu_type": gpu_type,
                "population": _fields_of(common.population) if common.population is not None else None,
                "kernel": common.kernel.tolist(),
                **_fields_of(common.widening),
            }
            for (form, gpu_type), common in sorted(known.fields.items())
        ],
        "curves": [
            {"model": key[0], "gpu_type": key[1], **_fields_of(curve), "form": form}
            for (form, key), curve in sorted(known.curves.items())
        ],
        "tails": [
            {"model": model, "gpu_type": gpu_type, **_fields_of(tail)}
            for (model, gpu_type), tail in sorted(known.tails.items())
        ],
    }


def _fields_of(record: ShapePrior | Curve | Points | Widening | Tail) -> dict[str, Plain]:
    return {each.name: _written(getattr(record, each.name)) for each in fields(record)}


def _written(item: Any) -> Any:
    if isinstance(item, ShapePrior | Points):
        return _fields_of(item)
    if isinstance(item, Form | Origin):
        return item.name if isinstance(item, Form) else int(item)
    return np.asarray(item).tolist() if isinstance(item, np.ndarray | tuple) else item


def read(plain: Plain) -> tuple[int, Knowledge]:
    """Seed and knowledge of a dumped model. Raises InputError when it is none."""
    try:
        whole = _as(dict, plain)
        known = _as(dict, whole["known"])
        knowledge = Knowledge(
            clocks={name: _as(float, clock) for name, clock in _as(dict, known["clocks"]).items()},
            fields={(_as(str, item["form"]), _as(str, item["gpu_type"])): _field(item) for item in known["fields"]},
            curves={(_as(str, item["form"]), _key(item)): _curve(item) for item in known["curves"]},
            tails={_key(item): _record(Tail, item) for item in known["tails"]},
        )
        return _as(int, whole["seed"]), knowledge
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("this fitted model of replicas alone cannot be read") from error


def _key(plain: Any) -> Key:
    return _as(str, plain["model"]), _as(str, plain["gpu_type"])


def _field(plain: Any) -> Field:
    population = plain["population"]
    return Field(
        population=None if population is None else _record(ShapePrior, population),
        kernel=_value(Floats, plain["kernel"]),
        widening=_record(Widening, plain),
    )


def _curve(plain: Any) -> Curve:
    return _record(Curve, plain, form=FORMS[plain["form"]])


def _record(kind: type[R], plain: Any, **known: Any) -> R:
    """A record from an object with its fields, apart from those that are known."""
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind) if each.name not in known]
    return kind(**known, **{name: _value(hints[name], _as(dict, plain)[name]) for name in names})


def _value(hint: Any, plain: Any) -> Any:
    if hint == Floats:
        return np.array(plain, dtype=np.float64)
    if hint in (ShapePrior, Points):
        return _record(hint, plain)
    if hint is Origin:
        return Origin(_as(int, plain))
    return tuple(np.array(plain, dtype=np.float64).tolist()) if hint == tuple[float, ...] else _as(hint, plain)


def _as(kind: type[T], plain: Any) -> T:
    """What was written, where it is of this kind; whole numbers are numbers, too, and flags are none."""
    wanted: Any = (int, float) if kind is float else kind
    if isinstance(plain, bool) or not isinstance(plain, wanted):
        raise TypeError(kind.__name__)
    return cast("T", float(plain) if kind is float else plain)


SPEC = ModelSpec(
    name="headroom",
    version="2",
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
    spec: ModelSpec = SPEC

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
        learned = dict(self.known.curves)
        # What was never measured itself follows from what was, so it is made anew.
        surfaces = {place: surface for place, surface in self.memory.surfaces.copy().items() if place in learned}
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
