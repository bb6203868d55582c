"""Writes the built-in library: `make library`, or `python -m benchmarks.build_library`.

Owns the order of the work and the form of the files, which is one item a line so that differences can be read. The
same inputs give the same bytes. Reads measurements and prices from the folder HEADROOM_DATA names; only numbers that
our own code fitted to permissively licensed sources are written, never rows of them.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.catalogue.gpus import gpu_types
from benchmarks.catalogue.networks import models
from benchmarks.catalogue.prices import read_prices
from benchmarks.library_sources import Measured, entry, fitted, measured, rounded
from benchmarks.sources.rows import SourceMissingError, data_folder
from solvers.domain.codec import canonical_json
from solvers.models.belief.forms import SHAPE_VERSION
from solvers.models.library import Library
from solvers.version import VERSION

TARGET = Path(__file__).parents[1] / "app" / "library"


def lines(items: Sequence[object]) -> str:
    """A JSON list with one item a line."""
    return "[\n" + ",\n".join(canonical_json(item) for item in items) + "\n]\n"


def library_text(items: Sequence[Measured]) -> str:
    """The library as JSON, an entry a line. Its version names this package and the measurements it was fitted to."""
    shared, fits = fitted(tuple(items))
    library = Library(
        version=f"{VERSION}+{_digest(items)}",
        shape_version=SHAPE_VERSION,
        population_mean=rounded(shared.mean),
        population_covariance=tuple(rounded(row) for row in shared.covariance),
        entries=tuple(entry(item, fit) for item, fit in fits),
    )
    head = canonical_json(replace(library, entries=())).replace('"entries":[]', '"entries":[\n@\n]')
    return head.replace("@", ",\n".join(canonical_json(it) for it in library.entries)) + "\n"


def _digest(items: Sequence[Measured]) -> str:
    seen = hashlib.sha256()
    for item in items:
        seen.update(f"{item.model} {item.gpu_type} {item.source.words}\n".encode())
        for column in (item.cells.batch, item.cells.share, item.cells.latency_ms):
            seen.update(np.ascontiguousarray(column, dtype="<f8").tobytes())
    return seen.hexdigest()[:12]


def main(argv: Sequence[str] | None = None) -> int:
    """Write every file anew."""
    argparse.ArgumentParser(prog="python -m benchmarks.build_library", description=__doc__).parse_args(argv)
    data = data_folder()
    try:
        files = {
            "gpu_types.json": lines(gpu_types(read_prices(data))),
            "models.json": lines(models()),
            "library.json": library_text(measured(data)),
        }
    except SourceMissingError as error:
        print(error, file=sys.stderr)
        return 2
    for name, text in files.items():
        (TARGET / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
