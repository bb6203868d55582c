"""A real pgbouncer that lends sessions of a server for one transaction each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.gateway.processes import end
from tests.integration.postgres import Server, owner
from tests.ports import free_port
from tests.waiting import wait_until

SESSIONS_MAX = 6
"""Fewer than there are clients, so that sessions change hands."""
CONFIGURATION = """
[databases]
* = host={sockets} port=5432 user=headroom
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
{more}
"""


def program() -> str:
    """Debian's pgbouncer. Missing, it is a failure and never a skip."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    assert found is not None, "pgbouncer is not installed; on Debian: apt-get install pgbouncer"
    return found


@contextmanager
def pooling(server: Server, more: str = "", configuration: str = CONFIGURATION) -> Iterator[int]:
    """Its port, while it runs before a server."""
    port, user = free_port(), owner()
    with tempfile.TemporaryDirectory(prefix="headroom-pgbouncer-") as folder:
        file, log = Path(folder) / "pgbouncer.ini", Path(folder) / "log"
        file.write_text(configuration.format(sockets=server.sockets, port=port, sessions=SESSIONS_MAX, more=more))
        if user is not None:
            # It does not run as root, either.
            os.chown(folder, user, -1)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [program(), str(file)], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, user=user, cwd="/"
            )
        try:
            wait_until(lambda: "process up" in log.read_text() or process.poll() is not None, "the start of pgbouncer")
            assert process.poll() is None, log.read_text()
            yield port
        finally:
            end(process)


def through(port: int, url: str) -> str:
    """The URL of a database by way of the pooler."""
    parts = urlsplit(url)
    assert parse_qs(parts.query)["host"], url
    return f"postgresql://headroom@127.0.0.1:{port}{parts.path}"
