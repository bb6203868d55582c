"""Writes the built-in library: `make library`, or `python -m benchmarks.build_library`.

Owns the order of the work and the form of the files, which is one item a line so that differences can be read. The
same inputs give the same bytes. Reads measurements and prices from the folder HEADROOM_DATA names; only numbers that
our own code fitted to permissively licensed sources are written, never rows of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.catalogue.gpus import gpu_types
from benchmarks.catalogue.networks import models
from benchmarks.catalogue.prices import read_prices
from solvers.domain.codec import canonical_json

TARGET = Path(__file__).parents[1] / "app" / "library"


def lines(items: Sequence[object]) -> str:
    """A JSON list with one item a line."""
    return "[\n" + ",\n".join(canonical_json(item) for item in items) + "\n]\n"


def main() -> int:
    """Write every file anew."""
    data = Path(os.environ.get("HEADROOM_DATA", "../shared/data"))
    if not (data / "gpu-prices").is_dir():
        print(
            f"there is no data in {data}; set HEADROOM_DATA to the folder of the public measurements", file=sys.stderr
        )
        return 2
    files = {
        "gpu_types.json": lines(gpu_types(read_prices(data))),
        "models.json": lines(models()),
    }
    for name, text in files.items():
        (TARGET / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
