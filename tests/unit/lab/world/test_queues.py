"""The request level: what a batching server must do, what a router must do, and that compiling changes no byte."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.world.arrivals import Source, Steady, arrival_times_s
from lab.world.queues import (
    Carried,
    ReplicaServer,
    RequestsOutcome,
    Stretch,
    compiled_loop,
    serve_arrivals,
    serve_requests,
)
from lab.world.scenario import Routing
from solvers.errors import FieldError
from tests.unit.lab.world.answers import completed, late, latency_ms

TEN = ReplicaServer(exec_ms=(10.0, 12.0, 14.0, 16.0))


def poisson(rate_rps: float, span_s: float, seed: int = 1) -> np.ndarray:
    return arrival_times_s(Steady(rate_rps=rate_rps), Source(name="test", seed=seed), 0.0, span_s)


def at(*times_s: float, servers: tuple[ReplicaServer, ...] = (TEN,), until_s: float = 10.0, **rest: Any) -> Stretch:
    made = Stretch(from_s=0.0, until_s=until_s, arrivals_s=np.array(times_s), servers=servers)
    return replace(made, **rest)


def serve(stretch: Stretch, seed: int = 0) -> RequestsOutcome:
    return serve_requests(stretch, np.random.default_rng(seed))


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    servers = tuple(
        ReplicaServer(
            exec_ms=tuple(np.cumsum(draw(st.lists(st.floats(0.5, 20.0), min_size=1, max_size=6))).tolist()),
            weight=draw(st.sampled_from([1.0, 2.5, 0.0])) if index else 1.0,
        )
        for index in range(draw(st.integers(1, 4)))
    )
    return Stretch(
        from_s=0.0,
        until_s=3.0,
        arrivals_s=poisson(draw(st.floats(1.0, 400.0)), 3.0, draw(st.integers(0, 99))),
        servers=servers,
        router=draw(st.sampled_from(Routing)),
        limit_ms=draw(st.sampled_from([None, 8.0, 30.0, 100.0])),
        noise_sigma=draw(st.sampled_from([0.0, 0.1])),
    )


@settings(max_examples=40, deadline=None)
@given(stretch=stretches(), seed=st.integers(0, 2**32))
def test_compiled_and_plain_give_identical_bytes(stretch: Stretch, seed: int) -> None:
    loop = compiled_loop()
    assert loop is not None
    one = serve_requests(stretch, np.random.default_rng(seed), loop)
    other = serve_requests(stretch, np.random.default_rng(seed), serve_arrivals)
    for field in ("arrival_s", "finish_s", "replica", "batch", "dropped", "busy_s", "batches"):
        assert getattr(one, field).tobytes() == getattr(other, field).tobytes(), field
    assert one.carried == other.carried


@settings(max_examples=60, deadline=None)
@given(stretch=stretches(), seed=st.integers(0, 2**32))
def test_every_request_is_answered_or_dropped_or_waits(stretch: Stretch, seed: int) -> None:
    out = serve(stretch, seed)
    waiting = sum(len(state.waiting_s) for state in out.carried)
    assert completed(out) + np.count_nonzero(out.dropped) + waiting == len(stretch.arrivals_s)
    done = ~np.isnan(out.finish_s)
    assert np.array_equal(done, out.batch > 0)
    assert not np.any(done & out.dropped)
    for lane, server in enumerate(stretch.servers):
        mine = out.replica == lane
        assert server.weight > 0.0 or not mine.any()
        finishes = out.finish_s[mine & done]
        assert np.all(np.diff(finishes) >= 0.0)
        sizes = out.batch[mine & done]
        assert np.sum(1.0 / np.maximum(sizes, 1)) == pytest.approx(out.batches[lane])
        assert sizes.max(initial=0) <= len(server.exec_ms)
    assert np.all((out.busy_s >= 0.0) & (out.busy_s <= 3.0 + 1e-9))
    if stretch.limit_ms is not None and stretch.noise_sigma == 0.0:
        could = max(server.exec_ms[-1] for server in stretch.servers)
        assert could > stretch.limit_ms or late(out, stretch.limit_ms) == 0


@settings(max_examples=40, deadline=None)
@given(stretch=stretches(), cut=st.floats(0.1, 2.9))
def test_two_stretches_give_what_the_whole_gives(stretch: Stretch, cut: float) -> None:
    router = Routing.ROUND_ROBIN if stretch.router is Routing.WEIGHTED_RANDOM else stretch.router
    stretch = replace(stretch, noise_sigma=0.0, router=router)
    whole, times = serve(stretch), stretch.arrivals_s
    first = serve(replace(stretch, until_s=cut, arrivals_s=times[times < cut]))
    second = serve(replace(stretch, from_s=cut, arrivals_s=times[times >= cut], carried=first.carried))
    done = [out.finish_s[~np.isnan(out.finish_s)] for out in (first, second, whole)]
    assert np.allclose(np.sort(np.concatenate(done[:2])), np.sort(done[2]), rtol=0, atol=1e-9)
    assert first.busy_s + second.busy_s == pytest.approx(whole.busy_s, abs=1e-9)
    for parted, straight in zip(second.carried, whole.carried, strict=True):
        assert (parted.waiting_s, parted.executing) == (straight.waiting_s, straight.executing)
        assert (parted.free_s, parted.credit) == pytest.approx((straight.free_s, straight.credit))


@settings(max_examples=40, deadline=None)
@given(stretch=stretches(), seed=st.integers(0, 2**32), tick_s=st.sampled_from([0.0, 0.02]))
def test_the_router_that_counts_takes_who_has_least_for_its_weight(stretch: Stretch, seed: int, tick_s: float) -> None:
    times_s = np.ceil(stretch.arrivals_s / tick_s) * tick_s if tick_s else stretch.arrivals_s
    arrivals_s = times_s[times_s < stretch.until_s]
    stretch = replace(stretch, arrivals_s=arrivals_s, router=Routing.LEAST_OUTSTANDING, limit_ms=None)
    out, weights = serve(stretch, seed), [server.weight for server in stretch.servers]
    for place, (now_s, taken) in enumerate(zip(out.arrival_s, out.replica, strict=True)):
        # What has no finish waits still.
        inside = np.bincount(out.replica[:place][~(out.finish_s[:place] <= now_s)], minlength=len(weights))
        scores = [(one + 1) / weight if weight else np.inf for one, weight in zip(inside, weights, strict=True)]
        assert taken == np.argmin(scores)


def test_same_seed_same_bytes_and_another_seed_others() -> None:
    stretch = at(*poisson(100.0, 5.0), noise_sigma=0.05, router=Routing.WEIGHTED_RANDOM, servers=(TEN, TEN))
    assert serve(stretch, 5).finish_s.tobytes() == serve(stretch, 5).finish_s.tobytes()
    assert serve(stretch, 5).finish_s.tobytes() != serve(stretch, 6).finish_s.tobytes()


def test_a_single_server_waits_as_long_as_theory_says() -> None:
    for load in (0.3, 0.6, 0.8):
        out = serve(at(*poisson(load * 100.0, 3000.0), servers=(ReplicaServer(exec_ms=(10.0,)),), until_s=3000.0))
        assert np.nanmean(latency_ms(out)) == pytest.approx(10.0 + 10.0 * load / (2.0 * (1.0 - load)), rel=0.05)
        assert out.busy_s[0] / 3000.0 == pytest.approx(load, rel=0.02)


def test_what_waits_is_taken_together_up_to_the_batch_limit() -> None:
    out = serve(at(0.0, 0.001, 0.002, 0.003, 0.004, 0.005))
    assert out.batch.tolist() == [1, 4, 4, 4, 4, 1]
    assert out.finish_s == pytest.approx([0.010, 0.026, 0.026, 0.026, 0.026, 0.036])
    assert out.busy_s == pytest.approx([0.036])


def test_hopeless_work_is_dropped_and_hopeless_models_serve_late() -> None:
    out = serve(at(0.0, 0.001, 0.009, limit_ms=20.0))
    assert out.dropped.tolist() == [False, True, False]
    assert out.finish_s[2] == pytest.approx(0.020)
    slow = serve(at(0.0, 0.001, limit_ms=5.0))
    assert not slow.dropped.any()
    assert late(slow, 5.0) == 2


def test_a_batch_over_the_end_is_finished_there_and_counted_busy_later() -> None:
    first = serve(at(0.095, 0.099, until_s=0.1))
    assert first.finish_s[0] == pytest.approx(0.105)
    assert first.carried == (Carried(waiting_s=(0.099,), free_s=first.finish_s[0], executing=1),)
    assert first.busy_s == pytest.approx([0.005])
    second = serve(at(from_s=0.1, until_s=0.2, carried=first.carried))
    assert second.finish_s == pytest.approx([0.115])
    assert second.busy_s == pytest.approx([0.015])


@pytest.mark.parametrize(("router", "slack"), [(Routing.WEIGHTED_RANDOM, 0.03), (Routing.ROUND_ROBIN, 1e-3)])
def test_routers_keep_the_weights(router: Routing, slack: float) -> None:
    servers = tuple(replace(TEN, weight=weight) for weight in (1.0, 3.0, 0.0, 4.0))
    out = serve(at(*poisson(50.0, 100.0), servers=servers, router=router, until_s=100.0))
    parts = np.bincount(out.replica, minlength=4) / len(out.replica)
    assert parts == pytest.approx([0.125, 0.375, 0.0, 0.5], abs=slack)


def test_the_least_busy_replica_is_preferred_and_shortens_the_wait() -> None:
    out = serve(at(0.0, 0.001, 0.002, 0.0105, servers=(TEN, TEN)))
    assert out.replica.tolist() == [0, 1, 0, 0]
    assert serve(at(0.0, 0.001, 0.002, 0.0115, servers=(TEN, TEN))).replica.tolist() == [0, 1, 0, 1]
    busy = at(*poisson(300.0, 60.0), servers=(TEN, TEN), until_s=60.0)
    late = {router: float(np.nanpercentile(latency_ms(serve(replace(busy, router=router))), 99)) for router in Routing}
    assert late[Routing.LEAST_OUTSTANDING] < late[Routing.WEIGHTED_RANDOM]


def test_noise_spreads_times_and_keeps_their_mean() -> None:
    alone = at(*(0.02 * k for k in range(4000)), until_s=100.0, noise_sigma=0.2)
    latency = latency_ms(serve(replace(alone, servers=(ReplicaServer(exec_ms=(5.0,)),))))
    assert latency.mean() == pytest.approx(5.0, rel=0.02)
    assert np.log(latency).std() == pytest.approx(0.2, rel=0.05)


def test_without_the_compiler_the_plain_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    stretch = at(*poisson(100.0, 2.0))
    compiled = serve(stretch)
    compiled_loop.cache_clear()
    try:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "numba", None)
            assert compiled_loop() is None
            assert serve(stretch).finish_s.tobytes() == compiled.finish_s.tobytes()
    finally:
        compiled_loop.cache_clear()
    assert compiled_loop() is not None


def test_impossible_stretches_are_refused() -> None:
    with pytest.raises(FieldError):
        ReplicaServer(exec_ms=())
    with pytest.raises(FieldError):
        at(0.0, servers=(replace(TEN, weight=0.0),))
    with pytest.raises(FieldError):
        at(until_s=0.0)
    with pytest.raises(FieldError):
        at(carried=(Carried(), Carried()))
    assert completed(serve(at())) == 0
    assert serve(at(servers=())).busy_s.tolist() == []
