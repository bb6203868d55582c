"""Turns what devices did into reports, and keeps reports until the control plane has them.

Intervals are of the monotonic clock. No reading is edited: rows are what the back end said, in the wire's words. What a
profile run started is no replica of anybody's: of it the rows of devices tell, by what the device drew and held.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from agents.devices.base import MEASURED, Devices, DeviceSample, WorkerSample
from agents.loop.unsent import ReportFile, UnsentReport
from agents.wire import NUMBER_MAX, DeviceReport, ReplicaReport, Report, mirrored

REPORTS_KEPT_MAX = 720
"""An hour of reports at 5 s; older ones are given up."""
INTERVAL_S_MAX = 3600.0
"""Longer pauses (a suspended host) are reported as this long."""
INTERVAL_S_MIN = 1e-3


class Collector:
    """Cuts time into reports. Not thread-safe."""

    def __init__(
        self,
        node: str,
        boot_id: str,
        collect: Callable[[], tuple[DeviceSample, ...]],
        clocks: tuple[Callable[[], float], Callable[[], float]],
    ) -> None:
        """`collect` answers what devices did since it was called last. `clocks`: monotonic and wall clock, seconds."""
        self._node = node
        self._boot_id = boot_id
        self._collect = collect
        self._monotonic_s, self._wall_s = clocks
        self._cut_at_s = self._monotonic_s()
        self._observed_at_s = 0.0
        self._sequence = 0

    def observed_at_s(self) -> float:
        """Wall-clock time that never runs backwards within this boot, unless it was ahead."""
        self._observed_at_s = max(self._observed_at_s, self._wall_s())
        return self._observed_at_s

    def set_back(self) -> bool:
        """Go by the wall clock again, because what was told lies in the future; whether that is another time."""
        told_s, self._observed_at_s = self._observed_at_s, self._wall_s()
        return self._observed_at_s < told_s

    def cut(self, generation_applied: int) -> Report:
        now_s = self._monotonic_s()
        samples = self._collect()
        interval_s = min(INTERVAL_S_MAX, max(INTERVAL_S_MIN, now_s - self._cut_at_s))
        self._cut_at_s = now_s
        self._sequence += 1
        return Report(
            node=self._node,
            boot_id=self._boot_id,
            sequence=self._sequence,
            observed_at_s=self.observed_at_s(),
            interval_s=interval_s,
            generation_applied=generation_applied,
            devices=tuple(_device_row(sample) for sample in samples),
            replicas=tuple(
                _replica_row(sample.uuid, worker, interval_s) for sample in samples for worker in _replicas(sample)
            ),
        )


def _replicas(sample: DeviceSample) -> list[WorkerSample]:
    return [worker for worker in sample.workers if worker.reading.spec.kind != MEASURED]


def _device_row(sample: DeviceSample) -> DeviceReport:
    held = sum(worker.reading.spec.share_pct_sm for worker in _replicas(sample) if not worker.gone)
    return mirrored(DeviceReport, sample, share_pct_sm_total=held)


def _replica_row(uuid: str, sample: WorkerSample, interval_s: float) -> ReplicaReport:
    reading = sample.reading
    return mirrored(
        ReplicaReport,
        sample,
        reading.spec,
        uuid=uuid,
        state="draining" if sample.gone else reading.state.value,
        sm_count=reading.sm_count,
        memory_mib_used=0.0 if sample.gone else sample.memory_mib_used,
        held_s=min(interval_s, sample.held_s),
    )


# --- Several readers, each over intervals of its own, though a device tells what it did only once
#
# Counts, energies and times add up; means are weighted by what they are means of; of percentiles the worst stays,
# since they cannot be added.


GONE_KEPT_MAX = 256
"""Of workers that are gone, a reader finds so many of each device, the newest: some readers hardly ever read."""
_ADDED_UP = ("held_s", "arrived", "completed", "violated", "dropped", "energy_j", "executions")


@dataclass(frozen=True, slots=True)
class _Part:
    """A sample and the seconds it is about."""

    sample: DeviceSample
    length_s: float


class Sampler:
    """The one who collects. Every reader has a name and sees everything once."""

    def __init__(self, devices: Devices, now_s: Callable[[], float], readers: Iterable[str]) -> None:
        self._devices = devices
        self._now_s = now_s
        self._read_at_s = now_s()
        self._unseen: dict[str, dict[str, _Part]] = {name: {} for name in readers}
        self._lock = threading.Lock()

    def take(self, reader: str) -> tuple[DeviceSample, ...]:
        """What devices did since this reader's last call."""
        with self._lock:
            fresh = self._devices.collect()
            now_s = self._now_s()
            length_s, self._read_at_s = max(0.0, now_s - self._read_at_s), now_s
            for unseen in self._unseen.values():
                for sample in fresh:
                    before = unseen.get(sample.uuid)
                    part = _Part(sample, length_s)
                    unseen[sample.uuid] = part if before is None else _joined(before, part)
            found = self._unseen[reader]
            self._unseen[reader] = {}
            return tuple(part.sample for part in found.values())


