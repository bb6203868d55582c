"""Names for arrays of numbers, of whole numbers and of yes or no, records of parallel ones, the most and the best of
many; and random numbers, a stream for every purpose, so that an extra draw in one place never disturbs another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = TypeVar("Numbers", Floats, Whole)


class Parallel:
    """Dataclasses with slots for arrays, element n of each about the same thing; what is no array stays as it is."""

    __slots__: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(getattr(self, self.__slots__[0]))

    def take(self, some: Whole | Flags | slice) -> Self:
        """Some elements, in the order asked for."""
        made: Any = type(self)
        return cast("Self", made(**{name: _take(getattr(self, name), some) for name in self.__slots__}))

    def joined(self, other: Self) -> Self:
        return self.chained([self, other])

    @classmethod
    def chained(cls, parts: Sequence[Self]) -> Self:
        """One after the other; at least one."""
        made: Any = cls
        return cast("Self", made(**{name: _chain([getattr(part, name) for part in parts]) for name in cls.__slots__}))


def _take(part: Any, some: Whole | Flags | slice) -> Any:
    if isinstance(part, Parallel):
        return part.take(some)
    return part[some] if isinstance(part, np.ndarray) else part


def _chain(parts: list[Any]) -> Any:
    if isinstance(parts[0], Parallel):
        return type(parts[0]).chained(parts)
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else parts[0]


def most_of(values: Numbers, of: Whole, first: Numbers) -> Numbers:
    """By number the most of the values that are `of` it, and no less than at first."""
    found = first.copy()
    np.maximum.at(found, of, values)
    return found


def least_of(values: Numbers, of: Whole, first: Numbers) -> Numbers:
    """Likewise the least, and no more than at first."""
    found = first.copy()
    np.minimum.at(found, of, values)
    return found


def unbeaten(sums: Floats, order: Whole, dust: float, most: int | None = None) -> Whole:
    """Of rows in this order those that none before is as little as in every sum, so many at most."""
    kept, front = list[int](), np.empty((len(order), sums.shape[1]))
    for row in order.tolist():
        if len(kept) == most:
            break
        if not (front[: len(kept)] <= sums[row] + dust).all(axis=1).any():
            front[len(kept)] = sums[row]
            kept.append(row)
    return np.array(kept, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Streams:
    """A seed from which every named stream follows."""

    seed: int

    def stream(self, purpose: str) -> np.random.Generator:
        """Generator for one purpose; the same seed and purpose always give the same numbers."""
        digest = hashlib.sha256(f"{self.seed}:{purpose}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))
