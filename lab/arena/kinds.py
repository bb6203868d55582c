"""Kinds of scenarios by name, imported when first asked for.

Owns the table and what a kind's module offers: `FORM`, the pydantic model of its files (a `ScenarioForm` with a field
`kind`), and `build(form, context)`, which makes the bench. A new kind is one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from lab.arena.document import Document, Where
from solvers.errors import InputError
from solvers.sim.outcome import Bench

KINDS: Mapping[str, str] = {
    "world": "lab.arena.worlds",
    "packing": "lab.benches.packing.scenario",
    "rolling": "lab.benches.rolling.scenario",
    "tasks": "lab.benches.tasks.scenario",
}
"""Where each kind lives."""
DATA_VARIABLE = "HEADROOM_DATA"


class ScenarioForm(BaseModel):
    """Closed, immutable, and without coercion between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def completed(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """What a file may leave out although a record of the core needs it."""
        return plain


@dataclass(frozen=True, slots=True)
class Context:
    """What a bench is built from beside its form: the file, for complaints, and the folder of public data."""

    document: Document
    data: Path | None

    def refusal(self, where: Where, message: str) -> InputError:
        """The complaint about a place of the file: `context.refusal(("services", 0, "model"), "…")`."""
        return self.document.refusal(where, message)

    def source(self, where: Where, *parts: str) -> Path:
        """A file of public data, which must be there. Raises InputError that names HEADROOM_DATA."""
        if self.data is None:
            raise self.refusal(where, f"{'/'.join(parts)} is read from {DATA_VARIABLE}, which is not set")
        path = self.data.joinpath(*parts)
        if not path.is_file():
            raise self.refusal(where, f"{DATA_VARIABLE} ({self.data}) has no {'/'.join(parts)}")
        return path


@dataclass(frozen=True, slots=True)
class ScenarioKind:
    """One kind of scenario."""

    form: type[ScenarioForm]
    build: Callable[[Any, Context], Bench]


def kind(name: str) -> ScenarioKind:
    """The kind of this name. Raises KeyError."""
    module = import_module(KINDS[name])
    return ScenarioKind(form=cast("type[ScenarioForm]", module.FORM), build=module.build)
