"""Few points of a new model that were not drawn but chosen: those our own model asks to be measured next.

Owns the match of proposed configurations to the rows of a table. All predictors learn the same chosen points, so that
the gain of choosing is told apart from the gain of a better model. What is chosen never depends on measured values of
the new model: all points are proposed before the first is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.predictors.splits import FewShot, Fold, Newcomer, newcomers
from solvers.models.base import Facts, Samples
from solvers.models.belief.design import Configuration, next_points
from solvers.models.suite import make_solo

SPLIT = "chosen"
POINTS_MAX = 16


def chosen(samples: Samples, seed: int, plan: FewShot, facts: Facts) -> Iterator[Fold]:
    """As few-shot, for the sizes where a choice matters."""
    for newcomer in newcomers(samples.queries, seed, plan):
        order = _proposed(samples, newcomer, seed, facts)
        for fold in newcomer.folds(SPLIT, order):
            if fold.points <= min(POINTS_MAX, len(order)):
                yield fold


def _proposed(samples: Samples, newcomer: Newcomer, seed: int, facts: Facts) -> np.ndarray:
    solo = make_solo("headroom", facts, seed).fit(samples.take(newcomer.known))
    rows = {_configuration(samples, row): row for row in newcomer.rows}
    points = next_points(solo, (newcomer.model, newcomer.gpu_type), facts, POINTS_MAX, tuple(rows))
    keyed = {(item.batch, item.share_pct_sm, item.clock_mhz_sm): row for item, row in rows.items()}
    return np.array([keyed[(item.batch, item.share_pct_sm, item.clock_mhz_sm)] for item in points], dtype=np.intp)


def _configuration(samples: Samples, row: int) -> Configuration:
    queries = samples.queries
    clock = queries.clock_mhz[row]
    return Configuration(
        batch=int(queries.batch[row]),
        share_pct_sm=max(1, round(float(queries.share_pct[row]))),
        clock_mhz_sm=None if np.isnan(clock) else int(clock),
    )
