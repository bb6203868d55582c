"""Proteus: 46 ONNX variants on a Pascal and an Ampere card by batch. For comparison only: nothing of it may be shipped.

The source does not name the cards, so no specification goes with them. CPU rows are left out.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import MeasuredCell, name_of, number, samples_of, table
from solvers.models.base import Samples

FOLDER = "proteus-hetero"
GPU_TYPES = {"onnxruntime_gpu_pascal": "unnamed-pascal", "onnxruntime_gpu_ampere": "unnamed-ampere"}


def read(data: Path) -> Samples:
    """Mean latency by model, card and batch 1 to 16; the whole GPU."""
    return samples_of(
        MeasuredCell(
            model=name_of(row["Model"]),
            gpu_type=GPU_TYPES[row["Accel"]],
            batch=number(row["batchsize"]),
            latency_ms=number(row["50th_pct"]),
        )
        for row in table(data, FOLDER, "aggregate_profiled.csv")
        if row["Accel"] in GPU_TYPES
    )
