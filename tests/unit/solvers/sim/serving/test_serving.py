"""The queueing model against a discrete-event simulation, and what it must never break."""

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.world.queues import ReplicaServer, Stretch, serve_requests
from solvers.sim.serving.serving import serve
from tests.unit.lab.world.answers import completed, late, latency_ms

# Execution times by batch size: nearly linear, mostly fixed, strongly linear.
CURVES = {
    "typical": [2.0 + 0.8 * size for size in range(1, 17)],
    "fixed": [30.0 + 2.0 * size for size in range(1, 9)],
    "linear": [1.0 + 5.0 * size for size in range(1, 5)],
}


@dataclass(frozen=True)
class Outcome:
    arrived: int
    completed: int
    dropped: int
    p50: float
    p95: float
    p99: float
    busy: float
    batch: float
    execution_ms: float


def simulate(rate_per_ms: float, span_ms: float, curve: list[float], limit_ms: float | None) -> Outcome:
    """The same server, event by event."""
    draw = random.Random(7)
    arrivals, now = [], draw.expovariate(rate_per_ms)
    while now < span_ms:
        arrivals.append(now)
        now += draw.expovariate(rate_per_ms)
    waiting: list[float] = []
    latencies: list[float] = []
    free = busy = 0.0
    arrived = dropped = batches = 0
    while True:
        if not waiting and arrived >= len(arrivals):
            break
        now = free if waiting else max(free, arrivals[arrived])
        if now > span_ms:
            break
        while arrived < len(arrivals) and arrivals[arrived] <= now:
            waiting.append(arrivals[arrived])
            arrived += 1
        if limit_ms is not None:
            took = curve[min(len(curve), len(waiting)) - 1]
            kept = [each for each in waiting if now + took - each <= limit_ms or took > limit_ms]
            dropped += len(waiting) - len(kept)
            waiting = kept
        if not waiting:
            continue
        took = curve[min(len(curve), len(waiting)) - 1]
        free = now + took
        busy += took
        batches += 1
        latencies += [free - each for each in waiting[: len(curve)]]
        waiting = waiting[len(curve) :]
    latencies.sort()
    return Outcome(
        arrived=len(arrivals),
        completed=len(latencies),
        dropped=dropped,
        p50=latencies[len(latencies) // 2],
        p95=latencies[int(0.95 * len(latencies))],
        p99=latencies[int(0.99 * len(latencies))],
        busy=busy / span_ms,
        batch=len(latencies) / batches,
        execution_ms=busy / batches,
    )


@pytest.mark.parametrize("name", sorted(CURVES))
@pytest.mark.parametrize("load", [0.05, 0.2, 0.5, 0.7, 0.85])
def test_a_stable_server_agrees_with_a_discrete_event_simulation(name: str, load: float) -> None:
    curve = CURVES[name]
    rate, span_ms = load * len(curve) / curve[-1], 100_000.0
    truth = simulate(rate, span_ms, curve, None)
    found = serve(0.0, float(truth.arrived), span_ms / 1000.0, curve, None)
    assert found.completed == pytest.approx(truth.completed, rel=0.02)
    assert found.busy == pytest.approx(truth.busy, rel=0.08)
    assert found.batch_mean == pytest.approx(truth.batch, rel=0.12)
    assert found.execution_ms == pytest.approx(truth.execution_ms, rel=0.12)
    assert found.latency_ms_p50 == pytest.approx(truth.p50, rel=0.25)
    assert found.latency_ms_p95 == pytest.approx(truth.p95, rel=0.15)
    assert found.latency_ms_p99 == pytest.approx(truth.p99, rel=0.25)
    assert found.dropped == 0.0


@pytest.mark.parametrize("name", sorted(CURVES))
@pytest.mark.parametrize("load", [1.2, 2.0])
def test_an_overloaded_server_serves_its_capacity_in_time_and_drops_the_rest(name: str, load: float) -> None:
    curve = CURVES[name]
    rate, span_ms, limit_ms = load * len(curve) / curve[-1], 100_000.0, 10.0 * curve[-1]
    truth = simulate(rate, span_ms, curve, limit_ms)
    found = serve(0.0, float(truth.arrived), span_ms / 1000.0, curve, limit_ms)
    assert found.completed == pytest.approx(truth.completed, rel=0.02)
    assert found.dropped == pytest.approx(truth.dropped, rel=0.05)
    assert found.latency_ms_p50 == pytest.approx(truth.p50, rel=0.1)
    assert found.latency_ms_p99 is not None
    assert found.latency_ms_p99 <= limit_ms * (1 + 1e-9)
    assert found.violated == 0.0
    assert found.busy == pytest.approx(1.0)


def off_from_single_requests(draw: np.random.Generator) -> tuple[float, float, float]:
    """How far violations, completions (parts of what came) and the 99th percentile (relative) are off, in one case."""
    batch, serial = int(draw.choice([1, 2, 3, 4, 8, 16, 32, 64])), float(draw.uniform(0.02, 0.7))
    load, limit_ms = float(draw.uniform(0.5, 1.5)), 50.0 * float(np.exp(draw.uniform(np.log(1.05), np.log(8.0))))
    curve = tuple(50.0 * (serial + (1.0 - serial) * size / batch) for size in range(1, batch + 1))
    count = 15_000
    times_s = np.cumsum(draw.exponential(50.0 / (1000.0 * load * batch), count))
    span_s = float(times_s[-1])
    server = (ReplicaServer(exec_ms=curve),)
    single = serve_requests(
        Stretch(from_s=0.0, until_s=span_s, arrivals_s=times_s, servers=server, limit_ms=limit_ms), draw
    )
    fluid = serve(0.0, float(count), span_s, curve, limit_ms)
    assert fluid.violated == 0.0
    assert fluid.latency_ms_p99 is not None
    violations = late(single, limit_ms) + int(np.count_nonzero(single.dropped))
    p99 = float(np.quantile(latency_ms(single)[np.isfinite(latency_ms(single))], 0.99))
    return (
        abs(fluid.dropped - violations) / count,
        abs(fluid.completed - completed(single)) / count,
        abs(fluid.latency_ms_p99 / p99 - 1.0),
    )


def test_with_a_limit_it_agrees_with_single_requests_at_half_to_one_and_a_half_of_capacity() -> None:
    """Limits of 1.05 to 8 full batches. What is further off than five points has a limit below 1.5 full batches or
    batches of two or three.
    """
    draw = np.random.default_rng(17)
    off = np.array([off_from_single_requests(draw) for _ in range(60)])
    assert off.mean(axis=0) == pytest.approx([0.0, 0.0, 0.0], abs=0.05)
    assert float(off[:, :2].mean()) <= 0.012
    assert float(np.quantile(off[:, :2], 0.94)) <= 0.05
    assert float(off[:, :2].max()) <= 0.13
    assert float(off[:, 2].max()) <= 0.4


def test_a_single_request_server_with_a_limit_is_told_exactly() -> None:
    """M/D/1 with patience, at half load and a wait of just below one execution; the loss is worked out by hand."""
    kept = math.exp(0.5)
    expected = 1.0 - kept / (1.0 + 0.5 * kept)
    found = serve(0.0, 0.5e5, 1000.0, [10.0], 19.999999)
    assert found.dropped / 0.5e5 == pytest.approx(expected, abs=0.01)


def test_below_a_limit_of_one_full_batch_overload_waits_instead_of_being_dropped() -> None:
    found = serve(0.0, 300.0, 10.0, [50.0], 40.0)
    assert found.dropped == 0.0
    assert found.completed == pytest.approx(200.0)
    assert found.violated == pytest.approx(found.completed)


def test_a_backlog_with_a_limit_keeps_what_can_be_in_time_and_settles() -> None:
    curve = CURVES["typical"]
    behind, calm = (serve(queue, 500.0, 1.0, curve, 100.0) for queue in (1000.0, 0.0))
    assert calm.dropped == 0.0
    assert behind.dropped == pytest.approx(1000.0 - 85.2 * 16 / 14.8, abs=20.0)
    assert behind.queue == pytest.approx(calm.queue, abs=3.0)


def test_a_limit_below_one_batch_is_missed_by_everybody_but_nobody_is_dropped_for_it() -> None:
    found = serve(0.0, 10.0, 10.0, [50.0], 40.0)
    assert found.completed + found.queue == pytest.approx(10.0)
    assert found.violated == pytest.approx(found.completed)
    assert found.dropped == 0.0


def test_a_backlog_drains_and_its_latencies_show_it() -> None:
    curve = CURVES["typical"]
    calm = serve(0.0, 100.0, 1.0, curve, None)
    behind = serve(400.0, 100.0, 1.0, curve, None)
    assert behind.queue < 5.0
    assert behind.completed > 490.0
    assert calm.latency_ms_p95 is not None
    assert behind.latency_ms_p95 is not None
    assert behind.latency_ms_p95 > 10.0 * calm.latency_ms_p95


def test_nothing_to_do_is_nothing_done() -> None:
    found = serve(0.0, 0.0, 1.0, [5.0], 100.0)
    assert (found.completed, found.busy, found.latency_ms_p50) == (0.0, 0.0, None)


def test_what_waits_when_arrivals_stop_is_finished() -> None:
    found = serve(3.0, 0.0, 1.0, CURVES["typical"], None)
    assert found.completed == pytest.approx(3.0)
    assert found.queue == pytest.approx(0.0)


curves = st.tuples(st.floats(0.1, 100.0), st.floats(0.01, 20.0), st.integers(1, 32)).map(
    lambda parts: [parts[0] + parts[1] * size for size in range(1, parts[2] + 1)]
)


@given(
    queue=st.floats(0.0, 1e5),
    arrived=st.floats(0.0, 1e6),
    interval_s=st.floats(1e-4, 3600.0),
    curve=curves,
    limit_ms=st.none() | st.floats(0.1, 1e5),
)
def test_requests_are_conserved_and_nothing_is_negative(
    queue: float, arrived: float, interval_s: float, curve: list[float], limit_ms: float | None
) -> None:
    found = serve(queue, arrived, interval_s, curve, limit_ms)
    total = queue + arrived
    assert found.completed + found.dropped + found.queue == pytest.approx(total, rel=1e-9, abs=1e-9)
    for number in (found.completed, found.violated, found.dropped, found.queue, found.batch_mean):
        assert number >= 0.0
    assert found.violated <= found.completed * (1 + 1e-9)
    assert found.batch_mean <= len(curve) * (1 + 1e-9)
    assert 0.0 <= found.busy <= 1.0
    if found.latency_ms_p50 is not None:
        assert found.latency_ms_p95 is not None
        assert found.latency_ms_p99 is not None
        assert curve[0] * 0.999 <= found.latency_ms_p50 <= found.latency_ms_p95 <= found.latency_ms_p99


@given(curve=curves)
def test_more_load_never_means_a_lower_tail_in_a_stable_server(curve: list[float]) -> None:
    capacity_rps = 1000.0 * len(curve) / curve[-1]
    tails = [serve(0.0, load * capacity_rps * 10.0, 10.0, curve, None).latency_ms_p99 for load in (0.1, 0.5, 0.9)]
    low, middle, high = (tail or 0.0 for tail in tails)
    assert 0.0 < low <= middle * 1.05 <= high * 1.05 * 1.05


def test_what_is_not_dropped_is_late_however_late_it_is() -> None:
    curve = CURVES["typical"]
    overloaded = 1.5 * len(curve) / curve[-1] * 1000.0
    kept = serve(0.0, 20.0 * overloaded, 20.0, curve, 50.0, drop=False)
    assert kept.dropped == 0.0
    assert kept.violated == pytest.approx(kept.completed)
    bare = serve(0.0, 20.0 * overloaded, 20.0, curve, None)
    assert (bare.completed, bare.queue, bare.violated) == (kept.completed, kept.queue, 0.0)
    assert serve(0.0, 20.0, 20.0, curve, 50.0, drop=False).violated == 0.0
