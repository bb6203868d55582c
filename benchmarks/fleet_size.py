"""What a fleet of many nodes costs one API, one planner and one PostgreSQL: nodes of 8 GPUs and 24 replicas report
and are accounted; processor time of each process, memory, bytes on disk and answer times.

    python -m benchmarks.fleet_size [--nodes 200,1000] [--minutes 3] [--interval-s 5] [--slower 1.5] [--without-planner]

With `--slower` the nodes' clocks go slower than ours: each minute of theirs, by which reports are due, takes so many of
ours. So a fleet whose reports are more than a process can take in their own time is seen through all the same.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import psycopg

from app.store.engine import libpq_url
from benchmarks.nodes import GPU_TYPE, INTERVAL_S
from benchmarks.overload import make_nodes, offered
from benchmarks.stack import Stack, processor_s, resident_mib, running_stack
from headroom_client import Client

RAW = ("node_samples", "device_samples", "replica_samples", "report_log", "report_heads", "sample_shapes")


def sizes(stack: Stack) -> tuple[int, int]:
    """Bytes of raw telemetry and of the whole database."""
    with psycopg.connect(libpq_url(stack.url)) as connection:
        raw = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c WHERE c.relkind = 'r'"
            " AND c.relname ~ %s",
            (f"^({'|'.join(RAW)})(_|$)",),
        ).fetchone()
        whole = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert raw is not None
    assert whole is not None
    return int(raw[0]), int(whole[0])


def quantile(seen: Counter[str], fraction: float) -> int:
    """Of the answer times that were counted by the millisecond."""
    times = sorted((int(name[3:]), count) for name, count in seen.items() if name.startswith("ms"))
    rank = fraction * sum(count for _, count in times)
    for time_ms, count in times:
        rank -= count
        if rank <= 0:
            return time_ms
    return 0


def measure(nodes: int, minutes: float, interval_s: float, slower: float, *, plans: bool) -> Iterator[str]:
    """Lines of what so many nodes cost."""
    with running_stack(plans=plans, rate_limit_per_s="100000", report_interval_s=f"{interval_s:g}") as stack:
        with Client(stack.server, stack.admin_token) as client:
            client.put("gpu-type", GPU_TYPE)
        make_nodes(stack, nodes)
        offered(stack, nodes, interval_s, interval_s, keeps=True)
        pids = {"API": stack.api_pid, "PostgreSQL": stack.postgres_pid, "planner": stack.planner_pid}
        before = {name: processor_s(pid) for name, pid in pids.items() if pid is not None}
        raw_before, whole_before = sizes(stack)
        seen = offered(stack, nodes, slower * interval_s, 60 * minutes * slower, keeps=True, slower=slower)
        spent = {name: processor_s(pid) - before[name] for name, pid in pids.items() if pid is not None}
        raw, whole = sizes(stack)
        stored = seen["early stored"] + seen["late stored"]
        due = nodes * 60 * minutes / interval_s
        took = f"{minutes:g} minutes in {minutes * slower:g}"
        yield f"{nodes} nodes, {took}, a report each {interval_s:g} s: {stored} stored of {due:.0f} due"
        failed = {name: seen[name] for name in sorted(seen) if name.endswith((" 429", " 0"))}
        yield f"  answers: p50 {quantile(seen, 0.5)} ms, p99 {quantile(seen, 0.99)} ms; others: {failed or 'none'}"
        for name, seconds in spent.items():
            pid = pids[name]
            memory = "" if pid is None or name == "PostgreSQL" else f", {resident_mib(pid):.0f} MiB resident"
            share = seconds / (60 * minutes * slower)
            yield f"  {name}: {1000 * seconds / max(1, stored):.2f} ms a report, {share:.2f} of a core{memory}"
        # Raw telemetry grows by the report, of which there are fewer where the interval is long; all else by the time.
        grown = (raw - raw_before) * 3600 / INTERVAL_S / max(1, stored)
        rest = (whole - whole_before - raw + raw_before) * 60 / minutes / slower / nodes
        yield f"  disk for each node and hour: {grown / 2**20:.2f} MiB raw telemetry, {rest / 2**20:.2f} MiB all else"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="200,1000")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--interval-s", type=float, default=INTERVAL_S)
    parser.add_argument("--slower", type=float, default=1.0)
    parser.add_argument("--without-planner", action="store_true")
    arguments = parser.parse_args()
    for nodes in map(int, arguments.nodes.split(",")):
        told = (arguments.minutes, arguments.interval_s, arguments.slower)
        for line in measure(nodes, *told, plans=not arguments.without_planner):
            print(line, flush=True)


if __name__ == "__main__":
    main()
