"""Which control plane a command talks to: options first, then the environment, then what `headroom up` left behind.

Owns the two connection options. It refuses to guess:
without a server it says how to name one.
"""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.failures import CommandError, Exit
from app.client import Client
from app.client.connection import home_path, read_connection

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
    """A client for these options. Raises CommandError when no server is known."""
    stored = read_connection(home_path())
    address = server or (stored.server if stored else None)
    if address is None:
        raise CommandError(
            "no server: name one with --server or HEADROOM_SERVER, or start one here with `headroom up`", Exit.USAGE
        )
    # The stored token belongs to the stored server and is shown to no other.
    secret = token or (stored.token if stored and stored.server == address.rstrip("/") else "")
    if not secret:
        raise CommandError(f"no token for {address}: give one with --token or HEADROOM_TOKEN", Exit.REFUSED)
    return Client(address, secret)
