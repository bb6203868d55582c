"""The command `edit`: what was read is written back only while it stands, and what was typed is never lost."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import yaml

from app.cli.declare import kind_and_key, placed
from app.cli.options import Server, Token, connect
from app.cli.output import CommandError, Exit, exit_code_of
from app.client.documents import read_documents, told_near
from app.kinds import Kind
from app.marked import UnreadableError
from headroom_client import ApiError, Client, ClientError
from solvers.errors import HeadroomError, InputError


def edit(
    names: Annotated[list[str], typer.Argument(help="KIND KEY, e.g. service vision/resnet50.")],
    server: Server = None,
    token: Token = None,
) -> None:
    """Open a document in $VISUAL or $EDITOR and put what was made of it, unless somebody changed it meanwhile.

    What is refused stays in a file, which is named.
    """
    kind, key = kind_and_key(names)
    with connect(server, token) as client:
        with told_near(client, kind, key):
            found = client.get(kind.name, *key)
        text = yaml.safe_dump({"kind": kind.name, **found.body}, sort_keys=False, allow_unicode=True)
        file = _edited(text)
        if file.read_text(encoding="utf-8") == text:
            file.unlink()
            typer.echo(f"unchanged  {kind.name}/{'/'.join(key)}")
            return
        try:
            _put(client, kind, key, file, found.etag)
        except (HeadroomError, ClientError) as error:
            told = "" if isinstance(error, ApiError | UnreadableError) else f"{error.message}; "
            raise CommandError(f"{told}nothing was changed; your text is in {file}", exit_code_of(error)) from None
    file.unlink()
    typer.echo(f"updated    {kind.name}/{'/'.join(key)}")


def _put(client: Client, kind: Kind, key: tuple[str, ...], file: Path, tag: str | None) -> None:
    """Put what the file says, if that is still this document. Raises HeadroomError after every fault was told."""
    try:
        documents = read_documents([str(file)])
    except UnreadableError as error:
        for line in error.lines:
            typer.echo(f"headroom: {line}", err=True)
        raise
    if len(documents) != 1 or (documents[0].kind, documents[0].key) != (kind.name, key):
        raise InputError(f"{file}: this is not {kind.name}/{'/'.join(key)} any more")
    try:
        client.put(kind.name, documents[0].fields, if_match=tag)
    except ApiError as error:
        for line in placed(documents[0], error):
            typer.echo(f"headroom: {line}", err=True)
        raise


def _edited(text: str) -> Path:
    """A file of the text after the editor has closed. Raises CommandError when there is no editor, or it failed."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    descriptor, name = tempfile.mkstemp(prefix="headroom-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    try:
        status = subprocess.call([*shlex.split(editor), name])
    except (OSError, ValueError) as error:
        Path(name).unlink()
        raise CommandError(f"no editor {editor!r} ({error}): set EDITOR", Exit.USAGE) from None
    if status != 0:
        raise CommandError(f"{editor} ended with status {status}; your text is in {name}")
    return Path(name)
