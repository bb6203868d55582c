"""Clients that wait for their answers: the laws of closed systems, who comes and goes, and that nothing depends on how
the loop is run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.world.clients import RETRY_S, Clients, compiled_crowd_loop, serve_clients, serve_crowd
from lab.world.queues import Carried, ReplicaServer, RequestsOutcome, Stretch
from lab.world.scenario import ClientStep, Closed, Routing
from solvers.errors import FieldError
from tests.unit.lab.world.answers import completed, latency_ms

ONE = ReplicaServer(exec_ms=(10.0,))


def clients(*steps: tuple[float, int], think_s: float = 0.0) -> Clients:
    made = tuple(ClientStep(from_s=from_s, clients=count) for from_s, count in steps)
    return Clients(Closed(steps=made, think_s_mean=think_s))


def stretch(until_s: float = 10.0, servers: tuple[ReplicaServer, ...] = (ONE,), **rest: Any) -> Stretch:
    return replace(Stretch(from_s=0.0, until_s=until_s, arrivals_s=np.empty(0), servers=servers), **rest)


def serve(asked: Stretch, who: Clients, seed: int = 1) -> tuple[RequestsOutcome, Clients]:
    return serve_clients(asked, who, np.random.default_rng(seed))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Stretch, Clients]:
    servers = tuple(
        ReplicaServer(
            exec_ms=tuple(np.cumsum(draw(st.lists(st.floats(2.0, 20.0), min_size=1, max_size=4))).tolist()),
            weight=draw(st.sampled_from([1.0, 2.5, 0.0])),
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    made = stretch(
        2.0,
        servers,
        router=draw(st.sampled_from(Routing)),
        limit_ms=draw(st.sampled_from([None, 30.0])),
        noise_sigma=draw(st.sampled_from([0.0, 0.1])),
    )
    steps = [(0.0, draw(st.integers(0, 20))), (0.7, draw(st.integers(0, 20))), (1.3, draw(st.integers(0, 20)))]
    return made, clients(*steps, think_s=draw(st.sampled_from([0.0, 0.05])))


@settings(max_examples=30, deadline=None)
@given(world=worlds(), seed=st.integers(0, 99))
def test_compiled_and_plain_give_identical_bytes(world: tuple[Stretch, Clients], seed: int) -> None:
    loop = compiled_crowd_loop()
    assert loop is not None
    one, others = (serve_clients(*world, np.random.default_rng(seed), each) for each in (loop, serve_crowd))
    for field in ("arrival_s", "finish_s", "replica", "batch", "dropped", "busy_s", "batches"):
        assert getattr(one[0], field).tobytes() == getattr(others[0], field).tobytes(), field
    assert (one[0].carried, one[1]) == (others[0].carried, others[1])


@settings(max_examples=60, deadline=None)
@given(world=worlds(), seed=st.integers(0, 99))
def test_nobody_is_lost_and_nobody_asks_twice(world: tuple[Stretch, Clients], seed: int) -> None:
    made, who = world
    out, after = serve(made, who, seed)
    waiting = sum(len(state.waiting_s) for state in out.carried)
    assert completed(out) + np.count_nonzero(out.dropped) + waiting == len(out.arrival_s)
    counts = [step.clients for step in who.closed.steps]
    assert counts[-1] <= waiting + len(after.asks_s) <= max(counts)
    assert list(after.asks_s) == sorted(after.asks_s)
    # As many requests are under way at any moment as there may be clients.
    ends = np.where(out.dropped, out.arrival_s, np.where(np.isnan(out.finish_s), made.until_s, out.finish_s))
    for at_s in (0.3, 1.0, 1.9):
        assert np.count_nonzero((out.arrival_s <= at_s) & (ends > at_s)) <= max(counts)
    assert np.all(np.diff(out.arrival_s) >= 0.0)


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_without_thought_one_server_gives_one_over_its_time(count: int) -> None:
    out, _ = serve(stretch(), clients((0.0, count)))
    settled = latency_ms(out)[count : completed(out)]
    assert completed(out) == pytest.approx(1000, abs=1)
    assert settled == pytest.approx(np.full(len(settled), 10.0 * count))


def test_the_response_time_law_holds() -> None:
    servers = (ReplicaServer(exec_ms=(10.0, 12.0, 14.0, 16.0)),) * 3
    for count in (5, 30, 120):
        out, _ = serve(stretch(400.0, servers, noise_sigma=0.1), clients((0.0, count), think_s=0.1))
        rate = completed(out) / 400.0
        assert rate * (np.nanmean(latency_ms(out)) / 1000.0 + 0.1) == pytest.approx(count, rel=0.01)


def test_batches_are_filled_by_those_who_ask_at_once() -> None:
    out, _ = serve(stretch(0.1, (ReplicaServer(exec_ms=(10.0, 11.0, 12.0, 13.0)),)), clients((0.0, 4)))
    assert set(out.batch.tolist()) == {4}
    assert latency_ms(out) == pytest.approx(np.full(len(latency_ms(out)), 13.0))


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 30), cut_s=st.floats(0.1, 1.9), weights=st.lists(st.sampled_from([1.0, 2.0]), min_size=1))
def test_two_stretches_give_what_the_whole_gives(count: int, cut_s: float, weights: list[float]) -> None:
    servers = tuple(ReplicaServer(exec_ms=(7.0 + number, 9.0), weight=each) for number, each in enumerate(weights[:4]))
    who = clients((0.0, count), (1.0, 2 * count))
    whole, after_whole = serve(stretch(2.0, servers), who)
    first, between = serve(stretch(cut_s, servers), who)
    second, after = serve(stretch(2.0, servers, from_s=cut_s, carried=first.carried), between)
    assert after == after_whole
    assert second.carried == whole.carried
    parted = np.concatenate([out.finish_s[~np.isnan(out.finish_s)] for out in (first, second)])
    assert np.sort(parted).tobytes() == np.sort(whole.finish_s[~np.isnan(whole.finish_s)]).tobytes()
    assert first.busy_s + second.busy_s == pytest.approx(whole.busy_s, abs=1e-9)


def test_clients_come_after_a_thought_and_leave_after_their_answer() -> None:
    out, after = serve(stretch(300.0, (ONE,) * 8), clients((0.0, 4), (100.0, 40), (200.0, 3), think_s=0.5))
    counts = [np.count_nonzero((out.arrival_s >= begin) & (out.arrival_s < begin + 80.0)) for begin in (20, 120, 220)]
    assert counts == pytest.approx([80 * 4 / 0.51, 80 * 40 / 0.51, 80 * 3 / 0.51], rel=0.1)
    assert np.count_nonzero((out.arrival_s >= 100.0) & (out.arrival_s < 100.05)) < 10
    assert len(after.asks_s) == 3


def test_same_seed_same_bytes_and_another_seed_others() -> None:
    asked, who = stretch(noise_sigma=0.05), clients((0.0, 8), think_s=0.1)
    assert serve(asked, who, 5)[0].finish_s.tobytes() == serve(asked, who, 5)[0].finish_s.tobytes()
    assert serve(asked, who, 5)[0].finish_s.tobytes() != serve(asked, who, 6)[0].finish_s.tobytes()


def test_those_who_find_nobody_ask_again_but_not_at_once() -> None:
    nobody, after = serve(stretch(1.0, ()), clients((0.0, 5)))
    assert nobody.dropped.all()
    assert len(nobody.dropped) == pytest.approx(5 / RETRY_S, abs=5)
    assert set(nobody.replica.tolist()) == {-1}
    assert len(after.asks_s) == 5


def test_whose_server_vanished_comes_back_after_a_thought() -> None:
    first, between = serve(stretch(1.0), clients((0.0, 6), think_s=0.05))
    assert any(state.waiting_s for state in first.carried)
    second, after = serve(stretch(2.0, from_s=1.0, carried=(Carried(),)), between)
    assert len(after.asks_s) + len(second.carried[0].waiting_s) == 6


def test_clients_take_no_arrivals_beside_them() -> None:
    with pytest.raises(FieldError, match="no other arrivals"):
        serve(stretch(arrivals_s=np.array([0.5])), clients((0.0, 1)))
