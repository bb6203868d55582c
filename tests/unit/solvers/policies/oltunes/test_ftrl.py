"""FTRL-Proximal: the worked fixture the threshold, and what stays untouched."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.errors import FieldError
from solvers.policies.oltunes.machine import FtrlSettings, accumulated, weights

GRADIENTS = (0.5, -0.2, 0.9)


def settings(lambda_1: float = 0.1) -> FtrlSettings:
    return FtrlSettings(eta=0.5, zeta=1.0, lambda_1=lambda_1, lambda_2=0.01)


def test_the_worked_coordinate() -> None:
    z, n = np.zeros(1), np.zeros(1)
    found = []
    for gradient in GRADIENTS:
        z, n = accumulated(z, n, np.array([gradient]), settings())
        found.append(float(weights(z, n, settings())[0]))
    assert found == pytest.approx((-0.13289, -0.06810, -0.28721), abs=5e-6)


def test_many_coordinates_go_as_each_would_alone() -> None:
    gradients = np.random.default_rng(1).normal(size=(20, 7))
    z, n = np.zeros(7), np.zeros(7)
    for gradient in gradients:
        z, n = accumulated(z, n, gradient, settings())
    for column in range(7):
        one_z, one_n = np.zeros(1), np.zeros(1)
        for gradient in gradients[:, column]:
            one_z, one_n = accumulated(one_z, one_n, np.array([gradient]), settings())
        assert one_z[0] == z[column]
        assert one_n[0] == n[column]


def test_small_sums_of_gradients_leave_a_weight_at_nothing() -> None:
    z, n = accumulated(np.zeros(2), np.zeros(2), np.array([0.3, 0.5]), settings(lambda_1=0.4))
    found = weights(z, n, settings(lambda_1=0.4))
    assert found[0] == 0.0
    assert found[1] < 0.0


def test_no_gradient_no_change() -> None:
    z, n = accumulated(np.zeros(1), np.zeros(1), np.array([0.7]), settings())
    after_z, after_n = accumulated(z, n, np.zeros(1), settings())
    assert (after_z[0], after_n[0]) == (z[0], n[0])


def test_rates_must_be_positive() -> None:
    with pytest.raises(FieldError):
        FtrlSettings(eta=0.0, zeta=1.0, lambda_1=0.1, lambda_2=0.1)
    with pytest.raises(FieldError):
        FtrlSettings(eta=0.1, zeta=1.0, lambda_1=-0.1, lambda_2=0.1)
