"""Measures simulated devices the way an operator measures real ones, and writes the profile points as CSV.

Owns the grid, the noise of a short measurement, and the columns (those of `solvers.domain.profile.ProfilePoint`). Run
as `python -m agents.measure [MODEL …] > profiles.csv`. Equal arguments give equal bytes: the noise comes from a stream
seeded with the point's own key. `power_w` is what the replica adds to a device that already holds an idle process; the
board's idle power is not in it. `memory_mib` is the least limit with which the process starts.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence

from agents.devices.fake.bench import BenchReading, measure

MODELS = (
    "resnet50",
    "inception-v3",
    "ssd-resnet50",
    "transformer-mt",
    "mobilenet",
    "googlenet",
    "bert-base",
    "yolov5x",
)
GPU_TYPES = ("t4", "v100", "a100", "l4")
BATCHES = (1, 2, 4, 8, 16, 32)
SHARES_PCT_SM = tuple(range(10, 101, 10))
RUNS = 200
"""Batches executed for each point."""
COLUMNS = (
    "model",
    "gpu_type",
    "batch",
    "share_pct_sm",
    "clock_mhz_sm",
    "latency_ms_mean",
    "latency_ms_p99",
    "memory_mib",
    "power_w",
    "origin",
    "source",
)
SOURCE = "agents.measure: simulated devices"


def rows(models: Sequence[str] = MODELS, gpu_types: Sequence[str] = GPU_TYPES) -> Iterator[tuple[str, ...]]:
    """Every point of the grid as text, in the order of COLUMNS."""
    for model, gpu_type, share, batch in itertools.product(models, gpu_types, SHARES_PCT_SM, BATCHES):
        yield _row(model, gpu_type, share, batch)


def _row(model: str, gpu_type: str, share_pct_sm: int, batch: int) -> tuple[str, ...]:
    draw = random.Random(f"{model}/{gpu_type}/{share_pct_sm}/{batch}").gauss
    reading: BenchReading = measure(model, gpu_type, share_pct_sm, batch, [draw(0.0, 1.0) for _ in range(RUNS)])
    times_ms = sorted(reading.times_ms)
    mean_ms = math.fsum(times_ms) / len(times_ms)
    p99_ms = times_ms[min(len(times_ms) - 1, math.ceil(0.99 * len(times_ms)) - 1)]
    return (
        model,
        gpu_type,
        str(batch),
        str(share_pct_sm),
        str(reading.clock_mhz_sm),
        f"{mean_ms:.4f}",
        f"{max(mean_ms, p99_ms):.4f}",
        str(math.ceil(reading.memory_mib)),
        f"{reading.power_w_dynamic * (1.0 + 0.01 * draw(0.0, 1.0)):.2f}",
        "simulated",
        SOURCE,
    )


def as_csv(points: Iterable[tuple[str, ...]]) -> str:
    """The file, header first. No field needs quoting."""
    return "".join(",".join(fields) + "\n" for fields in (COLUMNS, *points))


if __name__ == "__main__":
    sys.stdout.write(as_csv(rows(sys.argv[1:] or MODELS)))
