"""Declarative files: YAML or JSON, several documents each, turned into an ordered list of things to apply or delete.

`kind:` stands beside the fields of the value; `kind: profiles` names a CSV file or lists points. Documents are ordered
as they depend on each other. The API judges their content, all of them at once before any is sent; whatever is wrong is
told with file and line.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from app import kinds
from app.kinds import Kind
from app.marked import Marked, UnreadableError, Where, count_least, read_marked
from headroom_client import ApiError, Client, ClientError, Document, WrongUseError, key_of
from solvers.errors import InputError, did_you_mean

PROFILES = "profiles"
FILE_BYTES_MAX, CSV_BYTES_MAX = 4 * 2**20, 64 * 2**20
"""What the API checks at once is as much; reading lines takes seconds for each million."""
_MEASUREMENTS = re.compile(rf"^kind:\s*{PROFILES}\b", re.MULTILINE)
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One document as it was found: where, of which kind, and its fields. `csv` is the text of a profiles file."""

    origin: str
    kind: str
    fields: Document
    csv: str | None = None
    marked: Marked | None = None
    """Where its fields stand."""

    def complaint(self, pointer: str, detail: str) -> str:
        """What is wrong at a place of it, with file and line."""
        where = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/") if step]
        if self.marked is None:
            return f"{self.origin}: {pointer + ': ' if pointer else ''}{detail}"
        if where[:1] == ["labels"] and len(where) > 1 and isinstance(said := self.marked.plain.get("labels"), dict):
            where = ["labels", *list(said)[int(where[1]) :][:1]]
        return self.marked.complaint(where, detail)[1]

    @property
    def key(self) -> tuple[str, ...]:
        """What names the document; empty for profiles, which have no single key, and where it is not said."""
        with suppress(WrongUseError):
            return key_of(self.kind, self.fields) if self.kind in kinds.names() else ()
        return ()

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


def read_documents(sources: Iterable[str], loose: str | None = None, *, checked: bool = False) -> list[Declared]:
    """All documents of files, folders and `-` (standard input), in order of creation; UnreadableError names every place
    and has the documents that are well.

    `loose` is a further kind whose documents have no key; without a `kind` a document is of that one. What is to be
    `checked` is counted first: reading takes a second for every thousand.
    """
    reading = _FilesRead(loose, checked=checked)
    for source in sources:
        reading.read(source)
    if reading.faults:
        raise UnreadableError(reading.faults, reading.found)
    return sorted(reading.found, key=lambda document: document.rank)


def checked(client: Client, documents: Sequence[Declared]) -> list[Document] | None:
    """What the API says of all of these together, nothing written: one entry each, but for profiles. None where the
    server is older than this. Raises InputError where they are too much for one request.
    """
    sent = [{"kind": document.kind, "document": document.fields} for document in documents if document.kind != PROFILES]
    if len(sent) > kinds.CHECKED_MAX:
        raise _too_many(f"{len(sent):,} documents")
    try:
        return client.check(sent) if sent else []
    except ApiError as error:
        if error.status == 413:
            told = f"{len(sent)} documents are larger together than what the API takes at once"
            raise InputError(f"{told}: {_IN_PARTS}; nothing was sent") from None
        if error.status in (404, 405):
            return None
        raise


_IN_PARTS = "apply them in parts, such as one file after the other"


def _too_many(told: str) -> InputError:
    return InputError(
        f"{told} are more than the {kinds.CHECKED_MAX:,} that are checked at once: {_IN_PARTS}; nothing was sent"
    )


def apply_document(client: Client, document: Declared) -> DocumentOutcome:
    if document.kind == PROFILES:
        client.import_profiles(csv=document.csv, points=document.fields.get("points"))
        return DocumentOutcome.IMPORTED
    before = _standing_etag(client, document)
    answer = client.put(document.kind, document.fields)
    if answer.status == 201:
        return DocumentOutcome.CREATED
    return DocumentOutcome.UNCHANGED if answer.etag == before else DocumentOutcome.UPDATED


