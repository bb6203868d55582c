"""What a worker did, made from the running totals of its metrics: the few series that are asked for, out of a page of
Prometheus text that may be anything, and the difference of two readings.

Nothing is guessed: a line that is none, a value that is not finite or beyond what a counter can be is left out, so that
what is missing reads None and never 0, and stays None where a sample allows it. Requests are conserved. Totals that
fell began anew with their server, and count from 0. Whatever a server tells, a sample holds numbers that a report may:
the page is a tenant's, the report the whole node's.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from agents.devices.base import WorkerReading, WorkerSample, WorkerState
from agents.wire import NUMBER_MAX

PAGE_BYTES_MAX = 4 * 2**20
SERIES_MAX = 20_000
LABELS_MAX = 64
VALUE_MAX = 1e18
"""Counters that cannot be told read as 2**63 minus a little in some exporters."""
GROWN_MAX = NUMBER_MAX / 16
"""Nothing grows by more between two readings; what is added up of such parts is no more than a report may hold."""
STALLED_S_MIN, STALLED_FACTOR = 900.0, 3.0
"""Models compile and are checked between iterations: so long at least, and so many times the longest pause before."""
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_VALUE = re.compile(r"\s*([^\s#]+)")


@dataclass(frozen=True, slots=True)
class Series:
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each bound, the last one infinite. Bounds in the unit of the metric."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: Histogram | None) -> Histogram:
        """What was counted after an earlier reading; all of it when counting began anew in between."""
        if before is None or before.bounds != self.bounds:
            return self
        grown = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return Histogram(self.bounds, grown) if _rises((0.0, *grown)) else self

    def percentile(self, level: float) -> float | None:
        """The value below which a part `level` lies, evenly spread within its bucket; None when nothing was counted.
        Beyond the last finite bound nothing is known but that it is more.
        """
        if self.total <= 0.0:
            return None
        wanted, lower, below = level * self.total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted and count > below:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (wanted - below) / (count - below)
            lower, below = bound, count
        return lower

    def above(self, limit: float) -> float | None:
        """How many lie above a value, evenly spread within buckets; None without buckets."""
        if len(self.bounds) < 2:
            return None
        lower, below = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if limit < bound:
                # Within the bucket without an upper end, all may be above: that is the careful answer.
                inside = 0.0 if math.isinf(bound) else (limit - lower) / (bound - lower)
                return self.total - below - inside * (count - below)
            lower, below = bound, count
        return 0.0


def _rises(counts: Iterable[float]) -> bool:
    return all(low <= high for low, high in itertools.pairwise(counts))


@dataclass(frozen=True, slots=True)
class SeriesPage:
    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)

    def total(self, names: Iterable[str], where: Callable[[Mapping[str, str]], bool] | None = None) -> float | None:
        """The sum over the series of the first of these names that the page has; None when it has none."""
        for name in names:
            found = [each.value for each in self.series.get(name, ()) if where is None or where(each.labels)]
            if found:
                return math.fsum(found)
        return None

    def histogram(self, names: Iterable[str], scale: float = 1.0) -> Histogram | None:
        """The histogram of the first of these names that the page has, summed over its series; its bounds in a unit of
        which the metric's is `scale`.
        """
        for name in names:
            counts: dict[float, float] = {}
            for each in self.series.get(f"{name}_bucket", ()):
                bound = _number(each.labels.get("le", ""))
                if bound is not None and (bound * scale <= NUMBER_MAX or bound == math.inf):
                    counts[bound] = counts.get(bound, 0.0) + each.value
            bounds = tuple(sorted(counts))
            rising = _rises((0.0, *(counts[bound] for bound in bounds)))
            if bounds and rising and bounds[-1] == math.inf and bounds[0] >= 0.0:
                return Histogram(tuple(bound * scale for bound in bounds), tuple(counts[bound] for bound in bounds))
        return None

    def of_model(self, model: str, label: str) -> SeriesPage:
        """Only the series of one model where any series names it; a process that calls its model otherwise still
        serves this one alone, so then all of them.
        """
        if not any(each.labels.get(label) == model for found in self.series.values() for each in found):
            return self
        return SeriesPage(
            {
                name: tuple(each for each in found if each.labels.get(label, model) == model)
                for name, found in self.series.items()
            }
        )


def read_page(body: bytes, names: tuple[str, ...]) -> SeriesPage:
    if len(body) > PAGE_BYTES_MAX:
        return SeriesPage()
    found: dict[str, list[Series]] = {}
    count = 0
    for line in body.decode("utf-8", "replace").split("\n"):
        # Most lines of a page are nobody's business here, and pages of large servers have thousands.
        if not line.startswith(names):
            continue
        read = _line(line)
        if read is not None and count < SERIES_MAX:
            found.setdefault(read[0], []).append(read[1])
            count += 1
    return SeriesPage({name: tuple(series) for name, series in found.items()})


def _line(line: str) -> tuple[str, Series] | None:
    name = _NAME.match(line)
    if name is None:
        return None
    labels, at = _labels(line, name.end())
    value = _VALUE.match(line, at) if at >= 0 else None
    number = None if value is None else _number(value[1])
    if number is None or not math.isfinite(number) or abs(number) > VALUE_MAX:
        return None
    return name[0], Series(labels, number)


def _labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """The labels that begin here and where they end; below 0 where they are none."""
    labels: dict[str, str] = {}
    while at < len(line) and line[at] == " ":
        at += 1
    if line[at : at + 1] != "{":
        return labels, at
    at += 1
    while line[at : at + 1] != "}":
        end = _LABEL.match(line, at)
        if end is None or len(labels) >= LABELS_MAX:
            return labels, -1
        labels[end[1]] = _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], end[2])
        at = end.end()
    return labels, at + 1


def _number(text: str) -> float | None:
    if "_" in text or len(text) > 64:
        return None
    try:
        return float(text)
    except ValueError:
        return None


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
    whole: bool = True
    """All that it did is counted here."""
    moved_s: float | None = None
    """When it was first seen to have done as many iterations as by its newest reading."""
    rest_s: float = 0.0
    """The longest it took to do some more."""

    def read(self, totals: Totals, now_s: float) -> None:
        if totals.iterations is not None and (self.newest is None or totals.iterations != self.newest.iterations):
            self.rest_s = max(self.rest_s, 0.0 if self.moved_s is None else now_s - self.moved_s)
            self.moved_s = now_s
        if self.from_now:
            # What waits already has been told by nobody of this life: it arrives with the next sample.
            self.told, self.from_now = totals, False
        self.newest, self.newest_s = totals, now_s

    def begin(self) -> None:
        self.told = self.newest = self.moved_s = None
        self.from_now, self.whole = True, False

    def stalled_s(self, now_s: float) -> float | None:
        """For longer than this none was told by one that tells iterations; None where it does what can be expected."""
        bound_s = max(STALLED_S_MIN, STALLED_FACTOR * self.rest_s)
        return bound_s if self.moved_s is not None and now_s - self.moved_s > bound_s else None

    def finish(self, iterations: float) -> None:
        """All it was to do is done, whatever was read last. Where some of it is in nobody's numbers all is told once
        more: who adds up takes no more than there was to do.
        """
        last = self.newest or self.told or Totals()
        if not self.whole:
            self.told = replace(self.told or Totals(), iterations=None)
            self.from_now, self.whole = False, True
        self.newest = replace(last, iterations=max(iterations, last.iterations or 0.0))

    def cut(self, reading: WorkerReading, now_s: float, *, gone: bool) -> WorkerSample:
        """What happened since the last cut. What arrived follows from what left and what waits, so that no request is
        forgotten. Of a worker that is gone or failed nothing waits any more: it was dropped.
        """
        then, now = self.told or Totals(), self.newest or self.told or Totals()
        waits = self.queue_told if now is self.told or now.queue is None else grown(None, now.queue) or 0.0
        lost = waits if gone or reading.state is WorkerState.FAILED else 0.0
        completed = grown(then.completed, now.completed) or 0.0
        dropped = (grown(then.failed, now.failed) or 0.0) + lost
        arrived = completed + dropped + (waits - lost) - self.queue_told
        if arrived < 0.0:
            # More waited than was ever answered: the server began anew and forgot it.
            dropped, arrived = dropped - arrived, 0.0
        latency = None if now.latency is None else now.latency.since(then.latency)
        percentiles = _percentiles(latency, now, completed)
        executions = grown(then.executions, now.executions) or 0.0
        execution_ms = _execution_ms(then, now)
        iterations = None if reading.spec.takes_requests else int(grown(then.iterations, now.iterations) or 0)
        sample = WorkerSample(
            reading=reading,
            gone=gone,
            held_s=max(0.0, now_s - self.told_s),
            memory_mib_used=0.0,
            arrived=arrived,
            completed=completed,
            violated=min(completed, _violated((then, now), reading, latency, execution_ms)),
            dropped=dropped,
            queue_length=waits - lost,
            batch_mean=_batch_mean(then, now, executions),
            latency_ms_p50=percentiles[0],
            latency_ms_p95=percentiles[1],
            latency_ms_p99=percentiles[2],
            iterations_done=iterations,
            executions=executions,
            execution_ms_mean=execution_ms,
        )
        self.told, self.told_s, self.queue_told = now, now_s, waits - lost
        return sample


def grown(before: float | None, now: float | None) -> float | None:
    if now is None:
        return None
    return min(GROWN_MAX, max(0.0, now - before if before is not None and now >= before else now))


def _told(number: float | None) -> float | None:
    """None: nobody can mean it."""
    return number if number is not None and 0.0 <= number <= GROWN_MAX else None


def _percentiles(
    latency: Histogram | None, now: Totals, completed: float
) -> tuple[float | None, float | None, float | None]:
    if latency is not None:
        return latency.percentile(0.50), latency.percentile(0.95), latency.percentile(0.99)
    if now.percentiles_ms is not None and completed > 0.0:
        return _told(now.percentiles_ms[0]), _told(now.percentiles_ms[1]), _told(now.percentiles_ms[2])
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
        return _told(batched / executions) or 0.0
    return _told(now.batch_now) or 0.0


def _execution_ms(then: Totals, now: Totals) -> float | None:
    spent_s, weight = grown(then.execution_s, now.execution_s), grown(then.execution_weight, now.execution_weight)
    if spent_s is not None and weight:
        return _told(1000.0 * spent_s / weight)
    return None
