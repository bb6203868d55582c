"""Counting deaths, waiting longer after each, and forgiving."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from agents.devices.base import WorkerReading, WorkerState
from agents.loop.apply import BACKOFF_S_MAX, FORGIVEN_AFTER_S, Restarts
from tests.unit.agents.builders import FakeClock, worker_spec


def reading(number: int, state: WorkerState = WorkerState.FAILED, **more: Any) -> WorkerReading:
    found = WorkerReading(
        worker=f"r1@{number}",
        uuid="GPU-1",
        spec=worker_spec("r1", launch_s=1.0),
        sm_count=0,
        state=state,
        state_s=0.0,
        drained=False,
        problem="status 9",
    )
    return replace(found, **more)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def restarts(clock: FakeClock) -> Restarts:
    return Restarts(clock, random.Random(1))


def waits_s(restarts: Restarts, clock: FakeClock) -> float:
    began_s = clock()
    while restarts.delayed("GPU-1"):
        clock.pass_s(0.1)
    return clock() - began_s


def test_each_death_doubles_the_wait_up_to_a_minute(restarts: Restarts, clock: FakeClock) -> None:
    waits = []
    for number in range(10):
        restarts.observe([reading(number)])
        assert restarts.delayed("GPU-1") == {"r1"}
        assert restarts.delayed("GPU-2") == frozenset()
        waits.append(waits_s(restarts, clock))
    assert all(0.5 * 2.0**n <= wait <= 2.0**n + 0.2 for n, wait in enumerate(waits[:6]))
    assert max(waits) <= BACKOFF_S_MAX + 0.2
    assert restarts.problems() == ["GPU-1 r1: 10 workers failed, the last one: status 9"]


def test_a_death_is_counted_once_however_often_it_is_seen(restarts: Restarts) -> None:
    for _ in range(5):
        restarts.observe([reading(1)])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: status 9"]


def test_whoever_is_long_overdue_has_failed_too(restarts: Restarts) -> None:
    restarts.observe([reading(1, WorkerState.STARTING, state_s=59.0)])
    assert restarts.problems() == []
    restarts.observe([reading(1, WorkerState.STARTING, state_s=61.0, problem="answered 503")])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: not ready in time: answered 503"]


def test_whoever_is_well_for_long_is_forgiven(restarts: Restarts) -> None:
    restarts.observe([reading(1)])
    restarts.observe([reading(2, WorkerState.READY, state_s=FORGIVEN_AFTER_S - 1.0)])
    assert restarts.problems() != []
    restarts.observe([reading(2, WorkerState.READY, state_s=FORGIVEN_AFTER_S)])
    assert (restarts.problems(), restarts.delayed("GPU-1")) == ([], frozenset())


def test_whoever_is_not_wanted_any_more_is_forgotten(restarts: Restarts) -> None:
    restarts.observe([reading(1)])
    restarts.keep([("GPU-1", "r1")])
    assert restarts.delayed("GPU-1") == {"r1"}
    restarts.keep([("GPU-2", "r1")])
    assert restarts.delayed("GPU-1") == frozenset()


def test_a_replacement_that_failed_leaves_the_one_before_it(restarts: Restarts) -> None:
    standing = reading(1, WorkerState.READY)
    restarts.observe([standing, reading(2)])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: status 9; the one before it goes on"]
    restarts.observe([standing, reading(3, WorkerState.READY)])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: status 9"]
