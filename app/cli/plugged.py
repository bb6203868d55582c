"""Commands that other distributions add to the program: the laboratory's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from app.cli.failures import CommandError, Exit
from solvers.extensions import COMMANDS, found


def plugged(name: str) -> Any:
    """What an installed distribution offers under a name. Raises CommandError where none does."""
    entry = found(COMMANDS).get(name)
    if entry is None:
        raise CommandError(
            f"{name} needs the laboratory: install headroom-lab (in a checkout: make venv)", Exit.NEEDS_EXTRA
        )
    return entry.load()


def plug(app: typer.Typer, name: str, panel: str) -> None:
    """Add a group of commands, or a command of that name that says what is missing."""
    if name in found(COMMANDS):
        app.add_typer(plugged(name), name=name, rich_help_panel=panel)
    else:
        settings = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command(name=name, rich_help_panel=panel, context_settings=settings)(_absent(name))


def _absent(name: str) -> Callable[[], None]:
    def absent() -> None:
        plugged(name)

    absent.__doc__ = "Needs the laboratory (headroom-lab)."
    return absent
