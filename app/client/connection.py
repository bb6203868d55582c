"""What `headroom up` left behind for clients: `<home>/client.json`, its server's address and a token, mode 0600."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from solvers.errors import InputError

CLIENT_FILE = "client.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    server: str
    token: str


def home_path() -> Path:
    """The home folder commands look into: HEADROOM_HOME, else `.headroom` here."""
    return Path(os.environ.get("HEADROOM_HOME") or ".headroom")


def read_connection(home: Path) -> Connection | None:
    """What `headroom up` wrote, or None. Raises InputError when the file cannot be understood."""
    file = home / CLIENT_FILE
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Connection(server=str(stored["server"]), token=str(stored["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file} is not readable as a connection; `headroom up` writes a new one") from None


def write_connection(home: Path, connection: Connection) -> None:
    """Store server and token so that only this user can read them."""
    write_private(home / CLIENT_FILE, json.dumps({"server": connection.server, "token": connection.token}) + "\n")


def write_private(file: Path, text: str) -> None:
    """Replace a file in one step, readable by its user only."""
    scratch = file.with_name(file.name + ".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, 0o600)
        stream.write(text)
    scratch.replace(file)
