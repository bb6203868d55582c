"""What the API stores of a fleet's reports at once and five times its capacity, with admission and without.

    python -m benchmarks.overload [--seconds 60] [--only with]

Every node is as an agent: one report each interval, one request at a time, given up after ten seconds, and a pause
after that or after a 429 for as long as it says. Five times the capacity is offered twice: as agents do, who send what
waits in one request, and dropping what could not be sent for the newest, so that each report costs the server a
request. API and PostgreSQL have one core, the load has the others and says how much of one it took: where that is
near 100 %, it is the load that was measured. Goodput counts the reports that were acknowledged to who still waited, in
the second half of a load that begins when all who send are there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from threading import Barrier

import psycopg

from agents.loop.uplink import REPORTS_PER_SEND
from app.store.engine import Database, libpq_url
from benchmarks.ingest import PATH, join_all
from benchmarks.nodes import GPU_TYPE, INTERVAL_S, Body, Connection, report_of
from benchmarks.stack import Stack, processor_s, running_stack
from headroom_client import Client
from tests.integration.store.samples import tell

GIVE_UP_S = 10.0
BACKOFF_S = 5.0
NODES_MAX = 4000
CLIENTS = 2
CORES = sorted(os.sched_getaffinity(0))
"""The first is the control plane's, the others are the load's."""
CAPACITY_CONNECTIONS = 256
"""As many as are worked on at once: who stores lingers for others."""
CAPACITY_S = 15.0
"""Nobody is told to wait then; beyond it, up to half a minute, so what is offered must last for longer than that."""
CLONED = ("nodes", "devices", "node_states", "told_replicas")


def make_nodes(stack: Stack, count: int) -> None:
    """One node joins; the others are its copies in the database, with tokens that follow from their numbers."""
    asyncio.run(join_all(stack, ["bench-0"]))
    database = Database(stack.url)
    with database.transaction() as session:
        tell(session, "bench-0", *report_of("bench-0", 1, time.time()).replicas)
    database.dispose()
    with psycopg.connect(libpq_url(stack.url)) as connection:
        for table in CLONED:
            connection.execute(
                f"INSERT INTO {table} SELECT (jsonb_populate_record(NULL::{table}, replace(to_jsonb(old)::text,"
                f" 'bench-0', 'bench-' || n)::jsonb)).* FROM {table} old, generate_series(1, {count}) n".encode()
            )
        connection.execute(
            "INSERT INTO tokens (id, name, role, purpose, subject, created_by, secret_hash)"
            " SELECT 'bench-' || number, 'bench', 'agent', 'node', 'bench-' || number, 'bench',"
            " sha256(('hr_bench_' || number)::bytea) FROM generate_series(1, %s) number",
            (count,),
        )
        connection.commit()
        connection.autocommit = True
        connection.execute("ANALYZE")


@dataclass(frozen=True, slots=True)
class Load:
    """What one client process sends once all are at the `gate`: nodes from `first`, each a report every `interval_s`;
    0: as fast as answered, each in the name of another node.
    """

    port: int
    first: int
    nodes: int
    interval_s: float
    seconds: float
    gate: Barrier
    keeps: bool
    """Whether what could not be sent goes with the next ones."""
    slower: float = 1.0
    """How much of our time passes in one second of the nodes' clocks."""
    cores: tuple[int, ...] = tuple(CORES[1:] or CORES)
    """Told by who knows them all: a process that starts on the control plane's core sees that one alone."""


