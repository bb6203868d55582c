"""What scenario files without requests share: their heading, and tables of public data.

Owns the fields that say what a bench is and the reading of CSV and JSON files from the folder that HEADROOM_DATA names.
"""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from lab.arena.kinds import Context, ScenarioForm
from solvers.domain.value import NAME_PATTERN
from solvers.sim.outcome import About, Better

if TYPE_CHECKING:
    from lab.arena.document import Where


class Heading(ScenarioForm):
    """What every file says of itself."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Annotated[str, Field(min_length=1, max_length=200)]
    goal: str
    better: Better
    guard: str | None = None
    planners: tuple[str, ...] = ()
    """Contenders that its authors propose."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 3


def about(form: Heading, kind: str) -> About:
    """The heading as a bench tells it."""
    return About(
        name=form.name,
        title=form.title,
        kind=kind,
        goal=form.goal,
        better=form.better,
        guard=form.guard,
        planners=form.planners,
        seeds=form.seeds,
    )


def rows(context: Context, where: Where, *parts: str) -> list[dict[str, str]]:
    """All rows of a CSV file. Raises InputError where it is missing."""
    with context.source(where, *parts).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def read_json(context: Context, where: Where, *parts: str) -> dict[str, Any]:
    """A JSON object. Raises InputError where the file is missing."""
    found: dict[str, Any] = json.loads(context.source(where, *parts).read_text(encoding="utf-8"))
    return found


def name_of(text: str) -> str:
    """A source's name in the letters that names may have here."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")
