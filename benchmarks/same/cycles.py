"""Frozen replays: recorded cycles, read as they were stored and planned again.

Owns the records' folder. It refuses to make records; that is `recording`.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.same.frozen import Case, Taken
from solvers.cycle.cycle import replay
from solvers.cycle.record import CycleRecord
from solvers.domain.codec import digest, from_json

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "same" / "cycles"
ENDING = ".json.gz"


def cases() -> Iterator[Case]:
    """Every record that is kept."""
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        yield Case(key=path.name.removesuffix(ENDING), take=partial(_take, path))


def _take(path: Path) -> Taken:
    record = from_json(CycleRecord, gzip.decompress(path.read_bytes()))
    again = replay(record)
    same = "yes" if again == record.plan_digest else "no"
    replicas = len(record.plan.assignments) if record.plan is not None else 0
    text = f"{digest(record.snapshot)} {again} {digest(record)}"
    return Taken(text=text, numbers={"replays_to_the_same": same, "replicas": replicas})
