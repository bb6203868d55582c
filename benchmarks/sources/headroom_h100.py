"""This project's own H100 under MPS: PyTorch at half precision, random weights (tests/recordings/h100). Apache-2.0.

Medians, for single batches that wait for their host take ten times as long. ResNet-50 launched kernel by kernel is a
model of its own (`resnet50-pytorch`); all others replay CUDA graphs. Where cells were measured alone a second time,
with the pairs, that time counts: it is 1 to 8 % less. Jobs that train are left out, since 6 to 21 iterations that wait
for their host tell no slowdown.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import H100, RECORDINGS, MeasuredCell, Row, groups_of, number, samples_of, table
from solvers.models.base import GroupSamples, Samples

TRAINING = "train:"
NAMES = {"transformer": "bert-base"}


def read(data: Path) -> Samples:
    """Latency (median and p99), memory and what the board draws above its rest, by model, batch and share."""
    del data
    cells = [_cell(row, number(row["power_w"]) - number(row["idle_power_w"])) for row in _rows("surface.csv")]
    cells += [_cell(row) for row in _serving() if not row["beside"]]
    return samples_of({(cell.model, cell.batch, cell.share_pct): cell for cell in cells}.values())


def read_pairs(data: Path) -> GroupSamples:
    """Both members of every pair that serves; two rows tell one pair, one after the other."""
    del data
    members = [_cell(row) for row in _serving() if row["beside"]]
    return groups_of(zip(members[::2], members[1::2], strict=True))


def _rows(file: str) -> list[dict[str, str]]:
    return table(RECORDINGS, H100, file)


def _serving() -> list[dict[str, str]]:
    return [row for row in _rows("beside.csv") if TRAINING not in row["network"] + row["beside"]]


def _cell(row: Row, power_w: float = float("nan")) -> MeasuredCell:
    name = NAMES.get(row["network"], row["network"])
    return MeasuredCell(
        model=name if row.get("captured", "1") == "1" else f"{name}-pytorch",
        gpu_type=H100,
        batch=number(row["batch"]),
        share_pct=number(row["share_pct"]),
        latency_ms=number(row["latency_ms_p50"]),
        latency_ms_p99=number(row["latency_ms_p99"]),
        power_w=power_w,
        memory_mib=number(row.get("memory_mib")),
    )
