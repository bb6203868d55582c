"""What a planner process tells Prometheus of itself, on a port of its own: whether it leads, how its loops fare, where
cycles spend their time. What it planned is in the database, and told by the API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http.server import HTTPServer
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from app.clock import SystemClock
from app.registry import process_registry
from solvers.cycle.record import CycleRecord, CycleStep
from solvers.errors import InputError

if TYPE_CHECKING:
    from app.workers.traces import Tracer


class PlannerTold:
    """Counts of one process, and who asks for them."""

    def __init__(self, is_leading: Callable[[], bool], tracer: Tracer | None = None) -> None:
        """`tracer` takes cycles, where anybody wants them."""
        self._tracer = tracer
        self.registry: CollectorRegistry = process_registry()
        self._clock = SystemClock()
        self._runs = Counter(
            "headroom_planner_loops", "Wake-ups of loops.", ("loop", "outcome"), registry=self.registry
        )
        self._seconds = Counter(
            "headroom_planner_loop_seconds", "Time that loops took.", ("loop",), registry=self.registry
        )
        self._done_at = Gauge(
            "headroom_planner_loop_success_timestamp_seconds", "When last well.", ("loop",), registry=self.registry
        )
        self._steps = Counter(
            "headroom_planner_step_seconds", "Time that steps of cycles took.", ("step",), registry=self.registry
        )
        leading = Gauge("headroom_planner_leading", "Whether this process holds the lease.", registry=self.registry)
        leading.set_function(lambda: float(is_leading()))
        for step in CycleStep:
            self._steps.labels(step.value)
        self._server: HTTPServer | None = None

    def open(self, host: str, port: int) -> int:
        """Answer from now on; the port, which is free where 0 was asked for. Raises InputError."""
        try:
            self._server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            raise InputError(f"metrics of the planner cannot listen on {host}:{port}: {error.strerror}") from None
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Tell nobody any more. Twice is once."""
        if self._tracer is not None:
            self._tracer.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def ran(self, loop: str, elapsed_s: float, *, well: bool) -> None:
        """A loop was woken and has done its work, or failed at it."""
        self._runs.labels(loop, "well" if well else "failed").inc()
        self._seconds.labels(loop).inc(elapsed_s)
        if well:
            self._done_at.labels(loop).set(self._clock.now_s())

    def planned(self, records: Sequence[CycleRecord]) -> None:
        for record in records:
            if self._tracer is not None:
                self._tracer.put(record)
            for timing in record.timings:
                self._steps.labels(timing.step.value).inc(timing.elapsed_ms / 1000.0)
