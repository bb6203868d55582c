"""Fits of single models under priors, and what models have in common.

The shape of latency: worked cells, both scales, and physics whatever the parameters.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.library_sources import Cells, fit_shape
from solvers.domain.arrays import Floats
from solvers.models.belief import forms
from solvers.models.belief.forms import LATENCY, MEMORY, POWER, Form, fit_parameters, population, weak_prior
from tests.unit.solvers.models.belief.alone import NATURAL, grid, learned, parameters, truth

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


def cells(size_index: int) -> Cells:
    queries = grid([f"m{index}" for index in range(size_index + 1)])
    rows = queries.model == size_index
    return Cells(
        batch=queries.batch[rows],
        share=queries.share_pct[rows] / 100,
        slowness=np.ones(int(rows.sum())),
        latency_ms=truth(queries)[rows],
    )


def test_a_fit_explains_what_the_shape_made() -> None:
    found = fit_shape(cells(0), weak_prior(5.0))
    assert np.abs(found.residual).max() < 0.01
    assert np.linalg.eigvalsh(found.covariance).min() > 0


def test_one_wild_cell_does_not_bend_the_fit() -> None:
    told = cells(0)
    wild = told.latency_ms.copy()
    wild[13] *= 4
    bent = fit_shape(
        Cells(batch=told.batch, share=told.share, slowness=told.slowness, latency_ms=wild), weak_prior(5.0)
    )
    others = np.arange(len(told)) != 13
    assert np.abs(bent.residual[others]).max() < 0.06
    assert bent.residual[13] > 1.2


def test_one_cell_is_enough_to_start() -> None:
    rows = np.arange(len(cells(0))) == 7
    found = fit_shape(cells(0).take(rows), weak_prior(5.0))
    assert np.isfinite(found.mean).all()
    assert np.abs(found.residual).max() < 0.05


@pytest.mark.parametrize(
    ("form", "middle"),
    [(LATENCY, parameters()), (POWER, np.array([2.0, 3.5, -0.7, 0.0, 0.4])), (MEMORY, np.array([6.5, 3.0]))],
)
def test_derivatives_are_those_of_the_form(form: Form, middle: Floats) -> None:
    at = tuple(axis.ravel() for axis in np.meshgrid([1.0, 3.0, 40.0], [0.05, 0.3, 1.0], [1.0, 1.7]))
    steps = 1e-5 * np.eye(len(middle))
    for start in (middle, middle - 0.6, middle + 0.4):
        found = form.evaluate(start, *at)
        more, less = (form.evaluate((start + way * steps)[:, None], *at).value for way in (1, -1))
        np.testing.assert_allclose(found.slope, (more - less).T / 2e-5, rtol=1e-5, atol=1e-8)


def test_elasticity_is_how_latency_falls_with_the_share() -> None:
    batch, share = np.array([1.0, 3.0, 40.0]), np.array([0.9, 0.3, 0.05])
    more, less = (forms.log_latency(parameters(), batch, share * (1 + way * 1e-5)) for way in (1, -1))
    found = LATENCY.evaluate(parameters(), batch, share, np.ones(3)).elasticity
    np.testing.assert_allclose(found, (less - more) / 2e-5, rtol=1e-4)
    assert found[0] < 0.1
    assert found[2] > 0.9


def test_a_search_from_a_prior_that_is_far_off_arrives() -> None:
    told = cells(0)
    at, target = (told.batch, told.share, told.slowness), np.log(told.latency_ms)
    found = fit_parameters(LATENCY, at, target, weak_prior(5000.0, 3.0))
    assert np.abs(found.residual).max() < 0.02
    # Nowhere beside does it cost less.
    best, root = cost_of(found.mean, at, target), np.linalg.cholesky(found.covariance)
    for way in np.concatenate([root.T, -root.T]):
        assert cost_of(found.mean + 0.05 * way, at, target) > best


def cost_of(mean: Floats, at: tuple[Floats, ...], target: Floats) -> float:
    """Of these parameters under the prior of `test_a_search_from_a_prior_that_is_far_off_arrives`."""
    prior, error = weak_prior(5000.0, 3.0), (forms.log_latency(mean, *at) - target) / 0.03
    apart = mean - prior.mean
    return float(
        np.where(np.abs(error) > 2, 4 * np.abs(error) - 4, error**2).sum()
        + apart @ np.linalg.solve(prior.covariance, apart)
    )


def test_a_population_is_nearer_to_its_members_than_what_holds_of_any_model() -> None:
    weak = weak_prior(5.0, 1.5)
    fits = [fit_shape(cells(index), weak) for index in range(5)]
    common = population(fits, weak)
    newcomer = cells(5)
    at = (newcomer.batch, newcomer.share, newcomer.slowness)
    few = np.array([0, 29])
    some = tuple(column[few] for column in at)
    target = np.log(newcomer.latency_ms)
    errors = [
        np.abs(forms.log_latency(fit_parameters(LATENCY, some, target[few], prior).mean, *at) - target).mean()
        for prior in (common, weak)
    ]
    assert errors[0] < errors[1]
    assert errors[0] < 0.1
