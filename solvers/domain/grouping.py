"""Things by what they have in common, and sums of what each of them brings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> defaultdict[Key, list[Item]]:
    """By key, each in the order given; nothing under any other key."""
    found: defaultdict[Key, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def summed(items: Iterable[Item], key: Callable[[Item], Key], of: Callable[[Item], float]) -> defaultdict[Key, float]:
    found: defaultdict[Key, float] = defaultdict(float)
    for item in items:
        found[key(item)] += of(item)
    return found
