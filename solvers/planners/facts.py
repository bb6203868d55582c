"""Numbers as plans state them, and what they rest on.

Owns the rounding of predictions (latency to a microsecond, capacity down, power up), so that equal decisions have equal
digests and no rounding promises more than was found, and the facts that say where nobody measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solvers.domain.evidence import Fact
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileOrigin

RATE_STEPS = 1e7
"""Steps of a request per second in which capacities are told."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What choices rest on; says so where nobody measured it."""

    profiles: dict[tuple[ModelName, GpuTypeName], Profile]

    def facts(
        self, model: ModelName, gpu_type: GpuTypeName, share_of_gpu_pct: float, batch: int, clock_mhz: int
    ) -> tuple[Fact, ...]:
        """Origin and source of what judged a configuration, if it was believed."""
        profile = self.profiles.get((model, gpu_type))
        if profile is None:
            return ()
        if profile.grid is not None:
            return _told(profile.grid.origin, profile.grid.source)
        points = [
            point
            for point in profile.points
            if point.batch == batch
            and point.share_pct_sm <= share_of_gpu_pct + 1e-9
            and point.clock_mhz_sm <= clock_mhz
            and not point.neighbours
        ]
        judged = max(points, key=lambda point: (point.clock_mhz_sm, point.share_pct_sm), default=None)
        return () if judged is None else _told(judged.origin, judged.source)


def _told(origin: ProfileOrigin, source: str) -> tuple[Fact, ...]:
    if not origin.is_believed:
        return ()
    return Fact(name="profile_origin", value=origin.value), Fact(name="profile_source", value=source)


def rounded_ms(latency_ms: float) -> float:
    """To a microsecond."""
    return round(latency_ms, 3)


def rounded_rps(rate_rps: float) -> float:
    """Down: a capacity is a promise. What a thousand replicas lose by it is less than a verifier lets pass."""
    return math.floor(rate_rps * RATE_STEPS) / RATE_STEPS


def rounded_w(power_w: float) -> float:
    """Up: a draw is a burden."""
    return math.ceil(power_w * 1e3 - 1e-6) / 1e3
