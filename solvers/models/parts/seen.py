"""Measurements as plain JSON data and back.

NaN becomes null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import MEASURED, Queries, Samples

_NUMBERS = ("batch", "share_pct", "clock_mhz")
T = TypeVar("T")


def part(plain: Plain, name: str) -> Plain:
    """A member of a JSON object. Raises InputError where there is none."""
    if not isinstance(plain, dict) or name not in plain:
        raise InputError(f"this fitted model lacks {name!r}")
    return plain[name]


def read(plain: Plain, name: str, convert: Callable[[list[Plain]], T]) -> T:
    """A list of a JSON object, converted. Raises InputError where it is none."""
    found = part(plain, name)
    if not isinstance(found, list):
        raise InputError(f"{name!r} of this fitted model is no list")
    try:
        return convert(found)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name!r} of this fitted model cannot be read") from error


def floats_to_plain(values: Floats) -> Plain:
    return [None if np.isnan(value) else value for value in values.tolist()]


def floats_of(items: list[Plain]) -> Floats:
    """Numbers from plain data, NaN for None."""
    return np.array([np.nan if item is None else item for item in items], dtype=np.float64)


def ints_of(items: list[Plain]) -> Whole:
    return np.array(items, dtype=np.int64)


def names_of(items: list[Plain]) -> tuple[str, ...]:
    return tuple(str(item) for item in items)


def queries_to_plain(queries: Queries) -> dict[str, Plain]:
    return {
        "models": list(queries.models),
        "gpu_types": list(queries.gpu_types),
        "model": queries.model.tolist(),
        "gpu_type": queries.gpu_type.tolist(),
        **{name: floats_to_plain(getattr(queries, name)) for name in _NUMBERS},
    }


def queries_from_plain(plain: Plain) -> Queries:
    numbers = {name: read(plain, name, floats_of) for name in _NUMBERS}
    return Queries(
        models=read(plain, "models", names_of),
        gpu_types=read(plain, "gpu_types", names_of),
        model=read(plain, "model", ints_of),
        gpu_type=read(plain, "gpu_type", ints_of),
        **numbers,
    )


def samples_to_plain(samples: Samples) -> dict[str, Plain]:
    columns = {name: floats_to_plain(getattr(samples, name)) for name in MEASURED}
    return {"queries": queries_to_plain(samples.queries), **columns}


def samples_from_plain(plain: Plain) -> Samples:
    columns = {name: read(plain, name, floats_of) for name in MEASURED}
    return Samples(queries=queries_from_plain(part(plain, "queries")), **columns)


NO_SAMPLES = Samples.of(Queries.of([], [], [], []), [])
"""Nothing was seen."""
