"""Commands about what is declared: get, apply, delete.

What a file says is sent, what the API says is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote

import typer

from app import kinds
from app.cli.options import Server, Token, connect
from app.cli.output import CommandError, Exit, Format, Output, exit_code_of, listed, sentence_of, show
from app.client import Client, Document
from app.client.documents import PROFILES, Declared, DocumentOutcome, apply_document, delete_document, read_documents
from app.kinds import Kind
from solvers.errors import HeadroomError, InputError

HISTORY_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A kind that nobody declares. `key` names one of it in its route; `parts` is what of one is shown as rows."""

    route: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    endless: bool = True
    parts: str = ""
    part_columns: tuple[str, ...] = ()


_WRITTEN: Mapping[str, _Written] = {
    "profile": _Written(
        route="profiles",
        key=("model", "gpu_type"),
        columns=("model", "gpu_type", "points", "imported_at"),
        endless=False,
        parts="points",
        part_columns=(
            "model", "gpu_type", "batch", "share_pct_sm", "clock_mhz_sm", "latency_ms_mean", "latency_ms_p99",
            "memory_mib", "power_w", "neighbours",
        ),
    ),
    "plan": _Written(
        route="plans",
        key=("id",),
        columns=("id", "lane", "state", "generation", "planner", "cost_usd_per_h", "unplaced_count", "created_at"),
    ),
    "cycle": _Written(
        route="cycles",
        key=("id",),
        columns=("id", "lane", "state", "started_at", "planner", "elapsed_ms", "generation", "decision.reasons"),
    ),
    "event": _Written(route="events", key=(), columns=("at", "name", "actor", "subject")),
}  # fmt: skip


def get(
    names: Annotated[
        list[str],
        typer.Argument(
            help="KIND, or KIND KEY, e.g. services, or service vision/resnet50. "
            "Profiles, plans, cycles and events can be read, too; events SUBJECT are those of one subject."
        ),
    ],
    output: Output = Format.TABLE,
    *,
    limit: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--limit",
            min=1,
            help=f"List so many at most; default: all, {HISTORY_SHOWN} of a history.",
            show_default=False,
        ),
    ] = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """Print one document or list all of a kind, newest first in a history. `-o yaml` prints what `apply` reads."""
    written = _written(names[0].partition("/")[0])
    with connect(server, token) as client:
        if written is not None:
            words = [*names[0].split("/", 1)[1:], *names[1:]]
            _get_written(client, written, words, limit, output)
        elif len(names) == 1 and "/" not in names[0]:
            kind = kinds.named(names[0])
            items = list(islice(client.items(kind.plural), limit))
            show([_as_file(kind, item) for item in items], output, _table(kind, items))
        else:
            kind, key = kind_and_key(names)
            item = client.get(kind.name, *key).body
            show(_as_file(kind, item), output, _table(kind, [item]))


def kind_and_key(names: Sequence[str]) -> tuple[Kind, tuple[str, ...]]:
    """A document's kind and key from words such as `service vision/resnet50`, with the default project where none is
    named. Raises InputError when the key has another shape.
    """
    words = [part for name in names for part in name.split("/") if part]
    kind = kinds.named(words[0] if words else "")
    key = tuple(words[1:])
    expected = kind.key
    if len(key) == len(expected) - 1 and expected[0] == "project":
        key = (kinds.DEFAULT, *key)
    if len(key) != len(expected):
        raise InputError(f"a {kind.name} is named {'/'.join(expected).upper()}, got {'/'.join(key) or 'nothing'}")
    return kind, key


def _written(word: str) -> _Written | None:
    """What is read but never declared; None for declared kinds. Raises InputError naming all kinds."""
    wanted = word.strip().lower()
    for name, written in _WRITTEN.items():
        if wanted in (name, written.route):
            return written
    try:
        kinds.named(word)
    except InputError:
        known = ", ".join((*kinds.names(), *_WRITTEN))
        raise InputError(f"unknown kind {word!r}; known are {known}") from None
    return None


