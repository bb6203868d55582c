"""PctoDL: a third-party fitted surrogate (predicted, not measured) of latency and power over share, batch and SM clock.

Say "third-party fitted surrogate" wherever results based on it are shown. Licence of the fits: none stated. A memory
clock below the highest makes another model (`resnet50.m5001`), because no question here names memory clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.sources.rows import (
    A100_40GB,
    IDLE_W,
    RTX_3080TI,
    MeasuredCell,
    groups_of,
    name_of,
    number,
    samples_of,
    table,
)
from solvers.models.base import GroupSamples, Samples

FOLDER = "pctodl-surrogate"
GPU_TYPES = {"a100": A100_40GB, "rtx3080ti": RTX_3080TI}
MEMORY_CLOCKS_BELOW_HIGHEST = {"5001"}


def read(data: Path) -> Samples:
    """Latency, throughput and power of one process by model, GPU type, batch, share and clock."""
    return samples_of(cell for processes, cell in _cells(data) if processes == 1)


def read_pairs(data: Path) -> GroupSamples:
    """Groups of two to six equal processes with a share of their own each."""
    return groups_of([cell] * processes for processes, cell in _cells(data) if processes > 1)


def _cells(data: Path) -> Iterator[tuple[int, MeasuredCell]]:
    for row in table(data, FOLDER, "surrogate_grid.csv"):
        gpu_type, processes = GPU_TYPES[row["gpu"]], int(row["n_procs"])
        slower = f".m{row['mem_clock_mhz']}" if row["mem_clock_mhz"] in MEMORY_CLOCKS_BELOW_HIGHEST else ""
        yield (
            processes,
            MeasuredCell(
                model=name_of(row["model"]) + slower,
                gpu_type=gpu_type,
                batch=number(row["batch_each"]),
                share_pct=number(row["mps_pct_each"]),
                clock_mhz=number(row["sm_clock_mhz"]),
                latency_ms=number(row["derived_latency_ms"]),
                throughput_rps=number(row["pred_throughput_img_s"]) / processes,
                power_w=(number(row["pred_power_w"]) - IDLE_W[gpu_type]) / processes,
            ),
        )
