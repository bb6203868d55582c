"""Finds the folder of measurements; how its tables are read is said in `lab.measured`.

Owns where the folder is when nobody says. It refuses to know any single source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lab.measured import (
    V100,
    MeasuredCell,
    SourceMissingError,
    groups_of,
    name_of,
    number,
    queries_of,
    samples_of,
    table,
)

__all__ = [
    "A30",
    "A100_40GB",
    "A100_80GB",
    "H100",
    "H200",
    "IDLE_W",
    "P40",
    "RECORDINGS",
    "RTX_2080TI",
    "RTX_3080TI",
    "RTX_3090",
    "T4",
    "TITAN_X",
    "V100",
    "MeasuredCell",
    "Row",
    "SourceMissingError",
    "data_folder",
    "groups_of",
    "name_of",
    "number",
    "queries_of",
    "samples_of",
    "table",
]

T4, A30, P40, TITAN_X = "t4", "a30", "p40", "titan-x-pascal"
A100_40GB, A100_80GB = "a100-40gb", "a100"
H100, H200 = "h100", "h200"
RTX_2080TI, RTX_3080TI, RTX_3090 = "rtx-2080ti", "rtx-3080ti", "rtx-3090"

IDLE_W = {P40: 46.0, A100_40GB: 46.0, RTX_3080TI: 20.0}
"""Board power of the sources less this is what a replica adds (the lowest readings of the P40 are 46 to 48 W)."""
Row = Mapping[str, str]
RECORDINGS = Path(__file__).resolve().parents[2] / "tests" / "recordings"
"""What this project measured itself, a folder for each GPU type."""
DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_folder() -> Path:
    """What HEADROOM_DATA names, or the folder beside the checkout."""
    return Path(os.environ.get("HEADROOM_DATA") or DEFAULT_FOLDER)
