"""The latency formula and its inverse."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.problems.promise import Promise, settle
from solvers.sim.serving.serving import serve

P99 = math.log(100)


def one(promise: Promise, batch: float, mean_ms: float, tail_ms: float | None = None) -> tuple[bool, float, float]:
    tails = np.array([mean_ms if tail_ms is None else tail_ms])
    outcome = settle(promise, np.array([batch]), np.array([mean_ms]), tails)
    return bool(outcome.feasible[0]), float(outcome.latency_ms[0]), float(outcome.capacity_rps[0])


def test_a_request_waits_for_the_batch_in_flight_and_the_backlog() -> None:
    backlog = P99 * 0.7 / (2 * 0.3 * 32)
    assert one(Promise(limit_ms=100.0), 32, 40.0) == (
        True,
        pytest.approx(40.0 * (2 + backlog)),
        pytest.approx(0.7 * 32 / 0.040),
    )


def test_twice_the_execution_must_fit() -> None:
    assert one(Promise(limit_ms=80.5), 32, 40.0)[0]
    assert not one(Promise(limit_ms=80.0), 32, 40.0)[0]


def test_a_batch_of_one_near_saturation_waits_for_a_burst() -> None:
    _, latency_ms, _ = one(Promise(limit_ms=None), 1, 10.0)
    assert latency_ms == pytest.approx(10.0 * (2 + P99 * 0.7 / (2 * 0.3)))


def test_a_tight_promise_is_kept_by_granting_less_rate() -> None:
    feasible, latency_ms, capacity_rps = one(Promise(limit_ms=30.0), 1, 10.0)
    assert feasible
    assert latency_ms == pytest.approx(30.0)
    utilisation = 2 * 1 / (P99 + 2 * 1)
    assert capacity_rps == pytest.approx(utilisation * 100)


@pytest.mark.parametrize("fixed_ms", [1.0, 10.0])
@pytest.mark.parametrize("per_input_ms", [0.5, 4.0])
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("multiple", [2.5, 4.0, 12.0])
def test_a_simulated_server_keeps_what_the_formula_promises(
    fixed_ms: float, per_input_ms: float, batch: int, multiple: float
) -> None:
    exec_ms = [fixed_ms + per_input_ms * size for size in range(1, batch + 1)]
    limit_ms = multiple * exec_ms[-1]
    feasible, latency_ms, capacity_rps = one(Promise(limit_ms=limit_ms), batch, exec_ms[-1])
    assert feasible
    served = serve(0.0, capacity_rps * 600, 600.0, exec_ms, limit_ms)
    assert served.latency_ms_p99 is not None
    # The simulation's own error is some percent; a small batch is where the formula is tightest.
    assert served.latency_ms_p99 <= latency_ms * 1.06
    assert served.violated + served.dropped <= 0.012 * capacity_rps * 600


def test_execution_scope_waits_for_nothing() -> None:
    promise = Promise(limit_ms=40.0, end_to_end=False)
    assert one(promise, 1, 40.0) == (True, 40.0, pytest.approx(0.7 * 25))
    assert not one(replace(promise, limit_ms=39.0), 1, 40.0)[0]


def test_latency_goes_by_the_tail_capacity_by_the_mean() -> None:
    feasible, latency_ms, capacity_rps = one(Promise(limit_ms=100.0), 32, 20.0, 40.0)
    assert feasible
    assert latency_ms == one(Promise(limit_ms=100.0), 32, 40.0)[1]
    assert capacity_rps == pytest.approx(0.7 * 32 / 0.020)


def test_without_a_limit_only_throughput_counts() -> None:
    feasible, _, capacity_rps = one(Promise(limit_ms=None, end_to_end=False, utilisation_max=1.0), 8, 100.0)
    assert feasible
    assert capacity_rps == pytest.approx(80.0)


def test_the_hundredth_percentile_is_finite() -> None:
    feasible, latency_ms, capacity_rps = one(Promise(limit_ms=50.0, percentile=100), 1, 10.0)
    assert feasible
    assert latency_ms <= 50.0 + 1e-9
    assert capacity_rps > 0


@st.composite
def promises(draw: st.DrawFn) -> Promise:
    return Promise(
        limit_ms=draw(st.floats(1, 1e4)),
        percentile=draw(st.floats(1, 100)),
        utilisation_max=draw(st.floats(0.05, 0.99)),
    )


@given(promises(), st.integers(1, 64), st.floats(0.1, 1e3), st.floats(1, 3))
def test_a_granted_rate_keeps_the_promise_and_less_work_never_hurts(
    promise: Promise, batch: int, mean_ms: float, spread: float
) -> None:
    feasible, latency_ms, capacity_rps = one(promise, batch, mean_ms, mean_ms * spread)
    assert promise.limit_ms is not None
    assert feasible == (latency_ms <= promise.limit_ms * (1 + 1e-9))
    assert capacity_rps <= promise.utilisation_max * 1000 * batch / mean_ms * (1 + 1e-9)
    faster = one(promise, batch, mean_ms / 2, mean_ms * spread / 2)
    assert faster[0] or not feasible
    assert faster[2] >= capacity_rps * (1 - 1e-9)


def test_who_must_idle_for_more_than_nineteen_parts_of_twenty_is_not_worth_its_place() -> None:
    """A batch of one of 10 ms: the spare part of the limit over the burst says how busy it may be."""

    def limit_ms(utilisation: float) -> float:
        return 10.0 * (2.0 + P99 * utilisation / (1.0 - utilisation) / 2.0)

    assert one(Promise(limit_ms=limit_ms(0.06)), 1, 10.0)[0]
    assert one(Promise(limit_ms=limit_ms(0.06)), 1, 10.0)[2] == pytest.approx(6.0)
    assert not one(Promise(limit_ms=limit_ms(0.03)), 1, 10.0)[0]
