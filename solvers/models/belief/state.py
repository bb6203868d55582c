"""What was learned as plain JSON data, and back.

The layout: numbers as lists, matrices as lists of rows, keys spelled out. What can be computed again is left out. Data
that is not of this layout is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Origin
from solvers.models.belief.calibration import Widening
from solvers.models.belief.curve import Curve
from solvers.models.belief.knowledge import FORMS, Knowledge
from solvers.models.belief.learning import Field
from solvers.models.belief.points import Points
from solvers.models.belief.prior import ShapePrior
from solvers.models.belief.tail import Tail

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
