"""What users saw: the rows of the load, by service and time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.rig import Rig
from tests.gpu.whole.services import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row."""

    due_s: float
    service: str
    latency_ms: float
    status: int
    port: int
    late_ms: float

    @property
    def answered_s(self) -> float:
        """When."""
        return self.due_s + (self.late_ms + self.latency_ms) / 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of the machine's monotonic clock, and what it is called."""

    name: str
    from_s: float
    until_s: float

    def of(self, requests: Sequence[Request], service: str) -> list[Request]:
        """Those that were due in it."""
        return [each for each in requests if each.service == service and self.from_s <= each.due_s < self.until_s]


def read(file: Path) -> list[Request]:
    """All rows, as they were due."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        due_s, service, latency_ms, status, port, late_ms = line.split("\t")
        found.append(
            Request(
                due_s=float(due_s),
                service=service,
                latency_ms=float(latency_ms),
                status=int(status),
                port=int(port),
                late_ms=float(late_ms),
            )
        )
    return sorted(found, key=lambda each: each.due_s)


def quantile(numbers: Sequence[float], part: float) -> float:
    """Of some numbers; of none it is none."""
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def tell(rig: Rig, requests: Sequence[Request], window: Window, service: Service, planned_ms: float) -> None:
    """Findings about a service within a window."""
    inside = window.of(requests, service.key)
    good = [each.latency_ms for each in inside if each.status == 200]
    if not good:
        rig.check(f"{service.name} {window.name}: requests are answered", fine=False, value=f"0 of {len(inside)}")
        return
    at = f"{service.name} {window.name}"
    failed, over = len(inside) - len(good), sum(latency_ms > service.slo_ms for latency_ms in good)
    rate_rps = len(inside) / (window.until_s - window.from_s)
    note = f"{rate_rps:.0f} requests/s, late by {quantile([each.late_ms for each in inside], 0.99):.2f} ms (p99)"
    rig.note(f"{at}: p50", quantile(good, 0.5), "ms", note=note)
    p99_ms = quantile(good, 0.99)
    rig.check(f"{at}: p99 keeps {service.slo_ms:g} ms", p99_ms <= service.slo_ms, p99_ms, "ms")
    rig.note(
        f"{at}: p99 as planned", planned_ms, "ms", note=f"measured is {100.0 * (p99_ms / planned_ms - 1.0):+.0f} %"
    )
    rig.note(f"{at}: over the promise", 100.0 * over / len(good), "%", note=f"{over} of {len(good)}")
    told = ", ".join(f"{status}: {sum(each.status == status for each in inside)}" for status in (0, -1, 500, 404))
    rig.check(f"{at}: no request failed", failed == 0, float(failed), note=told if failed else "")


def gap_ms(requests: Sequence[Request], window: Window, service: str) -> float:
    """The longest time in which nothing was answered."""
    times = sorted(each.answered_s for each in window.of(requests, service) if each.status == 200)
    return max((1000.0 * (after - before) for before, after in itertools.pairwise(times)), default=float("nan"))
