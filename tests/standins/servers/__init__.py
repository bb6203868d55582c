"""Stand-in model servers: real child processes that speak what the adapters speak.

Owns the command line of `server.py`, which imports nothing but the standard library so that it starts within a tenth of
a second. `command` gives the parts as a workload would write them, with the placeholders that the agent fills.
"""

from __future__ import annotations

import sys
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
PLACED = {"host": "{host}", "port": "{port}", "batch": "{batch}", "model": "{model}", "replica": "{replica}"}


def command(adapter: str = "http", **options: object) -> tuple[str, ...]:
    """The command of a stand-in server, as templates. Options are those of `server.Options`; what the agent fills may
    be given too, to run the server by hand.
    """
    given = {**PLACED, "adapter": adapter, **{name: str(found) for name, found in options.items()}}
    parts = tuple(f"{name}={found}" for name, found in sorted(given.items()))
    return (sys.executable, "-I", "-S", str(SERVER), *parts)


def metrics_port_offset(adapter: str) -> int:
    """How far above its port a stand-in with default options serves its metrics."""
    return {"triton": 2, "torchserve": 2}.get(adapter, 0)
