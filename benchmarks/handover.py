"""Share changes behind a real HAProxy: how many requests are lost, and what the others feel of it.

python -m benchmarks.handover [--changes 50] [--requests 100000] [--replicas 2] [--connections 16] [--grace-s 1.0]

Real are PostgreSQL, the API, its stream of routes, `headroom routes follow haproxy`, HAProxy, the agent and all it does
in a hand-over, and that workers are processes. Not there are GPUs: NVML, MPS and CUDA are stand-ins, and so are the
model servers. Plans are promoted as the planner promotes them; every one changes the share of every replica.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from app.routing.haproxy import HaproxyStyle, backends
from app.routing.routes import read_services
from app.store.engine import Database
from benchmarks.gateway.node import GRACE_S, SERVICE, SHARES, ControlPlane, Node
from benchmarks.gateway.processes import Load, following, log_lines, running_haproxy
from benchmarks.stack import Stack, running_stack
from headroom_client import Client

CLUSTER = "default"


def run(stack: Stack, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Change shares under load; what the load saw, with what the follower, the agent and the control plane said."""
    database = Database(stack.url)
    plane = ControlPlane(database=database, cluster=CLUSTER, server=stack.server, admin_token=stack.admin_token)
    node = Node(plane, arguments.replicas, folder / "host", arguments.grace_s)
    environment = {"HEADROOM_SERVER": stack.server, "HEADROOM_TOKEN": stack.admin_token}
    try:
        node.prepare()
        with Client(stack.server, stack.admin_token) as client:
            rendered = backends(read_services(client.routes().body), HaproxyStyle(slots=3 * arguments.replicas))
        with (
            running_haproxy(folder, rendered, "demo:vision") as gateway,
            following(gateway, SERVICE, environment) as log,
        ):
            load = Load(gateway.port, arguments.connections, arguments.requests)
            try:
                for turn in range(-(-arguments.changes // arguments.replicas)):
                    node.change([SHARES[(turn + replica) % len(SHARES)] for replica in range(arguments.replicas)])
                found = load.finish(600.0)
            finally:
                load.close()
            return {**found, "lines": log_lines(log), "told_s": node.told_ready_s(), "agent_mib": node.resident_mib()}
    finally:
        node.close()
        database.dispose()


def main() -> int:
    """Print what was seen; 1 when a request was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handover")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--requests", type=int, default=100_000, help="at least so many")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--grace-s", type=float, default=GRACE_S)
    arguments = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headroom-handover-") as folder, running_stack() as stack:
        found = run(stack, Path(folder), arguments)
    # The first process of every replica was ready before there was any load.
    firsts = sorted(found["first_by_process"].values())[arguments.replicas :]
    told_s = found["told_s"][arguments.replicas :]
    delays_ms = [1000.0 * (first_s - at_s) for first_s, at_s in zip(firsts, told_s, strict=False)] or [0.0]
    events = [line["event"] for line in found["lines"]]
    told = (
        f"{found['requests']} requests over {len(told_s)} share changes of {arguments.replicas} replicas: "
        f"{found['failed']} failed {found['failures'] or ''}",
        f"{found['requests_per_s']:.0f} requests/s, latency p50 {found['latency_ms_p50']:.1f} ms, "
        f"p99 {found['latency_ms_p99']:.1f} ms, worst {found['latency_ms_max']:.0f} ms",
        f"longest time without an answer: {found['gap_ms_max']:.0f} ms",
        f"from the receipt that a shadow is ready to its first answer, {len(firsts)} times: "
        f"median {median(delays_ms):.0f} ms, worst {max(delays_ms):.0f} ms",
        f"HAProxy commands: {events.count('route.server_placed')} placed, "
        f"{events.count('route.server_drained')} drained, "
        f"{sum(line['level'] != 'info' for line in found['lines'])} warnings; no reload",
        f"agent: {found['agent_mib']:.0f} MiB; {time.monotonic() - began_s:.0f} s in all",
    )
    print("\n".join(told))
    return int(found["failed"] > 0 or len(firsts) < arguments.changes)


if __name__ == "__main__":
    sys.exit(main())
