"""The forest's own traversal against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from lab.beliefs.forest import TREES, _grown


@pytest.mark.parametrize("targets", [1, 2])
def test_trees_say_what_scikit_learn_says(targets: int) -> None:
    rng = np.random.default_rng(0)
    features = np.round(rng.normal(size=(120, 6)), 1)
    wanted = np.stack([features[:, 0] * features[:, 1], features[:, 2] ** 2], axis=1)[:, :targets]
    trees = _grown(features, wanted, 7)
    reference = RandomForestRegressor(n_estimators=TREES, random_state=7)
    reference.fit(features, wanted[:, 0] if targets == 1 else wanted)
    asked = np.round(rng.normal(size=(80, 6)), 2)
    said = trees.answers(asked)
    assert said.shape == (80, TREES, targets)
    np.testing.assert_allclose(said.mean(axis=1), reference.predict(asked).reshape(80, targets), atol=1e-6)
    each = np.stack([tree.predict(asked).reshape(80, targets) for tree in reference.estimators_], axis=1)
    np.testing.assert_allclose(said, each, atol=1e-6)
