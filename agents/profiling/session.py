"""One point measured: set the clock, start the worker, load it until it is steady, stop it again, whatever happens.

It works on any `Devices`, so that the same steps run on a real host and on simulated GPUs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agents.devices.base import Devices, DeviceSample, Mode, WorkerReading, WorkerSample, WorkerSpec, WorkerState
from agents.errors import DeviceError, NoPermissionError, NotSupportedError, WorkerError
from agents.profiling.loads import Generator, LoadSeen
from agents.profiling.points import Measured, MeasuringPoint

# --- When a measurement is good enough: warm, steady, and with a tight interval
#
# A window's mean counts once, however many batches it holds: batches within a window depend on each other, windows
# hardly do.


HALF_WIDTH_PCT = 2.0
"""A measurement ends as soon as its mean is known so well."""
HALF_WIDTH_PCT_MAX = 10.0
"""Hosts that scatter never get there: one that was known to 5 % after all windows tells more than none."""
WINDOWS_MIN = 5
WINDOWS_MAX = 40
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95 % quantiles of Student's distribution by degrees of freedom, from 1 on; beyond them 2.1 is near."""
_T_MORE = 2.1
_DRIFT = 3.0
"""How many standard errors the two halves may differ."""
_FLOOR = 0.003
"""Relative differences below this are no drift, however steady the rest is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWindow:
    """A stretch of a measurement. `clean`: clocks and heat were as they should be, and nobody else was there."""

    latency_ms_mean: float
    clean: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyVerdict:
    """What the windows say so far. `from_window`: those before it belong to warming up."""

    done: bool
    mean_ms: float | None
    half_width_pct: float | None
    from_window: int
    problem: str = ""


def judge(windows: Sequence[MeasurementWindow]) -> SteadyVerdict:
    """Whether to go on measuring. Windows before the last disturbance, and those that still drift, do not count."""
    clean_from = max((place + 1 for place, window in enumerate(windows) if not window.clean), default=0)
    start = _settled_from([window.latency_ms_mean for window in windows], clean_from)
    used = [window.latency_ms_mean for window in windows[start:]]
    spent = len(windows) >= WINDOWS_MAX
    if len(used) < 2:
        problem = _why_not(windows, clean_from) if spent else ""
        return SteadyVerdict(done=spent, mean_ms=None, half_width_pct=None, from_window=start, problem=problem)
    mean, half = interval(used)
    relative = 100.0 * half / mean if mean > 0.0 else math.inf
    tight = len(used) >= WINDOWS_MIN and relative <= HALF_WIDTH_PCT
    problem = f"its mean is known to {relative:.1f} % only" if spent and relative > HALF_WIDTH_PCT_MAX else ""
    return SteadyVerdict(done=tight or spent, mean_ms=mean, half_width_pct=relative, from_window=start, problem=problem)


def interval(means: Sequence[float]) -> tuple[float, float]:
    """Mean of window means and half of its 95 % interval; at least two."""
    count = len(means)
    mean = math.fsum(means) / count
    variance = math.fsum((item - mean) ** 2 for item in means) / (count - 1)
    quantile = _T_95[count - 2] if count - 2 < len(_T_95) else _T_MORE
    return mean, quantile * math.sqrt(variance / count)


def _settled_from(means: Sequence[float], first: int) -> int:
    """The earliest window from which on the first and second half agree; at least two windows are left."""
    for start in range(first, max(first, len(means) - 2) + 1):
        if not _drifts(means[start:]):
            return start
    return max(first, len(means) - 2)


def _drifts(means: Sequence[float]) -> bool:
    half = len(means) // 2
    if half < 2:
        return False
    early, late = means[:half], means[-half:]
    mean_early, mean_late = math.fsum(early) / half, math.fsum(late) / half
    # By the spread of the later half alone: what is still warming up spreads so far that nothing would be told from it.
    error = math.sqrt(math.fsum((item - mean_late) ** 2 for item in late) / (half - 1) * 2.0 / half)
    return abs(mean_early - mean_late) > max(_DRIFT * error, _FLOOR * (mean_early + mean_late) / 2.0)


def _why_not(windows: Sequence[MeasurementWindow], clean_from: int) -> str:
    if clean_from >= len(windows) - 1:
        return "clocks were held down, or somebody else was on the device, up to the end"
    return "it never became steady"


WINDOW_S = 1.0
CLOCK_SLACK_MHZ = 20
OWN_WAYS = frozenset({"power_cap"})
START_S_MAX = 600.0
END_S_MAX = 60.0
POLL_S = 0.1
IDLE_WINDOWS = 3
"""Windows without load from which the idle power with the process is taken."""
BATCH_SLACK = 0.1
HOT_C = 84.0
COOL_C = 78.0
COOL_S_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingBench:
    """Where a point is measured. `begin(worker, concurrency)` starts closed-loop load on a worker; `samples` gives what
    devices did since it was last called.
    """

    devices: Devices
    uuid: str
    now_s: Callable[[], float]
    wait_s: Callable[[float], None]
    samples: Callable[[], Sequence[DeviceSample]]
    begin: Callable[[WorkerReading, int], Generator]
    stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    device: DeviceSample
    seen: tuple[LoadSeen, ...]
    workers: tuple[WorkerSample | None, ...]
    length_s: float


class StoppedError(WorkerError):
    """Somebody asked to end the run."""

    code = "stopped"
    retryable = False


def measure(bench: ProfilingBench, specs: Sequence[WorkerSpec], clock_mhz_sm: int | None) -> tuple[Measured, ...]:
    """Measure workers side by side (or one alone); a result for each. Leaves the device without workers and with its
    own clock. Raises DeviceError when the device itself does not work; a worker that does not, or a clock that may not
    be set, becomes a problem of the results.
    """
    names: list[str] = []
    try:
        _prepare(bench, clock_mhz_sm)
        for spec in specs:
            names.append(bench.devices.start(bench.uuid, spec))
            _await_ready(bench, names[-1])
        return _measure_ready(bench, tuple(names), specs, clock_mhz_sm)
    except StoppedError:
        raise
    except WorkerError as error:
        return tuple(failed(spec, clock_mhz_sm, str(error)) for spec in specs)
    finally:
        _clear(bench, names)


def _prepare(bench: ProfilingBench, clock_mhz_sm: int | None) -> None:
    devices, uuid = bench.devices, bench.uuid
    taken = [worker.worker for worker in devices.workers() if worker.uuid == uuid]
    if taken:
        raise DeviceError(f"{uuid} still has workers: {', '.join(sorted(taken))}")
    if devices.settings(uuid).mode is not Mode.MPS:
        devices.set_mode(uuid, Mode.MPS)
    if devices.settings(uuid).clock_mhz_sm != clock_mhz_sm:
        try:
            devices.set_clock(uuid, clock_mhz_sm)
        except (NoPermissionError, NotSupportedError) as error:
            raise WorkerError(f"its clock cannot be set: {error}") from error
    _cool_down(bench)


def _cool_down(bench: ProfilingBench) -> None:
    """A hot board would throttle in the middle of the measurement."""
    until_s = bench.now_s() + COOL_S_MAX
    limit_c = HOT_C
    while bench.now_s() < until_s:
        sample = _device_sample(bench)
        if sample.temperature_c is None or sample.temperature_c < limit_c:
            return
        limit_c = COOL_C
        _pause(bench, WINDOW_S)


def _await_ready(bench: ProfilingBench, name: str) -> None:
    until_s = bench.now_s() + START_S_MAX
    while bench.now_s() < until_s:
        found = _worker(bench, name)
        if found is None or found.state is WorkerState.FAILED:
            raise WorkerError(f"the worker did not start: {found.problem if found else 'its process is gone'}")
        if found.state is WorkerState.READY:
            return
        _pause(bench, POLL_S)
    raise WorkerError(f"the worker was not ready after {START_S_MAX:g} s")


def _measure_ready(
    bench: ProfilingBench, names: tuple[str, ...], specs: Sequence[WorkerSpec], clock_mhz_sm: int | None
) -> tuple[Measured, ...]:
    idle_w = _idle_power_w(bench)
    workers = [_worker(bench, name) or _gone(name) for name in names]
    generators: list[Generator] = []
    try:
        for worker, spec in zip(workers, specs, strict=True):
            # Twice the batch keeps the next batch waiting while one executes, so that batches are full.
            generators.append(bench.begin(worker, 2 * spec.batch))
        stretches, verdicts = _until_steady(bench, names, generators, clock_mhz_sm)
    finally:
        for generator in generators:
            generator.close()
    readings = [_worker(bench, name) for name in names]
    return tuple(
        _result(spec, clock_mhz_sm, _Series(stretches, place, verdicts[place], idle_w, readings[place]))
        for place, spec in enumerate(specs)
    )


def _until_steady(
    bench: ProfilingBench, names: tuple[str, ...], generators: Sequence[Generator], clock_mhz_sm: int | None
) -> tuple[list[_Stretch], list[SteadyVerdict]]:
    stretches: list[_Stretch] = []
    _pause(bench, WINDOW_S)
    _take(bench, names, generators, 0.0)
    while True:
        before_s = bench.now_s()
        _pause(bench, WINDOW_S)
        stretches.append(_take(bench, names, generators, bench.now_s() - before_s))
        verdicts = [
            judge([_window(stretch, place, clock_mhz_sm) for stretch in stretches]) for place in range(len(names))
        ]
        if all(verdict.done for verdict in verdicts):
            return stretches, verdicts
        dead = [name for name in names if _worker(bench, name) is None]
        if dead:
            raise WorkerError(f"{dead[0]} ended while it was measured")


def _take(bench: ProfilingBench, names: tuple[str, ...], generators: Sequence[Generator], length_s: float) -> _Stretch:
    device = _device_sample(bench)
    found = {sample.reading.worker: sample for sample in device.workers}
    return _Stretch(
        device=device,
        seen=tuple(generator.take() for generator in generators),
        workers=tuple(found.get(name) for name in names),
        length_s=length_s,
    )


def _window(stretch: _Stretch, place: int, clock_mhz_sm: int | None) -> MeasurementWindow:
    latency_ms = _latency_ms(stretch, place)
    held_down = clock_mhz_sm is not None and abs(stretch.device.clock_mhz_sm - clock_mhz_sm) > CLOCK_SLACK_MHZ
    reasons = {reason for reason in stretch.device.throttle.split(",") if reason}
    if clock_mhz_sm is None:
        # At its own clock a board goes as fast as its power limit lets it: that is what its users get.
        reasons -= OWN_WAYS
    clean = stretch.device.healthy and not reasons and not held_down and latency_ms > 0.0
    return MeasurementWindow(latency_ms_mean=latency_ms, clean=clean)


def _latency_ms(stretch: _Stretch, place: int) -> float:
    """What one batch took: as the worker says, else half of what clients saw, for each waited for one batch and then
    for its own. 0 when nothing came back.
    """
    worker = stretch.workers[place]
    if worker is not None and worker.execution_ms_mean is not None and worker.executions > 0:
        return worker.execution_ms_mean
    latencies = stretch.seen[place].latencies_ms
    if not latencies:
        return 0.0
    return math.fsum(latencies) / len(latencies) / 2.0


@dataclass(frozen=True, slots=True)
class _Series:
    stretches: list[_Stretch]
    place: int
    verdict: SteadyVerdict
    idle_w: float
    reading: WorkerReading | None

    def used(self) -> list[_Stretch]:
        return self.stretches[self.verdict.from_window :]

    def problem(self, batch: int) -> str:
        """Why the result must not be believed; empty when it may."""
        failures = [stretch.seen[self.place] for stretch in self.used() if stretch.seen[self.place].failed]
        if failures:
            count = sum(seen.failed for seen in failures)
            return f"{count} requests failed: {failures[0].first_failure}"
        mean = self.batch_mean()
        if mean is not None and abs(mean - batch) > BATCH_SLACK * batch:
            return f"batches held {mean:.1f} requests on average instead of {batch}"
        return self.verdict.problem

    def batch_mean(self) -> float | None:
        told = [worker for stretch in self.used() if (worker := stretch.workers[self.place]) and worker.executions > 0]
        executions = math.fsum(worker.executions for worker in told)
        if executions <= 0.0:
            return None
        return math.fsum(worker.batch_mean * worker.executions for worker in told) / executions


def _result(spec: WorkerSpec, clock_mhz_sm: int | None, series: _Series) -> Measured:
    used = series.used()
    length_s = math.fsum(stretch.length_s for stretch in used)
    seen = [stretch.seen[series.place] for stretch in used]
    workers = [worker for stretch in used if (worker := stretch.workers[series.place]) is not None]
    power_w = math.fsum(stretch.device.power_w for stretch in used) / len(used) if used else 0.0
    completed = sum(len(each.latencies_ms) for each in seen)
    return Measured(
        point=MeasuringPoint(batch=spec.batch, share_pct_sm=spec.share_pct_sm, clock_mhz_sm=clock_mhz_sm),
        model=spec.model,
        latency_ms_mean=series.verdict.mean_ms,
        half_width_pct=series.verdict.half_width_pct,
        batch_mean=series.batch_mean(),
        throughput_rps=completed / length_s if completed and length_s > 0.0 else None,
        memory_mib=max((worker.memory_mib_used for worker in workers), default=0.0) or None,
        power_w=max(0.0, power_w - series.idle_w) if used else None,
        clock_mhz_sm=used[-1].device.clock_mhz_sm if used else 0,
        sm_count=series.reading.sm_count if series.reading is not None else 0,
        problem=series.problem(spec.batch),
    )


def failed(spec: WorkerSpec, clock_mhz_sm: int | None, problem: str) -> Measured:
    point = MeasuringPoint(batch=spec.batch, share_pct_sm=spec.share_pct_sm, clock_mhz_sm=clock_mhz_sm)
    return Measured(point=point, model=spec.model, latency_ms_mean=None, problem=problem)


def _idle_power_w(bench: ProfilingBench) -> float:
    _device_sample(bench)
    total = 0.0
    for _ in range(IDLE_WINDOWS):
        _pause(bench, WINDOW_S)
        total += _device_sample(bench).power_w
    return total / IDLE_WINDOWS


def _clear(bench: ProfilingBench, names: Sequence[str]) -> None:
    """Stop what was started and give the clock back, also after a failure; what fails here must not hide why, nor keep
    anything else from being given back.
    """
    quiet = replace(bench, stopped=lambda: False)
    for name in names:
        with contextlib.suppress(DeviceError):
            found = _worker(quiet, name)
            if found is not None and found.state is WorkerState.READY:
                bench.devices.drain(name)
        with contextlib.suppress(DeviceError):
            bench.devices.stop(name)
    until_s = bench.now_s() + END_S_MAX
    with contextlib.suppress(DeviceError):
        while any(_worker(quiet, name) is not None for name in names) and bench.now_s() < until_s:
            _pause(quiet, POLL_S)
    with contextlib.suppress(DeviceError):
        if bench.devices.settings(bench.uuid).clock_mhz_sm is not None:
            bench.devices.set_clock(bench.uuid, None)


def _device_sample(bench: ProfilingBench) -> DeviceSample:
    for sample in bench.samples():
        if sample.uuid == bench.uuid:
            return sample
    raise DeviceError(f"{bench.uuid} gives no readings")


def _worker(bench: ProfilingBench, name: str) -> WorkerReading | None:
    return next((worker for worker in bench.devices.workers() if worker.worker == name), None)


def _gone(name: str) -> WorkerReading:
    raise WorkerError(f"{name} ended before it was measured")


def _pause(bench: ProfilingBench, seconds: float) -> None:
    if bench.stopped():
        raise StoppedError("the run was ended")
    bench.wait_s(seconds)
