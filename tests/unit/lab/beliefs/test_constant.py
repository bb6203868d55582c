"""The mean slowdown of a GPU type, and of all types where it is new."""

from __future__ import annotations

import numpy as np
import pytest

from lab.beliefs import constant
from solvers.models.base import Groups, Queries
from solvers.models.parts import static
from solvers.models.parts.disturbed import NONE
from tests import laws


def test_everybody_gets_the_mean() -> None:
    groups = laws.pairs()
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    answer = constant.make(laws.facts()).fit(laws.measured(groups), solo, laws.solo()).predict(groups, solo)
    truth = laws.slowdown(groups)
    assert answer.mean == pytest.approx(np.full(len(groups), truth.mean()))
    assert answer.std[0] == pytest.approx(truth.std(), rel=1e-3)


def test_an_unknown_gpu_type_gets_the_mean_of_all() -> None:
    groups = laws.pairs()
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    model = constant.make(laws.facts()).fit(laws.measured(groups), solo, laws.solo())
    asked = Groups.pairs(Queries.of("res", "t4", 2, 50), Queries.of("vgg", "t4", 2, 50))
    assert model.predict(asked, solo).mean == pytest.approx(np.full(2, laws.slowdown(groups).mean()))


def test_no_interference_knows_how_wrong_it_is() -> None:
    groups = laws.pairs()
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    answer = NONE.make(laws.facts()).fit(laws.measured(groups), solo, laws.solo()).predict(groups, solo)
    assert answer.mean.tolist() == [1.0] * len(groups)
    assert answer.std[0] == pytest.approx(np.sqrt(np.mean((laws.slowdown(groups) - 1.0) ** 2)), rel=1e-6)
