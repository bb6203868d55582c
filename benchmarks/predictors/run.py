"""One run of the benchmark: data set by data set, predictor by predictor.

Owns the order of the work and what is told meanwhile. After every predictor the numbers are stored when they are to be
kept, so that a run that is stopped has lost little.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.predictors import claims, results, speed
from benchmarks.predictors.alone import SOLO_NAMES, Record, Table, folds_of, reason_of, run_solo
from benchmarks.predictors.datasets import DATASETS, SIZES, Dataset, Groupings, Size, groupings, samples_of
from benchmarks.predictors.limits import TooSlowError, at_most
from benchmarks.predictors.together import GroupAnswers, run_groups
from benchmarks.sources.rows import data_folder
from lab.measured import facts_for
from solvers.models.suite import suites as all_suites

SPEED_S_MAX = 120.0
SCATTERED = ("igniter-v100", "groups: pair")


def _wanted(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(names) or known


def run(asked: argparse.Namespace, found: results.Results) -> None:
    """Everything that the command line asks for, into `found`."""
    data = data_folder()
    size = SIZES["quick" if asked.quick else "full" if asked.full else "usual"]
    suites = _wanted(asked.predictors, tuple(all_suites()))
    names = _wanted(asked.datasets, tuple(dataset.name for dataset in DATASETS))
    if size.datasets and not asked.datasets:
        names = size.datasets
    parts = _wanted(asked.parts, ("solo", "groups", "speed", "claims"))
    found.about["size"] = size.name
    for dataset in [dataset for dataset in DATASETS if dataset.name in names]:
        if "solo" in parts and dataset.solo:
            _solo(dataset, data, size, suites, found)
            _kept(asked, found)
        if "groups" in parts and dataset.read_groups is not None:
            _groups(dataset, data, size, suites, found)
            _kept(asked, found)
    pairs = next(dataset for dataset in DATASETS if dataset.name == "igniter-v100")
    whole = groupings(pairs, data, size.groups_max)
    if "speed" in parts and whole is not None:
        _speed(whole, suites, found)
    if "claims" in parts and size.name != "quick":
        found.claims = claims.all_claims(data)
    _kept(asked, found)


def _kept(asked: argparse.Namespace, found: results.Results) -> None:
    if asked.write:
        results.save(found)


def _tell(began: float, record: Record) -> None:
    text = record.failed or f"{record.numbers.get('mape_pct', float('nan')):8.2f} %"
    if "r2_slowdown" in record.numbers:
        text += f"  R² on slowdown {record.numbers['r2_slowdown']:.3f}"
    print(f"{time.perf_counter() - began:7.0f} s  {record.dataset:22} {record.split:16} {record.predictor:9} {text}",
          flush=True)  # fmt: skip


def _solo(dataset: Dataset, data: Path, size: Size, suites: tuple[str, ...], found: results.Results) -> None:
    began = time.perf_counter()
    samples = samples_of(dataset, data, size.rows_max)
    facts = facts_for(samples.queries)
    folds = folds_of(samples, size, facts)
    for name in SOLO_NAMES:
        if any(all_suites()[suite][0] == name for suite in suites):
            for record in run_solo(Table(dataset.name, samples, facts, folds), size, name):
                found.add(record)
                _tell(began, record)


def _groups(dataset: Dataset, data: Path, size: Size, suites: tuple[str, ...], found: results.Results) -> None:
    began = time.perf_counter()
    whole = groupings(dataset, data, size.groups_max)
    if whole is None:
        return
    facts = facts_for(whole.solo.queries)
    for name in suites:
        for record, parts in run_groups(dataset.name, whole, size, facts, name):
            found.add(record)
            _tell(began, record)
            if (record.dataset, record.split) == SCATTERED and not record.failed:
                _scatter(name, parts)


def _scatter(name: str, parts: list[GroupAnswers]) -> None:
    truth = np.concatenate([part.slowdown for part in parts])
    mean = np.concatenate([part.latency.mean / part.alone_ms for part in parts])
    results.save_points(f"pair-{name}", truth=truth, mean=mean)


def _speed(whole: Groupings, suites: tuple[str, ...], found: results.Results) -> None:
    facts = facts_for(whole.solo.queries)
    for name in suites:
        try:
            with at_most(SPEED_S_MAX):
                found.speed[name] = speed.measure(name, whole, facts)
            rates = ", ".join(f"{key} {value:.4g}" for key, value in found.speed[name].items())
            print(f"speed of {name}: {rates}", flush=True)
        except (Exception, TooSlowError) as error:  # noqa: BLE001 - whatever a predictor raises is its result
            found.speed[name] = {}
            print(f"speed of {name}: {reason_of(error)}", flush=True)