def _get_written(client: Client, written: _Written, words: Sequence[str], limit: int | None, output: Format) -> None:
    if words and written.key:
        key = [part for word in words for part in word.split("/") if part]
        if len(key) != len(written.key):
            raise InputError(f"one of {written.route} is named {'/'.join(written.key).upper()}, got {'/'.join(words)}")
        path = "/".join(("/v1", written.route, *(quote(part, safe=":") for part in key)))
        item = client.call("GET", path).body
        shown = item[written.parts] if written.parts else [item]
        show(item, output, listed(written.part_columns or written.columns, shown))
        return
    most = limit or (HISTORY_SHOWN if written.endless else None)
    subject = "/".join(words) or None
    items = list(islice(client.items(written.route, subject=subject, limit=most), most))
    show(items, output, listed(written.columns, items))


def _as_file(kind: Kind, item: Document) -> Document:
    return {"kind": kind.name, **item}


def _table(kind: Kind, items: Sequence[Document]) -> Any:
    return listed((*kind.key, *kind.listed), items)


Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f", "--file", help="YAML or JSON file, folder, or - for standard input; repeatable.", show_default=False
    ),
]


def apply(files: Files = None, output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Make the server hold these documents; says what was created, updated or unchanged."""
    documents = _read(files)
    with connect(server, token) as client:
        _each(client, documents, apply_document, output)


def delete(
    names: Annotated[list[str] | None, typer.Argument(help="KIND KEY, e.g. service vision/resnet50.")] = None,
    files: Files = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Delete documents by file or by kind and key. What is already gone is no error with -f."""
    if bool(names) == bool(files):
        raise InputError("name either documents (headroom delete service vision/resnet50) or files with -f, not both")
    with connect(server, token) as client:
        if files:
            _each(client, list(reversed(_read(files))), delete_document, output)
            return
        _delete_one(client, names or [])


def _delete_one(client: Client, names: Sequence[str]) -> None:
    if names[0].partition("/")[0] in ("profile", PROFILES):
        key = _profile_key(names)
        client.call("DELETE", f"/v1/profiles/{key}")
        typer.echo(f"{DocumentOutcome.DELETED} profile/{key}")
        return
    kind, parts = kind_and_key(names)
    client.delete(kind.name, *parts)
    typer.echo(f"{DocumentOutcome.DELETED} {kind.name}/{'/'.join(parts)}")


def _read(files: list[str] | None) -> list[Declared]:
    if not files:
        raise InputError("name at least one file with -f")
    documents = read_documents(files)
    if not documents:
        raise InputError(f"no documents in {', '.join(files)}")
    return documents


def _each(client: Client, documents: Sequence[Declared], act: Any, output: Format) -> None:
    """Do one thing to every document and go on after a failure; what depends on what failed will say so itself."""
    results: list[dict[str, str]] = []
    failures: list[HeadroomError] = []
    for document in documents:
        line = {"document": document.label, "outcome": "failed"}
        try:
            line["outcome"] = act(client, document).value
        except HeadroomError as error:
            if exit_code_of(error) in (Exit.UNREACHABLE, Exit.REFUSED):
                raise
            failures.append(error)
            typer.echo(f"headroom: {document.origin}: {document.label}: {sentence_of(error)}", err=True)
        results.append(line)
    if output is Format.TABLE:
        for line in results:
            typer.echo(f"{line['outcome']:<10} {line['document']}")
    else:
        show(results, output, [])
    if failures:
        raise CommandError(f"{len(failures)} of {len(results)} documents failed", exit_code_of(failures[0]))


def _profile_key(names: Sequence[str]) -> str:
    key = [part for name in names for part in name.split("/") if part][1:]
    if len(key) != 2:
        raise InputError(f"a profile is named MODEL/GPU-TYPE, got {'/'.join(key) or 'nothing'}")
    return "/".join(quote(part, safe="") for part in key)
