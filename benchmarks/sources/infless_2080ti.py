"""INFless: six TensorFlow Serving models on an RTX 2080 Ti over SM share, batch and CPU cores. No licence stated.

CPU cores are no question that anybody asks here, but they matter: a model with another number of cores is another
model (`resnet-50.c4`). Rows on the CPU alone and rows of 5 s and more (failed or queue exploded) are left out.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import RTX_2080TI, MeasuredCell, name_of, number, samples_of, table
from solvers.models.base import Samples

FOLDER = "infless-2080ti"
FAILED_MS = 5000.0


def read(data: Path) -> Samples:
    """Latency by model (with its CPU cores), batch 1 to 32 and share 10 to 50 %."""
    return samples_of(
        MeasuredCell(
            model=f"{name_of(row['model'])}.c{row['cpu_cores']}",
            gpu_type=RTX_2080TI,
            batch=number(row["batch"]),
            share_pct=number(row["gpu_sm_pct"]),
            latency_ms=number(row["latency_ms"]),
        )
        for row in table(data, FOLDER, "profile.csv")
        if number(row["gpu_sm_pct"]) > 0 and number(row["latency_ms"]) < FAILED_MS
    )
