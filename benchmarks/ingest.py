"""Telemetry ingest: reports and rows per second through the API, beside a bare COPY loop of the same rows, and the
answer times of 1,000 nodes that report every five seconds. API, PostgreSQL and the load itself share the machine.

    python -m benchmarks.ingest [--seconds 10] [--connections 32] [--nodes 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import psycopg

from agents.wire import Join, encode
from app.store.engine import libpq_url
from app.store.ingest import LOG_TYPES, SAMPLE_TYPES, sample_rows
from app.store.tokens import Purpose, Role
from benchmarks.nodes import BOOT, GPU_TYPE, INTERVAL_S, ROWS, Body, Connection, join_of, report_of
from benchmarks.stack import Stack, running_stack
from headroom_client import Client

PATH = "/v1/agent/reports"


def bare_copy(url: str, seconds: float, reports_per_commit: int) -> float:
    """Samples per second of a loop that only copies the same rows into the same tables and commits; no HTTP, no
    checks.
    """
    _, sample = sample_rows(report_of("bare", 1, time.time()))
    log = ("bare", BOOT, 1, sample[1], INTERVAL_S, ROWS)
    tables = (("node_samples", SAMPLE_TYPES, sample), ("report_log", LOG_TYPES, log))
    copied = 0
    with psycopg.connect(libpq_url(url)) as connection:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for table, types, row in tables:
                statement = f"COPY {table} ({', '.join(types)}) FROM STDIN (FORMAT binary)"
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    copy.set_types(list(types.values()))
                    for _ in range(reports_per_commit):
                        copy.write_row(row)
            connection.commit()
            copied += ROWS * reports_per_commit
        elapsed_s = time.perf_counter() - began
    return copied / elapsed_s


async def join_all(stack: Stack, nodes: list[str]) -> dict[str, str]:
    """Join nodes over HTTP; their tokens."""
    join_token = stack.token(Role.AGENT, Purpose.JOIN)
    found: dict[str, str] = {}
    waiting = list(nodes)

    async def worker() -> None:
        connection = Connection(stack.port, join_token)
        while waiting:
            node = waiting.pop()
            message: Join = join_of(node)
            status, answer = await connection.post("/v1/agent/join", json.dumps(encode(message)).encode())
            if status not in (200, 201):
                raise RuntimeError(f"join of {node} answered {status}: {answer[:300]!r}")
            found[node] = json.loads(answer)["token"]
        connection.close()

    await asyncio.gather(*(worker() for _ in range(8)))
    return found


async def flood(stack: Stack, tokens: dict[str, str], seconds: float, first_sequence: int) -> tuple[float, list[float]]:
    """Closed loop: every connection is one node that reports as fast as it is answered. Reports per second and
    answer times in ms.
    """
    latencies_ms: list[float] = []
    ends = time.perf_counter() + seconds

    async def node_loop(node: str, token: str) -> None:
        connection, body, sequence = Connection(stack.port, token), Body(node), first_sequence
        while (began := time.perf_counter()) < ends:
            sequence += 1
            status, answer = await connection.post(PATH, body.at(sequence, time.time()))
            if status >= 300:
                raise RuntimeError(f"report answered {status}: {answer[:300]!r}")
            latencies_ms.append(1000 * (time.perf_counter() - began))
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(node_loop(node, token) for node, token in tokens.items()))
    return len(latencies_ms) / (time.perf_counter() - began), latencies_ms


async def steady(stack: Stack, tokens: dict[str, str], seconds: float) -> list[float]:
    """Open loop: every node reports each five seconds, spread evenly. Answer times in ms, counted from when the
    report was due.
    """
    latencies_ms: list[float] = []
    origin = time.perf_counter() + 1.0

    async def node_loop(index: int, node: str, token: str) -> None:
        connection, body, sequence = Connection(stack.port, token), Body(node), 1_000_000
        due = origin + INTERVAL_S * index / len(tokens)
        while due < origin + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sequence += 1
            status, answer = await connection.post(PATH, body.at(sequence, time.time()))
            if status >= 300:
                raise RuntimeError(f"report answered {status}: {answer[:300]!r}")
            latencies_ms.append(1000 * (time.perf_counter() - due))
            due += INTERVAL_S
        connection.close()

    await asyncio.gather(*(node_loop(index, *item) for index, item in enumerate(tokens.items())))
    return latencies_ms


def stored_reports(url: str) -> int:
    """How many reports the log holds."""
    with psycopg.connect(libpq_url(url)) as connection:
        row = connection.execute("SELECT count(*) FROM report_log WHERE source LIKE '%bench-%'").fetchone()
    return 0 if row is None else int(row[0])


def quantile(values: list[float], fraction: float) -> float:
    """Quantile by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=1000)
    arguments = parser.parse_args()
    with running_stack(rate_limit_per_s="100000") as stack:
        with Client(stack.server, stack.admin_token) as client:
            client.put("gpu-type", GPU_TYPE)
        print(f"{ROWS} rows a report, {arguments.connections} connections, load generator on the same machine")
        rates = []
        names = [f"bench-{index}" for index in range(arguments.nodes)]
        tokens = asyncio.run(join_all(stack, names))
        busy = dict(list(tokens.items())[: arguments.connections])
        for round_number in range(3):
            bare = bare_copy(stack.url, arguments.seconds / 3, 1)
            before = stored_reports(stack.url)
            reports, latencies = asyncio.run(flood(stack, busy, arguments.seconds / 3, 100_000 * round_number))
            stored = stored_reports(stack.url) - before
            assert stored == len(latencies), f"{len(latencies)} acknowledged, {stored} stored"
            rates.append((bare, reports * ROWS))
            print(
                f"round {round_number + 1}: bare COPY {bare:9.0f} rows/s (commit per report) | "
                f"API {reports:7.0f} reports/s {reports * ROWS:9.0f} rows/s | "
                f"ratio {100 * reports * ROWS / bare:5.1f} % | p99 {quantile(latencies, 0.99):.0f} ms"
            )
        bulk = bare_copy(stack.url, arguments.seconds / 3, 32)
        ratio = statistics.median(api / bare for bare, api in rates)
        print(f"median ratio to bare COPY, commit per report: {100 * ratio:.1f} % (goal at least 40 %)")
        print(f"for comparison, bare COPY of 32 reports a commit: {bulk:.0f} rows/s")
        answers = asyncio.run(steady(stack, tokens, 3 * INTERVAL_S))
        print(
            f"{arguments.nodes} nodes every {INTERVAL_S:.0f} s: {len(answers)} reports, "
            f"p50 {quantile(answers, 0.5):.1f} ms, p99 {quantile(answers, 0.99):.1f} ms, max {max(answers):.1f} ms"
        )


if __name__ == "__main__":
    main()
