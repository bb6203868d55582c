"""Nexus: batch profiles of Caffe and Darknet models on a TITAN X (Pascal), with memory. BSD-style."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.sources.rows import TITAN_X, MeasuredCell, SourceMissingError, name_of, samples_of
from solvers.models.base import Samples

FOLDER = "nexus-titanx"
_HEADER = "batch,latency(us),std(us),memory(B)"
_COLUMNS = 4
_MIB = 1024.0 * 1024.0


def read(data: Path) -> Samples:
    """Latency and memory by model and batch; the whole GPU."""
    files = sorted((data / FOLDER).glob("*.txt"))
    if not files:
        raise SourceMissingError(f"{data / FOLDER} is missing: set HEADROOM_DATA to the folder that holds {FOLDER}/")
    return samples_of(cell for path in files for cell in _cells(path))


def _cells(path: Path) -> Iterator[MeasuredCell]:
    lines = path.read_text(encoding="utf-8").splitlines()
    model = name_of(lines[0].split(":")[1])
    for line in lines[lines.index(_HEADER) + 1 :]:
        cells = line.split(",")
        if len(cells) != _COLUMNS:
            return
        batch, latency_us, _, memory_bytes = (float(cell) for cell in cells)
        yield MeasuredCell(
            model=model,
            gpu_type=TITAN_X,
            batch=batch,
            latency_ms=latency_us / 1000.0,
            memory_mib=memory_bytes / _MIB,
        )
