"""Batches by bisection: published traces, the queue formula, and equality with the scan where latency is monotone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.control.bisect import (
    BatchQuestion,
    SharingTenant,
    bisect_batch,
    regret,
    scan_batches,
    size_device,
    task_latency_ms,
)


def question(
    execution_ms: Callable[[int], float] = lambda batch: 10.0,
    latency_ms: Callable[[int], float] = lambda batch: 10.0,
    fits: Callable[[int], bool] = lambda batch: True,
    limit_ms: float = 100.0,
    rate_rps: float = 0.0,
) -> BatchQuestion:
    return BatchQuestion(
        replica="r",
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
    ids=["always", "never", "between", "too-slow", "linear"],
)
def test_traces(asked: BatchQuestion, probes: tuple[int, ...], batch: int | None) -> None:
    found = bisect_batch(asked)
    assert (found.probes, found.batch, found.feasible) == (probes, batch, batch is not None)
    assert scan_batches(asked).batch == batch


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
def monotone(draw: st.DrawFn, name: str = "r") -> BatchQuestion:
    fixed, each = draw(st.floats(0.1, 20.0)), draw(st.floats(0.01, 5.0))
    rate, memory = draw(st.floats(1.0, 1500.0)), draw(st.integers(0, 40))
    waits = draw(st.booleans())

    def execution_ms(batch: int) -> float:
        return fixed + each * batch

    def latency_ms(batch: int) -> float:
        return execution_ms(batch) + (1000.0 * (batch - 1) / rate if waits else 0.0)

    return BatchQuestion(
        replica=name,
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
    assert found.batch == scan_batches(asked).batch
    assert regret(asked) == 0.0
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
    assert 0.0 <= regret(asked) <= 1.0
    if found.batch is not None:
        assert asked.holds(found.batch)
        assert asked.throughput_rps(found.batch) >= rate_rps
        assert scan_batches(asked).feasible


def test_regret_shows_what_bisection_misses() -> None:
    # Waiting for a full batch makes small and large sizes late, and the one in the middle that works is not probed.
    island = question(latency_ms=lambda batch: 10.0 if batch in (5, 6) else 1000.0)
    assert regret(island) == 1.0
    assert regret(question(latency_ms=lambda batch: 10.0 if batch <= 8 or batch == 20 else 1000.0)) == pytest.approx(
        0.6
    )


def tenant(name: str, limit_ms: float, input_mib: float, **more: float) -> SharingTenant:
    asked = question(
        execution_ms=lambda batch: 2.0 + batch, latency_ms=lambda batch: 2.0 + batch, limit_ms=limit_ms, **more
    )
    return SharingTenant(question=replace(asked, replica=name), memory_mib=lambda batch: 100.0 + input_mib * batch)


def test_replicas_of_a_device_share_its_memory_the_tightest_limit_first() -> None:
    found = size_device([tenant("b", 200.0, 10.0), tenant("a", 18.0, 10.0)], 500.0)
    assert (found.batches, found.feasible, found.passes) == ({"a": 16, "b": 14}, True, 1)
    assert found.timeouts_ms == {"a": pytest.approx(0.0), "b": pytest.approx(184.0)}


def test_memory_freed_by_the_first_pass_is_used_by_the_second() -> None:
    slow = question(execution_ms=lambda batch: 30.0 * batch, latency_ms=lambda batch: 30.0 * batch, limit_ms=50.0)
    large = SharingTenant(question=replace(slow, replica="z"), memory_mib=lambda batch: 100.0 + 100.0 * batch)
    small = tenant("a", 18.0, 30.0)
    assert size_device([small, large], 760.0).batches == {"a": 15, "z": 1}
    assert size_device([small, large], 760.0).passes == 2
    # Beside the default size of the other one, a first pass alone leaves room for five.
    assert bisect_batch(replace(small.question, fits=lambda batch: 100 + 30 * batch <= 760 - 500)).batch == 5


def test_who_cannot_be_helped_keeps_the_default_and_is_named() -> None:
    found = size_device([tenant("a", 10.0, 1.0), tenant("b", 12.0, 1.0, rate_rps=1e6)], 620.0)
    assert (found.batches, found.infeasible, found.feasible) == ({"a": 8, "b": 4}, ("b",), False)


@given(
    asked=st.lists(monotone(), min_size=1, max_size=5),
    input_mib=st.lists(st.floats(0.5, 60.0), min_size=5, max_size=5),
    total_mib=st.floats(200.0, 4000.0),
)
@settings(max_examples=100, deadline=None)
def test_sizes_of_a_device_keep_memory_limits_and_rates(
    asked: list[BatchQuestion], input_mib: list[float], total_mib: float
) -> None:
    def memory(each: float) -> Callable[[int], float]:
        return lambda batch: 50.0 + each * batch

    tenants = [
        SharingTenant(question=replace(each, replica=f"r{position}"), memory_mib=memory(input_mib[position]))
        for position, each in enumerate(asked)
    ]
    found = size_device(tenants, total_mib)
    assert set(found.batches) == {each.question.replica for each in tenants}
    used = sum(each.memory_mib(found.batches[each.question.replica]) for each in tenants)
    if len(found.infeasible) < len(tenants):
        assert used <= total_mib + 1e-6
    for each in tenants:
        batch = found.batches[each.question.replica]
        if each.question.replica not in found.infeasible:
            assert each.question.holds(batch)
            assert each.question.throughput_rps(batch) >= each.question.rate_rps
