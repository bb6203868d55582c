"""What learning how long to look back is worth on recorded rates: capacity that is sized for, and requests beyond it.

python -m benchmarks.remembering [--data FOLDER]

No plan is made: each record is one service's, sized for as a policy by default does, for as long a memory as is learned
every minute of the hour before, beside the whole one and beside the shortest for good. What rises above that before
replicas of six seconds' launch stand is beyond it. Internal; by the front door: `headroom arena run twitter-hours`.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from solvers.cycle.memory import PAST_S, SEEN_S, Past, memory_s
from solvers.domain.arrays import Floats
from solvers.domain.policy import Policy
from solvers.domain.telemetry import DEMAND_BIN_S
from solvers.problems.needs import sizes_rps
from tests import builders

HALF_S, LAUNCH_S, EVERY_S = DEMAND_BIN_S / 2.0, 6.0, 60.0
DAYS = 3


def recorded_rates(data: Path) -> Iterator[tuple[str, Floats]]:
    """By name, rates of every half bin."""
    counts = np.loadtxt(data / "twitter-rate" / "rate_10s.csv", delimiter=",", skiprows=1)[:, 1] / DEMAND_BIN_S
    yield f"twitter, {DAYS} days", np.repeat(counts, 2)[: int(DAYS * 86_400 / HALF_S)]
    for times in (6, 36):
        some = counts[: len(counts) // times * times]
        yield f"twitter, {times} times as fast", some.reshape(-1, times // 2).mean(axis=1)
    for name in ("code", "conv"):
        with (data / "azure-llm-2023" / f"{name}.csv").open(encoding="utf-8") as file:
            at_s = np.array([float(row[0]) for row in list(csv.reader(file))[1:]])
        yield f"azure-llm-2023 {name}", np.histogram(at_s, np.arange(at_s.min(), at_s.max(), HALF_S))[0] / HALF_S


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remembering")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HEADROOM_DATA", "../shared/data")))
    policy, service = Policy(name=builders.policy().name), builders.service()
    late, every, known = math.ceil((SEEN_S + LAUNCH_S) / HALF_S), round(EVERY_S / HALF_S), round(PAST_S / HALF_S)
    for name, rates_rps in recorded_rates(parser.parse_args().data):

        def bears(seconds: float, rates_rps: Floats = rates_rps) -> Floats:
            sizes = sizes_rps(Past(half_s=HALF_S, rates_rps=rates_rps).busiest(seconds), policy)
            return np.concatenate((np.full(late, sizes[0]), sizes[:-late]))

        learned_s = [
            memory_s(Past(half_s=HALF_S, rates_rps=rates_rps[max(0, at - known) : at]), service, policy, LAUNCH_S)
            for at in range(0, len(rates_rps), every)
        ]
        chosen_s = np.repeat(learned_s, every)[: len(rates_rps)]
        by_memory = {seconds: bears(seconds) for seconds in {*learned_s, 60.0, policy.demand_lookback_s}}
        learned = np.choose(np.searchsorted(sorted(by_memory), chosen_s), [by_memory[key] for key in sorted(by_memory)])
        whole = by_memory[policy.demand_lookback_s]
        for label, sizes in (("whole", whole), ("learned", learned), ("60 s for good", by_memory[60.0])):
            part, over = sizes.sum() / whole.sum() - 1.0, np.maximum(0.0, rates_rps - sizes).sum() / rates_rps.sum()
            print(f"{name:24} {label:14} sized for {100 * part:+6.1f} %  beyond it {100 * over:7.3f} %")


if __name__ == "__main__":
    main()