async def _life(load: Load, number: int, body: Body, seen: Counter[str]) -> None:
    connection, name = Connection(load.port, f"hr_bench_{number}"), f"bench-{number}".encode()
    begin_s, began_at_s = time.monotonic(), time.time()
    made_s, pause_until_s = begin_s + random.random() * load.interval_s, 0.0
    end_s, asked, kept, sequence = begin_s + load.seconds, 0, 0, int(time.time() * 1000)
    while (now_s := max(time.monotonic(), pause_until_s, 0.0 if kept else made_s)) < end_s:
        await asyncio.sleep(now_s - time.monotonic())
        if load.interval_s:
            made = max(0, 1 + int((now_s - made_s) / load.interval_s))
            made_s, kept = made_s + made * load.interval_s, kept + made if load.keeps else 1
        else:
            node = 1 + (number - 1 + asked * CAPACITY_CONNECTIONS) % NODES_MAX
            asked, kept = asked + 1, 1
            connection.token, name = f"hr_bench_{node}", f"bench-{node}".encode()
        # The oldest that are kept, as of when each was made, however often it is sent.
        oldest_s = made_s - load.interval_s * kept if load.interval_s else now_s
        sent = min(kept, REPORTS_PER_SEND)
        kept -= sent
        reports = b",".join(
            body.at(sequence + place, began_at_s + (oldest_s + load.interval_s * place - begin_s) / load.slower)
            for place in range(sent)
        )
        sent_s = time.monotonic()
        try:
            told = connection.post(PATH, b"[%b]" % reports.replace(b"bench-0", name))
            status, _ = await asyncio.wait_for(told, GIVE_UP_S)
            pause_s = (connection.retry_after_s or INTERVAL_S) * random.uniform(0.5, 1.5)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            connection.close()
            connection, status = Connection(load.port, f"hr_bench_{number}"), 0
            pause_s = BACKOFF_S * random.uniform(0.5, 1.0)
        if time.monotonic() < end_s:
            half = "late" if time.monotonic() > begin_s + load.seconds / 2 else "early"
            seen[f"{half} {status}"] += 1
            seen[f"{half} stored"] += sent * (status == 200)
            seen[f"ms {1000 * (time.monotonic() - sent_s):.0f}"] += status == 200
        if status != 200:
            pause_until_s = time.monotonic() + pause_s
        if status == 200 or not load.keeps:
            sequence += sent
        else:
            kept += sent
    connection.close()


def live(load: Load) -> Counter[str]:
    """Run the nodes of one process; answers by half of the time and status, 0 where they were given up, stored ones by
    their milliseconds, and those of the processor that it took.
    """
    os.sched_setaffinity(0, load.cores)
    load.gate.wait()

    async def run() -> Counter[str]:
        seen: Counter[str] = Counter()
        body = Body("bench-0")
        took_s = time.process_time()
        await asyncio.gather(*(_life(load, load.first + place, body, seen) for place in range(load.nodes)))
        seen["load"] += int(1000 * (time.process_time() - took_s))
        return seen

    return asyncio.run(run())


