"""The lattice: axes, monotone bounds, interpolation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from solvers.models.belief import surface as surfaces
from solvers.models.belief.intake import Points
from solvers.models.parts.lattice import monotone_bounds


def seen(count: int = 3) -> Points:
    batch = np.linspace(1, 500, count).round()
    return Points.of(batch, np.full(count, 0.37), np.full(count, 1.1), np.ones(count))


def test_axes_hold_what_was_measured_and_what_is_usual() -> None:
    batch, narrow, slow = surfaces.axes_for(seen(), shared=True, clocked=True)
    assert {1, 250, 500, 4096} <= set(batch)
    assert 1 / 0.37 in narrow
    assert {1.0, 1.1, 10.0} <= set(slow)
    assert [len(axis) for axis in surfaces.axes_for(seen(), shared=True, clocked=False)][2] == 1
    assert [len(axis) for axis in surfaces.axes_for(seen(), shared=False, clocked=False)][1:] == [1, 1]


def test_axes_stay_within_a_budget() -> None:
    many = Points.of(np.arange(1.0, 2001), np.linspace(0.01, 1, 2000), np.linspace(1, 3, 2000), np.ones(2000))
    assert np.prod([len(axis) for axis in surfaces.axes_for(many, shared=True, clocked=True)]) < 6000


def test_interpolation_is_exact_for_what_is_linear() -> None:
    axes = surfaces.axes_for(seen(), shared=True, clocked=True)
    batch, share, slow = surfaces.configurations_of(axes, slice(None))
    table = np.stack([2 + 3 * batch + 5 / share + 7 * slow], axis=1)
    at = (np.array([1.0, 2.5, 300, 9000]), np.array([1.0, 0.123, 0.37, 0.5]), np.array([1.0, 1.07, 1.1, 3.3]))
    found, on_node = surfaces.interpolated(axes, table, at)
    assert found[:, 0] == pytest.approx(2 + 3 * at[0] + 5 / at[1] + 7 * at[2])
    assert on_node.tolist() == [True, False, False, False]


def test_outside_the_axes_the_last_node_answers() -> None:
    axes = surfaces.axes_for(seen(), shared=True, clocked=True)
    _, share, slow = surfaces.configurations_of(axes, slice(None))
    found, _ = surfaces.interpolated(
        axes, np.stack([1 / share, slow], axis=1), (np.ones(1), np.array([0.001]), np.array([99.0]))
    )
    assert found[0] == pytest.approx([100.0, 10.0])


@given(arrays(np.float64, (4, 3, 3), elements=st.floats(-5, 5)), st.sampled_from([(1, 1, 1), (1, -1, 1), (-1, 1, -1)]))
def test_bounds_are_monotone_and_hold_the_values_between_them(values: np.ndarray, rises: tuple[int, int, int]) -> None:
    above, below = monotone_bounds(values, rises)
    assert (above >= values).all()
    assert (below <= values).all()
    for surface in (above, below, 0.3 * above + 0.7 * below):
        for axis, way in enumerate(rises):
            assert (way * np.diff(surface, axis=axis) >= -1e-12).all()


def test_bounds_leave_what_is_monotone() -> None:
    values = np.add.outer(np.arange(4.0), -np.arange(3.0))[:, :, None]
    above, below = monotone_bounds(values, (1, -1, 1))
    assert (above == values).all()
    assert (below == values).all()
