"""How fast predictors answer and learn on one core: questions a second of whole arrays, microseconds of a single one,
milliseconds of learning one more measurement.

Owns the timing. Every number is the median of repeated runs on models fitted to iGniter's table; NaN where a model has
failed or does not learn online.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.predictors.alone import SEED
from benchmarks.predictors.datasets import Groupings
from benchmarks.predictors.splits import group_count
from solvers.models.base import Facts, Groups, Queries
from solvers.models.suite import Suite

REPEATS = 5
SINGLE_REPEATS = 200
UPDATES = 40
ROWS_MAX = 1_000_000
ROWS_PROBE = 5_000
RUN_S = 0.7


def seconds_of(step: Callable[[], object], repeats: int) -> float:
    """Median wall time of a step."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _questions(models: tuple[str, ...], gpu_type: str, count: int) -> Queries:
    rng = np.random.default_rng(SEED)
    return Queries(
        models=models,
        gpu_types=(gpu_type,),
        model=rng.integers(0, len(models), count),
        gpu_type=np.zeros(count, dtype=np.int64),
        batch=rng.integers(1, 33, count).astype(np.float64),
        share_pct=rng.integers(10, 101, count).astype(np.float64),
        clock_mhz=np.full(count, np.nan),
    )


def _per_second(ask: Callable[[int], Callable[[], object]]) -> float:
    probe = ask(ROWS_PROBE)
    probe()
    rate = ROWS_PROBE / seconds_of(probe, 3)
    count = int(min(ROWS_MAX, max(ROWS_PROBE, rate * RUN_S)))
    return count / seconds_of(ask(count), REPEATS)


def _pairs(models: tuple[str, ...], gpu_type: str, count: int) -> Groups:
    questions = _questions(models, gpu_type, 2 * (count // 2))
    return Groups(members=questions, group=np.repeat(np.arange(count // 2, dtype=np.int64), 2))


def measure(name: str, groupings: Groupings, facts: Facts) -> dict[str, float]:
    """All timings of one suite."""
    models, gpu_type = groupings.solo.queries.models, groupings.solo.queries.gpu_types[0]
    suite = Suite.fresh(name, facts, SEED).fit(groupings.solo, groupings.samples)
    one = _questions(models, gpu_type, 1)
    found = {
        "solo_per_s": _per_second(lambda count: _asking(suite, _questions(models, gpu_type, count))),
        "groups_per_s": _per_second(lambda count: _asking_groups(suite, _pairs(models, gpu_type, count))),
        "single_us": 1e6 * seconds_of(lambda: suite.predict(one), SINGLE_REPEATS),
        "update_ms": float("nan"),
        "update_groups_ms": float("nan"),
    }
    if suite.solo.spec.online:
        found["update_ms"] = _update_ms(suite, groupings)
    if suite.interference.spec.online:
        found["update_groups_ms"] = _update_groups_ms(suite, groupings)
    return found


def _asking(suite: Suite, questions: Queries) -> Callable[[], object]:
    return lambda: suite.predict(questions)


def _asking_groups(suite: Suite, groups: Groups) -> Callable[[], object]:
    return lambda: suite.predict_groups(groups)


def _update_ms(suite: Suite, groupings: Groupings) -> float:
    rows = np.random.default_rng(SEED).permutation(len(groupings.solo))[:UPDATES]
    model, found = suite.solo, []
    for row in rows:
        sample = groupings.solo.take(np.array([row]))
        began = time.perf_counter()
        model = model.update(sample)
        found.append(time.perf_counter() - began)
    return 1000.0 * statistics.median(found)


def _update_groups_ms(suite: Suite, groupings: Groupings) -> float:
    numbers = np.random.default_rng(SEED).permutation(group_count(groupings.samples.groups))[:UPDATES]
    model, found = suite.interference, []
    for number in numbers:
        sample = groupings.samples.take_groups([int(number)])
        began = time.perf_counter()
        model = model.update(sample, suite.solo)
        found.append(time.perf_counter() - began)
    return 1000.0 * statistics.median(found)
