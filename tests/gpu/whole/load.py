"""Users of some services: open-loop Poisson arrivals over kept connections to whom the routes name.

A process of its own. Lines of JSON on standard input change rates (`{"service": "p/n", "rate_rps": 30}`); their end is
the end. Each request becomes a row of `--out`: when it was due (the machine's monotonic clock), service, milliseconds
until its answer, status (0: it reached nobody, or the connection broke; -1: no answer), port, milliseconds it was late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headroom_client import ApiError, AsyncClient, UnreachableError

REQUEST = b"GET /infer HTTP/1.1\r\nHost: worker\r\n\r\n"
RETRY_S = 0.2
IDLE_S = 0.05
LAST_ANSWERS_S = 3.0


@dataclass(slots=True, kw_only=True)
class Sent:
    """One request."""

    service: str
    due_s: float
    sent_s: float
    port: int = 0
    latency_ms: float = 0.0
    status: int = -1

    def answered(self, status: int) -> None:
        """It is over."""
        self.status = status
        self.latency_ms = 1000.0 * (time.monotonic() - self.sent_s)

    def row(self) -> str:
        """For the file."""
        late_ms = 1000.0 * (self.sent_s - self.due_s)
        told = (f"{self.due_s:.6f}", self.service, f"{self.latency_ms:.3f}", str(self.status), str(self.port))
        return "\t".join((*told, f"{late_ms:.3f}"))


class Line(asyncio.Protocol):
    """A connection that is kept: one request at a time."""

    def __init__(self, idle: deque[Line]) -> None:
        self._idle = idle
        self._held = b""
        self._of: Sent | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request may go this way."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, sent: Sent) -> None:
        """Send it."""
        assert self._transport is not None
        self._of = sent
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if not found or self._of is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(rest) >= length:
            self._of.answered(int(head.split(b" ", 2)[1]))
            self._of, self._held = None, b""
            self._idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._of is not None:
            self._of.answered(0)
            self._of = None


@dataclass(slots=True)
class Service:
    """One service's users."""

    name: str
    rate_rps: float
    replicas: list[dict[str, Any]] = field(default_factory=list)
    idle: dict[int, deque[Line]] = field(default_factory=dict)
    log: list[Sent] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def follow(self, client: AsyncClient) -> None:
        """Know the routes, whatever happens to the stream."""
        while True:
            with suppress(ApiError, UnreachableError):
                async for told in client.watch_routes(self.name):
                    self.replicas = list(told["replicas"])
            await asyncio.sleep(RETRY_S)

    async def arrive(self, chance: random.Random) -> None:
        """Requests come when they come, whether or not others were answered."""
        due_s = time.monotonic()
        while True:
            if not self.rate_rps:
                await asyncio.sleep(IDLE_S)
                due_s = time.monotonic()
                continue
            due_s += chance.expovariate(self.rate_rps)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self._send(due_s, chance)

    def _send(self, due_s: float, chance: random.Random) -> None:
        sent = Sent(service=self.name, due_s=due_s, sent_s=time.monotonic())
        self.log.append(sent)
        if not self.replicas:
            sent.answered(0)
            return
        weights = [max(each["weight"], 1e-3) for each in self.replicas]
        (chosen,) = chance.choices(self.replicas, weights)
        sent.port = int(chosen["port"])
        idle = self.idle.setdefault(sent.port, deque())
        while idle:
            line = idle.pop()
            if line.is_open:
                line.ask(sent)
                return
        task = asyncio.get_running_loop().create_task(self._connected(sent, str(chosen["host"]), idle))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connected(self, sent: Sent, host: str, idle: deque[Line]) -> None:
        try:
            _, line = await asyncio.get_running_loop().create_connection(lambda: Line(idle), host, sent.port)
        except OSError:
            sent.answered(0)
            return
        if line.is_open:
            line.ask(sent)
        else:
            sent.answered(0)


async def orders() -> Any:
    """Lines of standard input as they come."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def play(server: str, token: str, services: dict[str, Service], seed: int) -> None:
    """Until standard input ends."""
    clients = [AsyncClient(server, token) for _ in services]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(each.follow(client)) for each, client in zip(services.values(), clients, strict=True)]
    tasks += [loop.create_task(each.arrive(random.Random(f"{seed} {name}"))) for name, each in services.items()]
    async for order in orders():
        services[order["service"]].rate_rps = float(order["rate_rps"])
    for service in services.values():
        service.rate_rps = 0.0
    await asyncio.sleep(LAST_ANSWERS_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()


def everything(services: dict[str, Service]) -> Iterator[Sent]:
    """Every request."""
    for service in services.values():
        yield from service.log


def main() -> int:
    """Play, then write what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.whole.load")
    parser.add_argument("--server", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("services", nargs="+", help="PROJECT/NAME=RATE")
    found = parser.parse_args()
    named = (text.rpartition("=") for text in found.services)
    services = {name: Service(name, float(rate)) for name, _, rate in named}
    asyncio.run(play(found.server, os.environ["HEADROOM_TOKEN"], services, found.seed))
    found.out.write_text("".join(f"{sent.row()}\n" for sent in everything(services)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
