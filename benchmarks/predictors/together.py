"""Runs the suites over groups of replicas: latency beside neighbours and the slowdown in it.

Owns the interference splits. Slowdown is always measured latency over the measured latency of the same cell alone.
Three R² on it are told apart: of the whole suite (its latency over the measured one alone), of its interference model
by its own reckoning, and of its interference model when it is handed the measured latencies alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.predictors.alone import LEVELS, SEED, Record, Timing, by_split, reason_of
from benchmarks.predictors.datasets import Groupings, Size
from benchmarks.predictors.limits import TooSlowError, at_most
from benchmarks.predictors.measured import MeasuredSolo
from benchmarks.predictors.metrics import MeasuredAnswers, calibration, joined, summary
from benchmarks.predictors.splits import Fold, cells, group_count, member_out, pairs_out
from lab.claims.predictors import r_squared
from solvers.domain.arrays import Floats
from solvers.models.base import Facts
from solvers.models.suite import Suite, make_interference, suites

PAIR = "r2_slowdown of "
"""Before the name of a pair that was left out: the R² on that pair alone."""


def folds_of(groupings: Groupings, size: Size) -> list[Fold]:
    """Every split that these groups allow."""
    groups = groupings.samples.groups
    return [
        *cells(group_count(groups), SEED, size.repeats),
        *list(pairs_out(groups, SEED))[: size.pair_folds_max],
        *member_out(groups, size.pair_folds_max, SEED),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswers:
    """What one fold gave, by row of its test members."""

    rows: np.ndarray
    latency: MeasuredAnswers
    alone_ms: Floats
    slowdown: Floats
    slowdown_model: Floats
    slowdown_given: Floats


def _given_alone(facts: Facts, name: str, groupings: Groupings, fold: Fold) -> Floats:
    """Slowdowns by the interference model alone, with measured latencies of the members."""
    measured = MeasuredSolo(groupings.solo)
    train, test = groupings.samples.take_groups(fold.train), groupings.samples.take_groups(fold.test)
    try:
        model = make_interference(suites()[name][1], facts, SEED).fit(train, measured, groupings.solo)
        return model.predict(test.groups, measured).mean
    except Exception:  # noqa: BLE001 - some forms need the inner terms of their own model alone
        return np.full(len(test.groups), np.nan)


def answer_fold(name: str, facts: Facts, groupings: Groupings, fold: Fold, timing: Timing) -> GroupAnswers:
    """Learn all solo samples and the fold's groups; ask for the other groups."""
    train = groupings.samples.take_groups(fold.train)
    groups, rows = groupings.samples.groups.take_groups(fold.test)
    began = time.perf_counter()
    suite = Suite.fresh(name, facts, SEED).fit(groupings.solo, train)
    fitted_at = time.perf_counter()
    answer = suite.predict_groups(groups)
    timing.fit_s.append(fitted_at - began)
    timing.predict_s += time.perf_counter() - fitted_at
    timing.rows += len(groups)
    return GroupAnswers(
        rows=rows,
        latency=MeasuredAnswers(truth=groupings.samples.latency_ms[rows], mean=answer.mean, std=answer.std),
        alone_ms=groupings.alone_ms[rows],
        slowdown=groupings.slowdown[rows],
        slowdown_model=suite.interference.predict(groups, suite.solo).mean,
        slowdown_given=_given_alone(facts, name, groupings, fold),
    )


def _r2(truth: Floats, mean: Floats) -> float:
    known = np.isfinite(mean)
    return r_squared(truth[known], mean[known]) if known.any() else float("nan")


def numbers_of(parts: list[GroupAnswers]) -> tuple[dict[str, float], list[float]]:
    """Errors and coverage on latency, the three R² on slowdown, and the worst R² of any fold."""
    latency = joined([part.latency for part in parts])
    alone_ms = np.concatenate([part.alone_ms for part in parts])
    slowdown = np.concatenate([part.slowdown for part in parts])
    whole = MeasuredAnswers(truth=slowdown, mean=latency.mean / alone_ms, std=latency.std / alone_ms)
    numbers = summary(latency, logarithmic=True) | {
        "r2_slowdown": _r2(slowdown, whole.mean),
        "r2_slowdown_model": _r2(slowdown, np.concatenate([part.slowdown_model for part in parts])),
        "r2_slowdown_given": _r2(slowdown, np.concatenate([part.slowdown_given for part in parts])),
        "r2_slowdown_worst": min(_r2(part.slowdown, part.latency.mean / part.alone_ms) for part in parts),
    }
    return numbers, calibration(whole, LEVELS)


def run_groups(dataset: str, groupings: Groupings, size: Size, facts: Facts, name: str) -> Iterator[
    tuple[Record, list[GroupAnswers]]
]:  # fmt: skip
    """One suite on every split of one table of groups, with the answers for whoever draws them."""
    for split, folds in by_split(folds_of(groupings, size)).items():
        timing, parts = Timing(), []
        record = Record(dataset=dataset, split=f"groups: {split}", predictor=name)
        try:
            for fold in folds:
                with at_most(size.fold_s_max):
                    parts.append(answer_fold(name, facts, groupings, fold, timing))
            record.numbers, record.calibration = numbers_of(parts)
            record.numbers |= timing.numbers()
            if split == "pair":
                record.numbers |= {
                    PAIR + fold.subject: _r2(part.slowdown, part.latency.mean / part.alone_ms)
                    for fold, part in zip(folds, parts, strict=True)
                }
        except (Exception, TooSlowError) as error:  # noqa: BLE001 - whatever a predictor raises is its result
            record.failed = reason_of(error)
        yield record, parts
