"""A small model server for load: collects requests into batches, runs them on the GPU, answers each.

A batch of at most `--batch` requests begins as soon as the one before has ended, which is what plans reckon with;
`--wait-ms` has it wait for company. A batch is a CUDA graph of its size or the next, recorded at the start over inputs
that lie on the GPU. It speaks the `http` adapter (docs/reference/workers.md). Needs PyTorch; named networks need
torchvision, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.gpu.worker import build, recorded

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Of graphs; a batch is not larger than the last."""
AHEAD, AHEAD_MAX = 2, 32
"""A batch that grows shall find its graphs: recording one holds everything up."""
SWITCH_S = 0.0005
"""Whoever answers shall not wait for the interpreter for long."""
BOUNDS_S = tuple(0.001 * 1.25**step for step in range(36))
"""Of the histogram: 1 ms to 2.5 s."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was done, for `/metrics`."""

    answered: int = 0
    failed: int = 0
    pending: int = 0
    batches: int = 0
    executed_s: float = 0.0
    latency_s: float = 0.0
    by_latency: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def text(self) -> str:
        """Prometheus text in Headroom's own form."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield f"headroom_requests_total {self.answered}"
        yield f"headroom_requests_failed_total {self.failed}"
        yield f"headroom_requests_pending {self.pending}"
        yield f"headroom_batches_total {self.batches}"
        yield f"headroom_batch_execution_seconds_total {self.executed_s}"
        yield "# TYPE headroom_request_latency_seconds histogram"
        below = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), self.by_latency, strict=True):
            below += count
            yield f'headroom_request_latency_seconds_bucket{{le="{bound}"}} {below}'
        yield f"headroom_request_latency_seconds_sum {self.latency_s}"
        yield f"headroom_request_latency_seconds_count {below}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request and how it is answered."""

    since_s: float
    answer: Callable[[int], None]


class Batches(threading.Thread):
    """Runs batches one after the other; answers are given in the event loop's thread."""

    def __init__(self, name: str, batch: int, wait_s: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="batches", daemon=True)
        import torch

        self._torch = torch
        self._model, self._shape = build(torch, name)
        self._passes: dict[int, Callable[[], None]] = {}
        self._device = threading.Lock()
        self._wait_s, self._loop = wait_s, loop
        self._queue: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self.counts = Counts()
        self.batch = batch
        self.set_batch(batch)

    def set_batch(self, batch: int) -> None:
        """Take so many at most from now on; what such batches, and some larger ones, need is made before."""
        for size in SIZES[: 1 + SIZES.index(_size(max(batch, min(AHEAD * batch, AHEAD_MAX))))]:
            with self._device:
                if size not in self._passes:
                    self._passes[size] = self._recorded(size)
        with self._changed:
            self.batch = batch

    def _recorded(self, size: int) -> Callable[[], None]:
        inputs = self._torch.randn(size, *self._shape, device="cuda", dtype=self._torch.float16)
        return recorded(self._torch, lambda: self._model(inputs))

    def put(self, waiting: Waiting) -> None:
        """Ask for an execution."""
        self.counts.pending += 1
        with self._changed:
            self._queue.append(waiting)
            self._changed.notify()

    def run(self) -> None:
        while True:
            taken = self._take()
            began_s = time.perf_counter()
            try:
                self._execute(_size(len(taken)))
                status = 200
            except RuntimeError as error:
                print(f"a batch failed: {error}", file=sys.stderr, flush=True)
                status = 500
            took_s = time.perf_counter() - began_s
            self._loop.call_soon_threadsafe(self._answer, taken, status, took_s)

    def _take(self) -> list[Waiting]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            if self._wait_s:
                self._changed.wait_for(lambda: len(self._queue) >= self.batch, self._wait_s)
            return [self._queue.popleft() for _ in range(min(self.batch, len(self._queue)))]

    def _execute(self, size: int) -> None:
        with self._device:
            self._passes[size]()
            self._torch.cuda.synchronize()

    def _answer(self, taken: list[Waiting], status: int, took_s: float) -> None:
        counts, now_s = self.counts, time.perf_counter()
        counts.pending -= len(taken)
        counts.batches += 1
        counts.executed_s += took_s
        for waiting in taken:
            if status == 200:
                latency_s = now_s - waiting.since_s
                counts.answered += 1
                counts.latency_s += latency_s
                counts.by_latency[bisect_left(BOUNDS_S, latency_s)] += 1
            else:
                counts.failed += 1
            waiting.answer(status)


def _size(count: int) -> int:
    """The size of the graph that so many requests are run with."""
    return next(size for size in SIZES if size >= count)


class Line(asyncio.Protocol):
    """A connection: one request after the other."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._held += data
        while True:
            head, found, rest = self._held.partition(b"\r\n\r\n")
            if not found:
                return
            _, named, after = head.lower().partition(b"content-length:")
            length = int(after.split(b"\r\n", 1)[0]) if named else 0
            if len(rest) < length:
                return
            self._held = rest[length:]
            self._ask(head.split(b" ", 2)[1].decode().split("?")[0], rest[:length])

    def _ask(self, path: str, body: bytes) -> None:
        batches = self._batches
        if path == "/infer":
            batches.put(Waiting(time.perf_counter(), self._answer))
        elif path == "/metrics":
            self._answer(200, batches.counts.text().encode())
        elif path == "/headroom/batch":
            batch = int(json.loads(body)["batch"])
            told = json.dumps({"batch": batch}).encode()
            changed = asyncio.get_running_loop().run_in_executor(None, batches.set_batch, batch)
            changed.add_done_callback(lambda done: self._answer(500 if done.exception() else 200, told))
        else:
            self._answer(200 if path in ("/health", "/headroom/drain") else 404)

    def _answer(self, status: int, body: bytes = b"{}") -> None:
        if self._transport is not None:
            self._transport.write(b"HTTP/1.1 %d .\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


async def serve(found: argparse.Namespace) -> None:
    """Until SIGTERM."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    batches = Batches(found.network, found.batch, found.wait_ms / 1000.0, loop)
    batches.start()
    server = await loop.create_server(lambda: Line(batches), found.host, found.port, backlog=512)
    print(f"serving {found.network} in batches of {found.batch}", flush=True)
    await ended.wait()
    server.close()


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--network", default="convnet")
    parser.add_argument("--wait-ms", type=float, default=0.0)
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
