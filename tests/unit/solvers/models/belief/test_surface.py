"""Curves compiled into surfaces: exact where measured, sure only there, and single measurements taken in.

The lattice: axes, monotone bounds, interpolation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from solvers.domain.arrays import Floats
from solvers.models.belief import curve as curves
from solvers.models.belief import surface as surfaces
from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import LATENCY, weak_prior
from solvers.models.belief.intake import Points
from solvers.models.belief.surface import Surface, appended, compiled, lookup
from solvers.models.parts.lattice import monotone_bounds
from tests.unit.solvers.models.belief.alone import samples


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


QUIET = curves.KERNEL_USUAL.copy()
QUIET[[curves.NOISE_BUSY, curves.NOISE_FLAT]] = np.log(0.004)


def measured(scatter: float = 0.003) -> Points:
    told = samples(["m"], scatter)
    return Points.of(told.queries.batch, told.queries.share_pct / 100, np.ones(len(told)), told.latency_ms)


def fitted(points: Points, kernel: Floats = QUIET) -> Curve:
    return curves.fit(LATENCY, points, weak_prior(5.0), kernel)


def one(batch: float, share: float, latency_ms: float) -> Points:
    return Points.of(np.array([batch]), np.array([share]), np.ones(1), np.array([latency_ms]))


def told_by(surface: Surface, batch: float, share: float) -> tuple[float, float]:
    value, std, _ = lookup(surface, (np.array([batch]), np.array([share]), np.ones(1)))[0]
    return float(value), float(std)


def test_derivatives_of_the_evidence_for_a_kernel() -> None:
    told, rng = measured(0.02), np.random.default_rng(3)
    points = replace(told, slowness=rng.choice([1.0, 1.5, 3.0], 30), count=rng.choice([1.0, 4.0], 30))
    task = curves.task(curves.draft(LATENCY, points, weak_prior(5.0), curves.KERNEL_USUAL))
    kernel = curves.KERNEL_USUAL + rng.normal(0.0, 0.3, 9)
    total, slope = curves.evidence_under(kernel, task)
    assert total == curves.log_evidence(curves.total_covariance(kernel, task), task.error)
    steps = 1e-5 * np.eye(9)
    moved = [[curves.evidence_under(kernel + way * step, task)[0] for step in steps] for way in (1, -1)]
    np.testing.assert_allclose(slope, np.subtract(*moved) / 2e-5, rtol=1e-4, atol=1e-6)
    assert (np.abs(slope) > 1e-3).all()


def test_evidence_is_the_density_of_the_error() -> None:
    rng = np.random.default_rng(4)
    root, error = rng.normal(size=(3, 5, 8)), rng.normal(size=5)
    total = root @ root.transpose(0, 2, 1)
    density = [-0.5 * (error @ np.linalg.inv(one) @ error + np.log(np.linalg.det(one))) for one in total]
    np.testing.assert_allclose(curves.log_evidence(total, error), density)
    # What is no covariance is told of alone.
    total[1] = -total[1]
    np.testing.assert_allclose(curves.log_evidence(total, error), [density[0], -1e9, density[2]])


def test_measured_cells_come_back_nearly_as_measured() -> None:
    points = measured()
    found = lookup(compiled(fitted(points), (1.0, 1.0), clocked=False), points.at)
    assert np.abs(np.log(found[:, 0]) - points.log_value).max() < 0.003
    assert (found[:, 2] < 1e-6).all()


def test_intervals_are_narrow_at_measured_cells_and_widen_away_from_them() -> None:
    surface = compiled(fitted(measured()), (1.0, 1.0), clocked=False)
    at_cell, beside, far = (
        told_by(surface, *at)[1] / told_by(surface, *at)[0] for at in ((8.0, 0.4), (8.0, 0.42), (2048.0, 0.03))
    )
    assert at_cell <= beside + 1e-9 < far


def test_widening_is_a_factor_inside_and_another_outside() -> None:
    curve = fitted(measured())
    plain, wide = (compiled(curve, factors, clocked=False) for factors in ((1.0, 1.0), (2.0, 3.0)))
    # Between nodes inside, some of which monotony moved, which no factor widens.
    assert 1.6 < told_by(wide, 4.0, 0.5)[1] / told_by(plain, 4.0, 0.5)[1] < 2.01
    assert 2.4 < told_by(wide, 64.0, 0.5)[1] / told_by(plain, 64.0, 0.5)[1] < 3.01


def test_an_appended_measurement_moves_the_answer_there_and_nearby() -> None:
    surface = compiled(fitted(measured().take(np.arange(0, 30, 3))), (1.0, 1.0), clocked=False)
    before = told_by(surface, 8.0, 0.2)
    after = appended(surface, one(8.0, 0.2, before[0] * 1.03))
    assert told_by(after, 8.0, 0.2)[0] == pytest.approx(before[0] * 1.03, rel=0.01)
    assert told_by(after, 8.0, 0.2)[1] <= before[1]
    assert told_by(after, 8.0, 0.25)[0] > told_by(surface, 8.0, 0.25)[0]
    assert len(after.curve.points) == len(surface.curve.points) + 1


def test_appending_is_nearly_fitting_together() -> None:
    points = measured()
    together = compiled(fitted(points), (1.0, 1.0), clocked=False)
    base = together.curve
    start = replace(base, points=points.merged().take(np.arange(25)), extra=base.extra[:25], fitted=25)
    grown = compiled(start, (1.0, 1.0), clocked=False)
    for row in range(25, 30):
        grown = appended(grown, points.merged().take(np.array([row])))
    np.testing.assert_allclose(lookup(grown, points.at)[:, 0], lookup(together, points.at)[:, 0], rtol=0.01)


def test_a_wild_measurement_moves_nothing_much() -> None:
    surface = compiled(fitted(measured()), (1.0, 1.0), clocked=False)
    before = told_by(surface, 8.0, 0.4)[0]
    assert told_by(appended(surface, one(8.0, 0.4, before * 6)), 8.0, 0.4)[0] == pytest.approx(before, rel=0.03)


def test_a_change_is_believed_when_it_is_confirmed() -> None:
    surface = compiled(fitted(measured()), (1.0, 1.0), clocked=False)
    before = told_by(surface, 8.0, 0.4)[0]
    for _ in range(2):
        surface = appended(surface, one(8.0, 0.4, before * 1.4))
    assert told_by(surface, 8.0, 0.4)[0] == pytest.approx(before, rel=0.03)
    # Wild measurements that do not agree confirm nothing.
    assert told_by(appended(surface, one(8.0, 0.4, before * 3)), 8.0, 0.4)[0] == pytest.approx(before, rel=0.03)
    assert told_by(appended(surface, one(8.0, 0.4, before * 1.4)), 8.0, 0.4)[0] > before * 1.1


def test_a_wild_point_in_a_fit_is_discounted() -> None:
    points = measured()
    wild = replace(points, log_value=points.log_value + np.where(np.arange(30) == 14, 1.5, 0.0))
    curve = fitted(wild)
    row = int(np.argmax(curve.extra))
    assert (curve.points.batch[row], curve.points.share[row]) == (points.batch[14], points.share[14])
    found = lookup(compiled(curve, (1.0, 1.0), clocked=False), points.at)
    assert np.abs(np.log(found[:, 0]) - points.log_value).max() < 0.15


def test_a_staircase_that_rises_with_share_becomes_level() -> None:
    share = np.arange(0.1, 1.01, 0.1)
    rising = Points.of(np.ones(10), share, np.ones(10), np.where(share > 0.55, 30.0, 20.0))
    surface = compiled(fitted(rising, curves.KERNEL_USUAL), (1.0, 1.0), clocked=False)
    found = lookup(surface, (np.ones(100), np.linspace(0.01, 1, 100), np.ones(100)))
    assert (np.diff(found[:, 0]) <= 1e-9).all()
    # What monotony takes from the fit, the interval admits.
    assert (np.abs(found[9:, 0] - 20) < 4 * found[9:, 1]).mean() > 0.9


def test_evidence_prefers_the_prior_that_foretold_the_points() -> None:
    points = measured()
    right, wrong = (
        curves.evidence(curves.settle(curves.draft(LATENCY, points, weak_prior(typical, 0.2), QUIET)))
        for typical in (float(np.exp(points.log_value.mean())), 900.0)
    )
    assert right > wrong + 5
