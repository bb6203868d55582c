"""A closed-loop load generator over raw keep-alive sockets: every request is answered well, or counted as failed.

python -m benchmarks.gateway.load PORT CONNECTIONS REQUESTS_MIN

Owns what a failure is: no answer, half of one, another status than 200, or ten seconds of silence. It sends until a
line comes in on standard input and REQUESTS_MIN are done, and then prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field

BODY = b'{"input": [1, 2, 3]}'
REQUEST = (
    b"POST /v1/infer HTTP/1.1\r\nHost: vision\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    % (
        len(BODY),
        BODY,
    )
)
SILENT_S = 10.0
FAILURES_SHOWN = 10
PORT, CONNECTIONS, REQUESTS_MIN = 1, 2, 3


@dataclass(slots=True)
class Tally:
    """What came back. Times are monotonic seconds, but for the first answers of processes: seconds since the epoch."""

    ended_s: array[float] = field(default_factory=lambda: array("d"))
    took_s: array[float] = field(default_factory=lambda: array("d"))
    failures: Counter[str] = field(default_factory=Counter)
    first_by_process: dict[str, float] = field(default_factory=dict)
    stopping: bool = False

    def answered(self, sent_s: float, body: bytes) -> None:
        """One good answer."""
        now_s = time.monotonic()
        self.ended_s.append(now_s)
        self.took_s.append(now_s - sent_s)
        process = str(json.loads(body)["pid"])
        if process not in self.first_by_process:
            self.first_by_process[process] = time.time()

    def failed(self, reason: str) -> None:
        """One failure."""
        self.failures[reason] += 1

    def summary(self, began_s: float) -> dict[str, object]:
        """What there is to say at the end."""
        took_s = sorted(self.took_s)
        gaps_s = [after - before for before, after in zip(self.ended_s, self.ended_s[1:], strict=False)]
        return {
            "requests": len(took_s) + sum(self.failures.values()),
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures.most_common(FAILURES_SHOWN)),
            "processes": len(self.first_by_process),
            "first_by_process": self.first_by_process,
            "requests_per_s": len(took_s) / max(1e-9, self.ended_s[-1] - began_s) if took_s else 0.0,
            "latency_ms_p50": 1000.0 * took_s[len(took_s) // 2] if took_s else None,
            "latency_ms_p99": 1000.0 * took_s[int(len(took_s) * 0.99)] if took_s else None,
            "latency_ms_max": 1000.0 * took_s[-1] if took_s else None,
            "gap_ms_max": 1000.0 * max(gaps_s, default=0.0),
        }


class Lane(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, tally: Tally, done: asyncio.Future[None]) -> None:
        self._tally = tally
        self._done = done
        self._sent_s = 0.0
        self._received = b""
        self._waiting = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Take the answer; send the next request when it is whole."""
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        length = int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
        if len(rest) < length:
            return
        self._waiting = False
        self._received = b""
        if head[9:12] == b"200":
            self._tally.answered(self._sent_s, rest)
        else:
            self._tally.failed(f"status {head[9:12].decode()}")
        assert self._transport is not None
        if b"connection: close" in lower or self._tally.stopping:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """Say whether an answer was owed."""
        if self._waiting:
            self._tally.failed(f"closed: {type(error).__name__ if error else 'without an answer'}")
        if not self._done.done():
            self._done.set_result(None)

    def check(self, now_s: float) -> None:
        """Give up on an answer that does not come."""
        if self._waiting and now_s - self._sent_s > SILENT_S and self._transport is not None:
            self._waiting = False
            self._tally.failed("silent")
            self._transport.abort()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_s = time.monotonic()
        self._waiting = True
        self._transport.write(REQUEST)


async def keep_busy(port: int, tally: Tally, lanes: set[Lane]) -> None:
    """Hold one connection and open another when it ends."""
    loop = asyncio.get_running_loop()
    while not tally.stopping:
        done = loop.create_future()
        try:
            _, lane = await loop.create_connection(lambda: Lane(tally, done), "127.0.0.1", port)  # noqa: B023
        except OSError as error:
            tally.failed(f"no connection: {error.strerror}")
            await asyncio.sleep(0.05)
            continue
        lanes.add(lane)
        await done
        lanes.discard(lane)


async def run(port: int, connections: int, requests_min: int) -> dict[str, object]:
    """Send until told to stop."""
    tally, began_s, lanes = Tally(), time.monotonic(), set[Lane]()
    told = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    tasks = [asyncio.ensure_future(keep_busy(port, tally, lanes)) for _ in range(connections)]
    while not told.done() or len(tally.took_s) < requests_min:
        await asyncio.sleep(0.05)
        for lane in tuple(lanes):
            lane.check(time.monotonic())
    tally.stopping = True
    await asyncio.gather(*tasks)
    return tally.summary(began_s)


if __name__ == "__main__":
    found = asyncio.run(run(int(sys.argv[PORT]), int(sys.argv[CONNECTIONS]), int(sys.argv[REQUESTS_MIN])))
    print(json.dumps(found), flush=True)
