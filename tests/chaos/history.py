"""What clients saw of one document, and whether one register that changes at single moments could have shown it.

The search of Wing and Gong with the states that were already seen (Lowe): of all operations that nobody who is over
came before, one is taken next whose answer fits. One whose answer never came may take effect at any later moment, or
never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ABSENT = "absent"
LIMIT = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One operation of a client on one document; moments are counted, not measured."""

    what: str
    """put, delete, read, or create (put where nothing is)."""
    value: str = ""
    """Written, or read: a value of its own for each write."""
    expected: str | None = None
    """What must stand for it to be done, where its client said so."""
    began: int
    ended: int | None
    """None: no answer came."""
    done: bool | None = None
    """Whether the answer said that it was done; None: unknown."""


def possible(seen: list[Seen]) -> bool:
    """Whether some order explains it all."""
    order = sorted(seen, key=lambda each: each.began)
    visited: set[tuple[frozenset[int], str]] = set()
    stack: list[tuple[frozenset[int], str]] = [(frozenset(), ABSENT)]
    must = frozenset(place for place, each in enumerate(order) if each.ended is not None)
    while stack:
        taken, value = stack.pop()
        if must <= taken:
            return True
        if (taken, value) in visited:
            continue
        visited.add((taken, value))
        assert len(visited) < LIMIT, "too long a history to judge"
        for place in _next(order, taken):
            for after in _outcomes(order[place], value):
                stack.append((taken | {place}, after))
    return False


def _next(order: list[Seen], taken: frozenset[int]) -> Iterator[int]:
    """Those that began before everybody who is not taken had ended."""
    ends = [each.ended for place, each in enumerate(order) if place not in taken and each.ended is not None]
    first = min(ends, default=None)
    for place, each in enumerate(order):
        if place not in taken and (first is None or each.began <= first):
            yield place


def _outcomes(each: Seen, value: str) -> Iterator[str]:
    """The values after it; none where its answer does not fit."""
    if each.what == "read":
        if each.value == value:
            yield value
        return
    fits = {"put": True, "create": value == ABSENT, "delete": value != ABSENT}[each.what]
    fits = fits and each.expected in (None, value)
    after = ABSENT if each.what == "delete" else each.value
    if fits and each.done is not False:
        yield after
    if not fits and each.done is not True:
        yield value
    if each.done is None and fits:
        yield value
