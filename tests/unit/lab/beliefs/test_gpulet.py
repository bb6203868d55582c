"""gpulet's linear form: published coefficients until enough was measured, then its own."""

from __future__ import annotations

import numpy as np
import pytest

from lab.beliefs import gpulet
from solvers.models.base import Groups, GroupSamples, Queries
from solvers.models.parts import static
from solvers.models.parts.disturbed import DRAM_PER_SHARE, L2_PER_SHARE, table_of
from tests import laws


def test_published_coefficients_at_assumed_use() -> None:
    groups = Groups.pairs(Queries.of("res", laws.GPU, 4, 40), Queries.of("vgg", laws.GPU, 4, 60))
    found = gpulet.learn(None, laws.facts()).slowdown(groups, np.ones(2))
    l2, dram = L2_PER_SHARE * np.array([0.4, 0.6]), DRAM_PER_SHARE * np.array([0.4, 0.6])
    truth = 0.113 * l2 + 0.716 * l2[::-1] + 0.355 * dram + 0.088 * dram[::-1] + 0.895
    assert found == pytest.approx(truth)


def test_enough_groups_bring_its_own_coefficients() -> None:
    groups = laws.pairs()
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    model = gpulet.make(laws.facts()).fit(laws.measured(groups), solo, laws.solo())
    asked = laws.pairs(batches=(4, 16))
    assert model.predict(asked, solo).mean == pytest.approx(laws.slowdown(asked), rel=1e-6)


def test_few_groups_leave_the_published_ones() -> None:
    few = laws.pairs([("res", "vgg")], batches=(2,), shares=(40, 60))
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    model = gpulet.make(laws.facts()).fit(laws.measured(few), solo, laws.solo())
    assert isinstance(model.formula, gpulet.Linear)
    assert model.formula.overall.tolist() == list(gpulet.PUBLISHED)


def test_a_gpu_type_with_few_groups_takes_those_of_all() -> None:
    here = laws.pairs()
    there = Groups.pairs(Queries.of("res", "t4", 2, 40), Queries.of("vgg", "t4", 2, 60))
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    model = gpulet.make(laws.facts()).fit(laws.measured(here), solo, laws.solo())
    assert isinstance(model.formula, gpulet.Linear)
    found = model.formula.slowdown(there, np.ones(2))
    assert np.isfinite(found).all()
    more = GroupSamples(groups=there, latency_ms=np.array([3.0, 4.0]))
    assert len(model.update(more, solo).predict(here, solo).mean) == len(here)


def test_use_is_measured_or_assumed() -> None:
    table = table_of(laws.solo(["res"]), laws.facts())
    l2, dram = gpulet.utilisation(Queries.of(["res", "vgg"], laws.GPU, 4, 40), table)
    assert l2 == pytest.approx([laws.L2["res"] * 0.4, L2_PER_SHARE * 0.4])
    assert dram[0] == pytest.approx(0.8 * laws.L2["res"] * 0.4)