def _joined(one: _Part, other: _Part) -> _Part:
    """Two samples of a device as one, the later one second."""
    before, after = one.sample, other.sample
    length_s = one.length_s + other.length_s
    part = other.length_s / length_s if length_s > 0.0 else 1.0
    workers = {sample.reading.worker: sample for sample in before.workers}
    for sample in after.workers:
        known = workers.get(sample.reading.worker)
        workers[sample.reading.worker] = sample if known is None else _worker_joined(known, sample)
    there = {sample.reading.worker for sample in after.workers}
    gone = [name for name in workers if name not in there]
    for name in gone[:-GONE_KEPT_MAX]:
        del workers[name]
    return _Part(
        replace(
            after,
            power_w=before.power_w + part * (after.power_w - before.power_w),
            energy_j=before.energy_j + after.energy_j,
            utilisation_pct=before.utilisation_pct + part * (after.utilisation_pct - before.utilisation_pct),
            memory_mib_used=max(before.memory_mib_used, after.memory_mib_used),
            throttle=after.throttle or before.throttle,
            healthy=before.healthy and after.healthy,
            workers=tuple(workers.values()),
        ),
        length_s,
    )


def _worker_joined(before: WorkerSample, after: WorkerSample) -> WorkerSample:
    iterations = [item.iterations_done for item in (before, after) if item.iterations_done is not None]
    return replace(
        after,
        memory_mib_used=max(before.memory_mib_used, after.memory_mib_used),
        batch_mean=_mean(before.batch_mean, after.batch_mean, weights=(before.executions, after.executions)) or 0.0,
        latency_ms_p50=_mean(before.latency_ms_p50, after.latency_ms_p50, weights=(before.completed, after.completed)),
        latency_ms_p95=_worst(before.latency_ms_p95, after.latency_ms_p95),
        latency_ms_p99=_worst(before.latency_ms_p99, after.latency_ms_p99),
        iterations_done=sum(iterations) if iterations else None,
        execution_ms_mean=_mean(
            before.execution_ms_mean, after.execution_ms_mean, weights=(before.executions, after.executions)
        ),
        **{name: min(NUMBER_MAX, getattr(before, name) + getattr(after, name)) for name in _ADDED_UP},
    )


def _mean(*numbers: float | None, weights: tuple[float, float]) -> float | None:
    """The mean of what is known, by weight; without any weight the last one known."""
    known = [(number, weight) for number, weight in zip(numbers, weights, strict=True) if number is not None]
    total = sum(weight for _, weight in known)
    if total > 0.0:
        return sum(number * weight for number, weight in known) / total
    return known[-1][0] if known else None


def _worst(one: float | None, other: float | None) -> float | None:
    known = [number for number in (one, other) if number is not None]
    return max(known) if known else None


class ReportBuffer:
    """All that wait, oldest first; the oldest are lost when it is full. Thread-safe.

    What earlier agents left waits for the first of this agent's own to be acknowledged: from then on it can only be
    late, and says nothing of who speaks for the node.
    """

    def __init__(self, boot_id: str, file: ReportFile | None = None, kept_max: int = REPORTS_KEPT_MAX) -> None:
        left = file.load(time.time())[-kept_max:] if file is not None else ()
        self._reports: deque[UnsentReport] = deque(left)
        self._boot_id, self._file, self._kept_max = boot_id, file, kept_max
        self._heard = False
        self._lock = threading.Lock()
        self.lost = 0
        """Given up because the buffer was full."""
        self.refused = 0
        """Given up because the control plane refused them."""

    def add(self, report: Report) -> None:
        made = UnsentReport.of(report)
        with self._lock:
            self._reports.append(made)
            while len(self._reports) > self._kept_max:
                self._reports.popleft()
                self.lost += 1
            if self._file is not None:
                self._file.append(made, self._reports)

    def oldest(self, count: int) -> tuple[UnsentReport, ...]:
        with self._lock:
            due = (report for report in self._reports if self._heard or report.boot_id == self._boot_id)
            return tuple(itertools.islice(due, count))

    def settle(self, reports: Sequence[UnsentReport], *, refused: bool = False) -> None:
        """Forget reports that were acknowledged, or refused for good."""
        done = {report.name for report in reports}
        with self._lock:
            self._reports = deque(report for report in self._reports if report.name not in done)
            if refused:
                self.refused += len(done)
            elif any(report.boot_id == self._boot_id for report in reports):
                self._heard = True
            if self._file is not None:
                self._file.settle(done, self._reports)

    def joined(self, cluster_id: str | None) -> int:
        """Drop what is for another cluster than the one that was joined: what says so, and what earlier agents left
        where they had joined another; how many. What this agent says of a target of another stays after that.
        """
        with self._lock:
            file = self._file
            if file is None or cluster_id is None:
                return 0
            before, known, moved = len(self._reports), file.cluster_id, file.cluster_id not in (None, cluster_id)
            self._reports = deque(
                report
                for report in self._reports
                if report.cluster_id == cluster_id
                or (report.cluster_id is None and not (moved and report.boot_id != self._boot_id))
                or (known == cluster_id and report.boot_id == self._boot_id)
            )
            if known != cluster_id or len(self._reports) < before:
                file.cluster_id = cluster_id
                file.rewrite(self._reports)
            return before - len(self._reports)

    def __len__(self) -> int:
        with self._lock:
            return len(self._reports)
