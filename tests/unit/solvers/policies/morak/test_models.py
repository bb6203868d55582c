"""Morak: knees and ceilings of what the paper measured, and its calibration of sharing (AC-MOR-01, AC-MOR-02)."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.models import suite
from solvers.models.base import Groups, GroupSamples, Quantity, Queries, Samples
from solvers.models.parts import static
from solvers.models.parts.curves import Rows
from solvers.policies.morak import models
from solvers.policies.morak.cutting import batch_ceiling, knee_share_pct
from tests import laws

SHARES = np.arange(10.0, 101.0, 10.0)


def curve(knee_pct: float, batch: float = 1.0) -> Floats:
    """Steep up to the knee, then nearly flat, the more so the larger the batch: what Figure 3 shows."""
    return np.asarray(2.0 + batch * (100.0 / np.minimum(SHARES, knee_pct) + 0.2 * 100.0 / SHARES))


def test_batches_stop_where_throughput_does() -> None:
    googlenet = {1: 250.0, 2: 450.0, 4: 800.0, 8: 1150.0, 16: 1400.0, 32: 1570.0, 64: 1600.0, 128: 1590.0}
    mobilenet = {1: 300.0, 2: 600.0, 4: 1100.0, 8: 1900.0, 16: 2700.0, 32: 3400.0, 64: 3900.0, 128: 3900.0}
    assert batch_ceiling(googlenet) == 32
    assert batch_ceiling(mobilenet) == 64


@pytest.mark.parametrize(("model", "knee_pct"), [("mobilenet", 20.0), ("googlenet", 30.0), ("resnet101", 30.0)])
@pytest.mark.parametrize("batch", [1.0, 8.0])
def test_knees_of_the_paper_come_back_from_what_was_learned(model: str, knee_pct: float, batch: float) -> None:
    rows = Rows(batch=np.full(10, batch), share_pct=SHARES, cycle=np.ones(10), value=curve(knee_pct, batch))
    learned = models.learn_alone(rows)(np.full(10, batch), SHARES, np.ones(10))
    assert knee_share_pct({int(share): float(ms) for share, ms in zip(SHARES, learned, strict=True)}) == knee_pct


def test_calibrated_to_the_paper_both_states_come_back() -> None:
    # GoogLeNet: one on the whole device at batch 64 takes 38.4 ms; four at a quarter each, batch 16, take 35.2 ms.
    apart = 35.2 / 1.3
    queries = Queries.of("googlenet", "2080ti", [64, 32, 16, 8], [100, 100, 25, 25])
    samples = Samples.of(queries, [38.4, 20.0, apart, apart * 0.55])
    four = Groups(members=Queries.of(["googlenet"] * 4, "2080ti", 16, 25), group=np.zeros(4, dtype=np.int64))
    fitted = suite.Suite.fresh("morak", laws.facts()).fit(
        samples, GroupSamples(groups=four, latency_ms=np.full(4, 35.2))
    )
    together = fitted.predict_groups(four)
    assert together.mean == pytest.approx([35.2] * 4, rel=0.01)
    assert float(np.sum(1000.0 * 16 / together.mean)) == pytest.approx(1860.0, rel=0.025)
    whole = Queries.of("googlenet", "2080ti", 64, 100)
    assert fitted.predict(whole).mean == pytest.approx([38.4], rel=0.01)
    assert fitted.predict(whole, Quantity.THROUGHPUT_RPS).mean == pytest.approx([1600.0], rel=0.05)


def test_power_rises_with_batch_share_and_clock() -> None:
    batch, share, clock = (
        column.ravel() for column in np.meshgrid([1.0, 4.0, 16.0], [20.0, 50.0, 100.0], [765.0, 1530.0], indexing="ij")
    )
    queries = Queries.of("res", laws.GPU, batch, share, clock)
    power = 20.0 * batch**0.3 * (share / 100.0) ** 0.5 * (clock / 1530.0) ** 1.5
    samples = Samples.of(queries, laws.latency_ms(queries), power_w=power)
    model = models.ALONE.make(laws.facts()).fit(samples)
    asked = Queries.of("res", laws.GPU, 8, 30, [765.0, 1100.0, 1530.0])
    truth = 20.0 * 8**0.3 * 0.3**0.5 * (np.array([765.0, 1100.0, 1530.0]) / 1530.0) ** 1.5
    assert model.predict(asked, Quantity.POWER_W).mean == pytest.approx(truth, rel=1e-3)


def test_the_clock_matters_more_for_large_batches() -> None:
    batch, share, cycle = (
        column.ravel() for column in np.meshgrid([1.0, 8.0, 32.0], [20.0, 50.0, 100.0], [1.0, 2.0], indexing="ij")
    )
    value = 4.0 + batch * 100.0 * cycle / share
    fitted = models.learn_alone(Rows(batch=batch, share_pct=share, cycle=cycle, value=value))
    slow = fitted(np.array([1.0, 32.0]), np.full(2, 100.0), np.full(2, 2.0))
    fast = fitted(np.array([1.0, 32.0]), np.full(2, 100.0), np.ones(2))
    assert slow == pytest.approx([6.0, 68.0], rel=0.03)
    assert slow[1] / fast[1] > slow[0] / fast[0]


def test_slowdown_counts_models_and_steepens_from_the_third_on() -> None:
    sizes = [2] * 5 + [3] * 5 + [4] * 5
    group = np.repeat(np.arange(15), sizes)
    members = Queries.of(["res"] * len(group), laws.GPU, 4, 20)
    groups = Groups(members=members, group=group)
    truth = np.array([0.0, 1.0, 1.05, 1.20, 1.35])[np.repeat(sizes, sizes)]
    solo = static.make(laws.facts(), 0).fit(laws.solo(["res"]))
    measured = GroupSamples(groups=groups, latency_ms=laws.latency_ms(members) * truth)
    model = models.BESIDE.make(laws.facts()).fit(measured, solo, laws.solo(["res"]))
    assert model.predict(groups, solo).mean == pytest.approx(truth, abs=1e-6)
    five = Groups(members=Queries.of(["res"] * 5, laws.GPU, 4, 20), group=np.zeros(5, dtype=np.int64))
    assert model.predict(five, solo).mean == pytest.approx([1.5] * 5, abs=1e-6)


def test_p_int_gives_back_the_printed_states() -> None:
    assert models.power_factor(np.array([0.0, 1.0, 4.0])) == pytest.approx([1.0, 1.0, 156.0 / 152.0])
