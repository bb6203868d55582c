"""The arena's hour that a live system is held against has the rates that its plan was made for."""

from __future__ import annotations

from tests import builders
from tests.integration.demo.hour import arena_hour


def test_a_crowd_that_is_planned_for_comes_in_the_arena_too() -> None:
    service = builders.service()

    def usd_per_h(upper_rps: float) -> tuple[float, float]:
        seen = builders.demand(service.id, 50.0, rate_rps_upper=upper_rps)
        return arena_hour(builders.lab([service], demands=(seen,)), "greedy").usd_per_h

    (quiet, _), (crowded, most) = usd_per_h(50.0), usd_per_h(1000.0)
    assert 2.0 * quiet < crowded <= most
