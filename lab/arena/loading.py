"""Scenario files: reading one into a bench, and the JSON Schema of all kinds (`python -m lab.arena.loading`).

Owns the way from text to form: the kind, the check against its form, and every fault as a line of its own,
`file:line: path: message`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from lab.arena import kinds
from lab.arena.kinds import Context, Document, ScenarioForm, kind, read
from solvers.errors import FieldError, InputError
from solvers.sim.outcome import Bench

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
    document = read(path)
    chosen = _kind_of(document)
    found = kind(chosen)
    return found.build(_form(found.form, document), Context(document, data))


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of scenario files of every kind."""
    forms = {name: kind(name).form for name in kinds.KINDS}
    _, made = models_json_schema([(form, "validation") for form in forms.values()], ref_template=_REFERENCE)
    definitions = made["$defs"]
    # A policy in a scenario needs no name of its own.
    policy = definitions.get("Policy", {})
    policy["required"] = [field for field in policy.get("required", []) if field != "name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headroom scenario",
        "oneOf": [{"$ref": _REFERENCE.format(model=form.__name__)} for form in forms.values()],
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _kind_of(document: Document) -> str:
    chosen = document.plain.get("kind")
    if not isinstance(chosen, str) or chosen not in kinds.KINDS:
        said = "say `kind`" if chosen is None else f"no kind {chosen}"
        raise document.refusal(("kind",), f"{said}; there are {', '.join(kinds.KINDS)}")
    return chosen


def _form(form: type[ScenarioForm], document: Document) -> ScenarioForm:
    try:
        text = json.dumps(form.completed(document.plain))
    except (TypeError, ValueError) as error:
        raise document.refusal((), f"holds what JSON cannot say: {error}") from None
    try:
        return form.model_validate_json(text, strict=True)
    except ValidationError as error:
        faults = {_complaint(document, fault) for fault in error.errors(include_url=False, include_input=False)}
        raise InputError("\n".join(line for _, line in sorted(faults))) from None


def _complaint(document: Document, fault: Any) -> tuple[int, str]:
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
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("examples/scenarios"))
