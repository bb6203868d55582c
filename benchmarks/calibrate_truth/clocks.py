"""Power over the SM clock: under power limits (Zeus, NSDI'23, Apache-2.0) and at set clocks (DLBench, e-Energy 2019).

Owns the choice of where a chip's voltage ends and of the part of its power that does not follow the clock
(`solvers.sim.truth.catalogue`). A limit shows power and time alone, so the clock between them is what the law says of
the power. Nothing else of the truth rests on these data; they train.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from solvers.sim.truth.catalogue import GPUS

LIMITED = {"v100": "v100", "p100": "p100", "a40": "a40", "rtx6000": "rtx-2080ti"}
"""Board of the data, and the one of the same chip in the simulated world."""
AT_CLOCKS = ("gtx1080Ti-googlenet", "titanX-caffe-googlenet", "titanX-caffe-resnet", "titanX-googlenet-logs-v2",
             "titanX-vgg-logs-v2")  # fmt: skip
PASCAL = GPUS["p40"]
"""The chip of both boards of `AT_CLOCKS`."""
PARALLEL_PART = 0.8
"""Part of an epoch that the SM clock shortens; the rest waits for memory and hosts. An estimate."""
FILLED_W_MIN = 120.0
"""Runs that draw less are not limited by the GPU."""
CLOCKS = np.linspace(0.05, 1.0, 2000)
Stretch = tuple[float, float]
"""Dynamic power and time, both against the highest limit."""


def stretches(file: Path, idle_w: float) -> list[Stretch]:
    """Each run at a lower limit that binds."""
    runs: dict[tuple[str, str, str, str], dict[float, tuple[float, float]]] = defaultdict(dict)
    with file.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            key = (row["dataset"], row["network"], row["batch_size"], row["optimizer"])
            runs[key][float(row["power_limit"])] = (float(row["time_per_epoch"]), float(row["average_power"]))
    found = []
    for run in runs.values():
        free_s, free_w = run[max(run)]
        if free_w >= FILLED_W_MIN:
            for time_s, power_w in run.values():
                if power_w < 0.95 * free_w:
                    found.append(((power_w - idle_w) / (free_w - idle_w), time_s / free_s))
    return found


def power_at(clock: np.ndarray, uncore: float, floor: float) -> np.ndarray:
    """Of a GPU at full work, against the highest clock: the law of `dynamic_power_w`."""
    return np.asarray(uncore + (1.0 - uncore) * clock * np.maximum(clock, floor) ** 2)


def limit_errors(found: Sequence[Stretch], uncore: float, floor: float) -> np.ndarray:
    """How far time is off that the law tells from power."""
    power, time = np.array(found).T
    clock = np.interp(power, power_at(CLOCKS, uncore, floor), CLOCKS)
    return np.asarray((PARALLEL_PART / clock + 1.0 - PARALLEL_PART) / time - 1.0)


def limited(data: Path) -> dict[str, list[Stretch]]:
    found = {}
    for board, name in LIMITED.items():
        gpu = GPUS[name]
        found[board] = stretches(data / "zeus-train-power" / f"power_{board}.csv", gpu.idle_w + gpu.context_w)
    return found


def exponents(data: Path) -> list[float]:
    """Of dynamic power over the core clock, for each run and memory clock."""
    idle_w, found = PASCAL.idle_w + PASCAL.context_w, []
    for name in AT_CLOCKS:
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        with (data / "dlbench-dvfs-train" / f"{name}.csv").open(encoding="utf-8", newline="") as opened:
            for row in csv.DictReader(opened):
                lines[row["memF"]].append((float(row["coreF"]), float(row["power/W"]) - idle_w))
        found += [float(np.polyfit(*np.log(np.array(line)).T, 1)[0]) for line in lines.values()]
    return found


def ours(low: float = 1607.0 / 1898.0) -> float:
    """The same exponent of the law, over the range of the runs."""
    ends = power_at(np.array([low, 1.0]), PASCAL.uncore_part, PASCAL.voltage_floor)
    return float(np.log(ends[1] / ends[0]) / np.log(1.0 / low))


def report(data: Path, fitting: bool) -> None:
    """Print the errors of the committed numbers, and when fitting the best ones."""
    for board, found in limited(data).items():
        gpu = GPUS[LIMITED[board]]
        off = limit_errors(found, gpu.uncore_part, gpu.voltage_floor)
        print(f"{board}, {len(off)} runs: error {100 * np.mean(np.abs(off)):.1f} %, bias {100 * np.mean(off):+.1f} %")
        if fitting:
            grid = product(np.arange(0.0, 0.6, 0.1), np.arange(0.5, 1.01, 0.05))
            best = min(grid, key=lambda point: float(np.mean(np.abs(limit_errors(found, *point)))))
            print(f"  best: {best[0]:.1f} beside the clock, voltage down to {best[1]:.2f}")
    found_exponents = exponents(data)
    low, median, high = statistics.quantiles(found_exponents, n=4)
    print(
        f"set clocks, {len(found_exponents)} lines: exponent {median:.2f} ({low:.2f} to {high:.2f}), ours {ours():.2f}"
    )
