"""Control planes that a user signed in to, by name: `headroom/config.json` in the user's configuration folder, readable
by nobody else. One of them is the current one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.client.connection import Connection, write_private
from solvers.errors import InputError, NotFoundError, did_you_mean

CONTEXT_VARIABLE = "HEADROOM_CONTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownServers:
    """What the file holds."""

    current: str = ""
    known: dict[str, Connection] = field(default_factory=dict)

    def chosen(self) -> Connection | None:
        """The one that the environment names, else the current one. Raises NotFoundError."""
        name = os.environ.get(CONTEXT_VARIABLE) or self.current
        return self.named(name) if name else None

    def named(self, name: str) -> Connection:
        """Raises NotFoundError."""
        if name not in self.known:
            near = did_you_mean(name, self.known, all_known=True)
            raise NotFoundError(f"there is no context {name}{near}")
        return self.known[name]

    def token_of(self, server: str) -> str:
        """The token that was given for a server; of several the current context's."""
        held = [self.known[name] for name in sorted(self.known, key=lambda name: name != self.current)]
        return next((item.token for item in held if item.server == server.rstrip("/")), "")

    def used(self, name: str) -> KnownServers:
        """With another current one. Raises NotFoundError."""
        self.named(name)
        return replace(self, current=name)

    def added(self, name: str, connection: Connection) -> KnownServers:
        return KnownServers(current=name, known={**self.known, name: connection})

    def removed(self, name: str) -> KnownServers:
        """Without one of them. Raises NotFoundError."""
        self.named(name)
        left = {other: item for other, item in self.known.items() if other != name}
        return KnownServers(current="" if self.current == name else self.current, known=left)


def contexts_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "headroom" / "config.json"


def read_contexts() -> KnownServers:
    """What is stored; nothing where there is no file. Raises InputError where it cannot be understood."""
    file = contexts_file()
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        known = {
            str(name): Connection(server=str(item["server"]), token=str(item["token"]))
            for name, item in stored["contexts"].items()
        }
        return KnownServers(current=str(stored.get("current") or ""), known=known)
    except (FileNotFoundError, NotADirectoryError):
        return KnownServers()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{file} is not readable as contexts; without it `headroom login` writes a new one") from None


def write_contexts(contexts: KnownServers) -> None:
    file = contexts_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = {name: {"server": item.server, "token": item.token} for name, item in contexts.known.items()}
    write_private(file, json.dumps({"current": contexts.current, "contexts": known}, indent=2) + "\n")
