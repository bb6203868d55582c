"""Small fits: no negative coefficients, a lean on the usual where rows are few, a penalty chosen by rows left out."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.parts.curves import Ridge, not_negative


def test_coefficients_come_back_and_none_is_negative() -> None:
    features = np.random.default_rng(0).uniform(0.0, 1.0, (40, 3))
    assert not_negative(features, features @ np.array([1.0, 0.0, 2.0])) == pytest.approx([1.0, 0.0, 2.0])
    assert (not_negative(features, features @ np.array([1.0, -3.0, 2.0])) >= 0.0).all()


def test_few_rows_lean_on_the_usual() -> None:
    features = np.array([[1.0, 1.0]])
    leant = not_negative(features, np.array([4.0]), np.array([1.0, 1.0]), 1.0)
    assert leant == pytest.approx([5.0 / 3.0, 5.0 / 3.0])
    many = np.repeat([[1.0, 0.0], [0.0, 1.0]], 500, axis=0)
    found = not_negative(many, many @ np.array([3.0, 0.5]), np.array([1.0, 1.0]), 1.0)
    assert found == pytest.approx([3.0, 0.5], abs=0.02)


def test_ridge_finds_a_line() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(200, 4))
    target = 3.0 + features @ np.array([1.0, -2.0, 0.0, 0.5]) + rng.normal(0.0, 0.1, 200)
    fit = Ridge.of(features, target)
    asked = rng.normal(size=(50, 4))
    assert fit(asked) == pytest.approx(3.0 + asked @ np.array([1.0, -2.0, 0.0, 0.5]), abs=0.1)


def test_ridge_bears_features_that_do_not_vary_and_more_features_than_rows() -> None:
    features = np.ones((3, 6))
    features[:, 0] = [1.0, 2.0, 3.0]
    fit = Ridge.of(features, np.array([1.0, 2.0, 3.0]))
    assert np.isfinite(fit(np.full((2, 6), 7.0))).all()
    assert Ridge.of(np.ones((1, 2)), np.array([5.0]))(np.ones((1, 2))) == pytest.approx([5.0])
