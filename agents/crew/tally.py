"""What a worker did, made from the running totals of its metrics.

Owns the difference of two readings of totals, conservation of requests, and percentiles. Totals that a server does not
tell are None and stay None where a sample allows it; totals that fall began anew with their server, and count from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agents.crew.prometheus import Histogram
from agents.devices.base import WorkerReading, WorkerSample, WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a server has counted since it began. None: it does not tell."""

    completed: float | None = None
    failed: float | None = None
    """Given up, refused, or answered with an error."""
    violated: float | None = None
    queue: float | None = None
    """Accepted and not answered yet, now: waiting, and executing where that is told."""
    executions: float | None = None
    """Batches."""
    batched: float | None = None
    """Requests in those batches."""
    batch_now: float | None = None
    """For servers whose batches change all the time: how many requests execute now."""
    execution_s: float | None = None
    """Sum of execution times ..."""
    execution_weight: float | None = None
    """... and over how many they were summed."""
    latency: Histogram | None = None
    """End to end; bounds in milliseconds."""
    percentiles_ms: tuple[float | None, float | None, float | None] | None = None
    """Where the server tells its 50th, 95th and 99th percentile itself."""
    iterations: float | None = None


@dataclass(slots=True)
class Tally:
    """Totals of one worker and how far they were told. Times are monotonic."""

    told_s: float
    """Until when what it held was told."""
    newest: Totals | None = None
    newest_s: float = 0.0
    told: Totals | None = None
    queue_told: float = 0.0
    from_now: bool = False
    """The next reading is where counting begins: what is before it is somebody else's to tell (an earlier agent), or
    nobody's (warm-up)."""

    def read(self, totals: Totals, now_s: float) -> None:
        """Totals as just read."""
        if self.from_now:
            # What waits already has been told by nobody of this life: it arrives with the next sample.
            self.told, self.from_now = totals, False
        self.newest, self.newest_s = totals, now_s

    def begin(self) -> None:
        """Count from the next reading on."""
        self.told = self.newest = None
        self.from_now = True

    def finish(self, iterations: float) -> None:
        """All it was to do is done, whatever was read last."""
        if not self.from_now:
            last = self.newest or self.told or Totals()
            self.newest = replace(last, iterations=max(iterations, last.iterations or 0.0))

    def cut(self, reading: WorkerReading, now_s: float, *, gone: bool) -> WorkerSample:
        """What happened since the last cut. Of a worker that is gone or failed nothing waits any more: it was
        dropped.
        """
        then, now = self.told or Totals(), self.newest or self.told or Totals()
        waits = self.queue_told if now is self.told or now.queue is None else max(0.0, now.queue)
        lost = waits if gone or reading.state is WorkerState.FAILED else 0.0
        requests = _balanced(then, now, (self.queue_told, waits - lost), lost)
        sample = _sample(reading, (then, now), requests, gone=gone)
        held_s = max(0.0, now_s - self.told_s)
        self.told, self.told_s, self.queue_told = now, now_s, waits - lost
        return replace(sample, held_s=held_s)


@dataclass(frozen=True, slots=True)
class _Requests:
    arrived: float
    completed: float
    dropped: float
    queue: float


def _balanced(then: Totals, now: Totals, queues: tuple[float, float], lost: float) -> _Requests:
    """Requests of an interval: what arrived follows from what left and what waits, so that none is forgotten."""
    completed = grown(then.completed, now.completed) or 0.0
    dropped = (grown(then.failed, now.failed) or 0.0) + lost
    arrived = completed + dropped + queues[1] - queues[0]
    if arrived < 0.0:
        # More waited than was ever answered: the server began anew and forgot it.
        dropped, arrived = dropped - arrived, 0.0
    return _Requests(arrived, completed, dropped, queues[1])


def _sample(reading: WorkerReading, totals: tuple[Totals, Totals], requests: _Requests, *, gone: bool) -> WorkerSample:
    then, now = totals
    latency = None if now.latency is None else now.latency.since(then.latency)
    percentiles = _percentiles(latency, now, requests.completed)
    executions = grown(then.executions, now.executions) or 0.0
    execution_ms = _execution_ms(then, now)
    return WorkerSample(
        reading=reading,
        gone=gone,
        held_s=0.0,
        memory_mib_used=0.0,
        arrived=requests.arrived,
        completed=requests.completed,
        violated=min(requests.completed, _violated(totals, reading, latency, execution_ms)),
        dropped=requests.dropped,
        queue_length=requests.queue,
        batch_mean=_batch_mean(then, now, executions),
        latency_ms_p50=percentiles[0],
        latency_ms_p95=percentiles[1],
        latency_ms_p99=percentiles[2],
        iterations_done=None if reading.spec.kind == "service" else int(grown(then.iterations, now.iterations) or 0),
        executions=executions,
        execution_ms_mean=execution_ms,
    )


def grown(before: float | None, now: float | None) -> float | None:
    """How much a total grew."""
    if now is None:
        return None
    return max(0.0, now - before) if before is not None and now >= before else max(0.0, now)


def _percentiles(
    latency: Histogram | None, now: Totals, completed: float
) -> tuple[float | None, float | None, float | None]:
    if latency is not None:
        return latency.percentile(0.50), latency.percentile(0.95), latency.percentile(0.99)
    if now.percentiles_ms is not None and completed > 0.0:
        return now.percentiles_ms
    return None, None, None


def _violated(
    totals: tuple[Totals, Totals], reading: WorkerReading, latency: Histogram | None, execution_ms: float | None
) -> float:
    """As counted by the server, else from what was seen of latencies; nothing where neither tells."""
    counted, limit_ms = grown(totals[0].violated, totals[1].violated), reading.spec.latency_ms_limit
    if counted is not None or limit_ms is None:
        return counted or 0.0
    if reading.spec.latency_execution_only:
        return float("inf") if execution_ms is not None and execution_ms > limit_ms else 0.0
    return (latency.above(limit_ms) or 0.0) if latency is not None else 0.0


def _batch_mean(then: Totals, now: Totals, executions: float) -> float:
    batched = grown(then.batched, now.batched)
    if batched is not None and executions > 0.0:
        return batched / executions
    return now.batch_now or 0.0


def _execution_ms(then: Totals, now: Totals) -> float | None:
    spent_s, weight = grown(then.execution_s, now.execution_s), grown(then.execution_weight, now.execution_weight)
    if spent_s is not None and weight:
        return 1000.0 * spent_s / weight
    return None
