"""Measures simulated devices the way an operator measures real ones, and writes the profile points as CSV.

The columns are those of `solvers.domain.profile.ProfilePoint`. Run as `python -m benchmarks.fake_profiles [MODEL …] >
profiles.csv`. Equal arguments give equal bytes: the noise comes from a stream seeded with the point's own key.
`power_w` is what the replica adds to a device that already holds an idle process; the board's idle power is not in it.
`memory_mib` is the least limit with which the process starts.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agents.errors import ConfigError
from solvers.sim.truth.truth import Resident, clock_reached_mhz, dynamic_power_w, execution_ms, gpu_truth, memory_mib

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReading:
    """What was seen. The clock is the one asked for: a default clock that the power limit holds down stays the
    default.
    """

    times_ms: tuple[float, ...]
    clock_mhz_sm: int
    memory_mib: float
    power_w_dynamic: float


def measure(model: str, gpu_type: str, share_pct_sm: int, batch: int, noises: Sequence[float]) -> BenchReading:
    """One replica alone at its default clock, one execution for each of `noises` (standard normal numbers)."""
    gpu = gpu_truth(gpu_type)
    if gpu is None:
        raise ConfigError(f"no simulated GPU type {gpu_type!r}")
    alone = Resident(model=model, share_pct_sm=share_pct_sm, batch=batch)
    clock_mhz = clock_reached_mhz(gpu, [alone], gpu.clock_mhz_sm_max, gpu.tdp_w)
    return BenchReading(
        times_ms=tuple(execution_ms(gpu, alone, clock_mhz, (), noise) for noise in noises),
        clock_mhz_sm=gpu.clock_mhz_sm_max,
        memory_mib=memory_mib(model, batch),
        power_w_dynamic=dynamic_power_w(gpu, alone, clock_mhz),
    )


def rows(models: Sequence[str] = MODELS, gpu_types: Sequence[str] = GPU_TYPES) -> Iterator[tuple[str, ...]]:
    """Every point of the grid as text, in the order of COLUMNS."""
    for model, gpu_type, share, batch in itertools.product(models, gpu_types, SHARES_PCT_SM, BATCHES):
        yield _row(model, gpu_type, share, batch)


def _row(model: str, gpu_type: str, share_pct_sm: int, batch: int) -> tuple[str, ...]:
    draw = random.Random(f"{model}/{gpu_type}/{share_pct_sm}/{batch}").gauss
    reading = measure(model, gpu_type, share_pct_sm, batch, [draw(0.0, 1.0) for _ in range(RUNS)])
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fake_profiles", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    sys.stdout.write(as_csv(rows(parser.parse_args().models or MODELS)))
