"""Lets several readers have what devices did, each over intervals of its own, though a device tells it only once.

Owns the sharing out: whoever looks reads the devices, and everybody else finds it added to what they have not seen yet.
Counts, energies and times add up; means are weighted by what they are means of; of percentiles the worst stays, since
they cannot be added. Safe from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from agents.devices.base import Devices, DeviceSample, WorkerSample


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
    executions = before.executions + after.executions
    iterations = [item.iterations_done for item in (before, after) if item.iterations_done is not None]
    return replace(
        after,
        held_s=before.held_s + after.held_s,
        memory_mib_used=max(before.memory_mib_used, after.memory_mib_used),
        arrived=before.arrived + after.arrived,
        completed=before.completed + after.completed,
        violated=before.violated + after.violated,
        dropped=before.dropped + after.dropped,
        batch_mean=_mean(before.batch_mean, after.batch_mean, weights=(before.executions, after.executions)) or 0.0,
        latency_ms_p50=_mean(before.latency_ms_p50, after.latency_ms_p50, weights=(before.completed, after.completed)),
        latency_ms_p95=_worst(before.latency_ms_p95, after.latency_ms_p95),
        latency_ms_p99=_worst(before.latency_ms_p99, after.latency_ms_p99),
        energy_j=before.energy_j + after.energy_j,
        iterations_done=sum(iterations) if iterations else None,
        executions=executions,
        execution_ms_mean=_mean(
            before.execution_ms_mean, after.execution_ms_mean, weights=(before.executions, after.executions)
        ),
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
