"""The shape of latency: worked cells, both scales, and physics whatever the parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solvers.models.belief import forms
from tests.unit.solvers.models.belief.alone import NATURAL, learned

WILD = st.lists(st.floats(-6, 6), min_size=forms.COUNT, max_size=forms.COUNT).map(
    # Exponents beyond a few hundred are no shapes of anything.
    lambda values: np.array([*values[:7], *(0.4 * value for value in values[7:])])
)


def test_learned_and_natural_scales_are_inverse() -> None:
    np.testing.assert_allclose(forms.natural(learned(NATURAL)), NATURAL, rtol=1e-9)


def test_a_worked_cell() -> None:
    # A sharp shape: two inputs fill 1.0 of the device, so at 50 % of the share compute is 1 ms * 2 / 0.5 = 4 ms, launch
    # 1 ms, copies 2 * 0.5 ms, weights 0.25 / 0.5 ms; at half the clock with exponent 1 the SMs' part doubles.
    sharp = np.array([0.001, 1.0, 0.5, 1.0, 0.25, 0.5, 1 - 1e-9, 400.0, 8.0, 1.0])
    found = np.exp(forms.log_latency(learned(sharp), [2.0, 2.0], 0.5, [1.0, 2.0]))
    np.testing.assert_allclose(found, [6.5, 11.0], rtol=2e-3)


def test_the_host_bounds_small_work() -> None:
    busy_host = NATURAL.copy()
    busy_host[0] = 50.0
    latency = forms.log_latency(learned(busy_host), [1.0], 1.0)
    assert abs(np.exp(latency[0]) - 50.0) < 0.1


@given(WILD)
def test_latency_never_moves_against_physics(parameters: np.ndarray) -> None:
    batch, share, slowness = np.meshgrid([1.0, 2, 7, 64], [0.01, 0.1, 0.5, 1.0], [1.0, 1.5, 4.0], indexing="ij")
    found = forms.log_latency(parameters, batch, share, slowness)
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=0) >= -1e-9).all()
    assert (np.diff(found, axis=1) <= 1e-9).all()
    assert (np.diff(found, axis=2) >= -1e-9).all()
