"""The factorisation machine: Eq. 2 term by term, its gradient, and what learning keeps."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from solvers.policies.oltunes.features import FeatureRows
from solvers.policies.oltunes.machine import FactorisationMachine, FtrlSettings

SETTINGS = FtrlSettings(eta=0.3, zeta=1.0, lambda_1=0.0, lambda_2=0.0)


def machine(width: int = 9, targets: int = 2, settings: FtrlSettings = SETTINGS) -> FactorisationMachine:
    return FactorisationMachine.fresh(targets=targets, rank=3, settings=settings, seed=4).widened(width)


def rows(count: int, width: int = 9, seed: int = 0) -> FeatureRows:
    """The bias and three different features in every row."""
    rng = np.random.default_rng(seed)
    index = np.array([[0, *(1 + rng.permutation(width - 1)[:3])] for _ in range(count)])
    return FeatureRows(index=index, value=np.concatenate([np.ones((count, 1)), rng.normal(size=(count, 3))], axis=1))


def taught(count: int = 50) -> FactorisationMachine:
    learnt = rows(count, seed=1)
    return machine().taught(learnt, np.random.default_rng(2).normal(size=(count, 2)))


def test_predictions_are_equation_two() -> None:
    learnt, asked = taught(), rows(6)
    dense = asked.dense(9)
    weights, factors = learnt.coordinates[:, :, 0], learnt.coordinates[:, :, 1:]
    for row in range(6):
        for target in range(2):
            pairs = sum(
                factors[i, target] @ factors[j, target] * dense[row, i] * dense[row, j]
                for i, j in combinations(range(9), 2)
            )
            assert learnt.predict(asked)[row, target] == pytest.approx(weights[:, target] @ dense[row] + pairs)


def test_one_step_follows_the_gradient_of_the_squared_error() -> None:
    # From zero, z after one row is the gradient itself.
    plain = machine(settings=FtrlSettings(eta=0.3, zeta=1.0, lambda_1=0.0, lambda_2=0.0))
    one, wanted = rows(1), np.array([[1.0, -2.0]])
    found = plain.taught(one, wanted).z
    for feature in np.unique(one.index):
        for target in range(2):
            for column in range(4):
                if feature == 0 and column:
                    assert found[feature, target, column] == 0.0
                    continue
                losses = []
                for step in (1e-6, -1e-6):
                    centre = plain.centre.copy()
                    centre[feature, target, column] += step
                    moved = FactorisationMachine(settings=SETTINGS, seed=4, centre=centre, z=plain.z, n=plain.n)
                    losses.append(np.square(moved.predict(one) - wanted).sum())
                assert found[feature, target, column] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-5)


def test_learning_leaves_the_old_machine_and_other_features_alone() -> None:
    before = taught()
    kept = before.z.copy()
    row = rows(1, seed=5)
    after = before.taught(row, np.array([[3.0, 3.0]]))
    np.testing.assert_array_equal(before.z, kept)
    others = np.setdiff1d(np.arange(9), row.index)
    assert len(others) == 5
    np.testing.assert_array_equal(after.coordinates[others], before.coordinates[others])
    assert abs(after.predict(row)[0, 0] - 3.0) < abs(before.predict(row)[0, 0] - 3.0)


def test_interactions_are_learnt_from_their_small_random_centres() -> None:
    # y = +1 when both or none of the features are 1, else -1: no linear form knows anything of it.
    value = np.array([[1.0, a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)])
    table = FeatureRows(index=np.tile([0, 1, 2], (4, 1)), value=value)
    wanted = (value[:, 1] * value[:, 2])[:, None]
    learnt = machine(width=3, targets=1)
    for _ in range(80):
        learnt = learnt.taught(table, wanted)
    np.testing.assert_allclose(learnt.predict(table), wanted, atol=0.1)


def test_features_start_alike_however_many_came_before() -> None:
    at_once = machine(width=6)
    one_by_one = machine(width=2).widened(3).widened(6)
    np.testing.assert_array_equal(at_once.centre, one_by_one.centre)
    assert (np.abs(at_once.centre[1:, :, 1:]) > 0).all()
    assert np.abs(at_once.centre).max() < 0.06
    assert one_by_one.widened(2).width == 6


def test_a_new_centre_changes_no_answer_but_learns_faster() -> None:
    before, row = taught(200), rows(1, seed=7)
    moved = before.recentred()
    np.testing.assert_allclose(moved.predict(row), before.predict(row))
    far = before.predict(row) + 1.0
    assert abs(moved.taught(row, far).predict(row) - far).sum() < abs(before.taught(row, far).predict(row) - far).sum()


def test_dense_rows_leave_unknown_features_out() -> None:
    sparse = FeatureRows(index=np.array([[0, 2, 5]]), value=np.array([[1.0, 0.5, 2.0]]))
    np.testing.assert_array_equal(sparse.dense(4), [[1.0, 0.0, 0.5, 0.0]])
