"""MuxServe: LLaMA prefill and decode steps on A100s over SM share, batch and sequence length. No licence stated.

Prefill and decode at one length are a model each (`llama-7b.prefill.128`); more than one GPU in tensor parallel is left
out, because a share of several GPUs is no share of one. Small batches are noisy by tens of percent.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import A100_80GB, MeasuredCell, name_of, number, samples_of, table
from solvers.models.base import Samples

FOLDER = "muxserve-llama-a100"


def read(data: Path) -> Samples:
    """Latency of a prefill or of one decode step by model and length, batch and share 30 to 100 %."""
    return samples_of(
        MeasuredCell(
            model=f"{name_of(row['model'])}.{phase}.{row['seq_len']}",
            gpu_type=A100_80GB,
            batch=number(row["batch"]),
            share_pct=number(row["sm_pct"]),
            latency_ms=number(row[f"{phase}_ms"]),
        )
        for row in table(data, FOLDER, "cost.csv")
        for phase in ("prefill", "decode")
        if row["num_gpus"] == "1" and number(row[f"{phase}_ms"]) > 0
    )
