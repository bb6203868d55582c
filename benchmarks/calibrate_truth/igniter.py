"""Times, slowdowns and power of a V100 under MPS, published with iGniter.

Owns the fits behind the rows `-trt` and `ssd-resnet50` of `solvers.sim.truth.catalogue` and behind every network's
power. The data may not be redistributed, so only coefficients are committed.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.calibrate_truth.fitting import fitted, row
from solvers.sim.truth.catalogue import GPUS, MODELS
from solvers.sim.truth.truth import Resident, board_power_w, execution_ms, parts

V100 = GPUS["v100"]
NAMES = {"alexnet": "alexnet-trt", "resnet50": "resnet50-trt", "vgg19": "vgg19-trt", "ssd": "ssd-resnet50"}
Cell = tuple[str, int, int]


def solo(folder: Path) -> dict[Cell, float]:
    """Published milliseconds by (model, batch, share)."""
    with (folder / "solo_profile.csv").open(encoding="utf-8", newline="") as file:
        return {
            (NAMES[row["model"]], int(row["batch"]), int(row["sm_pct"])): float(row["latency_ms"])
            for row in csv.DictReader(file)
        }


def print_solo(cells: dict[Cell, float]) -> None:
    """Error of the committed coefficients, by model."""
    errors: dict[str, list[float]] = defaultdict(list)
    for (name, batch, share), published_ms in cells.items():
        resident = Resident(model=name, share_pct_sm=share, batch=batch)
        errors[name].append(abs(execution_ms(V100, resident, V100.clock_mhz_sm_max) / published_ms - 1.0))
    for name, found in errors.items():
        print(f"{name:13} mean error {100 * statistics.mean(found):5.2f} %, worst {100 * max(found):5.1f} %")


def slowdowns_of(folder: Path) -> tuple[list[float], list[float]]:
    """Published slowdowns of two neighbours, and ours."""
    cells, published, modelled = solo(folder), [], []
    with (folder / "colocated_pairs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            one, other = (
                Resident(
                    model=NAMES[row[f"model_{side}"]],
                    share_pct_sm=int(row[f"sm_pct_{side}"]),
                    batch=int(row[f"batch_{side}"]),
                )
                for side in "ab"
            )
            for mine, neighbour, side in ((one, other, "a"), (other, one, "b")):
                alone_ms = cells.get((mine.model, mine.batch, mine.share_pct_sm))
                if alone_ms is not None:
                    published.append(float(row[f"latency_{side}_ms"]) / alone_ms)
                    clock = V100.clock_mhz_sm_max
                    modelled.append(execution_ms(V100, mine, clock, (neighbour,)) / execution_ms(V100, mine, clock))
    return published, modelled


def print_pairs(folder: Path) -> None:
    """Error of the slowdown of two neighbours, beside that of always predicting the mean slowdown."""
    published, modelled = slowdowns_of(folder)
    mean = statistics.mean(published)
    off = statistics.mean(abs(found - true) for found, true in zip(modelled, published, strict=True))
    constant = statistics.mean(abs(mean - true) for true in published)
    print(
        f"{len(published)} slowdowns: published mean {mean:.3f} ({min(published):.3f} to {max(published):.3f}), "
        f"modelled mean {statistics.mean(modelled):.3f} ({min(modelled):.3f} to {max(modelled):.3f}); "
        f"mean error {off:.3f}, of the constant mean {constant:.3f}"
    )


def power(folder: Path) -> dict[Cell, tuple[float, float]]:
    """Published watts of the board and MHz of its clock, by (model, batch, share), each executing without pause."""
    tables: dict[str, dict[str, list[list[float]]]] = defaultdict(dict)
    for line in (folder / "igniter_model_config.jsonl").read_text(encoding="utf-8").splitlines():
        for name, found in json.loads(line).items():
            tables[name].update({part: found[part] for part in ("power", "frequency") if part in found})
    return {
        (NAMES[name], batch, share): (tables[name]["power"][row][column], tables[name]["frequency"][row][column])
        for name in NAMES
        for row, batch in enumerate((1, 16, 32))
        for column, share in enumerate((10, 50, 100))
    }


def power_errors(folder: Path) -> list[float]:
    """Of the board's power at the clock that it ran at."""
    return [
        abs(board_power_w(V100, [Resident(model=name, share_pct_sm=share, batch=batch)], clock, 1e9) / watts - 1.0)
        for (name, batch, share), (watts, clock) in power(folder).items()
    ]


def fit_power(published: dict[Cell, tuple[float, float]]) -> np.ndarray:
    """Intensity of each network, watts of waiting for memory against computing, and watts of an idle context."""
    names, rows = list(NAMES.values()), []
    for (name, batch, share), (published_w, clock) in published.items():
        alone = parts(V100, MODELS[name], Resident(model=name, share_pct_sm=share, batch=batch), clock)
        part = clock / V100.clock_mhz_sm_max
        switched = part * max(part, V100.voltage_floor) ** 2 / alone.total_ms
        waited_ms = alone.used_ms - alone.core_ms
        rows.append((names.index(name), switched * alone.core_ms, switched * waited_ms, published_w))
    index, computes, waits, watts = np.array(rows).T

    def residual(point: np.ndarray) -> np.ndarray:
        waiting, idle_w = point[-2:]
        dynamic = point[index.astype(int)] * (V100.tdp_w - idle_w) * (computes + waiting * waits)
        return np.asarray((idle_w + dynamic) / watts - 1.0)

    return np.asarray(least_squares(residual, [1.3] * len(names) + [0.5, 53.0]).x)


def report(data: Path, fitting: bool) -> None:
    """Print errors, and when fitting the coefficients of a new fit."""
    folder = data / "igniter-v100"
    cells = solo(folder)
    print_solo(cells)
    print_pairs(folder)
    errors = power_errors(folder)
    print(
        f"{len(errors)} board powers: mean error {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %"
    )
    if fitting:
        print("power:", ", ".join(f"{value:.3g}" for value in fit_power(power(folder))))
    for name in NAMES.values() if fitting else ():
        mine = {(V100, share, batch): time_ms for (each, batch, share), time_ms in cells.items() if each == name}
        print(f"{name:13}", row(fitted(MODELS[name], mine)))
