"""Finds the folder of measurements; how its tables are read is said in `lab.measured`.

Owns where the folder is when nobody says. It refuses to know any single source.
"""

from __future__ import annotations

import os
from pathlib import Path

from lab.measured import (
    A30,
    A100_40GB,
    A100_80GB,
    IDLE_W,
    P40,
    RTX_2080TI,
    RTX_3080TI,
    RTX_3090,
    T4,
    TITAN_X,
    V100,
    MeasuredCell,
    Row,
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
    "IDLE_W",
    "P40",
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

DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_folder() -> Path:
    """What HEADROOM_DATA names, or the folder beside the checkout."""
    return Path(os.environ.get("HEADROOM_DATA") or DEFAULT_FOLDER)
