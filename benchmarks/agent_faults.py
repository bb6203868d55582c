"""Random lives of a GPU host on the stand-ins: what of them broke a promise.

Owns the conditions: two GPUs, the agent's real parts, real MPS daemons' and workers' stand-ins as processes, desired
states drawn at random, and in each life up to four of: another desired state, the agent killed, a worker killed, daemon
or server crashed or in fault, a GPU lost, an XID, throttling, writes refused, a hanging driver, workers that bypass
MPS, die, never get ready or ignore SIGTERM. A watch looks at every device a hundred times a second. Run as
`python -m benchmarks.agent_faults [LIVES] [FIRST_SEED] [FIRST_PORT]`; prints every violation and a line of sums.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from agents.errors import AgentError
from tests.standins.hosts.lives import live

PORTS = 200
EVERY = 100


def main() -> int:
    """Live, count, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_faults", description=__doc__)
    for name, default in (("lives", 1000), ("first", 0), ("port", 30_000)):
        parser.add_argument(name, nargs="?", type=int, default=default, help=f"{default}")
    asked = parser.parse_args()
    lives, first, port = asked.lives, asked.first, asked.port
    began_s, broken = time.monotonic(), 0
    for count, seed in enumerate(range(first, first + lives), 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                live(Path(folder) / "host", seed, range(port, port + PORTS))
            except (AssertionError, AgentError) as error:
                broken += 1
                print(f"life {seed}: {error!r}", flush=True)
        if count % EVERY == 0:
            print(f"{count} lives, {broken} broken, {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{lives} lives from seed {first}: {broken} broke a promise; {time.monotonic() - began_s:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
