"""Batches by bisection: published traces, the queue formula, and equality with the scan where latency is monotone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.claims.inss.rules import scan_batches
from solvers.policies.inss.batching import BatchQuestion, bisect_batch
from solvers.policies.inss.belief import task_latency_ms


def question(
    execution_ms: Callable[[int], float] = lambda batch: 10.0,
    latency_ms: Callable[[int], float] = lambda batch: 10.0,
    fits: Callable[[int], bool] = lambda batch: True,
    limit_ms: float = 100.0,
    rate_rps: float = 0.0,
) -> BatchQuestion:
    return BatchQuestion(
        execution_ms=execution_ms,
        latency_ms=latency_ms,
        fits=fits,
        latency_ms_limit=limit_ms,
        rate_rps=rate_rps,
    )


def up_to(batch_max: int) -> Callable[[int], float]:
    return lambda batch: 10.0 if batch <= batch_max else 1000.0


@pytest.mark.parametrize(
    ("asked", "probes", "batch"),
    [
        (question(), (16, 24, 28, 30, 31, 32), 32),
        (question(latency_ms=up_to(0)), (16, 8, 4, 2, 1), None),
        (question(fits=lambda batch: batch <= 10), (16, 8, 12, 10, 11), 10),
        (question(latency_ms=up_to(28), rate_rps=2000.0), (16, 24, 28, 30, 29), 28),
        (question(latency_ms=up_to(10), rate_rps=2000.0), (16,), None),
        (
            question(
                execution_ms=lambda batch: 4.0 + 2.5 * batch,
                latency_ms=lambda batch: 4.0 + 2.5 * batch + 1000.0 * (batch - 1) / 200.0,
                limit_ms=80.0,
                rate_rps=200.0,
            ),
            (16, 8, 12, 10, 11),
            10,
        ),
    ],
    ids=["always", "never", "memory", "between", "too-slow", "linear"],
)
def test_traces(asked: BatchQuestion, probes: tuple[int, ...], batch: int | None) -> None:
    found = bisect_batch(asked)
    assert (found.probes, found.batch) == (probes, batch)
    assert scan_batches(asked) == batch


@pytest.mark.parametrize(
    ("waiting", "running_ms", "rate_rps", "latency_ms"),
    [(4, 6, 400, 30), (4, 15, 400, 35), (1, 6, 100, 90), (8, 6, 400, 26), (20, 6, 400, 66)],
)
def test_a_task_waits_for_its_batch(waiting: int, running_ms: float, rate_rps: float, latency_ms: float) -> None:
    assert task_latency_ms(8, waiting, running_ms, rate_rps, 20.0) == pytest.approx(latency_ms)


def test_without_arrivals_a_batch_never_fills() -> None:
    assert task_latency_ms(8, 1, 0.0, 0.0, 20.0) == math.inf


def test_the_timeout_is_what_the_limit_leaves() -> None:
    linear = question(
        execution_ms=lambda batch: 4.0 + 2.5 * batch, latency_ms=lambda batch: 4.0 + 2.5 * batch, limit_ms=60.0
    )
    found = bisect_batch(linear)
    assert (found.batch, found.timeout_ms) == (22, pytest.approx(60.0 - 59.0))
    assert bisect_batch(question(latency_ms=up_to(0))).timeout_ms == 0.0


@st.composite
def monotone(draw: st.DrawFn) -> BatchQuestion:
    fixed, each = draw(st.floats(0.1, 20.0)), draw(st.floats(0.01, 5.0))
    rate, memory = draw(st.floats(1.0, 1500.0)), draw(st.integers(0, 40))
    waits = draw(st.booleans())

    def execution_ms(batch: int) -> float:
        return fixed + each * batch

    def latency_ms(batch: int) -> float:
        return execution_ms(batch) + (1000.0 * (batch - 1) / rate if waits else 0.0)

    return BatchQuestion(
        execution_ms=execution_ms,
        latency_ms=latency_ms,
        fits=lambda batch: batch <= memory,
        latency_ms_limit=draw(st.floats(1.0, 300.0)),
        rate_rps=rate,
        batch_max=draw(st.integers(1, 64)),
    )


@given(asked=monotone())
@settings(max_examples=300, deadline=None)
def test_where_latency_rises_with_the_batch_bisection_finds_the_best(asked: BatchQuestion) -> None:
    found = bisect_batch(asked)
    assert found.batch == scan_batches(asked)
    assert len(found.probes) <= math.floor(math.log2(asked.batch_max)) + 1


@given(
    latencies=st.lists(st.floats(1.0, 200.0), min_size=32, max_size=32),
    fitting=st.lists(st.booleans(), min_size=32, max_size=32),
    rate_rps=st.floats(0.0, 3000.0),
)
@settings(max_examples=200, deadline=None)
def test_whatever_the_curves_an_answer_keeps_all_limits(
    latencies: list[float], fitting: list[bool], rate_rps: float
) -> None:
    asked = question(
        latency_ms=lambda batch: latencies[batch - 1], fits=lambda batch: fitting[batch - 1], rate_rps=rate_rps
    )
    found = bisect_batch(asked)
    assert len(found.probes) <= 6
    if found.batch is not None:
        assert asked.holds(found.batch)
        assert asked.throughput_rps(found.batch) >= rate_rps
        assert scan_batches(asked) is not None
