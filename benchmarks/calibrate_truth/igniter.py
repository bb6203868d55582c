"""Times, slowdowns and power of a V100 under MPS, published with iGniter.

Owns the fits behind the first four rows of `solvers.sim.truth.catalogue` and behind every network's power. The data
may not be redistributed, so only coefficients are committed.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from solvers.sim.truth.catalogue import GPUS, MODELS, ModelTruth
from solvers.sim.truth.truth import (
    CLOCK_EXPONENT_OF_POWER,
    SHARE_OF_FULL_BANDWIDTH,
    Resident,
    board_power_w,
    execution_ms,
    sm_count_of_share,
    wanted,
)

V100 = GPUS["v100"]
NAMES = {"alexnet": "alexnet", "resnet50": "resnet50", "vgg19": "vgg19", "ssd": "ssd-resnet50"}
FIRST_INPUT_WEIGHT = 3.0
"""Batches of one are few in the data and matter most for latency."""
Cell = tuple[str, int, int]


def solo(folder: Path) -> dict[Cell, float]:
    """Published milliseconds by (model, batch, share)."""
    with (folder / "solo_profile.csv").open(encoding="utf-8", newline="") as file:
        return {
            (NAMES[row["model"]], int(row["batch"]), int(row["sm_pct"])): float(row["latency_ms"])
            for row in csv.DictReader(file)
        }


def fit(model: ModelTruth, cells: dict[Cell, float]) -> tuple[float, ...]:
    """fixed, io, work, SMs of the first input and exponent that fit best; traffic is taken as known."""
    batch = np.array([cell[1] for cell in cells], float)
    sms = np.array([sm_count_of_share(V100, cell[2]) for cell in cells], float)
    times = np.array(list(cells.values()))
    weight = np.where(batch == 1, FIRST_INPUT_WEIGHT, 1.0)
    bandwidth = V100.memory_bandwidth_gb_per_s * np.minimum(1.0, sms / V100.sm_count / SHARE_OF_FULL_BANDWIDTH)
    memory = 1000.0 * (model.traffic_gb_weights + model.traffic_gb_per_input * batch) / bandwidth

    def unpack(point: np.ndarray) -> tuple[float, ...]:
        return (*np.exp(point[:4]), float(1.0 / (1.0 + np.exp(-point[4]))))

    def residual(point: np.ndarray) -> np.ndarray:
        fixed, io, work, first, exponent = unpack(point)
        busy = (sms**-2.0 + (first * batch**exponent) ** -2.0) ** -0.5
        return np.asarray(weight * np.log((fixed + io * batch + work * batch / busy + memory) / times))

    starts = [
        [np.log(fixed), np.log(0.02), np.log(work), np.log(first), 0.0]
        for fixed in (0.1, 0.5, 1.5)
        for work in (5.0, 20.0, 80.0, 200.0)
        for first in (20.0, 60.0)
    ]
    return unpack(min((least_squares(residual, start) for start in starts), key=lambda found: found.cost).x)


def print_solo(cells: dict[Cell, float]) -> None:
    """Error of the committed coefficients, by model."""
    errors: dict[str, list[float]] = defaultdict(list)
    for (name, batch, share), published_ms in cells.items():
        resident = Resident(model=name, share_pct_sm=share, batch=batch)
        errors[name].append(abs(execution_ms(V100, resident, V100.clock_mhz_sm_max) / published_ms - 1.0))
    for name, found in errors.items():
        print(f"{name:13} mean error {100 * statistics.mean(found):5.2f} %, worst {100 * max(found):5.1f} %")


def print_pairs(folder: Path, cells: dict[Cell, float]) -> None:
    """Error of the slowdown of two neighbours, beside that of always predicting the mean slowdown."""
    published, modelled = [], []
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


def print_power(folder: Path) -> None:
    """Error of the board's power at the clock that it ran at."""
    errors = []
    for (name, batch, share), (published_w, clock) in power(folder).items():
        resident = Resident(model=name, share_pct_sm=share, batch=batch)
        errors.append(abs(board_power_w(V100, [resident], clock, 1e9) / published_w - 1.0))
    mean, worst = 100 * statistics.mean(errors), 100 * max(errors)
    print(f"{len(errors)} board powers: mean error {mean:.1f} %, worst {worst:.1f} %")


def fit_power(published: dict[Cell, tuple[float, float]]) -> np.ndarray:
    """Intensity of each network, floor, watts of waiting for memory against computing, and watts of an idle context."""
    names, rows = list(NAMES.values()), []
    for (name, batch, share), (published_w, clock) in published.items():
        one = Resident(model=name, share_pct_sm=share, batch=batch)
        (running, filled), model = wanted(V100, one, clock), MODELS[name]
        fixed_ms = model.fixed_ms + model.io_ms_per_input * batch
        alone_ms = fixed_ms / (1.0 - running)
        compute = (
            model.work_ms_sm_per_input * batch * V100.clock_mhz_sm_max / (filled * V100.sm_count * clock) / alone_ms
        )
        fast = filled * (clock / V100.clock_mhz_sm_max) ** CLOCK_EXPONENT_OF_POWER
        rows.append((names.index(name), fast, compute, running - compute, published_w))
    index, fast, compute, memory, watts = np.array(rows).T

    def residual(point: np.ndarray) -> np.ndarray:
        floor, waiting, idle_w = point[-3:]
        active = floor + (1.0 - floor) * (compute + waiting * memory)
        dynamic = point[index.astype(int)] * (V100.tdp_w - idle_w) * fast * active
        return np.asarray((idle_w + dynamic) / watts - 1.0)

    return np.asarray(least_squares(residual, [1.3] * len(names) + [0.1, 0.5, 53.0]).x)


def report(data: Path, fitting: bool) -> None:
    """Print errors, and when fitting the coefficients of a new fit."""
    folder = data / "igniter-v100"
    cells = solo(folder)
    print_solo(cells)
    print_pairs(folder, cells)
    print_power(folder)
    if fitting:
        print("power:", ", ".join(f"{value:.3g}" for value in fit_power(power(folder))))
    for name in NAMES.values() if fitting else ():
        mine = {cell: time_ms for cell, time_ms in cells.items() if cell[0] == name}
        found = fit(MODELS[name], mine)
        values = dict(zip(("fixed", "io", "work", "SMs", "exponent"), found, strict=True))
        print(f"{name:13}", ", ".join(f"{part} {value:.4g}" for part, value in values.items()))
