"""The Inferno optimiser's sample problem from its files, and the optimiser's own greedy rule as a yardstick."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.sources.rows import SourceMissingError
from lab.benches.rolling.problems import FILES, FOLDER, Inferno, InfernoCase, Row
from lab.benches.rolling.problems import inferno as made_of
from solvers.domain.arrays import Whole


def inferno(data: Path, case: InfernoCase) -> Inferno:
    """Read and scale."""
    return made_of({name: _file(data, case.size, name) for name in FILES}, case)


def _file(data: Path, size: str, name: str) -> Row:
    path = data / FOLDER / size / f"{name}-data.json"
    if not path.is_file():
        raise SourceMissingError(f"{path} is missing: set HEADROOM_DATA to the folder that holds {FOLDER}/")
    read: Row = json.loads(path.read_text(encoding="utf-8"))
    return read


def greedy(case: Inferno) -> Whole:
    """The optimiser's own rule: by priority, then by regret, each service takes its cheapest option that still fits."""
    problem = case.covers
    price = problem.option_usd * problem.replicas_alone
    left = problem.units.copy()
    counts = np.zeros(problem.options, dtype=np.int64)
    waiting: list[tuple[int, list[int]]] = []
    for demand in range(len(problem.demand)):
        own = [int(option) for option in np.nonzero(problem.option_demand == demand)[0]]
        waiting.append((demand, sorted(own, key=lambda option: (price[option], option))))

    def order(entry: tuple[int, list[int]]) -> tuple[float, float, float]:
        demand, options = entry
        regret = float(price[options[1]] - price[options[0]]) if len(options) > 1 else np.inf
        return case.priorities[demand], -regret, -float(price[options[0]])

    waiting = sorted((entry for entry in waiting if entry[1]), key=order)
    while waiting:
        demand, options = waiting.pop(0)
        option = options[0]
        units = problem.option_units[option] * problem.replicas_alone[option]
        if left[problem.option_resource[option]] >= units:
            left[problem.option_resource[option]] -= units
            counts[option] = problem.replicas_alone[option]
        elif len(options) > 1:
            waiting.append((demand, options[1:]))
            waiting.sort(key=order)
    return counts
