"""How a stretch of batches is measured: one worker alone, or several at once, each by what it did while all worked.

Owns the numbers that every table has of it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agents.devices.base import WorkerReading
from agents.devices.nvidia.host import NvidiaDevices
from agents.errors import BusyError
from tests.gpu.host import ask, spec
from tests.gpu.rig import Rig
from tests.waiting import spend

PAIR_POINTS = 1.5
"""Workers beside each other are measured so much longer than a point."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a stretch of batches showed."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    count: int
    power_w: float | None
    clock_mhz: int
    throttle: str

    def row(self) -> dict[str, object]:
        """As columns of a table."""
        return {
            "latency_ms_mean": round(self.mean_ms, 4),
            "latency_ms_p50": round(self.p50_ms, 4),
            "latency_ms_p99": round(self.p99_ms, 4),
            "batches": self.count,
            "power_w": "" if self.power_w is None else round(self.power_w, 1),
            "clock_mhz": self.clock_mhz,
            "throttle": self.throttle,
        }


def tuned(rig: Rig, host: NvidiaDevices, worker: WorkerReading, batch: int) -> bool:
    """Whether a worker took a batch size, by the agent's own verb."""

    def taken() -> bool:
        try:
            now = next(each for each in host.workers() if each.worker == worker.worker)
            host.tune(worker.worker, now.spec.tuned_as(spec(rig, "any", now.spec.model, share=1, batch=batch)))
        except BusyError:
            return False
        return True

    return rig.until(taken, 30.0) is not None


def alone(rig: Rig, worker: WorkerReading) -> Point:
    """One worker works for a while, and everybody else waits."""
    ask(worker, "/execute?batches=3")
    once_s = statistics.median(ask(worker, "/execute?batches=3")["seconds"])
    count = max(5, min(2000, round(rig.point_s / once_s)))
    before, began_s = rig.boards.reading(rig.uuid), time.monotonic()
    seconds = ask(worker, f"/execute?batches={count}")["seconds"]
    after, took_s = rig.boards.reading(rig.uuid), time.monotonic() - began_s
    power_w = None
    if before.energy_j_total is not None and after.energy_j_total is not None:
        power_w = (after.energy_j_total - before.energy_j_total) / took_s
    return _point(seconds, power_w, after.clock_mhz_sm, after.throttle)


def together(rig: Rig, workers: Sequence[WorkerReading]) -> list[Point]:
    """All work at once; of each what it did while the others worked, too."""
    seen: dict[str, list[tuple[float, list[float]]]] = {worker.worker: [] for worker in workers}
    pair_s = PAIR_POINTS * rig.point_s
    until_s = time.monotonic() + pair_s

    def work(worker: WorkerReading) -> None:
        once_s = statistics.median(ask(worker, "/execute?batches=3")["seconds"])
        count = max(2, round(pair_s / 6.0 / once_s))
        mine = seen[worker.worker]
        while not mine or time.monotonic() < until_s:
            seconds = ask(worker, f"/execute?batches={count}")["seconds"]
            mine.append((time.monotonic(), seconds))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    before, began_s = rig.boards.reading(rig.uuid), time.monotonic()
    for thread in threads:
        thread.start()
    spend(0.8 * pair_s)
    after, took_s = rig.boards.reading(rig.uuid), time.monotonic() - began_s
    for thread in threads:
        thread.join()
    over_s = min(rounds[-1][0] for rounds in seen.values())
    power_w = None
    if before.energy_j_total is not None and after.energy_j_total is not None:
        power_w = (after.energy_j_total - before.energy_j_total) / took_s
    found = []
    for worker in workers:
        rounds = seen[worker.worker]
        shared = [round_ for round_ in rounds if round_[0] <= over_s] or rounds[:1]
        seconds = [second for _, took in shared for second in took]
        found.append(_point(seconds, power_w, after.clock_mhz_sm, after.throttle))
    return found


def _point(seconds: Sequence[float], power_w: float | None, clock_mhz: int, throttle: str) -> Point:
    ordered = sorted(1000.0 * second for second in seconds)
    return Point(
        mean_ms=statistics.fmean(ordered),
        p50_ms=statistics.median(ordered),
        p99_ms=ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))],
        count=len(ordered),
        power_w=power_w,
        clock_mhz=clock_mhz,
        throttle=throttle,
    )
