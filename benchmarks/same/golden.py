"""Frozen plans of the stored pictures in `tests/golden/cases`, by every registered planner."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from benchmarks.same.frozen import Case, Taken
from benchmarks.same.planned import picture_taken, plan_taken
from solvers.domain.codec import from_json
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "cases"
ENDING = ".snapshot.json"
UNITS = 200


def cases() -> Iterator[Case]:
    """Each picture as it is read, and what each planner answers to it."""
    for path in sorted(FOLDER.glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        yield Case(key=f"{name} picture", take=partial(_picture, path))
        for planner in registry.names():
            yield Case(key=f"{name} {planner}", take=partial(_plan, path, planner), cut=f"{UNITS} units of work")


def _picture(path: Path) -> Taken:
    return picture_taken(_read(path))


def _plan(path: Path, planner: str) -> Taken:
    return plan_taken(planner, _read(path), UNITS)


@cache
def _read(path: Path) -> Snapshot:
    return from_json(Snapshot, path.read_text(encoding="utf-8"))
