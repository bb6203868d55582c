"""Reads tables of public measurements and puts rows into columns.

Owns the failure that a person sees when a table is missing, and the names of the GPUs that occur.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solvers.errors import InputError
from solvers.models.base import Groups, GroupSamples, Queries, Samples

V100, T4, A30, P40, TITAN_X = "v100", "t4", "a30", "p40", "titan-x-pascal"
A100_40GB, A100_80GB = "a100-40gb", "a100"
RTX_2080TI, RTX_3080TI, RTX_3090 = "rtx-2080ti", "rtx-3080ti", "rtx-3090"

IDLE_W = {P40: 46.0, A100_40GB: 46.0, RTX_3080TI: 20.0}
"""Board power of the sources less this is what a replica adds (the lowest readings of the P40 are 46 to 48 W)."""

Row = Mapping[str, str]


class SourceMissingError(InputError):
    """A folder or file of measurements is not there."""


def table(data: Path, folder: str, file: str) -> list[dict[str, str]]:
    """All rows of a CSV file. Raises SourceMissingError, with one line that says what to do."""
    path = data / folder / file
    if not path.is_file():
        raise SourceMissingError(f"{path} is missing: set HEADROOM_DATA to the folder that holds {folder}/")
    with path.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def name_of(text: str) -> str:
    """A source's model name in the letters that names may have here."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")


def number(text: str | None) -> float:
    """A cell as a number, NaN where it is empty."""
    return float(text) if text and text.strip() else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """One measured configuration."""

    model: str
    gpu_type: str
    batch: float
    latency_ms: float
    share_pct: float = 100.0
    clock_mhz: float = float("nan")
    latency_ms_p99: float = float("nan")
    throughput_rps: float = float("nan")
    power_w: float = float("nan")
    memory_mib: float = float("nan")
    l2_util_pct: float = float("nan")
    dram_util_pct: float = float("nan")


_MEASURED = (
    "latency_ms_p99", "throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct",
)  # fmt: skip


def queries_of(cells: Iterable[MeasuredCell]) -> Queries:
    """The configurations of cells."""
    listed = list(cells)
    return Queries.of(
        [cell.model for cell in listed],
        [cell.gpu_type for cell in listed],
        [cell.batch for cell in listed],
        [cell.share_pct for cell in listed],
        [cell.clock_mhz for cell in listed],
    )


def samples_of(cells: Iterable[MeasuredCell]) -> Samples:
    """Cells as samples, in a fixed order that does not depend on the order of the source's rows."""
    listed = sorted(cells, key=lambda cell: (cell.model, cell.gpu_type, cell.batch, cell.share_pct, cell.clock_mhz))
    others = {name: np.array([getattr(cell, name) for cell in listed]) for name in _MEASURED}
    return Samples.of(queries_of(listed), [cell.latency_ms for cell in listed], **others)


def groups_of(groups: Iterable[Iterable[MeasuredCell]]) -> GroupSamples:
    """Cells that ran on one device at the same time."""
    listed = [list(group) for group in groups]
    members = [cell for group in listed for cell in group]
    numbers = np.repeat(np.arange(len(listed), dtype=np.int64), [len(group) for group in listed])
    latency_ms = np.array([cell.latency_ms for cell in members])
    return GroupSamples(groups=Groups(members=queries_of(members), group=numbers), latency_ms=latency_ms)
