"""What instances cost under three rules of accounting, side by side.

Owns the rules. `paper`: whoever shares GPUs pays for the memory that its instances use, whoever takes GPUs whole pays
for all their memory (HetSev's published comparison). `reserved`: everybody pays for the memory that is reserved.
`occupied`: everybody pays for whole GPUs as long as anything runs on them, however many instances share them. Prices
are per GB of GPU memory and second, in any one unit. It refuses to say which rule is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One instance on one GPU from a moment to another."""

    gpu: str
    price_per_gb_s: float
    memory_gb_gpu: float
    memory_gb_reserved: float
    memory_gb_used: float
    begin_s: float
    end_s: float
    whole_gpu: bool = False
    """Whether its policy takes GPUs whole."""

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max(0.0, self.end_s - self.begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One sum by each rule."""

    paper: float
    reserved: float
    occupied: float


def bill(usages: Iterable[Usage]) -> Bill:
    """What these instances cost together."""
    items = list(usages)
    by_gpu: dict[str, list[Usage]] = defaultdict(list)
    for item in items:
        by_gpu[item.gpu].append(item)
    return Bill(
        paper=sum(
            item.price_per_gb_s * (item.memory_gb_gpu if item.whole_gpu else item.memory_gb_used) * item.seconds
            for item in items
        ),
        reserved=sum(item.price_per_gb_s * item.memory_gb_reserved * item.seconds for item in items),
        occupied=sum(
            together[0].price_per_gb_s * together[0].memory_gb_gpu * _busy_s(together)
            for together in (by_gpu[gpu] for gpu in sorted(by_gpu))
        ),
    )


def _busy_s(items: list[Usage]) -> float:
    """Seconds in which at least one of these ran."""
    busy, reached = 0.0, float("-inf")
    for item in sorted(items, key=lambda item: (item.begin_s, item.end_s)):
        busy += max(0.0, item.end_s - max(item.begin_s, reached))
        reached = max(reached, item.end_s)
    return busy
