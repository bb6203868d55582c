"""Keeps what was measured between runs: one JSON file of numbers that the tables and plots are written from.

Owns the file's form. A later run replaces the records of the same data set, split and predictor; everything else stays.
Points for scatter plots are derived from third-party rows and are kept beside it, out of version control.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.predictors.alone import Record

FOLDER = Path(__file__).parents[1] / "results"
FILE = FOLDER / "predictors.json"
POINTS = FOLDER / "points"
_DIGITS = 5


def _rounded(number: float) -> float | None:
    """Five significant digits; JSON has no NaN."""
    return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else None


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything that the report is written from."""

    records: dict[tuple[str, str, str], Record] = field(default_factory=dict)
    speed: dict[str, dict[str, float]] = field(default_factory=dict)
    claims: dict[str, dict[str, str]] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Keep a record in place of an earlier one."""
        self.records[(record.dataset, record.split, record.predictor)] = record

    def splits(self) -> list[tuple[str, str]]:
        """Data set and split of everything recorded, in the order it was first run."""
        return list(dict.fromkeys((dataset, split) for dataset, split, _ in self.records))

    def of(self, dataset: str, split: str) -> dict[str, Record]:
        """Records of one split by predictor."""
        return {key[2]: record for key, record in self.records.items() if key[:2] == (dataset, split)}


def load(path: Path = FILE) -> Results:
    """Stored results, empty ones if there are none."""
    if not path.is_file():
        return Results()
    plain = json.loads(path.read_text(encoding="utf-8"))
    results = Results(speed=plain["speed"], claims=plain["claims"], about=plain["about"])
    for item in plain["records"]:
        item["numbers"] = {name: math.nan if value is None else value for name, value in item["numbers"].items()}
        item["calibration"] = [math.nan if value is None else value for value in item["calibration"]]
        results.add(Record(**item))
    return results


def save(results: Results, path: Path = FILE) -> None:
    """Write one record a line, so that differences can be read."""
    lines = []
    for record in results.records.values():
        plain = asdict(record)
        plain["numbers"] = {name: _rounded(value) for name, value in record.numbers.items()}
        plain["calibration"] = [_rounded(value) for value in record.calibration]
        lines.append(json.dumps(plain))
    head = {name: json.dumps(getattr(results, name), sort_keys=True) for name in ("about", "speed", "claims")}
    body = ",\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = ",\n".join(f'"{name}": {text}' for name, text in head.items())
    path.write_text(f'{{\n{parts},\n"records": [\n{body}\n]\n}}\n', encoding="utf-8")


def save_points(name: str, **arrays: np.ndarray) -> None:
    """Keep arrays for a plot."""
    POINTS.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(POINTS / f"{name}.npz", **arrays)


def load_points(name: str) -> dict[str, np.ndarray]:
    """Kept arrays; none if there are none."""
    path = POINTS / f"{name}.npz"
    if not path.is_file():
        return {}
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}
