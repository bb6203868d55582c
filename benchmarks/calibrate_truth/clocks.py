"""Time and power under power limits, published with Zeus (NSDI'23, Apache-2.0).

Owns the choice of the exponent of power over clock: the one that tells best how much longer an epoch takes when the
limit lowers its power. Nothing else of the truth rests on these data; they train.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import CLOCK_EXPONENT_OF_POWER

BOARDS = ("v100", "p100", "a40")
PARALLEL_PART = 0.8
"""Part of an epoch that the SM clock shortens; the rest waits for memory and hosts. An estimate."""
FILLED_W_MIN = 120.0
"""Runs that draw less are not limited by the GPU."""


def stretches(file: Path, idle_w: float) -> list[tuple[float, float]]:
    """Dynamic power and time, both against the highest limit, of each run at a lower limit that binds."""
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


def report(data: Path, fitting: bool) -> None:
    """Print the error of the committed exponent, and when fitting those of others."""
    exponents = (1.8, 2.2, CLOCK_EXPONENT_OF_POWER, 3.0) if fitting else (CLOCK_EXPONENT_OF_POWER,)
    for board in BOARDS:
        gpu = GPUS[board]
        found = stretches(data / "zeus-train-power" / f"power_{board}.csv", gpu.idle_w + gpu.context_w)
        for exponent in exponents:
            off = [
                (PARALLEL_PART / power ** (1.0 / exponent) + 1.0 - PARALLEL_PART) / time - 1.0 for power, time in found
            ]
            mean, bias = statistics.mean(abs(each) for each in off), statistics.mean(off)
            print(f"{board}, {len(off)} runs, exponent {exponent}: error {100 * mean:.1f} %, bias {100 * bias:+.1f} %")
