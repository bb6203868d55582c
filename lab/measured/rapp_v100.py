"""RaPP / HAS-GPU: 60 torchvision models on a V100 over batch and SM share, PyTorch eager under MPS. Apache-2.0.

Only rows with the whole time quota are read: other quotas are a token limiter's, which nothing here models.
"""

from __future__ import annotations

from pathlib import Path

from lab.measured.rows import V100, MeasuredCell, name_of, number, samples_of, table
from solvers.models.base import Samples

FOLDER = "rapp-v100"


def read(data: Path) -> Samples:
    """Latency by model, batch 1 to 8 and share 5 to 100 %."""
    return samples_of(
        MeasuredCell(
            model=name_of(row["model"]),
            gpu_type=V100,
            batch=number(row["batch"]),
            share_pct=number(row["sm_pct"]),
            latency_ms=number(row["latency_ms"]),
        )
        for row in table(data, FOLDER, "latency.csv")
        if row["quota_pct"] == "100"
    )