@contextmanager
def told_near(client: Client, kind: Kind, key: Sequence[str]) -> Iterator[None]:
    """What is not there is told with the names nearest to it."""
    try:
        yield
    except ApiError as error:
        if error.status == 404:
            with suppress(ClientError):
                known = ["/".join(key_of(kind.name, item)) for item in client.items(kind.plural)]
                error.message += did_you_mean("/".join(key), known)
        raise


def delete_document(client: Client, document: Declared) -> DocumentOutcome:
    """Make the server not hold this document; absent is fine, deleting twice is no error."""
    if document.kind == PROFILES:
        raise InputError(
            f"{document.origin}: profiles are deleted by model and GPU type: headroom delete profile MODEL/GPU-TYPE"
        )
    try:
        client.delete(document.kind, *key_of(document.kind, document.fields))
    except ApiError as error:
        if error.status == 404:
            return DocumentOutcome.ABSENT
        raise
    return DocumentOutcome.DELETED


def _standing_etag(client: Client, document: Declared) -> str | None:
    try:
        return client.get(document.kind, *key_of(document.kind, document.fields)).etag
    except ApiError as error:
        if error.status == 404:
            return None
        raise


class _FilesRead:
    """Documents while they are read, and everything that is wrong with their files."""

    def __init__(self, loose: str | None, *, checked: bool = False) -> None:
        self._loose = loose
        self._checked, self._count = checked, 0
        self._seen: dict[str, Marked] = {}
        self.found: list[Declared] = []
        self.faults: list[str] = []

    def read(self, source: str) -> None:
        """Take in a file, a folder or standard input."""
        if source == "-":
            try:
                text = sys.stdin.read(FILE_BYTES_MAX + 1) if sys.stdin is not None else None
            except UnicodeDecodeError:
                self.faults.append("standard input: not UTF-8 text")
                return
            if text is None:
                self.faults.append("standard input: closed")
            elif len(text) > FILE_BYTES_MAX:
                self.faults.append(f"standard input: larger than {FILE_BYTES_MAX // 2**20} MiB")
            else:
                self._parse(text, "standard input", Path())
            return
        path = Path(source)
        files = [path]
        if path.is_dir():
            files = sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES)
            if not files:
                self.faults.append(f"{source}: no .yaml, .yml or .json files in this folder")
        for file in files:
            try:
                self._parse(_text(file), str(file), file.parent)
            except FileNotFoundError:
                self.faults.append(f"{source}: no such file")
            except InputError as error:
                self.faults.append(error.message)

    def _parse(self, text: str, origin: str, folder: Path) -> None:
        # Measurements go another way, and not together.
        self._count += count_least(text, but=_MEASUREMENTS) if self._checked else 0
        if self._count > kinds.CHECKED_MAX:
            raise _too_many(f"{self._count:,} documents")
        try:
            loaded = read_marked(text, origin)
        except UnreadableError as error:
            self.faults.extend(error.lines)
            loaded = list(error.found)
        for item in loaded:
            several = isinstance(item.plain, list)
            for part in [item.part(index) for index in range(len(item.plain))] if several else [item]:
                if part.plain is not None:
                    self._add(part, folder)

    def _add(self, part: Marked, folder: Path) -> None:
        if unsaid := unsayable(part):
            self.faults += unsaid
            return
        try:
            document = _declared(part, folder, self._loose)
        except InputError as error:
            self.faults.append(error.message)
            return
        if document.key:
            before = self._seen.setdefault(document.label, part)
            if before is not part:
                told = f"{document.label} is already declared in {before.complaint((), '')[1].removesuffix(': ')}"
                self.faults.append(part.complaint((), told)[1])
        self.found.append(document)


