"""Matrix factorisation: it completes a table of low rank, and answers the nearest column where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from lab.beliefs import matrix
from lab.beliefs.matrix import MatrixRegressor
from solvers.models.base import Facts, Queries
from solvers.policies.oltunes.history import alone

EMPTY = Facts()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many factors and passes as so small a table asks for."""
    monkeypatch.setattr(matrix, "RANK", 2)
    monkeypatch.setattr(matrix, "PASSES", 300)


def table() -> tuple[Queries, np.ndarray]:
    """Twelve models on fifteen configurations, biases and one product."""
    rng = np.random.default_rng(2)
    names = np.repeat([f"m{line:02d}" for line in range(12)], 15)
    batch, share = np.tile(np.repeat([1.0, 2, 4, 8, 16], 3), 12), np.tile([20.0, 50.0, 90.0], 60)
    line, column = rng.normal(size=12), rng.normal(size=15)
    targets = np.repeat(line, 15) + np.tile(column, 12) + np.outer(rng.normal(size=12), rng.normal(size=15)).ravel()
    return Queries.of(list(names), "v100", batch, share), (targets - targets.mean())[:, None] / targets.std()


def test_holes_of_a_table_are_filled() -> None:
    queries, targets = table()
    order = np.random.default_rng(5).permutation(len(queries))
    shown, hidden = order[:140], order[140:]
    model = MatrixRegressor.fresh(targets=1, seed=0)
    model = model.fitted(alone(queries.take(shown)), targets[shown], EMPTY)
    said, variance = model.predict(alone(queries.take(hidden)), EMPTY)
    assert variance is None
    assert np.square(said - targets[hidden]).mean() < 0.1 * np.square(targets[hidden]).mean()


def test_unknown_columns_and_lines_fall_back() -> None:
    queries, targets = table()
    model = MatrixRegressor.fresh(targets=1, seed=0).fitted(alone(queries), targets, EMPTY)
    exact, near, stranger, elsewhere = (
        model.predict(alone(Queries.of(name, gpu, batch, share)), EMPTY)[0][0, 0]
        for name, gpu, batch, share in (
            ("m03", "v100", 4, 50),
            ("m03", "v100", 4.4, 53),
            ("nobody", "v100", 4, 50),
            ("m03", "a100", 4, 50),
        )
    )
    assert near == exact
    column = model.columns.nearest(alone(Queries.of("m03", "v100", 4, 50)), EMPTY)[0]
    assert stranger == model.by_column[column, 0, 0]
    assert elsewhere == model.by_model[3, 0, 0]
