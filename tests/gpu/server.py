"""A small model server for load: collects requests into batches, runs them on the GPU, answers each.

A batch of at most `--batch` requests begins as soon as the one before has ended, which is what plans reckon with;
`--wait-ms` has it wait for company. Networks run in sizes of powers of two and in whole batches, whose inputs lie on
the GPU from the start. It speaks the `http` adapter (docs/reference/workers.md). Needs PyTorch; named networks need
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
from typing import Any

from tests.gpu.worker import build

SWITCH_S = 0.0005
"""Launching kernels holds the interpreter; whoever answers shall not wait for it for long."""
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
        self._inputs: dict[int, Any] = {}
        self._wait_s, self._loop = wait_s, loop
        self._queue: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self.counts = Counts()
        self.batch = batch
        self.set_batch(batch)

    def set_batch(self, batch: int) -> None:
        """Take so many at most from now on; what such batches need is made before."""
        for size in {_size(count, batch) for count in range(1, batch + 1)}:
            if size not in self._inputs:
                self._inputs[size] = self._torch.randn(size, *self._shape, device="cuda", dtype=self._torch.float16)
                for _ in range(3):
                    self._execute(size)
        with self._changed:
            self.batch = batch

    def put(self, waiting: Waiting) -> None:
        """Ask for an execution."""
        self.counts.pending += 1
        with self._changed:
            self._queue.append(waiting)
            self._changed.notify()

    def run(self) -> None:
        while True:
            taken, size = self._take()
            began_s = time.perf_counter()
            try:
                self._execute(size)
                status = 200
            except RuntimeError as error:
                print(f"a batch failed: {error}", file=sys.stderr, flush=True)
                status = 500
            took_s = time.perf_counter() - began_s
            self._loop.call_soon_threadsafe(self._answer, taken, status, took_s)

    def _take(self) -> tuple[list[Waiting], int]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            if self._wait_s:
                self._changed.wait_for(lambda: len(self._queue) >= self.batch, self._wait_s)
            count = min(self.batch, len(self._queue))
            return [self._queue.popleft() for _ in range(count)], _size(count, self.batch)

    def _execute(self, size: int) -> None:
        with self._torch.inference_mode():
            self._model(self._inputs[size])
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


def _size(count: int, batch: int) -> int:
    """The size of the input that so many requests are run with."""
    return min(1 << (count - 1).bit_length(), batch)


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
