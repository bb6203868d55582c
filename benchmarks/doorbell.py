"""The doorbell: how long until the last of many idle agents knows of a new generation, and what an open connection
costs in memory.

python -m benchmarks.doorbell [--connections 2000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time

import psycopg

from app.store.engine import libpq_url
from app.store.tokens import Purpose, Role
from benchmarks.stack import Stack, resident_mib, running_stack


async def listen(port: int, token: str, heard: dict[int, int], first: asyncio.Event) -> None:
    """One agent: counts every generation it hears."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/doorbell HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n\r\n" % token.encode())
    try:
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1") and b" 200" not in line:
                raise RuntimeError(line.decode())
            if line.startswith(b'{"generation"'):
                generation = int(line.split(b":")[1].strip(b" }\r\n"))
                heard[generation] = heard.get(generation, 0) + 1
                first.set()
    finally:
        writer.close()


def announce(url: str, generation: int) -> None:
    """What a promotion says in its transaction, without the plan."""
    with psycopg.connect(libpq_url(url)) as connection:
        connection.execute(
            "INSERT INTO cluster_state (cluster, generation, fencing_token) VALUES ('default', %(n)s, 0) "
            "ON CONFLICT (cluster) DO UPDATE SET generation = %(n)s",
            {"n": generation},
        )
        connection.execute("SELECT pg_notify('headroom_generation', %(n)s)", {"n": str(generation)})


async def run(stack: Stack, connections: int, rounds: int) -> None:
    """Open all, ring a few times, print."""
    token = stack.token(Role.AGENT, Purpose.NODE, "bench-0")
    before_mib = resident_mib(stack.api_pid)
    heard: dict[int, int] = {}
    tasks = []
    began = time.perf_counter()
    for start in range(0, connections, 100):
        events = [asyncio.Event() for _ in range(min(100, connections - start))]
        tasks += [asyncio.create_task(listen(stack.port, token, heard, event)) for event in events]
        await asyncio.gather(*(event.wait() for event in events))
    print(f"{connections} connections opened in {time.perf_counter() - began:.1f} s")
    after_mib = resident_mib(stack.api_pid)
    per_connection = 1024 * (after_mib - before_mib) / connections
    print(f"API memory {before_mib:.0f} -> {after_mib:.0f} MiB: {per_connection:.1f} KiB per connection")
    times_ms = []
    for generation in range(1, rounds + 1):
        began = time.perf_counter()
        await asyncio.to_thread(announce, stack.url, generation)
        while heard.get(generation, 0) < connections:
            if time.perf_counter() - began > 30:
                raise TimeoutError(f"{heard.get(generation, 0)} of {connections} heard generation {generation}")
            await asyncio.sleep(0.002)
        times_ms.append(1000 * (time.perf_counter() - began))
    print(
        f"until the last of {connections} knew: median {statistics.median(times_ms):.0f} ms, "
        f"worst {max(times_ms):.0f} ms (goal below 1000 ms)"
    )
    for task in tasks:
        task.cancel()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    wanted = arguments.connections + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
    with running_stack(rate_limit_per_s="100000") as stack:
        asyncio.run(run(stack, arguments.connections, arguments.rounds))


if __name__ == "__main__":
    main()
