"""Headroom's model of replicas alone: accuracy, physics, intervals, updates, odd inputs, round trips."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import library
from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName
from solvers.errors import InputError
from solvers.models.base import Facts, Origin, Quantity, Queries, Samples
from solvers.models.belief import solo
from solvers.models.belief.solo import HeadroomSolo
from solvers.models.suite import Suite
from tests.unit.solvers.models.belief.alone import grid, samples, truth

MODELS = [f"m{index}" for index in range(4)]
NAN = float("nan")
TOLD = samples(MODELS, scatter=0.01)


@pytest.fixture(scope="module")
def model() -> HeadroomSolo:
    return solo.make(Facts(), 0).fit(TOLD)


@pytest.fixture(scope="module")
def rich() -> HeadroomSolo:
    """The same with all else that can be measured: a pipelined throughput, percentiles, power, memory."""
    queries = TOLD.queries
    told = replace(
        TOLD,
        throughput_rps=1300 * queries.batch / TOLD.latency_ms,
        latency_ms_p99=1.5 * TOLD.latency_ms,
        power_w=drawn_w(queries),
        memory_mib=900 + 40 * queries.batch,
    )
    return solo.make(Facts(), 0).fit(told)


@pytest.fixture(scope="module")
def clocked() -> HeadroomSolo:
    """The same at the highest of several clocks."""
    queries = replace(TOLD.queries, clock_mhz=np.full(len(TOLD), 1500.0))
    return solo.make(Facts(), 0).fit(replace(TOLD, queries=queries))


def drawn_w(queries: Queries) -> Floats:
    return 20 + 150 * np.minimum(queries.share_pct / 100, 0.3 * queries.batch**0.5)


def everywhere(name: str = "m1") -> Queries:
    rows = [(batch, share) for batch in (1, 3, 8, 40, 5000) for share in (1, 7, 20, 33, 70, 100)]
    table = np.array(rows, dtype=np.float64)
    return Queries.of(name, "v100", table[:, 0], table[:, 1])


def test_unseen_cells_are_foretold(model: HeadroomSolo) -> None:
    rows = np.random.default_rng(2).permutation(len(TOLD))
    kept, hidden = TOLD.take(rows[:80]), TOLD.take(rows[80:])
    found = solo.make(Facts(), 0).fit(kept).predict(hidden.queries)
    assert np.abs(found.mean / hidden.latency_ms - 1).mean() < 0.03
    assert (np.abs(found.mean - hidden.latency_ms) < 1.96 * found.std).mean() > 0.85
    assert (found.origin == Origin.MEASURED).all()


def test_distance_and_support_tell_what_was_measured(model: HeadroomSolo) -> None:
    found = model.predict(Queries.of("m0", "v100", [4, 8, 32, 4], [40, 50, 40, 5]))
    assert found.support.tolist() == [True, True, False, False]
    assert found.distance[0] < 1e-6
    assert 0 < found.distance[1] < 1
    assert found.distance[2:] == pytest.approx([1.0, 2.0], abs=0.01)


@pytest.mark.parametrize("name", MODELS[:2])
def test_latency_never_moves_against_physics(clocked: HeadroomSolo, name: str) -> None:
    batch, share, clock = np.meshgrid(
        [1, 2, 5, 9, 100, 4096, 9000], np.arange(1, 101, 3), [300.0, 1111, 1500], indexing="ij"
    )
    found = clocked.predict(Queries.of(name, "v100", batch.ravel(), share.ravel(), clock.ravel())).mean
    found = found.reshape(batch.shape)
    assert (np.diff(found, axis=0) >= -1e-9).all()
    assert (np.diff(found, axis=1) <= 1e-9).all()
    assert (np.diff(found, axis=2) <= 1e-9).all()
    assert found[2, 20, 0] > 1.5 * found[2, 20, 2]


def test_several_clocks_are_learned() -> None:
    queries = grid(["m0", "m1"], clock_mhz=(750.0, 1000.0, 1500.0))
    told = Samples.of(queries, truth(queries))
    unseen = Queries.of(["m0", "m1"], "v100", [4, 8], [50, 100], 850.0)
    found = solo.make(Facts(), 0).fit(told).predict(unseen)
    np.testing.assert_allclose(found.mean, truth(unseen), rtol=0.03)


def test_updates_draw_the_answer_to_what_is_measured(model: HeadroomSolo) -> None:
    unseen = Queries.of("m2", "v100", 8, 30)
    before, now = model.predict(unseen), model
    slower = before.mean[0] * 1.1
    for _ in range(6):
        now = now.update(Samples.of(unseen, [slower]))
    assert now.predict(unseen).mean[0] == pytest.approx(slower, rel=0.03)
    assert model.predict(unseen).mean[0] == before.mean[0]


def test_an_outlier_does_not_poison(model: HeadroomSolo) -> None:
    seen = Queries.of("m2", "v100", 8, 40)
    before = model.predict(seen).mean[0]
    assert model.update(Samples.of(seen, [before * 8])).predict(seen).mean[0] == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("repeats", [2, 10])
def test_repeats_teach_how_far_the_next_measurement_may_lie(repeats: int) -> None:
    asked = grid(["a", "b"])
    told = [samples(["a", "b"], scatter=0.05, seed=seed) for seed in range(repeats)]
    answer = Suite.fresh("headroom", Facts()).fit(Samples.chained(told)).solo.predict(asked)
    nexts = [
        truth(asked) * np.exp(np.random.default_rng(50 + seed).normal(0.0, 0.05, len(asked))) for seed in range(20)
    ]
    inside = np.mean([np.abs(value - answer.mean) <= 1.96 * answer.std for value in nexts])
    assert 0.92 <= inside <= 0.995


def test_repeats_that_contradict_each_other_are_not_answered_as_if_sure() -> None:
    cell = Queries.of("a", "v100", [1.0, 1.0], 100.0)
    answer = Suite.fresh("headroom", Facts()).fit(Samples.of(cell, [18.0, 0.018])).predict(cell)
    assert np.all(answer.std > 0.5 * answer.mean)


def test_many_updates_keep_a_curve_bounded(model: HeadroomSolo) -> None:
    now, rng = model, np.random.default_rng(4)
    for row in rng.integers(0, 30, 120):
        now = now.update(TOLD.take(np.array([row])))
    curve = now.known.curves["latency", ("m0", "v100")]
    assert len(curve.points) - curve.fitted < 100
    found = now.predict(TOLD.queries.take(np.arange(30)))
    assert np.abs(found.mean / TOLD.latency_ms[:30] - 1).mean() < 0.03


def test_an_unheard_of_model_is_learned_by_updates_alone() -> None:
    now = solo.make(Facts(), 0)
    assert np.isnan(now.predict(everywhere()).mean).all()
    queries = grid(["m0"])
    for row in (29, 0, 12, 20, 5, 17, 9, 26):
        one = queries.take(np.array([row]))
        now = now.update(Samples.of(one, truth(one)))
    found = now.predict(queries)
    assert np.abs(found.mean / truth(queries) - 1).mean() < 0.2
    assert (found.origin == Origin.MEASURED).all()


def test_what_was_asked_before_changes_no_later_answer() -> None:
    asked, unasked = solo.make(library.facts(), 0), solo.make(library.facts(), 0)
    kin, batches = Queries.of("resnet101", "a100", 8, 50), np.array([1, 2, 4, 8, 16, 32, 64.0])
    before = asked.predict(kin).mean
    told = Samples.of(Queries.of("resnet50", "a100", batches, 50), 5 * (3 + batches))
    (after,), (fresh,) = (model.update(told).predict(kin).mean for model in (asked, unasked))
    assert after == fresh
    assert after != before


@pytest.mark.parametrize("updated", [False, True])
def test_a_dumped_model_answers_the_same(model: HeadroomSolo, updated: bool) -> None:
    if updated:
        for row in (3, 40, 41, 90):
            model = model.update(TOLD.take(np.array([row])))
        model = model.update(Samples.of(Queries.of("new", "v100", 2, 50), [9.0]))
    again = solo.load(json.loads(json.dumps(model.dump())), Facts())
    for name in (*MODELS, "new"):
        one, two = model.predict(everywhere(name)), again.predict(everywhere(name))
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.std, two.std)


@pytest.mark.parametrize(
    "plain", [None, {}, {"seed": 1}, {"seed": "x", "known": {}}, {"seed": 1, "known": {"clocks": 3}}]
)
def test_what_is_no_dumped_model_is_refused(plain: dict[str, object] | None) -> None:
    with pytest.raises(InputError):
        solo.load(json.loads(json.dumps(plain)), Facts())


def test_fitting_is_deterministic(model: HeadroomSolo) -> None:
    again = solo.make(Facts(), 0).fit(TOLD)
    np.testing.assert_array_equal(model.predict(everywhere()).mean, again.predict(everywhere()).mean)


def test_throughput_follows_latency_or_its_own_measurements(model: HeadroomSolo, rich: HeadroomSolo) -> None:
    at = Queries.of("m1", "v100", [1, 8], 60)
    derived = model.predict(at, Quantity.THROUGHPUT_RPS)
    np.testing.assert_allclose(derived.mean, 1000 * at.batch / model.predict(at).mean)
    found = rich.predict(at, Quantity.THROUGHPUT_RPS)
    np.testing.assert_allclose(found.mean, 1.3 * derived.mean, rtol=0.04)


def test_percentiles_power_and_memory_are_learned(rich: HeadroomSolo) -> None:
    at = Queries.of("m1", "v100", [3, 12], [30, 90])
    assert rich.predict(at, Quantity.LATENCY_MS_P99).mean / rich.predict(at).mean == pytest.approx(1.5, rel=0.02)
    assert rich.predict(at, Quantity.MEMORY_MIB).mean == pytest.approx([1020, 1380], rel=0.01)
    assert rich.predict(at, Quantity.POWER_W).mean == pytest.approx(drawn_w(at), rel=0.12)
    for quantity, axis in ((Quantity.POWER_W, "share"), (Quantity.POWER_W, "batch"), (Quantity.MEMORY_MIB, "batch")):
        line = np.linspace(1, 100, 60)
        along = Queries.of("m1", "v100", line if axis == "batch" else 8, line if axis == "share" else 50)
        assert (np.diff(rich.predict(along, quantity).mean) >= -1e-9).all()


def test_power_of_an_unmeasured_model_comes_from_the_specification() -> None:
    gpu_type = GpuType(
        name=GpuTypeName("v100"), product="V100", sm_count=80, memory_mib=16384, tdp_w=300,
        idle_w=40, power_limit_w_min=100, power_limit_w_max=300, memory_bandwidth_gb_per_s=900,
        pcie_bandwidth_gb_per_s=16, fp32_tflops=15.7, fp16_tflops=125, clocks_mhz_sm=(1380, 1530),
    )  # fmt: skip
    facts = Facts(gpu_types={"v100": gpu_type})
    found = solo.make(facts, 0).predict(Queries.of("unheard-of", "V100", 16, 100), Quantity.POWER_W)
    assert 40 < found.mean[0] < 260
    assert found.std[0] > 0.1 * found.mean[0]
    assert found.origin[0] == Origin.SCALED
    assert not found.support[0]


def test_rows_that_are_no_configuration_are_answered_with_nan(model: HeadroomSolo) -> None:
    found = model.predict(Queries.of("m0", "v100", [NAN, 0, 4, 4, 4], [50, 50, NAN, -1, 50], [NAN, NAN, NAN, NAN, 0.0]))
    assert np.isnan(found.mean).all()


CELL = st.tuples(
    st.sampled_from([0.5, 1.0, 7.0, 4096.0, NAN, -1.0]),
    st.sampled_from([1.0, 50.0, 100.0, 180.0, NAN]),
    st.sampled_from([NAN, 900.0, 1500.0]),
    st.sampled_from([0.001, 3.0, 3.1, 5000.0, NAN, 0.0]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(CELL, min_size=0, max_size=12), st.lists(CELL, min_size=1, max_size=3))
def test_odd_measurements_never_crash(cells: list[tuple[float, ...]], more: list[tuple[float, ...]]) -> None:
    def odd(rows: list[tuple[float, ...]]) -> Samples:
        table = np.array(rows, dtype=np.float64).reshape(-1, 4)
        queries = Queries.of(["odd"] * len(table), ["g"] * len(table), table[:, 0], table[:, 1], table[:, 2])
        return Samples.of(queries, table[:, 3], power_w=table[:, 3] * 3, memory_mib=table[:, 3] * 100)

    fitted = solo.make(Facts(), 0).fit(odd(cells)).update(odd(more))
    for quantity in Quantity:
        found = fitted.predict(Queries.of("odd", "g", [1, 64, 4096], [1, 50, 100], [NAN, 900, 1500]), quantity)
        assert np.isfinite(found.mean).all() or np.isnan(found.mean).all()
        known = np.isfinite(found.mean)
        assert (found.mean[known] > 0).all()
        assert (found.std[known] > 0).all()


def test_the_suite_knows_the_model() -> None:
    fresh = Suite.fresh("headroom", Facts())
    assert fresh.solo.spec.online
    assert set(fresh.solo.spec.quantities) == set(Quantity)
