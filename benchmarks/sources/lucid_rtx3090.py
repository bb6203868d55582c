"""Lucid: measured pairs of training jobs that take turns on one RTX 3090. Non-commercial: benchmarks only.

Training steps are no inference, but a pair slows a step down as it slows a request down, and here are 66 workloads with
utilisations in over a thousand pairs. Both have the whole GPU as their share (time slices, no MPS limit); a job is a
model by name, data set and precision. Speeds above 1 are noise of short runs.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import RTX_3090, MeasuredCell, Row, groups_of, name_of, number, samples_of, table
from solvers.models.base import GroupSamples, Samples

FOLDER = "lucid-rtx3090-train-colocation"


def read(data: Path) -> Samples:
    """Milliseconds of a training step alone, with memory and memory utilisation."""
    return samples_of(
        MeasuredCell(
            model=_model(row, ""),
            gpu_type=RTX_3090,
            batch=number(row["batchsize"]),
            latency_ms=1000.0 * number(row["batchsize"]) / number(row["speed"]),
            throughput_rps=number(row["speed"]),
            memory_mib=number(row["gmem"]),
            dram_util_pct=number(row["gmem_util"]),
        )
        for row in table(data, FOLDER, "single_data.csv")
    )


def read_pairs(data: Path) -> GroupSamples:
    """Milliseconds of both jobs' steps, for pairs whose members were both measured alone."""
    rows = table(data, FOLDER, "single_data.csv")
    alone_ms = {
        (_model(row, ""), number(row["batchsize"])): 1000.0 * number(row["batchsize"]) / number(row["speed"])
        for row in rows
    }
    pairs = (
        [_member(row, "1", alone_ms), _member(row, "2", alone_ms)] for row in table(data, FOLDER, "colocate_info.csv")
    )
    return groups_of([one, two] for one, two in pairs if one is not None and two is not None)


def _model(row: Row, side: str) -> str:
    precision = "-amp" if row[f"amp{side}"] == "1" else ""
    return name_of(f"{row[f'model{side}']}-{row[f'dataset{side}']}{precision}")


def _member(row: Row, side: str, alone_ms: dict[tuple[str, float], float]) -> MeasuredCell | None:
    model, batch = _model(row, side), number(row[f"batchsize{side}"])
    if (model, batch) not in alone_ms or row[f"gpu_num{side}"] != "1":
        return None
    latency_ms = alone_ms[(model, batch)] / number(row[f"speed{side}"])
    return MeasuredCell(model=model, gpu_type=RTX_3090, batch=batch, latency_ms=latency_ms)
