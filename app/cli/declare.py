"""Commands that change what is declared: apply, delete.

Owns what is printed about each document. It refuses to know any kind's fields: what a file says is sent, what the API
says is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from app.cli.connection import Server, Token, connect
from app.cli.failures import CommandError, Exit, exit_code_of, sentence_of
from app.cli.output import Format, Output, show
from app.cli.reading import kind_and_key
from app.client import Client
from app.client.documents import PROFILES, Declared, Outcome, apply_document, delete_document, read_documents
from solvers.errors import HeadroomError, InputError

Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f", "--file", help="YAML or JSON file, folder, or - for standard input; repeatable.", show_default=False
    ),
]


def apply(
    files: Files = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
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
        typer.echo(f"{Outcome.DELETED} profile/{key}")
        return
    kind, parts = kind_and_key(names)
    client.delete(kind.name, *parts)
    typer.echo(f"{Outcome.DELETED} {kind.name}/{'/'.join(parts)}")


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
