"""Knees of latency over share and ceilings of throughput over batch."""

from __future__ import annotations

import pytest

from solvers.policies.morak.cutting import batch_ceiling, knee_share_pct


def curve(knee_pct: int, floor_ms: float) -> dict[int, float]:
    """Latency shaped as published for a 2080 Ti: in proportion to 1/share up to the knee, nearly flat after."""
    return {
        share: floor_ms * max(knee_pct / share, 1.0) * (1.0 - 0.0005 * max(0, share - knee_pct))
        for share in range(10, 101, 10)
    }


@pytest.mark.parametrize(
    ("model", "knee_pct", "floor_ms"), [("mobilenet", 20, 3.1), ("googlenet", 30, 6.4), ("resnet101", 30, 14.0)]
)
def test_the_published_knees_are_found(model: str, knee_pct: int, floor_ms: float) -> None:
    assert knee_share_pct(curve(knee_pct, floor_ms)) == knee_pct, model


def test_the_knee_asks_for_ten_percent_more_also_between_measured_shares() -> None:
    assert knee_share_pct({5: 100.0, 25: 60.0, 45: 58.0}) == 25
    assert knee_share_pct({5: 100.0, 10: 96.0, 20: 60.0, 100: 60.0}) == 20
    assert knee_share_pct({30: 8.0}) == 30
    # A quarter of the way to 50 % gains 7.5 of 100 ms, and all of it 30.
    assert knee_share_pct({10: 100.0, 50: 70.0, 90: 69.0}) == 10


def test_a_curve_that_never_flattens_has_its_knee_at_the_end() -> None:
    assert knee_share_pct({share: 1000.0 / share**3 for share in range(10, 101, 10)}) == 100


@pytest.mark.parametrize("points", [{}, {10: 0.0, 20: -1.0}])
def test_a_knee_needs_latencies(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="positive latencies"):
        knee_share_pct(points)


def test_the_ceiling_is_where_the_plateau_begins() -> None:
    googlenet = {1: 180.0, 4: 700.0, 16: 1400.0, 32: 1570.0, 64: 1600.0, 128: 1590.0}
    assert batch_ceiling(googlenet) == 32
    assert batch_ceiling(googlenet, part=1.0) == 64
    with pytest.raises(ValueError, match="one batch at least"):
        batch_ceiling({})
