"""Times of whole GPUs against each other, in the tables that NVIDIA publishes with DeepLearningExamples.

Owns the comparison of `sm_speed` and bandwidths of the catalogue with measured ratios at equal network, backend,
precision and batch. Their networks run in other precisions than ours, so the ratios show size and no more.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import Resident, execution_ms

PAIRS = (("t4", "v100"), ("a30", "a100"), ("v100", "a100"), ("t4", "a100"))
NETWORKS = ("resnet50", "bert-large")


def report(data: Path, fitting: bool) -> None:
    """Print the median of the published ratios with quartiles, and ours for two networks at a batch of 8."""
    del fitting
    times: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    with (data / "nvidia-dle-inference" / "triton_latency.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "offline" and row["compute_infer_ms"]:
                key = (row["model_dir"], row["backend_precision"], row["batch"])
                times[key][row["gpu"].lower()] = float(row["compute_infer_ms"])
    for slow, fast in PAIRS:
        ratios = [found[slow] / found[fast] for found in times.values() if slow in found and fast in found]
        if len(ratios) < 4:
            continue
        low, median, high = statistics.quantiles(ratios, n=4)
        ours = []
        for network in NETWORKS:
            slow_ms, fast_ms = (
                execution_ms(
                    GPUS[name], Resident(model=network, share_pct_sm=100, batch=8), GPUS[name].clock_mhz_sm_max
                )
                for name in (slow, fast)
            )
            ours.append(f"{network} {slow_ms / fast_ms:.2f}")
        print(f"{slow} / {fast}, {len(ratios)} cells: {median:.2f} ({low:.2f} to {high:.2f}); ours {', '.join(ours)}")
