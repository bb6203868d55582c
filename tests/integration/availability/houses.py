"""Houses on a server that other tests use, too: each with a database of its own, cloned from the migrated one."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from tests.integration.faults.house import Postgres
from tests.integration.postgres import TEMPLATE, Server

_NUMBERS = count(1)


class Cloned(Postgres):
    """A server that is not ours to crash."""

    def __init__(self, server: Server) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headroom-availability-"))
        self._server = server

    def fresh(self) -> str:
        return self._server.create(f"house_{next(_NUMBERS)}", TEMPLATE)

    def drop(self, url: str) -> None:
        self._server.drop(urlsplit(url).path.lstrip("/"))

    def end(self) -> None:
        """The server stays."""
        shutil.rmtree(self.home, ignore_errors=True)
