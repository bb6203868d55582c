"""Ribbon: query latency by batch on the GPU instances of its AWS table (g4dn, one T4 each). MIT.

Instances without a GPU are left out. The median over repetitions stands for the mean, which the table does not have.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import T4, MeasuredCell, name_of, number, samples_of, table
from solvers.models.base import Samples

FOLDER = "ribbon-aws-hetero"


def read(data: Path) -> Samples:
    """Latency (median and p99) by model and batch 10 to 500; the whole GPU."""
    return samples_of(
        MeasuredCell(
            model=name_of(row["model"]),
            gpu_type=T4,
            batch=number(row["query_batch"]),
            latency_ms=number(row["p50_ms"]),
            latency_ms_p99=number(row["p99_ms"]),
        )
        for row in table(data, FOLDER, "latency_by_instance_batch.csv")
        if row["instance"].startswith("g4dn")
    )
