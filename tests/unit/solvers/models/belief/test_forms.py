"""Fits of single models under priors, and what models have in common.

The shape of latency: worked cells, both scales, and physics whatever the parameters.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.library_sources import Cells, fit_shape
from solvers.models.belief import forms
from solvers.models.belief.forms import fit_parameters, population, sensitivity, weak_prior
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


def test_derivatives_are_those_of_the_shape() -> None:
    at = (np.array([3.0]), np.array([0.3]), np.array([1.2]))
    slope = sensitivity(forms.log_latency, parameters(), at)
    moved = parameters()
    moved[forms.WORK] += 1e-3
    step = forms.log_latency(moved, *at) - forms.log_latency(parameters(), *at)
    np.testing.assert_allclose(slope[0, forms.WORK], step / 1e-3, rtol=1e-2)


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
        np.abs(forms.log_latency(fit_parameters(forms.log_latency, some, target[few], prior).mean, *at) - target).mean()
        for prior in (common, weak)
    ]
    assert errors[0] < errors[1]
    assert errors[0] < 0.1
