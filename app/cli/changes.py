"""Files of what-if changes: the documents that `headroom apply` reads, and `kind: changes` for everything else.

Owns how documents become one set of changes, and the sentence for a document that cannot be one. What changes mean is
the services'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app import kinds
from app.client import Document
from app.client.documents import PROFILES, Declared, read_documents
from solvers.errors import InputError

CHANGES = "changes"


def read_changes(files: Iterable[str]) -> Document:
    """One set of changes out of all documents. Raises InputError naming the place."""
    changes: Document = {}
    for declared in read_documents(files, loose=CHANGES):
        for name, part in _parts(declared):
            _add(changes, name, part, declared.origin)
    return changes


def _parts(declared: Declared) -> Iterable[tuple[str, Any]]:
    if declared.kind == CHANGES:
        return declared.fields.items()
    if declared.kind == kinds.POLICY.name:
        return [("policy", {name: item for name, item in declared.fields.items() if name != "name"})]
    if declared.kind == PROFILES:
        raise InputError(
            f"{declared.origin}: profiles stand in a document of kind changes, as `profiles` of a snapshot do"
        )
    return [(kinds.named(declared.kind).table, [declared.fields])]


def _add(changes: Document, name: str, part: Any, origin: str) -> None:
    """Lists and objects of several documents are joined; anything else may be said once."""
    before = changes.get(name)
    if before is None:
        changes[name] = part
    elif isinstance(before, list) and isinstance(part, list):
        changes[name] = [*before, *part]
    elif isinstance(before, dict) and isinstance(part, dict) and not before.keys() & part.keys():
        changes[name] = {**before, **part}
    else:
        raise InputError(f"{origin}: `{name}` is said twice")
