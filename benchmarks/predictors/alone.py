"""Runs the models of replicas alone over the folds of a data set.

Owns which splits a table of solo samples allows and the record of one predictor on one split. A predictor that fails on
a fold fails on the split, with its reason; it is never left out silently.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.predictors.chosen import chosen
from benchmarks.predictors.datasets import Size
from benchmarks.predictors.limits import TooSlowError, at_most
from benchmarks.predictors.metrics import MeasuredAnswers, calibration, joined, summary
from benchmarks.predictors.splits import Fold, cells, few_shot, gpu_out, model_on_gpu_out, value_out
from solvers.models.base import Facts, Quantity, Samples, SoloModel
from solvers.models.suite import make_solo, suites

SEED = 7
LEVELS = np.array([20.0, 40.0, 60.0, 80.0, 90.0, 95.0])
OTHER_QUANTITIES = {Quantity.POWER_W: 5.0, Quantity.MEMORY_MIB: 0.0, Quantity.LATENCY_MS_P99: 0.0}
"""What else is asked where it was measured, and the value above which a relative error means something."""
OTHER_ROWS_MIN = 40
SOLO_NAMES = tuple(dict.fromkeys(solo for solo, _ in suites().values()))


@dataclass(slots=True, kw_only=True)
class Record:
    """One predictor on one split of one data set: numbers, or why there are none."""

    dataset: str
    split: str
    predictor: str
    numbers: dict[str, float] = field(default_factory=dict)
    calibration: list[float] = field(default_factory=list)
    failed: str = ""


def folds_of(samples: Samples, size: Size, facts: Facts) -> list[Fold]:
    """Every split that this table allows."""
    queries = samples.queries
    return [
        *cells(len(queries), SEED, size.repeats),
        *value_out("batch", queries.batch, size.values_out, SEED),
        *value_out("share", queries.share_pct, size.values_out, SEED),
        *value_out("clock", queries.clock_mhz, size.values_out, SEED),
        *few_shot(queries, SEED, size.few_shot),
        *chosen(samples, SEED, size.few_shot, facts),
        *gpu_out(queries),
        *model_on_gpu_out(queries, SEED),
    ]


def by_split(folds: Iterable[Fold]) -> dict[str, list[Fold]]:
    """Folds by the name of their split; few-shot ones by their number of points as well."""
    found: dict[str, list[Fold]] = {}
    for fold in folds:
        name = f"{fold.split} {fold.points}" if fold.points else fold.split
        found.setdefault(name, []).append(fold)
    return found


def reason_of(error: BaseException) -> str:
    """One line that says what went wrong."""
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}"[:160]


@dataclass(slots=True, kw_only=True)
class Timing:
    """Seconds spent and rows asked for."""

    fit_s: list[float] = field(default_factory=list)
    predict_s: float = 0.0
    rows: int = 0

    def numbers(self) -> dict[str, float]:
        """Mean seconds of a fit and microseconds of a row."""
        return {"fit_s": float(np.mean(self.fit_s)), "predict_us": 1e6 * self.predict_s / max(1, self.rows)}


def answer_fold(model: SoloModel, samples: Samples, fold: Fold, timing: Timing) -> tuple[SoloModel, MeasuredAnswers]:
    """Fit on the fold's training rows and ask for its test rows."""
    test = samples.take(fold.test)
    began = time.perf_counter()
    fitted = model.fit(samples.take(fold.train))
    fitted_at = time.perf_counter()
    answer = fitted.predict(test.queries)
    timing.fit_s.append(fitted_at - began)
    timing.predict_s += time.perf_counter() - fitted_at
    timing.rows += len(test)
    return fitted, MeasuredAnswers(truth=test.latency_ms, mean=answer.mean, std=answer.std)


def record_of(dataset: str, split: str, predictor: str, parts: list[MeasuredAnswers], timing: Timing) -> Record:
    """The numbers of all folds of a split together."""
    whole = joined(parts)
    numbers = summary(whole, logarithmic=True) | timing.numbers()
    return Record(
        dataset=dataset, split=split, predictor=predictor, numbers=numbers, calibration=calibration(whole, LEVELS)
    )


@dataclass(frozen=True, slots=True)
class Table:
    """A data set with what may be known of it and its folds."""

    dataset: str
    samples: Samples
    facts: Facts
    folds: list[Fold]


def run_solo(table: Table, size: Size, predictor: str) -> Iterator[Record]:
    """One predictor on every split of one table."""
    dataset, samples, facts = table.dataset, table.samples, table.facts
    for split, folds in by_split(table.folds).items():
        timing, parts = Timing(), []
        try:
            for fold in folds:
                with at_most(size.fold_s_max):
                    parts.append(answer_fold(make_solo(predictor, facts, SEED), samples, fold, timing)[1])
            yield record_of(dataset, split, predictor, parts, timing)
        except (Exception, TooSlowError) as error:  # noqa: BLE001 - whatever a predictor raises is its result
            yield Record(dataset=dataset, split=split, predictor=predictor, failed=reason_of(error))
    for quantity, least in OTHER_QUANTITIES.items():
        rows = np.flatnonzero(samples.column(quantity) > least)
        if len(rows) >= OTHER_ROWS_MIN:
            yield run_quantity(dataset, samples.take(rows), size, (facts, predictor), quantity)


def run_quantity(dataset: str, samples: Samples, size: Size, who: tuple[Facts, str], quantity: Quantity) -> Record:
    """One predictor on unseen cells of another quantity than latency; no numbers where it does not answer that."""
    facts, predictor = who
    record = Record(dataset=dataset, split=f"cells: {quantity.value}", predictor=predictor)
    timing, parts = Timing(), []
    try:
        if quantity not in make_solo(predictor, facts, SEED).spec.quantities:
            return record
        for fold in cells(len(samples), SEED, size.repeats):
            with at_most(size.fold_s_max):
                fitted = answer_fold(make_solo(predictor, facts, SEED), samples, fold, timing)[0]
                answer = fitted.predict(samples.queries.take(fold.test), quantity)
            truth = samples.column(quantity)[fold.test]
            parts.append(MeasuredAnswers(truth=truth, mean=answer.mean, std=answer.std))
        return record_of(dataset, record.split, predictor, parts, timing)
    except (Exception, TooSlowError) as error:  # noqa: BLE001 - whatever a predictor raises is its result
        record.failed = reason_of(error)
        return record
