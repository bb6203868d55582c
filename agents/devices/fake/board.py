"""One simulated GPU with its worker processes: settings, and what the truth says happens between two moments.

The hard limits of a device (shares, memory, client slots, clock table, power range) and its physics over time. Time is
an argument; randomness is a seeded stream, so that equal histories give equal readings.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from agents.devices.base import DeviceSample, DeviceSettings, Mode, WorkerReading, WorkerSample, WorkerSpec, WorkerState
from agents.errors import BusyError, NotSupportedError, OutOfMemoryError, OutOfRangeError
from agents.wire import DeviceInventory, mirrored
from solvers.sim.truth.truth import (
    GpuTruth,
    Resident,
    Served,
    board_power_w,
    clock_reached_mhz,
    dynamic_power_w,
    execution_curve_ms,
    execution_ms,
    gpu_truth,
    launch_s,
    memory_mib,
    serve,
    sm_count_of_share,
    training_iteration_ms,
)

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
        self.arrived += arrived
        self.completed += served.completed
        self.violated += served.violated
        self.dropped += served.dropped
        if served.batch_mean > 0.0:
            self.execute(served.completed / served.batch_mean, served.execution_ms)
        points = ((served.latency_ms_p50, 0.50), (served.latency_ms_p95, 0.45), (served.latency_ms_p99, 0.05))
        self.latencies.extend((latency, weight * served.completed) for latency, weight in points if latency is not None)

    def execute(self, batches: float, execution_ms: float) -> None:
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
        return self.spec.takes_requests and self.state is WorkerState.READY

    @property
    def executes(self) -> bool:
        return self.state in (WorkerState.READY, WorkerState.DRAINING)

    @property
    def finished(self) -> bool:
        """A job or task that has done all it was started for."""
        total = self.spec.iterations_total
        return total is not None and self.progress >= total

    @property
    def memory_mib_used(self) -> float:
        if self.spec.kind == "job":
            return TRAINING_MEMORY_USED * self.spec.memory_mib_limit
        return min(float(self.spec.memory_mib_limit), memory_mib(self.spec.model, self.spec.batch))

    def resident(self) -> Resident:
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

    def arrive(self, seconds: float) -> float:
        arrived = min(self.inflow, self.inflow_rps * seconds)
        self.inflow -= arrived
        if self.inflow < DRAINED:
            arrived, self.inflow = arrived + self.inflow, 0.0
        return arrived

    def reading(self, uuid: str, now_s: float) -> WorkerReading:
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
        return mirrored(
            WorkerSample,
            tally,
            reading=self.reading(uuid, now_s),
            gone=gone,
            memory_mib_used=self.memory_mib_used,
            queue_length=0.0 if gone else self.queue,
            batch_mean=tally.completed / tally.batches if tally.batches > 0.0 else 0.0,
            latency_ms_p50=tally.percentile(0.50),
            latency_ms_p95=tally.percentile(0.95),
            latency_ms_p99=tally.percentile(0.99),
            iterations_done=None if self.spec.takes_requests else tally.iterations,
            executions=tally.batches,
            execution_ms_mean=tally.executed_ms / tally.batches if tally.batches > 0.0 else None,
        )


CLIENTS_MAX = 48
READING_NOISE = 0.01
"""Standard deviation of execution times and power between two readings, relative."""
TEMPERATURE_C_IDLE, TEMPERATURE_C_RISE = 32.0, 45.0
CAPABILITIES = {"set_clock": "", "set_power": "", "mps": "", "mig": "not simulated"}


class FakeBoard:
    """A GPU of a type. Workers are kept by name, in the order they were started."""

    def __init__(self, gpu: GpuTruth, uuid: str, index: int, now_s: float) -> None:
        self.gpu = gpu
        self.uuid = uuid
        self.index = index
        self.mode = Mode.MPS
        self.clock_mhz_sm: int | None = None
        self.power_limit_w: float | None = None
        self.workers: dict[str, Worker] = {}
        self._gone: list[Worker] = []
        self._noise = random.Random(uuid)
        self._now_s = now_s
        self._clock_reached = gpu.clock_mhz_sm_max
        self._elapsed_s = self._energy_j = self._utilised_s = 0.0

    def inventory(self) -> DeviceInventory:
        return mirrored(
            DeviceInventory,
            self,
            self.gpu,
            gpu_type=self.gpu.name,
            power_limit_w_max=self.gpu.tdp_w,
            parent_uuid=None,
            mig_profile=None,
            driver_version="simulated",
            capabilities=dict(CAPABILITIES),
        )

    def settings(self) -> DeviceSettings:
        return mirrored(DeviceSettings, self)

    def set_mode(self, mode: Mode) -> None:
        if mode is Mode.TIME_SLICED:
            raise NotSupportedError("time slicing is not simulated")
        if mode is not self.mode and self.workers:
            raise BusyError(f"{self.uuid} still has {len(self.workers)} workers")
        self.mode = mode

    def set_clock(self, clock_mhz_sm: int | None) -> None:
        if clock_mhz_sm is not None and clock_mhz_sm not in self.gpu.clocks_mhz_sm:
            raise OutOfRangeError(f"{clock_mhz_sm} MHz is not in the clock table of a {self.gpu.name}")
        self.clock_mhz_sm = clock_mhz_sm

    def set_power_limit(self, power_limit_w: float | None) -> None:
        low, high = self.gpu.power_limit_w_min, self.gpu.tdp_w
        if power_limit_w is not None and not low <= power_limit_w <= high:
            raise OutOfRangeError(f"{power_limit_w} W is outside {low} to {high} W")
        self.power_limit_w = power_limit_w

    def start(self, name: str, spec: WorkerSpec, now_s: float, time_factor: float) -> None:
        """Admit a worker, if everything it would hold is free."""
        memory = spec.memory_mib_limit + sum(worker.spec.memory_mib_limit for worker in self.workers.values())
        if not 1 <= spec.share_pct_sm <= 100:
            raise OutOfRangeError(f"a share of {spec.share_pct_sm} % is not possible")
        if len(self.workers) >= (1 if self.mode is Mode.DEDICATED else CLIENTS_MAX):
            raise BusyError(f"{self.uuid} takes no further client")
        if memory > self.gpu.memory_mib:
            raise OutOfMemoryError(f"limits on {self.uuid} would be {memory} of {self.gpu.memory_mib} MiB")
        _check_fits(spec)
        sm_count = sm_count_of_share(self.gpu, spec.share_pct_sm)
        ready_at_s = now_s + launch_s(spec.model) / time_factor
        self.workers[name] = Worker(name=name, spec=spec, sm_count=sm_count, since_s=now_s, ready_at_s=ready_at_s)

    def tune(self, worker: Worker, spec: WorkerSpec) -> None:
        _check_fits(spec)
        worker.spec = spec

    def end(self, worker: Worker) -> None:
        """Take a worker away; what it had not answered is dropped."""
        del self.workers[worker.name]
        worker.tally.arrived += worker.inflow
        worker.tally.dropped += worker.queue + worker.inflow
        worker.queue = worker.inflow = 0.0
        self._gone.append(worker)

    def advance(self, now_s: float) -> None:
        """Let time pass, piece by piece: a piece ends where a worker becomes ready or an announced inflow is over."""
        self._admit_ready()
        while self._now_s < now_s:
            until_s = now_s
            for worker in self.workers.values():
                if worker.state is WorkerState.STARTING and worker.ready_at_s > self._now_s:
                    until_s = min(until_s, worker.ready_at_s)
                ends_in_s = worker.inflow / worker.inflow_rps if worker.inflow > 0.0 else None
                if ends_in_s is not None:
                    until_s = min(until_s, self._now_s + max(ends_in_s, 1e-4))
            self._run(until_s - self._now_s)
            self._now_s = until_s
            self._admit_ready()

    def _admit_ready(self) -> None:
        for worker in self.workers.values():
            if worker.state is WorkerState.STARTING and worker.ready_at_s <= self._now_s:
                worker.enter(WorkerState.READY, worker.ready_at_s)

    def _run(self, seconds: float) -> None:
        gpu, limit_w = self.gpu, self.power_limit_w or self.gpu.tdp_w
        workers = list(self.workers.values())
        residents = [worker.resident() for worker in workers]
        self._clock_reached = clock_reached_mhz(gpu, residents, self.clock_mhz_sm or gpu.clock_mhz_sm_max, limit_w)
        for position, worker in enumerate(workers):
            worker.tally.held_s += seconds
            if worker.executes:
                neighbours = residents[:position] + residents[position + 1 :]
                self._execute(worker, neighbours, seconds)
        residents = [worker.resident() for worker in workers]
        power_w = board_power_w(gpu, residents, self._clock_reached, limit_w) * self._draw()
        for worker, resident in zip(workers, residents, strict=True):
            worker.tally.energy_j += dynamic_power_w(gpu, resident, self._clock_reached) * seconds
        idle = 1.0
        for resident in residents:
            idle *= 1.0 - resident.busy
        self._elapsed_s += seconds
        self._energy_j += power_w * seconds
        self._utilised_s += (1.0 - idle) * seconds

    def _execute(self, worker: Worker, neighbours: list[Resident], seconds: float) -> None:
        if worker.spec.kind == "job":
            self._train(worker, neighbours, seconds)
            return
        arrived = worker.arrive(seconds)
        if worker.spec.takes_requests and arrived + worker.queue <= 0.0:
            worker.busy = 0.0
            return
        if worker.spec.kind == "task":
            self._work_off(worker, execution_ms(self.gpu, worker.resident(), self._clock_reached, neighbours), seconds)
            return
        times_ms = execution_curve_ms(self.gpu, worker.resident(), self._clock_reached, neighbours, self._draw())
        limit_ms, execution_only = worker.spec.latency_ms_limit, worker.spec.latency_execution_only
        served = serve(worker.queue, arrived, seconds, times_ms, None if execution_only else limit_ms)
        if execution_only and limit_ms is not None and served.completed > 0.0:
            # Nobody is late by waiting: a request is late when its batch runs too long, judged by the mean batch.
            late = times_ms[max(0, math.ceil(served.batch_mean) - 1)] > limit_ms
            served = replace(served, violated=served.completed if late else 0.0)
        worker.queue, worker.busy = served.queue, served.busy
        worker.tally.add(arrived, served)

    def _train(self, worker: Worker, neighbours: list[Resident], seconds: float) -> None:
        spec = worker.spec
        worker.busy = 0.0 if worker.finished or worker.state is WorkerState.DRAINING else 1.0
        if worker.busy == 0.0 or spec.iteration_ms_reference is None:
            return
        reference = (gpu_truth(spec.gpu_type_reference) if spec.gpu_type_reference else None) or self.gpu
        iteration_ms = training_iteration_ms(
            self.gpu, worker.resident(), self._clock_reached, neighbours, spec.iteration_ms_reference, reference
        )
        _progress(worker, 1000.0 * seconds / iteration_ms)

    @staticmethod
    def _work_off(worker: Worker, batch_ms: float, seconds: float) -> None:
        worker.busy = 0.0 if worker.finished or worker.state is WorkerState.DRAINING else 1.0
        if worker.busy > 0.0:
            before = worker.tally.iterations
            _progress(worker, worker.spec.batch * 1000.0 * seconds / batch_ms)
            done = float(worker.tally.iterations - before)
            worker.tally.arrived += done
            worker.tally.completed += done
            worker.tally.execute(done / worker.spec.batch, batch_ms)

    def sample(self, now_s: float) -> DeviceSample:
        """What happened since the last sample; call after `advance`."""
        workers = [worker.sample(self.uuid, now_s, gone=False) for worker in self.workers.values()]
        workers += [worker.sample(self.uuid, now_s, gone=True) for worker in self._gone]
        elapsed_s, energy_j, utilised_s = self._elapsed_s, self._energy_j, self._utilised_s
        self._gone, self._elapsed_s, self._energy_j, self._utilised_s = [], 0.0, 0.0, 0.0
        power_w = energy_j / elapsed_s if elapsed_s > 0.0 else self.gpu.idle_w
        wanted = self.clock_mhz_sm or self.gpu.clock_mhz_sm_max
        return DeviceSample(
            uuid=self.uuid,
            power_w=power_w,
            energy_j=energy_j,
            utilisation_pct=min(100.0, 100.0 * utilised_s / elapsed_s) if elapsed_s > 0.0 else 0.0,
            memory_mib_used=sum(worker.memory_mib_used for worker in self.workers.values()),
            clock_mhz_sm=self._clock_reached,
            temperature_c=TEMPERATURE_C_IDLE + TEMPERATURE_C_RISE * min(1.0, power_w / self.gpu.tdp_w),
            throttle="power_cap" if self._clock_reached < wanted else "",
            healthy=True,
            workers=tuple(workers),
        )

    def _draw(self) -> float:
        return 1.0 + READING_NOISE * max(-3.0, min(3.0, self._noise.gauss(0.0, 1.0)))


def _check_fits(spec: WorkerSpec) -> None:
    """A process that needs more than its own limit dies while it loads; say so before."""
    if spec.batch < 1:
        raise OutOfRangeError(f"a batch of {spec.batch} is not possible")
    if spec.kind == "job":
        return
    needed = memory_mib(spec.model, spec.batch)
    if needed > spec.memory_mib_limit:
        raise OutOfMemoryError(
            f"{spec.model} needs {needed:.0f} MiB for a batch of {spec.batch}, its limit is {spec.memory_mib_limit}"
        )


def _progress(worker: Worker, steps: float) -> None:
    before = worker.progress
    total = worker.spec.iterations_total
    worker.progress = before + steps if total is None else min(float(total), before + steps)
    worker.tally.iterations += int(worker.progress) - int(before)
