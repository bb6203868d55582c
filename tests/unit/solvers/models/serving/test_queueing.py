"""Queueing latency against a simulation of single requests, and the shape it must have whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.models.serving.queueing import AXES, Server, dispersion_of, latency_ms, rate_rps_max

PERCENTILES = (50.0, 95.0, 98.0, 99.0)


def simulated(server: dict[str, float], rate_rps: float, requests: int = 150_000, seed: int = 7) -> list[float]:
    """Latency quantiles of one server, request by request; independent of the code that made the table."""
    rng = np.random.default_rng(seed)
    size_mean = (server["dispersion"] + 1) / 2
    arrived: list[float] = []
    now = 0.0
    while len(arrived) < requests:
        now += rng.exponential(1000 * size_mean / rate_rps)
        arrived.extend([now] * int(rng.geometric(1 / size_mean)))
    batch = int(server["batch"])
    latencies: list[float] = []
    head, free = 0, 0.0
    while head < len(arrived):
        able = max(free, arrived[head])
        full = arrived[head + batch - 1] if head + batch - 1 < len(arrived) else float("inf")
        start = max(able, min(full, able + server["wait_ms"]))
        taken = 0
        while taken < batch and head + taken < len(arrived) and arrived[head + taken] <= start:
            taken += 1
        free = start + server["fixed_ms"] + server["per_input_ms"] * taken
        latencies.extend(free - moment for moment in arrived[head : head + taken])
        head += taken
    kept = latencies[len(latencies) // 10 :]
    return [float(np.quantile(kept, percentile / 100)) for percentile in PERCENTILES]


CASES = [
    # batch, fixed, per input, wait, dispersion, part of capacity
    (1, 5.0, 3.0, 0.0, 1.0, 0.6),
    (4, 2.0, 1.0, 0.0, 1.0, 0.45),
    (8, 3.0, 2.0, 0.0, 1.0, 0.8),
    (16, 8.0, 0.4, 0.0, 1.0, 0.7),
    (12, 6.0, 1.0, 9.0, 1.0, 0.5),
    (32, 3.0, 0.5, 0.0, 4.0, 0.6),
    (8, 4.0, 1.0, 12.0, 2.0, 0.3),
    (48, 2.0, 0.3, 0.0, 1.0, 0.4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_latency_is_what_single_requests_see(case: tuple[float, ...]) -> None:
    batch, fixed, per_input, wait, dispersion, load = case
    numbers = {
        "batch": batch, "fixed_ms": fixed, "per_input_ms": per_input, "wait_ms": wait, "dispersion": dispersion,
    }  # fmt: skip
    rate = load * 1000 * batch / (fixed + per_input * batch)
    seen = simulated(numbers, rate)
    told = [float(latency_ms(Server(**numbers), rate, percentile)) for percentile in PERCENTILES]
    assert told == pytest.approx(seen, rel=0.12)
    assert np.mean(np.abs(np.array(told) / np.array(seen) - 1)) < 0.07


servers = st.builds(
    Server,
    batch=st.integers(1, 200),
    fixed_ms=st.floats(0.01, 50),
    per_input_ms=st.floats(0.01, 20),
    wait_ms=st.sampled_from((0.0, 1.0, 10.0, 300.0)),
    dispersion=st.floats(1, 8),
)


@settings(max_examples=60, deadline=None)
@given(server=servers, load=st.floats(0.06, 0.95), percentile=st.sampled_from(PERCENTILES))
def test_bursts_and_higher_percentiles_never_shorten_it_and_execution_is_a_floor(
    server: Server, load: float, percentile: float
) -> None:
    batch, fixed, per_input = (float(np.asarray(part)) for part in (server.batch, server.fixed_ms, server.per_input_ms))
    rate = load * 1000 * batch / (fixed + per_input * batch)
    there = float(latency_ms(server, rate, percentile))
    assert there >= 0.8 * (fixed + per_input)
    assert float(latency_ms(server, rate, 99.9)) >= there * (1 - 1e-9)
    burstier = Server(
        batch=server.batch, fixed_ms=server.fixed_ms, per_input_ms=server.per_input_ms, wait_ms=server.wait_ms,
        dispersion=8.0,
    )  # fmt: skip
    assert float(latency_ms(burstier, rate, percentile)) >= there * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(server=servers, slack=st.floats(0.5, 20), percentile=st.sampled_from((95.0, 99.0)))
def test_the_highest_rate_keeps_the_limit_and_a_higher_one_breaks_it(
    server: Server, slack: float, percentile: float
) -> None:
    batch, fixed, per_input = (float(np.asarray(part)) for part in (server.batch, server.fixed_ms, server.per_input_ms))
    limit = slack * (fixed + per_input * batch)
    rate = float(rate_rps_max(server, limit, percentile))
    capacity = 1000 * batch / (fixed + per_input * batch)
    assert 0 <= rate <= 0.96 * capacity * (1 + 1e-9)
    if rate > 0:
        assert float(latency_ms(server, rate * (1 - 1e-9), percentile)) <= limit * 1.06
    if 0 < rate < 0.95 * capacity:
        assert float(latency_ms(server, min(rate * 1.2, 0.96 * capacity), percentile)) > limit * 0.94


def test_beyond_the_table_latency_is_infinite() -> None:
    server = Server(batch=8, fixed_ms=2.0, per_input_ms=1.0)
    assert np.isinf(latency_ms(server, 0.99 * 800, 99))
    assert np.isfinite(latency_ms(server, AXES.utilisation[-1] * 800 * (1 - 1e-9), 99))


def test_arrays_answer_as_single_servers_do() -> None:
    rates = np.array([50.0, 200.0, 400.0])
    batches = np.array([1.0, 8.0, 32.0])
    together = latency_ms(Server(batch=batches, fixed_ms=1.0, per_input_ms=1.0), rates, 99)
    alone = [
        float(latency_ms(Server(batch=batch, fixed_ms=1.0, per_input_ms=1.0), rate, 99))
        for batch, rate in zip(batches, rates, strict=True)
    ]
    assert together.tolist() == pytest.approx(alone)


def test_dispersion_of_poisson_counts_is_one_and_of_bursts_is_more() -> None:
    rng = np.random.default_rng(3)
    assert dispersion_of(rng.poisson(20, 5_000)) == pytest.approx(1.0, abs=0.1)
    bursts = rng.negative_binomial(5, 0.2, 5_000)
    assert dispersion_of(bursts) == pytest.approx(5.0, rel=0.15)
    assert dispersion_of([]) == 1.0
    assert dispersion_of([3]) == 1.0
