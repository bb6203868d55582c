"""One simulated worker process and what it did lately.

Owns a worker's life, its queue, its inflow of requests and the tally of an interval. It refuses to know its
neighbours: the board tells it how fast it may execute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.devices.base import WorkerReading, WorkerSample, WorkerSpec, WorkerState
from solvers.sim.truth.truth import Resident, Served, memory_mib

LOADING_BUSY = 0.05
"""Part of the time a starting process keeps its SMs busy."""
TRAINING_MEMORY_USED = 0.92
"""Part of its memory limit that a training process fills."""
DRAINED = 1e-6
INFLOW_STRETCH = 1.1
"""Announced requests arrive over a little longer than announced, so that the next announcement finds no silence before
it.
"""


@dataclass(slots=True)
class IntervalTally:
    """Sums over an interval."""

    held_s: float = 0.0
    arrived: float = 0.0
    completed: float = 0.0
    violated: float = 0.0
    dropped: float = 0.0
    batches: float = 0.0
    executed_ms: float = 0.0
    """Time that the batches took, all together."""
    energy_j: float = 0.0
    iterations: int = 0
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """(milliseconds, requests) of every piece of the interval, three points each."""

    def add(self, arrived: float, served: Served) -> None:
        """Count a piece of the interval."""
        self.arrived += arrived
        self.completed += served.completed
        self.violated += served.violated
        self.dropped += served.dropped
        if served.batch_mean > 0.0:
            self.execute(served.completed / served.batch_mean, served.execution_ms)
        points = ((served.latency_ms_p50, 0.50), (served.latency_ms_p95, 0.45), (served.latency_ms_p99, 0.05))
        self.latencies.extend((latency, weight * served.completed) for latency, weight in points if latency is not None)

    def execute(self, batches: float, execution_ms: float) -> None:
        """Count batches and what each of them took."""
        self.batches += batches
        self.executed_ms += batches * execution_ms

    def percentile(self, level: float) -> float | None:
        """Latency below which a part `level` of the completed requests lies."""
        total = sum(weight for _, weight in self.latencies)
        if total <= 0.0:
            return None
        reached = 0.0
        for latency, weight in sorted(self.latencies):
            reached += weight
            if reached >= level * total * (1.0 - 1e-9):
                return latency
        return None


@dataclass(slots=True)
class Worker:
    """A process on a simulated device. Times are seconds of the host's monotonic clock."""

    name: str
    spec: WorkerSpec
    sm_count: int
    since_s: float
    ready_at_s: float
    state: WorkerState = WorkerState.STARTING
    queue: float = 0.0
    inflow: float = 0.0
    """Requests announced but not arrived yet."""
    inflow_rps: float = 0.0
    busy: float = 0.0
    progress: float = 0.0
    """Iterations (or inputs of a task) done since it started."""
    tally: IntervalTally = field(default_factory=IntervalTally)

    @property
    def serves(self) -> bool:
        """Takes requests of a service."""
        return self.spec.kind == "service" and self.state is WorkerState.READY

    @property
    def executes(self) -> bool:
        """May execute now."""
        return self.state in (WorkerState.READY, WorkerState.DRAINING)

    @property
    def finished(self) -> bool:
        """A job or task that has done all it was started for."""
        total = self.spec.iterations_total
        return total is not None and self.progress >= total

    @property
    def memory_mib_used(self) -> float:
        """Device memory its process fills."""
        if self.spec.kind == "job":
            return TRAINING_MEMORY_USED * self.spec.memory_mib_limit
        return min(float(self.spec.memory_mib_limit), memory_mib(self.spec.model, self.spec.batch))

    def resident(self) -> Resident:
        """How the device sees it."""
        return Resident(
            model=self.spec.model,
            share_pct_sm=self.spec.share_pct_sm,
            batch=self.spec.batch,
            busy=self.busy if self.executes else LOADING_BUSY,
            training=self.spec.kind == "job",
        )

    def enter(self, state: WorkerState, now_s: float) -> None:
        """Change state; what was announced to a worker that drains arrives at once, because it was accepted."""
        if state is WorkerState.DRAINING:
            self.queue += self.inflow
            self.tally.arrived += self.inflow
            self.inflow = 0.0
        self.state, self.since_s = state, now_s

    def announce(self, requests: float, over_s: float) -> None:
        """Let requests arrive evenly over the coming seconds, together with those announced before."""
        self.inflow += requests
        self.inflow_rps = self.inflow / (INFLOW_STRETCH * over_s)

    def inflow_ends_in_s(self) -> float | None:
        """Seconds until everything announced has arrived."""
        return self.inflow / self.inflow_rps if self.inflow > 0.0 else None

    def arrive(self, seconds: float) -> float:
        """Requests that arrive within these seconds."""
        arrived = min(self.inflow, self.inflow_rps * seconds)
        self.inflow -= arrived
        if self.inflow < DRAINED:
            arrived, self.inflow = arrived + self.inflow, 0.0
        return arrived

    def reading(self, uuid: str, now_s: float) -> WorkerReading:
        """Read-back."""
        return WorkerReading(
            worker=self.name,
            uuid=uuid,
            spec=self.spec,
            sm_count=self.sm_count,
            state=self.state,
            state_s=max(0.0, now_s - self.since_s),
            drained=self.state is WorkerState.DRAINING and self.queue <= DRAINED,
        )

    def sample(self, uuid: str, now_s: float, *, gone: bool) -> WorkerSample:
        """The tally as a sample; a new interval begins."""
        tally, self.tally = self.tally, IntervalTally()
        return WorkerSample(
            reading=self.reading(uuid, now_s),
            gone=gone,
            held_s=tally.held_s,
            memory_mib_used=self.memory_mib_used,
            arrived=tally.arrived,
            completed=tally.completed,
            violated=tally.violated,
            dropped=tally.dropped,
            queue_length=0.0 if gone else self.queue,
            batch_mean=tally.completed / tally.batches if tally.batches > 0.0 else 0.0,
            latency_ms_p50=tally.percentile(0.50),
            latency_ms_p95=tally.percentile(0.95),
            latency_ms_p99=tally.percentile(0.99),
            energy_j=tally.energy_j,
            iterations_done=None if self.spec.kind == "service" else tally.iterations,
            executions=tally.batches,
            execution_ms_mean=tally.executed_ms / tally.batches if tally.batches > 0.0 else None,
        )
