"""BDA: the largest batch that keeps a replica's limits, found by bisection, with the timeout that follows from it.

Owns the search for one replica, its repetition over the replicas of a device that share its memory, the latency of a
task that waits for its batch, and the scan of every size that shows what bisection misses when latency does not rise
with the batch. Pure; the caller brings the curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

BATCH_DEFAULT = 4
"""What a replica gets for which no size works."""
PASSES_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """A replica to size. The curves take a batch: `latency_ms` is the worst a task sees, waiting included,
    `execution_ms` that of one batch, `fits` whether its memory is there.
    """

    replica: str
    execution_ms: Callable[[int], float]
    latency_ms: Callable[[int], float]
    fits: Callable[[int], bool]
    latency_ms_limit: float
    rate_rps: float
    batch_min: int = 1
    batch_max: int = 32

    def throughput_rps(self, batch: int) -> float:
        """Requests a second when batch follows batch."""
        return 1000.0 * batch / self.execution_ms(batch)

    def holds(self, batch: int) -> bool:
        """Whether memory and latency limit are kept."""
        return self.fits(batch) and self.latency_ms(batch) <= self.latency_ms_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """What was found: None when no size keeps the limits and the rate. `timeout_ms` is how long a batch may wait to
    fill.
    """

    batch: int | None
    timeout_ms: float
    probes: tuple[int, ...]

    @property
    def feasible(self) -> bool:
        """Whether some size does."""
        return self.batch is not None


def bisect_batch(question: BatchQuestion) -> BatchAnswer:
    """Search one replica's size; at most six probes in 1 to 32."""
    low, high, best = question.batch_min, question.batch_max, None
    probes: list[int] = []
    while low <= high:
        middle = (low + high) // 2
        probes.append(middle)
        enough = question.throughput_rps(middle) >= question.rate_rps
        if question.holds(middle):
            best = middle if enough else best
            low = middle + 1
        elif not enough:
            # Smaller batches are slower still, larger ones later still.
            break
        else:
            high = middle - 1
    return BatchAnswer(batch=best, timeout_ms=_timeout_ms(question, best), probes=tuple(probes))


def scan_batches(question: BatchQuestion) -> BatchAnswer:
    """Try every size and take the one with the highest throughput, the smaller of two."""
    sizes = range(question.batch_min, question.batch_max + 1)
    able = [size for size in sizes if question.holds(size) and question.throughput_rps(size) >= question.rate_rps]
    best = max(able, key=lambda size: (question.throughput_rps(size), -size), default=None)
    return BatchAnswer(batch=best, timeout_ms=_timeout_ms(question, best), probes=tuple(sizes))


def regret(question: BatchQuestion) -> float:
    """Part of the possible throughput that bisection leaves: 0 when it finds the best, 1 when it finds nothing."""
    found, best = bisect_batch(question).batch, scan_batches(question).batch
    if best is None:
        return 0.0
    return 1.0 if found is None else 1.0 - question.throughput_rps(found) / question.throughput_rps(best)


def task_latency_ms(batch: int, waiting: int, running_ms: float, rate_rps: float, execution_ms: float) -> float:
    """Latency of a task with `waiting` tasks before it, itself counted, while its model's running batch needs
    `running_ms` more.
    """
    if waiting >= batch:
        return running_ms + math.ceil(waiting / batch) * execution_ms
    filling_ms = 1000.0 * (batch - waiting) / rate_rps if rate_rps > 0.0 else math.inf
    return max(running_ms, filling_ms) + execution_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTenant:
    """A replica among others on a device; `question.fits` is asked on top of the memory they share."""

    question: BatchQuestion
    memory_mib: Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatches:
    """Sizes for all replicas of a device. Those in `infeasible` have the default size and break a limit."""

    batches: Mapping[str, int]
    timeouts_ms: Mapping[str, float]
    infeasible: tuple[str, ...]
    passes: int

    @property
    def feasible(self) -> bool:
        """Whether everybody has what it needs."""
        return not self.infeasible


def size_device(tenants: Sequence[SharingTenant], memory_mib_total: float) -> DeviceBatches:
    """Size the replicas of a device one by one, the tightest limit first; those not sized yet count with the default.
    When the first pass freed memory, a second one uses it.
    """
    ordered = sorted(tenants, key=lambda each: (each.question.latency_ms_limit, each.question.replica))
    batches = {each.question.replica: _default(each.question) for each in ordered}
    start = _memory_mib(ordered, batches)
    found = _pass(ordered, batches, {}, memory_mib_total)
    passes = 1
    if passes < PASSES_MAX and _memory_mib(ordered, found.batches) < start:
        answers = {name: found.timeouts_ms[name] for name in found.batches if name not in found.infeasible}
        found = replace(_pass(ordered, found.batches, answers, memory_mib_total), passes=PASSES_MAX)
    return found


def _pass(
    ordered: Sequence[SharingTenant], begin: Mapping[str, int], standing: Mapping[str, float], memory_mib_total: float
) -> DeviceBatches:
    """One pass. `standing`: timeouts of those whose size in `begin` works; they only ever get a better one."""
    batches, timeouts, bad = dict(begin), {each.question.replica: 0.0 for each in ordered} | dict(standing), []
    for tenant in ordered:
        name = tenant.question.replica
        others = _memory_mib([each for each in ordered if each is not tenant], batches)
        question = _within(tenant, memory_mib_total - others)
        answer = bisect_batch(question)
        better = answer.batch is not None and (
            name not in standing or question.throughput_rps(answer.batch) > question.throughput_rps(batches[name])
        )
        if better and answer.batch is not None:
            batches[name], timeouts[name] = answer.batch, answer.timeout_ms
        elif answer.batch is None and name not in standing:
            bad.append(name)
    return DeviceBatches(batches=batches, timeouts_ms=timeouts, infeasible=tuple(bad), passes=1)


def _within(tenant: SharingTenant, memory_mib: float) -> BatchQuestion:
    question = tenant.question
    return replace(question, fits=lambda batch: question.fits(batch) and tenant.memory_mib(batch) <= memory_mib)


def _default(question: BatchQuestion) -> int:
    return min(max(BATCH_DEFAULT, question.batch_min), question.batch_max)


def _memory_mib(tenants: Sequence[SharingTenant], batches: Mapping[str, int]) -> float:
    return math.fsum(each.memory_mib(batches[each.question.replica]) for each in tenants)


def _timeout_ms(question: BatchQuestion, batch: int | None) -> float:
    """What the limit leaves for waiting once the batch itself is paid for."""
    return 0.0 if batch is None else max(0.0, question.latency_ms_limit - question.execution_ms(batch))
