"""Declarative files: YAML or JSON, several documents each, turned into an ordered list of things to apply or delete.

`kind:` stands beside the fields of the value; `kind: profiles` names a CSV file or lists points. Documents are ordered
as they depend on each other. The API judges their content, and says which field is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from app import kinds
from app.client.client import ApiError, Client, Document, key_of
from solvers.errors import InputError

PROFILES = "profiles"
FILE_BYTES_MAX = 64 * 2**20
NODES_MAX = 2_000_000
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One document as it was found: where, of which kind, and its fields. `csv` is the text of a profiles file."""

    origin: str
    kind: str
    fields: Document
    csv: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What names the document; empty for profiles, which have no single key."""
        return key_of(self.kind, self.fields) if self.kind in kinds.names() else ()

    @property
    def label(self) -> str:
        """`kind/key` for people."""
        return "/".join((self.kind, *self.key))

    @property
    def rank(self) -> int:
        """Place in the order of creation: what others refer to comes first."""
        return kinds.named(self.kind).rank if self.kind in kinds.names() else kinds.PROFILES_RANK


class DocumentOutcome(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    IMPORTED = "imported"
    DELETED = "deleted"
    ABSENT = "absent"


def read_documents(sources: Iterable[str], loose: str | None = None) -> list[Declared]:
    """All documents of files, folders and `-` (standard input), in order of creation; InputError names the place.

    `loose` is a further kind whose documents have no key; without a `kind` a document is of that one.
    """
    found = [document for source in sources for document in _read_source(source, loose)]
    seen: dict[str, str] = {}
    for document in found:
        if document.kind in (PROFILES, loose):
            continue
        if document.label in seen:
            raise InputError(f"{document.origin}: {document.label} is already declared in {seen[document.label]}")
        seen[document.label] = document.origin
    return sorted(found, key=lambda document: document.rank)


def apply_document(client: Client, document: Declared) -> DocumentOutcome:
    if document.kind == PROFILES:
        client.import_profiles(csv=document.csv, points=document.fields.get("points"))
        return DocumentOutcome.IMPORTED
    before = _standing_etag(client, document)
    answer = client.put(document.kind, document.fields)
    if answer.status == 201:
        return DocumentOutcome.CREATED
    return DocumentOutcome.UNCHANGED if answer.etag == before else DocumentOutcome.UPDATED


def delete_document(client: Client, document: Declared) -> DocumentOutcome:
    """Make the server not hold this document; absent is fine, deleting twice is no error."""
    if document.kind == PROFILES:
        raise InputError(
            f"{document.origin}: profiles are deleted by model and GPU type: headroom delete profile MODEL/GPU-TYPE"
        )
    try:
        client.delete(document.kind, *document.key)
    except ApiError as error:
        if error.status == 404:
            return DocumentOutcome.ABSENT
        raise
    return DocumentOutcome.DELETED


def _standing_etag(client: Client, document: Declared) -> str | None:
    try:
        return client.get(document.kind, *document.key).etag
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _read_source(source: str, loose: str | None) -> Iterator[Declared]:
    if source == "-":
        yield from _parse(sys.stdin.read(), "standard input", Path(), loose)
        return
    path = Path(source)
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES)
        if not files:
            raise InputError(f"{source}: no .yaml, .yml or .json files in this folder")
    elif path.exists():
        files = [path]
    else:
        raise InputError(f"{source}: no such file")
    for file in files:
        yield from _parse(_text(file), str(file), file.parent, loose)


def _text(file: Path) -> str:
    if file.stat().st_size > FILE_BYTES_MAX:
        raise InputError(f"{file}: larger than {FILE_BYTES_MAX // 2**20} MiB")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text") from None


def _parse(text: str, origin: str, folder: Path, loose: str | None) -> Iterator[Declared]:
    try:
        # JSON first: YAML reads it too, but slower and with worse messages.
        loaded = (
            [json.loads(text)] if text.lstrip().startswith(("{", "[")) else list(yaml.load_all(text, _BoundedLoader))
        )
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{origin}: {' '.join(str(error).split())}") from None
    parts = [part for item in loaded for part in (item if isinstance(item, list) else [item]) if part is not None]
    for index, part in enumerate(parts, start=1):
        place = f"{origin} (document {index})" if len(parts) > 1 else origin
        yield _declared(part, place, folder, loose)


class _BoundedLoader(yaml.SafeLoader):
    """Counts what aliases stand for as often as they stand there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0
        self._counts: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        before, is_alias = self._count, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        # An alias within its own anchor stands for no end of nodes.
        self._count += self._counts.get(id(node), NODES_MAX + 1) if is_alias else 1
        if self._count > NODES_MAX:
            raise yaml.YAMLError(f"more than {NODES_MAX} values, with what aliases stand for")
        self._counts[id(node)] = self._count - before
        return node


def _declared(part: Any, origin: str, folder: Path, loose: str | None) -> Declared:
    if not isinstance(part, dict):
        raise InputError(f"{origin}: expected an object with a `kind`, got {type(part).__name__}")
    fields = dict(part)
    word = fields.pop("kind", loose)
    if not isinstance(word, str):
        raise InputError(f"{origin}: the field `kind` is missing")
    if word == PROFILES:
        return _declared_profiles(fields, origin, folder)
    if word == loose:
        return Declared(origin=origin, kind=word, fields=fields)
    try:
        document = Declared(origin=origin, kind=kinds.named(word).name, fields=fields)
        key_of(document.kind, fields)
    except InputError as error:
        raise InputError(f"{origin}: {error.message}") from None
    return document


def _declared_profiles(fields: Document, origin: str, folder: Path) -> Declared:
    if set(fields) == {"file"} and isinstance(fields["file"], str):
        file = folder / fields["file"]
        if not file.is_file():
            raise InputError(f"{origin}: {file}: no such file")
        return Declared(origin=origin, kind=PROFILES, fields={}, csv=_text(file))
    if set(fields) == {"points"} and isinstance(fields["points"], list):
        return Declared(origin=origin, kind=PROFILES, fields=fields)
    raise InputError(
        f"{origin}: a document of kind profiles has either `file` (CSV, beside this file) or `points` (a list)"
    )
