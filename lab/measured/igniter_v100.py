"""iGniter: four TensorRT models on a V100 under MPS, alone and in measured pairs. No licence stated: not shippable.

Slowdowns of the pairs lie between 1.01 and 1.23, so always predicting their mean is already 3.1 % off only; judge by R²
on slowdown.
"""

from __future__ import annotations

from pathlib import Path

from lab.measured.rows import V100, MeasuredCell, groups_of, name_of, number, samples_of, table
from solvers.models.base import GroupSamples, Samples

FOLDER = "igniter-v100"


def read(data: Path) -> Samples:
    """Latency, throughput, L2 and DRAM utilisation by model, batch 1 to 32 and share."""
    return samples_of(
        MeasuredCell(
            model=name_of(row["model"]),
            gpu_type=V100,
            batch=number(row["batch"]),
            share_pct=number(row["sm_pct"]),
            latency_ms=number(row["latency_ms"]),
            throughput_rps=number(row["throughput_req_s"]),
            l2_util_pct=number(row["l2_util_pct"]),
            dram_util_pct=number(row["dram_util_pct"]),
        )
        for row in table(data, FOLDER, "solo_profile.csv")
    )


def read_pairs(data: Path) -> GroupSamples:
    """Latency of both members of every measured pair."""
    return groups_of(
        [
            MeasuredCell(
                model=name_of(row[f"model_{side}"]),
                gpu_type=V100,
                batch=number(row[f"batch_{side}"]),
                share_pct=number(row[f"sm_pct_{side}"]),
                latency_ms=number(row[f"latency_{side}_ms"]),
            )
            for side in "ab"
        ]
        for row in table(data, FOLDER, "colocated_pairs.csv")
    )
