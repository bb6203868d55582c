"""This project's own GPUs under MPS: PyTorch at half precision, random weights (tests/recordings). Apache-2.0.

Medians, for single batches that wait for their host take ten times as long. ResNet-50 launched kernel by kernel is a
model of its own (`resnet50-pytorch`); all others replay CUDA graphs. Where cells were measured alone a second time,
with the pairs, that time counts: on the H100 it is 1 to 8 % less. Groups with a job that trains are left out, since 6
to 28 iterations that wait for their host tell no slowdown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.sources.rows import RECORDINGS, MeasuredCell, Row, groups_of, number, samples_of, table
from solvers.models.base import GroupSamples, Samples

TRAINING = "train:"
NAMES = {"transformer": "bert-base"}
GPU_TYPES = ("h100", "h200")


def read(gpu_type: str, data: Path) -> Samples:
    """Latency (median and p99), memory and what the board draws above its rest, by model, batch and share."""
    del data
    return samples_of(_alone(gpu_type))


def read_all(data: Path) -> Samples:
    """The same of all boards."""
    del data
    return samples_of(cell for gpu_type in GPU_TYPES for cell in _alone(gpu_type))


def _alone(gpu_type: str) -> Iterable[MeasuredCell]:
    rows = table(RECORDINGS, gpu_type, "surface.csv")
    cells = [_cell(gpu_type, row, number(row["power_w"]) - number(row["idle_power_w"])) for row in rows]
    cells += [_cell(gpu_type, row) for row in _serving(gpu_type) if not row["beside"]]
    return {(cell.model, cell.batch, cell.share_pct): cell for cell in cells}.values()


def read_pairs(gpu_type: str, data: Path) -> GroupSamples:
    """All members of every pair and crowd that only serves; two rows tell one pair, one after the other."""
    del data
    members = [_cell(gpu_type, row) for row in _serving(gpu_type) if row["beside"]]
    return groups_of([*zip(members[::2], members[1::2], strict=True), *_crowds(gpu_type)])


def _serving(gpu_type: str) -> list[Row]:
    return [row for row in table(RECORDINGS, gpu_type, "beside.csv") if TRAINING not in row["network"] + row["beside"]]


def _crowds(gpu_type: str) -> list[list[MeasuredCell]]:
    """Three networks at once, where that was measured."""
    if not (RECORDINGS / gpu_type / "crowd.csv").is_file():
        return []
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in table(RECORDINGS, gpu_type, "crowd.csv"):
        groups[row["group"]].append(row)
    serving = [rows for rows in groups.values() if not any(TRAINING in row["network"] for row in rows)]
    return [[_cell(gpu_type, row) for row in rows] for rows in serving]


def _cell(gpu_type: str, row: Row, power_w: float = float("nan")) -> MeasuredCell:
    name = NAMES.get(row["network"], row["network"])
    return MeasuredCell(
        model=name if row.get("captured", "1") == "1" else f"{name}-pytorch",
        gpu_type=gpu_type,
        batch=number(row["batch"]),
        share_pct=number(row["share_pct"]),
        latency_ms=number(row["latency_ms_p50"]),
        latency_ms_p99=number(row["latency_ms_p99"]),
        power_w=power_w,
        memory_mib=number(row.get("memory_mib")),
    )
