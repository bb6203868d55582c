"""ParvaGPU: eleven models on MIG slices of an A100 80 GB, one to five equal processes in a slice. MIT.

The share of a slice is its GPCs over seven. Latency is taken from the rate of a process, because the source rounds
latency to whole milliseconds (both agree on every row within that rounding). Rows without a rate did not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.sources.rows import A100_80GB, MeasuredCell, groups_of, name_of, number, samples_of, table
from solvers.models.base import GroupSamples, Samples

FOLDER = "parvagpu-a100-mig"
GPCS = 7


def read(data: Path) -> Samples:
    """Latency and throughput of one process that has a slice to itself."""
    return samples_of(cell for processes, cell in _cells(data) if processes == 1)


def read_pairs(data: Path) -> GroupSamples:
    """Groups of two to five equal processes in one slice, each free to use all of it."""
    return groups_of([cell] * processes for processes, cell in _cells(data) if processes > 1)


def _cells(data: Path) -> Iterator[tuple[int, MeasuredCell]]:
    for row in table(data, FOLDER, "profile.csv"):
        rate, batch = number(row["throughput_per_proc_img_s"]), number(row["batch"])
        if not rate > 0 or not row["latency_ms"]:
            continue
        yield (
            int(row["mps_procs"]),
            MeasuredCell(
                model=name_of(row["model"]),
                gpu_type=A100_80GB,
                batch=batch,
                share_pct=100.0 * number(row["mig_gpcs"]) / GPCS,
                latency_ms=1000.0 * batch / rate,
                throughput_rps=rate,
            ),
        )
