"""Commands for declarative documents: apply, get, delete.

Owns what is printed about each document. It refuses to know any kind's fields: what a file says is sent, what the API
says is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from app.cli.connection import Server, Token, connect
from app.cli.documents import PROFILES, Declared, Outcome, apply_document, delete_document, read_documents
from app.cli.failures import CommandError, Exit, exit_code_of, sentence_of
from app.cli.output import Format, Output, rows, show
from app.client import Client, kind_info, kind_name
from solvers.errors import HeadroomError, InputError

Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f", "--file", help="YAML or JSON file, folder, or - for standard input; repeatable.", show_default=False
    ),
]

# What a list shows beside the key, by kind; a dotted name walks into the document.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "gpu-type": ("product", "sm_count", "memory_mib", "tdp_w"),
    "model": ("family", "parameters_million", "memory_mib_weights", "accuracy_pct"),
    "policy": ("planners", "deadline_s", "utilisation_max", "cooldown_s"),
    "project": ("description", "quota_gpus"),
    "power-cap": ("limit_w",),
    "node": ("rack", "failure_domain", "region", "price_kind", "schedulable"),
    "device": ("node", "gpu_type", "index", "memory_mib", "mode", "schedulable"),
    "service": ("model", "slo.latency_ms", "slo.percentile", "rate_rps_declared", "priority", "mode"),
    "job": ("model", "iterations_total", "memory_mib", "priority", "mode"),
    "task": ("model", "inputs_total", "slo.kind", "priority", "mode"),
}


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
        kind, key = _kind_and_key(names or [])
        if kind in ("profile", PROFILES):
            client.call("DELETE", "/v1/profiles/" + "/".join(key))
        else:
            client.delete(kind, *key)
        typer.echo(f"{Outcome.DELETED} {kind}/{'/'.join(key)}")


def get(
    names: Annotated[list[str], typer.Argument(help="KIND, or KIND KEY, e.g. services, or service vision/resnet50.")],
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Print one document or list all of a kind. `-o yaml` prints what `apply` reads."""
    with connect(server, token) as client:
        if len(names) == 1:
            kind = kind_name(names[0])
            items = list(client.items(kind_info(kind).route))
            show([_as_file(kind, item) for item in items], output, _table(kind, items))
            return
        kind, key = _kind_and_key(names)
        item = client.get(kind, *key).body
        show(_as_file(kind, item), output, _table(kind, [item]))


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


def _kind_and_key(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    words = [part for name in names for part in name.split("/") if part]
    kind = words[0] if words and words[0] in ("profile", PROFILES) else kind_name(words[0] if words else "")
    length = 2 if kind in ("profile", PROFILES) else len(kind_info(kind).key)
    key = tuple(words[1:])
    if len(key) == length - 1 and kind in ("service", "job", "task"):
        key = ("default", *key)
    if len(key) != length:
        shape = (
            "MODEL/GPU-TYPE" if length == 2 and kind in ("profile", PROFILES) else "/".join(kind_info(kind).key).upper()
        )
        raise InputError(f"a {kind} is named {shape}, got {'/'.join(key) or 'nothing'}")
    return kind, key


def _as_file(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, **item}


def _table(kind: str, items: Sequence[dict[str, Any]]) -> Any:
    columns = (*kind_info(kind).key, *_COLUMNS[kind])
    return rows(
        [column.rpartition(".")[2] for column in columns], ([_cell(item, name) for name in columns] for item in items)
    )


def _cell(item: Any, name: str) -> object:
    for part in name.split("."):
        item = item.get(part) if isinstance(item, dict) else None
    return ", ".join(map(str, item)) if isinstance(item, list) else item
