"""How many requests the demo's users make at which hour: rate shapes over a day, Poisson arrivals, and their split
over replicas.

Owns the shapes (a daily wave with one spike per service) and their file form. Everything here is a function of its
arguments and a seeded stream; it refuses clocks and sockets.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from solvers.errors import InputError

GAUSS_ABOVE = 50.0
"""Above this mean a Poisson count is drawn as a rounded normal number, whose error is then below a percent."""
SPIKE_RAMP_FRACTION = 0.15
"""How much of a spike's length its rise and its fall take each; no crowd arrives in one second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateShape:
    """One service's day. Times are fractions of a day: 0.5 is noon. A spike multiplies the wave by `spike_factor`."""

    service: str
    """`project/name`."""
    rate_rps_mean: float
    swing: float = 0.4
    """How far the wave rises above and falls below the mean, as a part of it."""
    peak_at: float = 0.6
    spike_at: float | None = None
    spike_length: float = 0.08
    spike_factor: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.rate_rps_mean < 1e6:
            raise InputError(f"{self.service}: rate_rps_mean must lie between 0 and 1000000")
        if not 0 <= self.swing <= 1:
            raise InputError(f"{self.service}: swing must lie between 0 and 1")
        if not 0 < self.spike_length < 1 or self.spike_factor < 1:
            raise InputError(f"{self.service}: a spike needs a length between 0 and 1 and a factor of at least 1")

    def rate_rps(self, day_fraction: float) -> float:
        """Requests per second at a time of day; any real number is taken modulo one day."""
        time = day_fraction % 1.0
        wave = 1.0 + self.swing * math.cos(2.0 * math.pi * (time - self.peak_at))
        return self.rate_rps_mean * wave * self._spike(time)

    def _spike(self, time: float) -> float:
        if self.spike_at is None:
            return 1.0
        into = ((time - self.spike_at) % 1.0) / self.spike_length
        if into >= 1.0:
            return 1.0
        height = min(1.0, into / SPIKE_RAMP_FRACTION, (1.0 - into) / SPIKE_RAMP_FRACTION)
        return 1.0 + (self.spike_factor - 1.0) * height


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """All shapes, how many seconds a day takes, the time of day it starts at, and the seed of the arrivals."""

    shapes: tuple[RateShape, ...]
    day_s: float = 1200.0
    starts_at: float = 0.25
    seed: int = 1

    def __post_init__(self) -> None:
        if self.day_s <= 0:
            raise InputError("day_s must be greater than 0")

    def day_fraction(self, elapsed_s: float) -> float:
        """Time of day after so many seconds of traffic."""
        return (self.starts_at + elapsed_s / self.day_s) % 1.0


def read_traffic_plan(file: Path) -> TrafficPlan:
    """Read a YAML file with the fields of TrafficPlan. Raises InputError naming the file and field."""
    try:
        stored = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("shapes"), list):
        raise InputError(f"{file}: expected an object with a list `shapes`")
    try:
        shapes = tuple(RateShape(**_known(RateShape, shape)) for shape in stored["shapes"])
        return TrafficPlan(**{**_known(TrafficPlan, stored), "shapes": shapes})
    except (TypeError, InputError) as error:
        raise InputError(f"{file}: {error}") from None


def _known(kind: type, plain: Any) -> Mapping[str, Any]:
    if not isinstance(plain, dict):
        raise InputError(f"expected an object, got {type(plain).__name__}")
    unknown = set(plain) - {item.name for item in fields(kind)}
    if unknown:
        raise InputError(f"unknown fields: {', '.join(sorted(map(str, unknown)))}")
    return plain


def poisson(stream: random.Random, mean: float) -> int:
    """A Poisson count with this mean."""
    if mean <= 0:
        return 0
    if mean > GAUSS_ABOVE:
        return max(0, round(stream.gauss(mean, math.sqrt(mean))))
    threshold, product, count = math.exp(-mean), stream.random(), 0
    while product > threshold:
        product *= stream.random()
        count += 1
    return count


def split(stream: random.Random, count: int, replicas: Sequence[tuple[str, float]]) -> Counter[str]:
    """Send each of `count` requests to a replica at random by weight; weights that sum to nothing count as equal."""
    if count <= 0 or not replicas:
        return Counter()
    weights = [max(0.0, weight) for _, weight in replicas]
    if sum(weights) <= 0:
        weights = [1.0] * len(replicas)
    return Counter(stream.choices([name for name, _ in replicas], weights, k=count))