def offered(
    stack: Stack,
    nodes: int,
    interval_s: float,
    seconds: float,
    looks: Callable[[], None] = lambda: None,
    *,
    keeps: bool = False,
    slower: float = 1.0,
) -> Counter[str]:
    """What became of the load of so many nodes; `looks` is called in the middle and at the end."""
    each, spawned = max(1, nodes // CLIENTS), get_context("spawn")
    with spawned.Manager() as manager, ProcessPoolExecutor(CLIENTS, spawned) as pool:
        gate = manager.Barrier(CLIENTS + 1)
        firsts = range(1, 1 + each * CLIENTS, each)
        loads = [Load(stack.port, first, each, interval_s, seconds, gate, keeps, slower) for first in firsts]
        lives = [pool.submit(live, load) for load in loads]
        gate.wait()
        for _ in range(2):
            time.sleep(seconds / 2)
            looks()
        return sum((life.result() for life in lives), Counter())


def goodput(seen: Mapping[str, int], seconds: float) -> float:
    """Reports a second that were acknowledged, in the second half: in the first one the queues fill."""
    return seen.get("late stored", 0) / (seconds / 2)


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds of the control plane."""

    api_s: float
    postgres_s: float

    @classmethod
    def so_far(cls, stack: Stack) -> Spent:
        return cls(processor_s(stack.api_pid), processor_s(stack.postgres_pid))

    def since(self, before: Spent) -> Spent:
        return Spent(self.api_s - before.api_s, self.postgres_s - before.postgres_s)

    @property
    def all_s(self) -> float:
        return self.api_s + self.postgres_s


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of one load, and what its second half cost: in the first one everybody connects."""

    answers: Counter[str]
    late: Spent
    seconds: float

    @property
    def stored(self) -> int:
        return self.answers["late stored"]

    @property
    def per_processor_s(self) -> float:
        """Stored reports for each processor second of API and PostgreSQL: what a busy machine changes least."""
        return self.stored / max(0.01, self.late.all_s)

    def __str__(self) -> str:
        stored, got = max(1, self.stored), self.late.all_s / (self.seconds / 2)
        return (
            f"{goodput(self.answers, self.seconds):.0f}/s by wall; {self.per_processor_s:.0f} a processor second "
            f"(each stored one: API {1000 * self.late.api_s / stored:.2f} ms, "
            f"PostgreSQL {1000 * self.late.postgres_s / stored:.2f} ms; both got {100 * got:.0f} % of a core, the load "
            f"{self.answers['load'] / (10 * self.seconds):.0f} %)"
        )


def load(stack: Stack, nodes: int, interval_s: float, seconds: float, *, keeps: bool = False) -> Seen:
    spent: list[Spent] = []
    answers = offered(stack, nodes, interval_s, seconds, lambda: spent.append(Spent.so_far(stack)), keeps=keeps)
    return Seen(answers, spent[1].since(spent[0]), seconds)


def measure(how: str, serve: tuple[str, ...], seconds: float) -> float:
    """Capacity and goodput beyond it, of one way to serve; their ratio."""
    os.sched_setaffinity(0, CORES[:1])
    with running_stack(serve, rate_limit_per_s="100000") as stack:
        with Client(stack.server, stack.admin_token) as client:
            client.put("gpu-type", GPU_TYPE)
        make_nodes(stack, NODES_MAX)
        shortly = min(CAPACITY_S, seconds)
        offered(stack, CAPACITY_CONNECTIONS, 0.0, shortly)
        full = load(stack, CAPACITY_CONNECTIONS, 0.0, shortly)
        capacity = goodput(full.answers, shortly)
        print(f"{how}: capacity ({CAPACITY_CONNECTIONS} connections, closed loop) {full}", flush=True)
        reached = 0.0
        for times, keeps in ((1, True), (5, True), (5, False)):
            nodes = min(NODES_MAX, int(times * capacity * INTERVAL_S))
            seen = load(stack, nodes, nodes / (times * capacity), seconds, keeps=keeps)
            reached = goodput(seen.answers, seconds)
            told = ", ".join(f"{name} {n}" for name, n in sorted(seen.answers.items()) if name[:2] in ("ea", "la"))
            share, by_cost = reached / capacity, seen.per_processor_s / full.per_processor_s
            how_sent = "as agents do" if keeps else "the newest only"
            print(
                f"  {times} x, {nodes} nodes, {how_sent}: {100 * share:.0f} % by wall, {100 * by_cost:.0f} % by cost;"
                f" {seen}"
            )
            print(f"     {told}", flush=True)
    return reached / capacity


def serve_without() -> None:
    """The API as it is but for admission."""
    from app.api.admission import LANES
    from app.cli.processes import serve

    LANES.clear()
    serve()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=("with", "without"))
    parser.add_argument("--serve-without", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_without:
        serve_without()
        return
    ways = {"without": ("benchmarks.overload", "--serve-without"), "with": ("app", "serve")}
    for how, serve in ways.items():
        if arguments.only in (None, how):
            measure(f"{how} admission", serve, arguments.seconds)


if __name__ == "__main__":
    main()
