"""Scenario files: reading one into a bench, and the JSON Schema of all kinds (`python -m lab.arena.loading`).

The dialect is YAML without dates, every key once; every fault is a line of its own, `file:line: path: message`. The
module of a kind, imported when first asked for, offers `FORM`, the pydantic model of its files (a `ScenarioForm` with a
field `kind`), and `build(form, document)`, which makes the bench from the form and the file, which knows the folder of
public data.
A new kind is one line of `KINDS`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import models_json_schema

from app.marked import Marked, UnreadableError, Where, read_marked
from lab.outcome import About, Bench, Better
from solvers.domain.policy import Policy
from solvers.domain.value import NAME_PATTERN
from solvers.errors import FieldError, InputError
from solvers.planners.registry import check_settings

T = TypeVar("T")


DATA_VARIABLE = "HEADROOM_DATA"


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says, and the folder of public data that it may name. `origin` is how complaints name the file."""

    said: Marked
    data: Path | None = None

    @property
    def plain(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.said.plain)

    def refusal(self, where: Where, message: str) -> InputError:
        """The complaint about a place; steps that the file does not have are left out of its path."""
        return InputError(self.complaint(where, message)[1])

    def complaint(self, where: Where, message: str) -> tuple[int, str]:
        """The line and the whole text of a complaint."""
        return self.said.complaint(where, message)

    @contextmanager
    def placing(self, *where: str | int) -> Iterator[None]:
        """Let whatever a domain record refuses within be told at this place."""
        try:
            yield
        except FieldError as error:
            raise self.refusal((*where, error.field), error.message) from None

    def check_settings(self, policy: Policy, *where: str | int) -> None:
        """Refuse what a policy sets of planners and production would not take. Raises InputError."""
        try:
            check_settings(policy)
        except FieldError as error:
            steps = (int(step) if step.isdigit() else step for step in error.field.strip("/").split("/"))
            raise self.refusal((*where, *steps), error.message) from None

    def source(self, where: Where, *parts: str) -> Path:
        """A file of public data, which must be there. Raises InputError that names HEADROOM_DATA."""
        if self.data is None:
            raise self.refusal(where, f"{'/'.join(parts)} is read from {DATA_VARIABLE}, which is not set")
        path = self.data.joinpath(*parts)
        if not path.is_file():
            raise self.refusal(where, f"{DATA_VARIABLE} ({self.data}) has no {'/'.join(parts)}")
        return path

    def rows(self, where: Where, *parts: str) -> list[dict[str, str]]:
        """All rows of a CSV file of public data. Raises InputError where it is missing."""
        with self.source(where, *parts).open(encoding="utf-8", newline="") as opened:
            return list(csv.DictReader(opened))


def read(path: Path, data: Path | None = None) -> Document:
    """Read a file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    return parse(text, str(path), data)


def parse(text: str, origin: str, data: Path | None = None) -> Document:
    """Read a text. Raises InputError."""
    found = read_marked(text, origin)
    if len(found) != 1 or not isinstance(found[0].plain, dict):
        raise InputError(f"{origin}:1: a scenario file holds fields, such as `kind: world`")
    return Document(found[0], data)


KINDS: Mapping[str, str] = {
    "world": "lab.arena.worlds",
    "packing": "lab.benches.packing.scenario",
    "rolling": "lab.benches.rolling.scenario",
    "tasks": "lab.benches.tasks.scenario",
}
"""Where each kind lives."""


class ScenarioForm(BaseModel):
    """Closed, immutable, and without coercion between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def completed(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """What a file may leave out although a record of the core needs it."""
        return plain

    def made(self, kind: type[T], /, **own: object) -> T:
        """A record of what the form says under the same names, and of values of its own; `span_s` is `span` here."""
        told = type(self).model_fields
        for field in fields(cast("type", kind)):
            name = field.name if field.name in told else field.name.removesuffix("_s")
            if name in told:
                own.setdefault(field.name, getattr(self, name))
        return kind(**own)


def form_of(kind: str) -> type[ScenarioForm]:
    """What a file of this kind may say. Raises KeyError."""
    return cast("type[ScenarioForm]", import_module(KINDS[kind]).FORM)


class Heading(ScenarioForm):
    """What every file says of itself."""

    kind: str
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Annotated[str, Field(min_length=1, max_length=200)]
    goal: str
    better: Better
    guard: str | None = None
    planners: tuple[str, ...] = ()
    """Contenders that its authors propose."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 3

    def about(self) -> About:
        """The heading as a bench tells it."""
        return self.made(About)


SCHEMA_FILE = "scenario.schema.json"
_REFERENCE = "#/$defs/{model}"
_VALUE_ERROR = "value_error"
_UNKNOWN = "there is no such field here"
_WORDS = {
    "extra_forbidden": _UNKNOWN,
    "unexpected_keyword_argument": _UNKNOWN,
    "missing": "is needed",
    "missing_argument": "is needed",
    "missing_keyword_only_argument": "is needed",
    "union_tag_not_found": "say which `pattern` it is",
}
"""Our words for what the validator says in terms of Python."""


def load(path: Path, data: Path | None) -> Bench:
    """The bench of a file. `data` is the folder of public data, which only traces need. Raises InputError with one line
    for every fault.
    """
    document = read(path, data)
    kind = _kind_of(document)
    made: Bench = import_module(KINDS[kind]).build(_form(form_of(kind), document), document)
    return made


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of scenario files of every kind."""
    forms = [form_of(kind) for kind in KINDS]
    _, made = models_json_schema([(form, "validation") for form in forms], ref_template=_REFERENCE)
    definitions = made["$defs"]
    # A policy in a scenario needs no name of its own.
    policy = definitions.get("Policy", {})
    policy["required"] = [field for field in policy.get("required", []) if field != "name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headroom scenario",
        "oneOf": [{"$ref": _REFERENCE.format(model=form.__name__)} for form in forms],
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _kind_of(document: Document) -> str:
    chosen = document.plain.get("kind")
    if not isinstance(chosen, str) or chosen not in KINDS:
        said = "say `kind`" if chosen is None else f"no kind {chosen}"
        raise document.refusal(("kind",), f"{said}; there are {', '.join(KINDS)}")
    return chosen


def _form(form: type[ScenarioForm], document: Document) -> ScenarioForm:
    try:
        text = json.dumps(form.completed(document.plain))
    except (TypeError, ValueError) as error:
        raise document.refusal((), f"holds what JSON cannot say: {error}") from None
    try:
        return form.model_validate_json(text, strict=True)
    except ValidationError as error:
        faults = {_fault_told(document, fault) for fault in error.errors(include_url=False, include_input=False)}
        raise UnreadableError([line for _, line in sorted(faults)]) from None


def _fault_told(document: Document, fault: Any) -> tuple[int, str]:
    where, message = tuple(fault["loc"]), _WORDS.get(fault["type"], str(fault["msg"]))
    if fault["type"] == _VALUE_ERROR:
        cause = fault["ctx"]["error"]
        message = str(cause)
        if isinstance(cause, FieldError):
            where = (*where, cause.field)
    return document.complaint(where, message[:1].lower() + message[1:])


def main(folder: Path) -> None:
    """Write the schema into a folder."""
    (folder / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m lab.arena.loading", description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("examples/scenarios"))
    chosen = parser.parse_args().folder
    if not chosen.is_dir():
        parser.error(f"there is no folder {chosen}")
    main(chosen)
