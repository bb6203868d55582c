"""Which control plane a command talks to: options first, then the environment, then what `headroom up` left behind.

Owns `<home>/client.json` (server address and token, mode 0600) and the two connection options. It refuses to guess:
without a server it says how to name one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from app.cli.failures import CommandError, Exit
from app.client import Client

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

CLIENT_FILE = "client.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where to and as whom."""

    server: str
    token: str


def home_path() -> Path:
    """The home folder commands look into: HEADROOM_HOME, else `.headroom` here."""
    return Path(os.environ.get("HEADROOM_HOME") or ".headroom")


def read_connection(home: Path) -> Connection | None:
    """What `headroom up` wrote, or None. Raises CommandError when the file cannot be understood."""
    file = home / CLIENT_FILE
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Connection(server=str(stored["server"]), token=str(stored["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CommandError(
            f"{file} is not readable as a connection; `headroom up` writes a new one", Exit.USAGE
        ) from None


def write_connection(home: Path, connection: Connection) -> None:
    """Store server and token so that only this user can read them."""
    file = home / CLIENT_FILE
    text = json.dumps({"server": connection.server, "token": connection.token}) + "\n"
    scratch = file.with_suffix(".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(text)
    scratch.replace(file)


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