def unsayable(part: Marked) -> list[str]:
    """What of it JSON cannot say, or no server takes, each with its place."""
    return [part.complaint(where, why)[1] for where, why in _unsaid(part.plain)]


def _unsaid(plain: Any) -> Iterator[tuple[Where, str]]:
    left: list[tuple[tuple[str | int, ...], Any]] = [((), plain)]
    while left:
        where, value = left.pop()
        if isinstance(value, dict):
            left += [((*where, str(key)), item) for key, item in reversed(value.items())]
            odd = [key for key in value if not _is_text(str(key)) or not isinstance(key, str | int | float | None)]
            if odd:
                yield where, f"the key {odd[0]!a} is no text"
        elif isinstance(value, list):
            left += [((*where, index), item) for index, item in reversed(list(enumerate(value)))]
        elif isinstance(value, float) and not math.isfinite(value):
            yield where, f"{value} is no number that JSON has"
        elif isinstance(value, str) and not _is_text(value):
            yield where, "half a character: a surrogate without its other half"
        elif isinstance(value, str) and "\0" in value:
            yield where, "the character U+0000 is in no text"
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield where, "a number that does not fit in 64 bits"
        elif not isinstance(value, str | int | float | None):
            yield where, f"JSON has no {type(value).__name__}"


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _text(file: Path, bytes_max: int = FILE_BYTES_MAX) -> str:
    if file.stat().st_size > bytes_max:
        raise InputError(f"{file}: larger than {bytes_max // 2**20} MiB, which is the most; make several of it")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text") from None


def labels_listed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`labels: {team: a}` says the same as a list of keys and values, in fewer words."""
    said = fields.get("labels")
    if not isinstance(said, dict):
        return dict(fields)
    return {**fields, "labels": [{"key": key, "value": _label_text(value)} for key, value in said.items()]}


def labels_merged(said: Document, before: Document) -> Document:
    """Labels as a map are merged, too: null takes one away. As a list they are replaced."""
    if not isinstance(said.get("labels"), dict):
        return said
    stood = {item["key"]: item["value"] for item in before.get("labels", ())}
    merged = {**stood, **said["labels"]}
    return labels_listed({**said, "labels": {key: value for key, value in merged.items() if value is not None}})


def _label_text(value: Any) -> Any:
    """Numbers and words of YAML as they are written; what is no text the API refuses."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _word_of(plain: object) -> str:
    """What a value is to who writes YAML or JSON."""
    for kind, word in ((bool, "true or false"), (int | float, "a number"), (str, "text"), (list, "a list")):
        if isinstance(plain, kind):
            return word
    return "nothing"


def _declared(part: Marked, folder: Path, loose: str | None) -> Declared:
    """One document. Raises InputError with its place."""

    def refused(message: str, *where: str) -> InputError:
        return InputError(part.complaint(where, message)[1])

    if not isinstance(part.plain, dict):
        raise refused(f"expected an object with a `kind`, got {_word_of(part.plain)}")
    fields = labels_listed(part.plain)
    word = fields.pop("kind", loose)
    if not isinstance(word, str):
        raise refused("the field `kind` is missing")
    origin = part.origin
    if word == PROFILES:
        if set(fields) == {"file"} and isinstance(fields["file"], str):
            file = folder / fields["file"]
            if not file.is_file():
                raise refused(f"{file}: no such file", "file")
            return Declared(origin=origin, kind=PROFILES, fields={}, csv=_text(file, CSV_BYTES_MAX), marked=part)
        if set(fields) == {"points"} and isinstance(fields["points"], list):
            return Declared(origin=origin, kind=PROFILES, fields=fields, marked=part)
        raise refused("a document of kind profiles has either `file` (CSV, beside this file) or `points` (a list)")
    if word == loose:
        return Declared(origin=origin, kind=word, fields=fields, marked=part)
    try:
        return Declared(origin=origin, kind=kinds.named(word).name, fields=fields, marked=part)
    except InputError as error:
        raise refused(error.message) from None
