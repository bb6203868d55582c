"""iGniter: its form alone comes back, and so do delay per kernel, L2 pressure and the clock that power costs."""

from __future__ import annotations

import numpy as np
import pytest

from lab.beliefs import igniter_interference, igniter_solo
from lab.beliefs.igniter_interference import IgniterTerms
from solvers.models.base import Groups, GroupSamples, Queries, Samples
from solvers.models.parts import static
from solvers.models.parts.curves import Rows
from tests import laws


def test_the_form_comes_back() -> None:
    batch, share, cycle = (
        column.ravel() for column in np.meshgrid([1.0, 4.0, 16.0], [10.0, 30.0, 60.0, 100.0], [1.0, 1.5], indexing="ij")
    )
    value = ((0.01 * batch**2 + 0.8 * batch + 0.5) / (share / 100.0 + 0.06) + 0.3) * cycle + 0.05 * batch
    fitted = igniter_solo.learn(Rows(batch=batch, share_pct=share, cycle=cycle, value=value))
    assert fitted(batch, share, cycle) == pytest.approx(value, rel=1e-3)
    assert fitted.shift == pytest.approx(0.06, abs=0.01)
    asked = fitted(np.array([8.0]), np.array([45.0]), np.array([1.2]))
    assert asked == pytest.approx([((0.64 + 6.4 + 0.5) / 0.51 + 0.3) * 1.2 + 0.4], rel=0.01)


def terms(groups: Groups, slower: np.ndarray, alone: Samples) -> IgniterTerms:
    solo = static.make(laws.facts(), 0).fit(alone)
    measured = GroupSamples(groups=groups, latency_ms=laws.latency_ms(groups.members) * slower)
    formula = igniter_interference.make(laws.facts()).fit(measured, solo, alone).formula
    assert isinstance(formula, IgniterTerms)
    return formula


def test_delay_and_pressure_come_back() -> None:
    groups = laws.pairs()
    alone = laws.solo()
    quiet = Samples.of(alone.queries, alone.latency_ms, l2_util_pct=alone.l2_util_pct)
    kernels = np.array([laws.LAYERS[name] for name in groups.members.models])[groups.members.model]
    others = groups.sum_of_others(laws.l2_pct(groups.members)) / 100.0
    slower = 1.0 + 0.002 * kernels / laws.latency_ms(groups.members) + 0.5 * others
    formula = terms(groups, slower, quiet)
    assert formula.delay_ms[laws.GPU][0] == pytest.approx(0.002, rel=0.05)
    assert formula.cache["vgg", laws.GPU] == pytest.approx(0.5, rel=0.05)
    assert formula.slowdown(groups, laws.latency_ms(groups.members)) == pytest.approx(slower, rel=0.01)


def test_power_beyond_the_cap_costs_clock() -> None:
    queries = Queries.of(["res", "vgg"], laws.GPU, 4, 50)
    groups = Groups(members=queries, group=np.zeros(2, dtype=np.int64))
    limit = laws.facts().gpu_types[laws.GPU]
    within = Samples.of(queries, laws.latency_ms(queries), power_w=[100.0, 100.0])
    beyond = Samples.of(
        queries, laws.latency_ms(queries), power_w=[200.0, limit.power_limit_w_max - limit.idle_w - 100.0]
    )
    fast = terms(groups, np.ones(2), within).clock_ratio(groups)
    slow = terms(groups, np.ones(2), beyond).clock_ratio(groups)
    assert fast == pytest.approx([1.0, 1.0])
    assert slow == pytest.approx([1.0 - 1.025 * 100.0 / limit.clock_mhz_sm_max] * 2)
    unmeasured = terms(groups, np.ones(2), Samples.of(queries, laws.latency_ms(queries)))
    assert unmeasured.clock_ratio(groups) == pytest.approx([1.0, 1.0])


def test_published_delays_grow_with_the_third_model() -> None:
    formula = igniter_interference.learn(None, laws.facts())
    pair = Groups(members=Queries.of(["res", "vgg"], laws.GPU, 4, 20), group=np.zeros(2, dtype=np.int64))
    three = Groups(members=Queries.of(["res", "vgg", "ssd"], laws.GPU, 4, 20), group=np.zeros(3, dtype=np.int64))
    assert (formula.slowdown(three, np.ones(3))[:2] > formula.slowdown(pair, np.ones(2))).all()
