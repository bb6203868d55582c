"""The frozen doors of the program: what the API publishes, every command's help, and planners with their parameters.

Owns how help is rendered: a hundred columns, no colour, in a home that is nobody's.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from benchmarks.same.frozen import Case, Taken

METHODS = ("get", "put", "post", "delete", "patch")
PLAIN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb", "HOME": "/home/nobody"}
UNSET = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")


def cases() -> Iterator[Case]:
    """Published files, operations, help and planners."""
    from benchmarks.same.described import files
    from solvers.planners import registry

    published = files()
    for name, text in sorted(published.items()):
        yield Case(key=f"published {name}", take=partial(_text, text))
    yield Case(key="operations of the API", take=partial(_operations, published["openapi.json"]))
    for listing in registry.table():
        yield Case(key=f"planner {listing.name}", take=partial(_planner, listing))
    _set_plain_environment()
    for path, command in _commands().items():
        take = _help if getattr(command, "add_help_option", True) else _help_of_process
        yield Case(key=" ".join(("help of headroom", *path)), take=partial(take, path))


def _text(text: str) -> Taken:
    return Taken(text=text, numbers={"lines": text.count("\n")})


def _operations(text: str) -> Taken:
    described: dict[str, Any] = json.loads(text)
    found = [
        f"{method.upper()} {path}"
        for path, operations in sorted(described["paths"].items())
        for method in METHODS
        if method in operations
    ]
    return Taken(text="\n".join(found), numbers={"operations": len(found)})


def _planner(listing: Any) -> Taken:
    from solvers.domain.codec import canonical_json

    return Taken(text=canonical_json(listing), numbers={"parameters": len(listing.parameters)})


def _set_plain_environment() -> None:
    """Before the program is imported, for some of it looks only then."""
    os.environ |= PLAIN
    for name in [*UNSET, *(name for name in os.environ if name.startswith("HEADROOM_"))]:
        os.environ.pop(name, None)


def _commands() -> dict[tuple[str, ...], Any]:
    """Every command and group by its path, the program itself first."""
    import typer

    from app.cli import program

    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(program.program()))]
    found = {}
    while waiting:
        path, command = waiting.pop()
        found[path] = command
        waiting += [((*path, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return dict(sorted(found.items()))


def _help(path: Sequence[str]) -> Taken:
    from app.cli import program

    said = io.StringIO()
    with redirect_stdout(said):
        program.run([*path, "--help"])
    return _text(said.getvalue())


def _help_of_process(path: Sequence[str]) -> Taken:
    """Of a command that becomes another program, whose help it gives."""
    command = [sys.executable, "-m", "app", *path, "--help"]
    return _text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
