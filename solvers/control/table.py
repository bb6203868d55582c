"""Morak's complete decision table as data: what a replica wishes in each state of power and latency.

Owns the zones, the nine rows and how a row is read when a knob is at its end. A row names knobs in order of preference;
the first that can still move is the wish, and when none can, the wish is to hold. It knows nothing of step sizes, of
neighbours or of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Zone(StrEnum):
    """Where a measurement lies to its limit: well below, just below, above."""

    LOW = "low"
    BAND = "band"
    HIGH = "high"


class ReplicaWish(StrEnum):
    """What a replica would have done."""

    HOLD = "hold"
    BATCH_UP = "batch_up"
    BATCH_DOWN = "batch_down"
    CLOCK_UP = "clock_up"
    CLOCK_DOWN = "clock_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Which knobs have reached an end: the batch its floor or ceiling, the clock its lowest or highest."""

    batch_lowest: bool
    batch_highest: bool
    clock_lowest: bool
    clock_highest: bool

    def blocks(self, wish: ReplicaWish) -> bool:
        """Whether a wish cannot be granted because its knob is at its end."""
        return {
            ReplicaWish.HOLD: False,
            ReplicaWish.BATCH_UP: self.batch_highest,
            ReplicaWish.BATCH_DOWN: self.batch_lowest,
            ReplicaWish.CLOCK_UP: self.clock_highest,
            ReplicaWish.CLOCK_DOWN: self.clock_lowest,
        }[wish]


TABLE: Mapping[tuple[Zone, Zone], tuple[ReplicaWish, ...]] = MappingProxyType(
    {
        (Zone.LOW, Zone.LOW): (ReplicaWish.BATCH_UP, ReplicaWish.CLOCK_UP),
        (Zone.LOW, Zone.BAND): (ReplicaWish.CLOCK_UP,),
        (Zone.LOW, Zone.HIGH): (ReplicaWish.BATCH_DOWN, ReplicaWish.CLOCK_UP),
        (Zone.BAND, Zone.LOW): (),
        (Zone.BAND, Zone.BAND): (),
        (Zone.BAND, Zone.HIGH): (ReplicaWish.BATCH_DOWN,),
        (Zone.HIGH, Zone.LOW): (ReplicaWish.CLOCK_DOWN, ReplicaWish.BATCH_DOWN),
        (Zone.HIGH, Zone.BAND): (ReplicaWish.BATCH_DOWN, ReplicaWish.CLOCK_DOWN),
        (Zone.HIGH, Zone.HIGH): (ReplicaWish.BATCH_DOWN, ReplicaWish.CLOCK_DOWN),
    }
)
"""(power, latency) to wishes in order of preference. An empty row holds: the interval left for the steady state."""


def zone(measured: float, limit: float, low_part: float) -> Zone:
    """Zone of a measurement: low below `low_part` of the limit, high above the limit. Both ends belong to the band."""
    if measured > limit:
        return Zone.HIGH
    return Zone.LOW if measured < low_part * limit else Zone.BAND


def power_zone(measured_w: float, cap_w: float, low_part: float) -> Zone:
    """Zone of power. Its lower end still counts as low: there is room for one more step."""
    if measured_w > cap_w:
        return Zone.HIGH
    return Zone.LOW if measured_w <= low_part * cap_w else Zone.BAND


def wish_of(power: Zone, latency: Zone, ends: Ends) -> ReplicaWish:
    """The first wish of the row whose knob can still move; HOLD when there is none."""
    return next((wish for wish in TABLE[power, latency] if not ends.blocks(wish)), ReplicaWish.HOLD)
