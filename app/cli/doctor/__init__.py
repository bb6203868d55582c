"""`headroom doctor`: what is well on this machine and with its control plane, what is not, and what to do. It changes
nothing, ends in time, and shows no secret.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from app.cli.doctor.checks import Check, Grade, Symptom, unseen, wrong
from app.cli.doctor.database import content_checks, database_checks, reaching
from app.cli.doctor.deployment import deployment_checks
from app.cli.doctor.machine import machine_checks
from app.cli.options import Server, Token, connect
from app.cli.output import Exit, Format, Output, listed, show
from app.logs import scrub
from app.settings import Settings, load_settings

COLUMNS = {"check": "check", "state": "state", "found": "found", "what to do": "todo"}


def doctor(
    context: typer.Context,
    *,
    node: Annotated[
        bool, typer.Option("--node", help="Look at a GPU host; the agent's own options follow after `--`.")
    ] = False,
    limit_s: Annotated[float, typer.Option("--limit-s", help="For each look.", min=1, max=600)] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Look at this machine and its control plane, and say what is wrong and what to do. Exit status 1: something is.

    Changes nothing. With --node: headroom doctor --node -- --server URL --devices nvml:all …
    """
    settings = load_settings(os.environ)
    # What a look meets is in its line.
    logging.getLogger("headroom").addHandler(logging.NullHandler())
    if node:
        found = [*_looked(machine_checks(settings, serves=False), limit_s), *_node(context.args, limit_s)]
    else:
        found = list(_control_plane(settings, server, token, limit_s))
    shown = [{name: scrub(text).replace(token or "\0", "***") for name, text in line.items()} for line in found]
    show(shown, Format.JSON if as_json else output, listed(COLUMNS, shown, empty=""))
    if any(line["state"] == Grade.WRONG for line in shown):
        raise typer.Exit(Exit.FAILED)


def _control_plane(
    settings: Settings, server: str | None, token: str | None, limit_s: float
) -> Iterator[dict[str, str]]:
    """What depends on something that is not well is left out, for it would only say so again."""
    yield from _looked(machine_checks(settings, serves=True), limit_s)
    opened: list[Any] = []
    yield from _looked([reaching(settings, opened)], limit_s)
    for database in opened:
        lines = _looked(database_checks(settings, database), limit_s)
        yield from lines
        if lines[0]["state"] != Grade.WRONG:
            yield from _looked(content_checks(settings, database), limit_s)
        database.dispose()
    first, *others = deployment_checks(settings, lambda: connect(server, token))
    (api,) = _looked([first], limit_s)
    yield api
    if api["state"] == Grade.WELL:
        yield from _looked(others, limit_s)


def _looked(checks: Sequence[Check], limit_s: float) -> list[dict[str, str]]:
    return [_line(check.name, check.symptom(limit_s)) for check in checks]


def _line(name: str, symptom: Symptom) -> dict[str, str]:
    return {"check": name, "state": symptom.state.value, "found": symptom.found, "todo": symptom.todo}


def _node(arguments: Sequence[str], limit_s: float) -> list[dict[str, str]]:
    """The agent's own looks, in a process of their own: a driver that hangs is told, and lost."""
    given = subprocess.Popen(
        [sys.executable, "-P", "-m", "agents.doctor", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        said, _ = given.communicate(timeout=3 * limit_s)
        late = []
    except subprocess.TimeoutExpired:
        given.kill()
        said, _ = given.communicate()
        late = [_line("gpu side", wrong(f"no answer within {3 * limit_s:g} s", "see dmesg: the driver may hang"))]
    lines = [json.loads(line) for line in said.splitlines()]
    if not lines and not late:
        return [_line("gpu side", unseen("the agent's options cannot be read", "see headroom agent --help"))]
    return [*lines, *late]
