"""Samples out of running totals: conservation, restarts, and what is not told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.crew.metrics import Histogram, Tally, Totals, grown
from agents.devices.base import WorkerReading, WorkerSample, WorkerState
from tests.unit.agents.crew.doubles import spec, target


def reading(limit_ms: float | None = 50.0, *, execution_only: bool = False) -> WorkerReading:
    asked = replace(spec(target()), latency_ms_limit=limit_ms, latency_execution_only=execution_only)
    return WorkerReading(
        worker="w", uuid="u", spec=asked, sm_count=0, state=WorkerState.READY, state_s=0.0, drained=False
    )


def cut(tally: Tally, totals: Totals | None, at_s: float = 0.0, *, gone: bool = False) -> WorkerSample:
    if totals is not None:
        tally.read(totals, at_s)
    return tally.cut(reading(), at_s, gone=gone)


def test_a_sample_is_what_grew() -> None:
    tally = Tally(told_s=0.0)
    cut(
        tally, Totals(completed=10, failed=1, queue=2, executions=5, batched=10, execution_s=0.5, execution_weight=5), 5
    )
    now = Totals(completed=30, failed=2, queue=5, executions=9, batched=30, execution_s=0.9, execution_weight=9)
    sample = cut(tally, now, 10.0)
    assert (sample.completed, sample.dropped, sample.queue_length, sample.arrived) == (20.0, 1.0, 5.0, 24.0)
    assert (sample.executions, sample.batch_mean) == (4.0, 5.0)
    assert sample.execution_ms_mean == pytest.approx(100.0)
    assert (sample.held_s, sample.gone, sample.energy_j, sample.memory_mib_used) == (5.0, False, 0.0, 0.0)


def test_what_is_not_told_is_none_where_that_can_be_said() -> None:
    sample = cut(Tally(told_s=0.0), Totals(completed=3))
    assert sample.completed == 3.0
    assert (sample.latency_ms_p50, sample.latency_ms_p99, sample.execution_ms_mean) == (None, None, None)
    assert sample.iterations_done is None
    nothing = cut(Tally(told_s=0.0), None)
    assert (nothing.arrived, nothing.completed, nothing.latency_ms_p99) == (0.0, 0.0, None)


def test_without_a_new_reading_nothing_happened_and_the_queue_stands() -> None:
    tally = Tally(told_s=0.0)
    cut(tally, Totals(completed=10, queue=4))
    sample = cut(tally, None, 5.0)
    assert (sample.arrived, sample.completed, sample.dropped, sample.queue_length) == (0.0, 0.0, 0.0, 4.0)


def test_a_server_that_began_anew_counts_from_zero_and_forgot_what_waited() -> None:
    tally = Tally(told_s=0.0)
    cut(tally, Totals(completed=100, queue=9))
    sample = cut(tally, Totals(completed=2, queue=0))
    assert (sample.completed, sample.dropped, sample.arrived, sample.queue_length) == (2.0, 7.0, 0.0, 0.0)
    assert grown(5.0, 3.0) == 3.0
    assert grown(None, 3.0) == 3.0
    assert grown(3.0, None) is None


def test_what_waited_at_the_end_was_dropped() -> None:
    tally = Tally(told_s=0.0)
    cut(tally, Totals(completed=10, queue=4))
    sample = cut(tally, Totals(completed=11, queue=6), gone=True)
    assert (sample.arrived, sample.completed, sample.dropped, sample.queue_length) == (3.0, 1.0, 6.0, 0.0)


def test_counting_may_begin_with_the_next_reading() -> None:
    tally = Tally(told_s=0.0)
    tally.begin()
    tally.read(Totals(completed=50, queue=3), 1.0)
    assert cut(tally, Totals(completed=52, queue=3)).completed == 2.0


LATENCY = Histogram((10.0, 100.0, float("inf")), (6.0, 10.0, 10.0))


def test_late_requests_are_counted_by_the_server_else_from_latencies() -> None:
    counted = Totals(completed=10, violated=3, latency=LATENCY)
    assert cut(Tally(told_s=0.0), counted).violated == 3.0
    assert cut(Tally(told_s=0.0), replace(counted, violated=None)).violated == pytest.approx(4 * 5 / 9)
    unlimited = Tally(told_s=0.0)
    unlimited.read(replace(counted, violated=None), 0.0)
    assert unlimited.cut(reading(None), 0.0, gone=False).violated == 0.0


@pytest.mark.parametrize(("limit_ms", "late"), [(80.0, 10.0), (120.0, 0.0)])
def test_a_limit_on_execution_counts_batches_that_run_too_long(limit_ms: float, late: float) -> None:
    tally = Tally(told_s=0.0)
    tally.read(Totals(completed=10, latency=LATENCY, execution_s=1.0, execution_weight=10, executions=10), 0.0)
    asked = reading(limit_ms, execution_only=True)
    assert tally.cut(asked, 0.0, gone=False).violated == late


def test_percentiles_that_a_server_tells_itself_count_only_with_requests() -> None:
    tally = Tally(told_s=0.0)
    told = Totals(completed=10, percentiles_ms=(1.0, 2.0, None))
    first = cut(tally, told)
    assert (first.latency_ms_p50, first.latency_ms_p95, first.latency_ms_p99) == (1.0, 2.0, None)
    assert cut(tally, told).latency_ms_p50 is None


maybe = st.one_of(st.none(), st.floats(0.0, 1e6))


@given(st.lists(st.tuples(maybe, maybe, maybe, st.booleans()), max_size=20), st.booleans())
def test_requests_are_conserved_whatever_servers_tell(rows: list[tuple[float | None, ...]], ends: bool) -> None:
    tally, queue = Tally(told_s=0.0), 0.0
    for position, (completed, failed, waiting, read) in enumerate([*rows, (None, None, None, False)]):
        if read:
            tally.read(Totals(completed=completed, failed=failed, queue=waiting), float(position))
        gone = ends and position == len(rows)
        sample = tally.cut(reading(), float(position), gone=gone)
        assert min(sample.arrived, sample.completed, sample.dropped, sample.queue_length) >= 0.0
        left = sample.completed + sample.dropped + sample.queue_length
        assert queue + sample.arrived == pytest.approx(left, abs=1e-6)
        queue = sample.queue_length
    assert not ends or queue == 0.0
