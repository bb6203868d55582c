"""What is wrong with what-if changes, collected before it is raised, and the merging of documents by name.

Owns the words for names that nobody knows. It refuses to know what changes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from difflib import get_close_matches
from typing import TypeVar

from app.errors import Fault, FieldsError

T = TypeVar("T")
NEAR_MAX = 3


class Faults:
    """Collects what is wrong with changes and raises it at once."""

    def __init__(self) -> None:
        self._found: list[Fault] = []

    def add(self, pointer: str, detail: str, code: str = "value-invalid") -> None:
        """One more."""
        self._found.append(Fault(pointer=pointer, code=code, detail=detail))

    def known(self, word: str, name: str, names: Iterable[str], pointer: str) -> bool:
        """Whether the name is one of these; a fault that tells the nearest ones when it is not."""
        known = set(names)
        if name in known:
            return True
        near = get_close_matches(name, sorted(known), n=NEAR_MAX)
        hint = f"; near: {', '.join(near)}" if near else ""
        self.add(pointer, f"there is no {word} {name}{hint}", "reference-unknown")
        return False

    def settle(self) -> None:
        """Raise FieldsError when anything was wrong."""
        if self._found:
            raise FieldsError(tuple(self._found))


def merged(old: Iterable[T], new: Iterable[T], key: Callable[[T], Hashable]) -> tuple[T, ...]:
    """Old and new documents: what is new takes the place of
    what has its name. Ordered by name, as snapshots are.
    """
    merged = {key(item): item for item in (*old, *new)}
    return tuple(merged[name] for name in sorted(merged, key=str))
