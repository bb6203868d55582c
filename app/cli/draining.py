"""Taking a node out of use and putting it back: what keeps it from being empty, and who is short of a place then."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from app import kinds
from app.cli.looking import look_again
from app.cli.options import Server, Token, connect, duration_s
from app.cli.output import CommandError, Format, Output, outliving_readers, show
from app.cli.watch import short_lines
from app.client.documents import told_near
from headroom_client import Document

LOOK_S = 1.0
_NodeName = Annotated[str, typer.Argument(metavar="NODE")]
_Why = Annotated[str | None, typer.Option("--comment", "-m", help="Why, for those who read the audit later.")]


def drain(
    node: _NodeName,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is empty: safe to reboot.")] = False,
    *,
    timeout: Annotated[str, typer.Option("--timeout", help="With --wait: give up after so long.")] = "30m",
    comment: _Why = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Take a node out of use: no plan uses it, and what may move leaves. With --wait, exit status 1 when it is not
    empty in time.
    """
    end = time.monotonic() + duration_s(timeout)
    with connect(server, token) as client:
        with told_near(client, kinds.NODE, [node]):
            found, told = client.drain(node, comment), ""
        while wait and not found["empty"] and time.monotonic() < end:
            told = _say_new(_drain_lines(found), told, output)
            found = look_again(partial(client.drained, node), LOOK_S, end)
    lines = _drain_lines(found)
    if wait and output is Format.TABLE:
        _say_new(lines, told, output)
    else:
        show(found, output, lines)
    if wait and not found["empty"]:
        raise CommandError(f"{node} is not empty after {timeout}: {'; '.join(found['blocks'])}")


def uncordon(
    node: _NodeName, comment: _Why = None, output: Output = Format.TABLE, server: Server = None, token: Token = None
) -> None:
    """Put a node back into use."""
    with connect(server, token) as client, told_near(client, kinds.NODE, [node]):
        found = client.uncordon(node, comment)
    show(found, output, f"{node} may be used again")


def _drain_lines(found: Document) -> list[str]:
    node, blocks = found["node"], found["blocks"]
    if found["empty"]:
        short = [f"  {line}" for line in short_lines(found.get("short", ()))]
        head = f"{node} is empty: safe to reboot (headroom uncordon {node} puts it back)"
        return [head, *(["not served as asked now:"] if short else []), *short]
    head = f"{node} is drained; {len(found['planned'])} replicas planned and {len(found['running'])} running there"
    return [head, *(f"  {block}" for block in blocks)]


def _say_new(lines: list[str], told: str, output: Format) -> str:
    """Progress, once for each change."""
    text = "\n".join(lines)
    if text != told:
        with outliving_readers():
            typer.echo(text, err=output is not Format.TABLE)
    return text
