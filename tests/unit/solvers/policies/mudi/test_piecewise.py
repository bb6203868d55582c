"""Two lines with a knee: the fixtures of the catalogue (A5), the fit, and that the minimal share is minimal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.policies.mudi.models import Piecewise, fitted

CURVE = Piecewise(k1=-200.0, k2=-20.0, knee=0.4, l0=30.0)


def test_latency_at_the_fixtures_shares() -> None:
    assert CURVE(np.array([0.2, 0.4, 0.9, 1.0])) == pytest.approx([70.0, 30.0, 20.0, 18.0])


@pytest.mark.parametrize(
    ("slo_ms", "window", "batch", "share"),
    [(100, 16, 8, 0.30), (120, 32, 8, 0.40), (100, 32, 8, 0.65), (60, 32, 8, None)],
)
def test_the_minimal_share_of_the_fixtures(slo_ms: float, window: int, batch: int, share: float | None) -> None:
    found = CURVE.minimal_share(slo_ms * batch / window)
    assert found == (None if share is None else pytest.approx(share))


@given(
    steep=st.floats(1.0, 500.0),
    part=st.floats(0.0, 1.0),
    knee=st.floats(0.1, 0.9),
    l0=st.floats(50.0, 100.0),
    target=st.floats(10.0, 400.0),
)
def test_the_share_is_minimal(steep: float, part: float, knee: float, l0: float, target: float) -> None:
    curve = Piecewise(k1=-steep, k2=-part * steep, knee=knee, l0=l0)
    share = curve.minimal_share(target, 0.02)
    if share is None:
        assert float(curve(np.array([1.0]))[0]) > target
        return
    assert 0.02 <= share <= 1.0
    assert float(curve(np.array([share]))[0]) <= target * (1.0 + 1e-9) + 1e-9
    if share > 0.03 and part > 0.01:
        assert float(curve(np.array([share - 0.01]))[0]) > target


def test_a_flat_curve_is_met_by_the_least_share_or_never() -> None:
    flat = Piecewise(k1=0.0, k2=0.0, knee=0.4, l0=30.0)
    assert flat.minimal_share(31.0, 0.05) == 0.05
    assert flat.minimal_share(29.0) is None


def test_the_fit_finds_its_own_form() -> None:
    share = np.arange(0.1, 1.01, 0.05)
    found = fitted(share, CURVE(share))
    assert found(share) == pytest.approx(CURVE(share), rel=0.03)
    assert found.knee == pytest.approx(0.4, abs=0.04)
    assert found.k1 <= found.k2 <= 0.0


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=12))
def test_any_fit_is_steep_then_flat_and_positive(latency: list[float]) -> None:
    share = np.linspace(0.1, 1.0, len(latency))
    found = fitted(share, np.array(latency))
    assert found.k1 <= found.k2 <= 0.0
    assert (found(np.linspace(0.05, 1.0, 20)) >= 0.0).all()


def test_fits_of_work_over_share_are_within_five_percent() -> None:
    share = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0])
    latency = 2.0 + 10.0 / share
    assert float(np.mean(np.abs(fitted(share, latency)(share) / latency - 1.0))) <= 0.05
