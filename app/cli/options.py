"""Options that several commands have (which control plane to talk to, how to plan outside a cycle, how far back), how
workloads are named, and commands that other distributions add: the laboratory's.

The server comes from options first, then from the environment, then from what `headroom up` left behind here, then from
the context that `headroom login` made current; without any it is said how to name one. What options on planning default
to is the snapshot's policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.output import CommandError, Exit
from app.client.connection import home_path, read_connection
from app.client.contexts import CONTEXT_VARIABLE, read_contexts
from headroom_client import ApiError, Client, Document, UnreachableError
from solvers.domain.value import NAME_PATTERN, NAME_WORDS
from solvers.errors import InputError
from solvers.extensions import COMMANDS, found
from solvers.version import VERSION

Server = Annotated[
    str | None,
    typer.Option(
        "--server", envvar="HEADROOM_SERVER", help="Address of the API, e.g. http://127.0.0.1:8080.", show_default=False
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="HEADROOM_TOKEN", help="Bearer token.", show_default=False, show_envvar=True, hide_input=True
    ),
]


def connect(server: str | None, token: str | None) -> Client:
    """A client for these options. Raises CommandError when no server is known, UnreachableError where there is no token
    for one that does not answer anyway.
    """
    contexts, local = read_contexts(), None
    if not os.environ.get(CONTEXT_VARIABLE):
        local = read_connection(home_path())
    stored = local or contexts.chosen()
    address = server or (stored.server if stored else None)
    if address is None:
        raise CommandError(
            "no server: sign in with `headroom login`, name one with --server or HEADROOM_SERVER,"
            " or start one here with `headroom up`",
            Exit.USAGE,
        )
    # A stored token belongs to its server and is shown to no other.
    own = stored.token if stored and stored.server == address.rstrip("/") else contexts.token_of(address)
    secret = token or own
    if not secret:
        with Client(address, "") as client:
            client.health()
        raise CommandError(
            f"no token for {address}: `headroom login {address}` keeps one, --token and HEADROOM_TOKEN give one",
            Exit.REFUSED,
        )
    return Client(address, secret, object_hook=partial(AnsweredObject, address))


class OlderServerError(CommandError):
    """The server does not tell what this command line asks its answer for."""

    def __init__(self, server: str, field: str) -> None:
        with Client(server, "", attempts_max=1) as client:
            try:
                its = client.call("GET", "/v1/version", timeout_s=5.0).body["version"]
            except (ApiError, UnreachableError, KeyError, TypeError):
                its = "of a version that it does not tell"
        super().__init__(
            f"{server} answers without {field!r}: headroom {its} there is older than headroom {VERSION} here;"
            " upgrade the server, or use a command line of its version"
        )


class AnsweredObject(Document):
    """An object of a server's answer, in which no field is missed without a word."""

    __slots__ = ("_server",)

    def __init__(self, server: str, content: Document) -> None:
        super().__init__(content)
        self._server = server

    def __missing__(self, field: str) -> Any:
        raise OlderServerError(self._server, field)


PlannerName = Annotated[
    str | None, typer.Option("--planner", help="The only planner to ask. Default: the policy's chain.")
]
DeadlineS = Annotated[
    float | None, typer.Option("--deadline-s", min=0.05, max=3600, help="For each plan. Default: the policy's.")
]
WorkUnits = Annotated[
    int | None, typer.Option("--work-units", min=1, help="Stop by this count, not by time: the same answer again.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Default: the policy's.")]
SnapshotFile = Annotated[
    str | None, typer.Option("--snapshot", help="Plan from this file, without a server (-: standard input).")
]
Data = Annotated[
    Path, typer.Option("--data", envvar="HEADROOM_DATA", help="Folder of public data that scenarios read traces from.")
]
DATA = Path("../shared/data")


def project_and_name(what: str, said: str, forms: str = "PROJECT/NAME") -> tuple[str, str]:
    """The project and the name that somebody wrote. Raises InputError where it is another shape, or no name."""
    parts = said.split("/")
    if len(parts) != 2 or not all(parts):
        raise InputError(f"a {what} is named {forms}, got {shortened(said)}")
    for part in parts:
        if not re.fullmatch(NAME_PATTERN, part):
            raise InputError(f"a {what} is named {forms}: {shortened(part)} {NAME_WORDS}")
    return parts[0], parts[1]


def shortened(said: str) -> str:
    """What somebody wrote, quoted, no longer than a line has room for."""
    return repr(said if len(said) <= _QUOTED_MAX else said[:_QUOTED_MAX] + "…")


_QUOTED_MAX = 80
COUNT_MAX = 10**9
"""More than any list holds; what Python counts ends somewhere, too."""
IntervalS = Annotated[float, typer.Option("--interval", help="Seconds between looks.", min=0.2, max=86_400)]


_DURATION = re.compile(r"^(\d+)([smhd])$")
_DIGITS_MAX = 9
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_s(text: str) -> int:
    """Seconds of a duration. Raises InputError."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a duration; write a whole number and s, m, h or d, such as 24h")
    if len(match[1]) > _DIGITS_MAX:
        raise InputError(f"a duration has {_DIGITS_MAX} digits at most, got {len(match[1])}")
    return int(match[1]) * _SECONDS[match[2]]


ANY_WORDS: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


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
        app.command(name=name, rich_help_panel=panel, context_settings=ANY_WORDS)(_absent(name))


def _absent(name: str) -> Callable[[], None]:
    def absent() -> None:
        plugged(name)

    absent.__doc__ = "Needs the laboratory (headroom-lab)."
    return absent
