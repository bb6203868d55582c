"""What every published form of interference owes: it learns, dumps, comes back, adds up, and speeds nobody up."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from solvers.models import suite
from solvers.models.base import Answer, Groups, GroupSamples, InterferenceModel, Origin, Queries, SoloModel
from solvers.models.parts import static
from solvers.models.parts.seen import NO_SAMPLES
from tests import laws

NAMES = ("none", "constant", "gpulet", "inss", "mudi", "morak", "igniter")


@cache
def solo() -> SoloModel:
    return static.make(laws.facts(), 0).fit(laws.solo())


@cache
def whole(name: str) -> InterferenceModel:
    return fitted(name, laws.measured(laws.pairs()))


def fitted(name: str, groups: GroupSamples) -> InterferenceModel:
    return suite.make_interference(name, laws.facts()).fit(groups, solo(), laws.solo())


def same(one: Answer, two: Answer) -> None:
    for column in ("mean", "std", "support", "distance", "origin"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column))


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_answers_the_same(name: str) -> None:
    model = whole(name)
    plain = json.loads(json.dumps(model.dump(), allow_nan=False))
    back = suite._part(suite.INTERFERENCE_MODELS, name).load(plain, laws.facts())
    same(back.predict(laws.pairs(batches=(4,)), solo()), model.predict(laws.pairs(batches=(4,)), solo()))


@pytest.mark.parametrize("name", NAMES)
def test_an_unfitted_model_dumps_and_answers_what_was_published(name: str) -> None:
    model = suite.make_interference(name, laws.facts())
    back = suite._part(suite.INTERFERENCE_MODELS, name).load(model.dump(), laws.facts())
    answer = model.predict(laws.pairs(batches=(4,)), solo())
    same(answer, back.predict(laws.pairs(batches=(4,)), solo()))
    assert np.isinf(answer.distance).all()
    assert not answer.support.any()
    assert (answer.mean >= 1.0).all()
    assert (answer.mean < 3.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_updating_is_fitting_to_all(name: str) -> None:
    samples = laws.measured(laws.pairs())
    count = int(samples.groups.group.max()) + 1
    first, rest = samples.take_groups(range(count // 3)), samples.take_groups(range(count // 3, count))
    grown = fitted(name, first).update(rest, solo())
    asked = laws.pairs(batches=(4, 16))
    np.testing.assert_allclose(grown.predict(asked, solo()).mean, whole(name).predict(asked, solo()).mean, rtol=1e-6)
    started = suite.make_interference(name, laws.facts()).update(samples, solo())
    assert np.isfinite(started.predict(asked, solo()).mean).all()


@pytest.mark.parametrize("name", NAMES)
def test_who_is_alone_is_as_fast_as_alone(name: str) -> None:
    single = Groups(members=Queries.of("res", laws.GPU, [2, 4], 50), group=np.array([0, 1]))
    answer = whole(name).predict(single, solo())
    assert answer.mean.tolist() == [1.0, 1.0]
    assert answer.support.all()


@pytest.mark.parametrize("name", NAMES)
def test_company_says_how_well_it_is_known(name: str) -> None:
    seen = laws.pairs([("res", "vgg"), ("res", "ssd")])
    model = fitted(name, laws.measured(seen))
    answer = model.predict(seen, solo())
    assert answer.support.all()
    assert not answer.distance.any()
    assert (answer.origin == Origin.MEASURED).all()
    strange = model.predict(laws.pairs([("vgg", "ssd"), ("alex", "res")]), solo())
    assert not strange.support.any()
    assert (strange.distance[: len(strange.distance) // 2] < np.inf).all()
    assert strange.distance[-2] > strange.distance[-1]  # alex was never beside anybody, res was
    assert (strange.std >= answer.std.max()).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_three_is_answered(name: str) -> None:
    members = Queries.of(["res", "vgg", "ssd"], laws.GPU, 4, [30, 30, 40])
    answer = whole(name).predict(Groups(members=members, group=np.zeros(3, dtype=np.int64)), solo())
    assert np.isfinite(answer.mean).all()
    assert (answer.mean >= 1.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_measured_teaches_nothing(name: str) -> None:
    groups = laws.pairs([("res", "vgg")], batches=(2,), shares=(50,))
    empty = GroupSamples(groups=groups, latency_ms=np.full(len(groups), np.nan))
    answer = suite.make_interference(name, laws.facts()).fit(empty, solo(), NO_SAMPLES).predict(groups, solo())
    assert np.isfinite(answer.mean).all()
    assert not answer.support.any()


@pytest.mark.parametrize("name", NAMES)
def test_one_pair_is_enough_to_answer(name: str) -> None:
    groups = laws.pairs([("res", "vgg")], batches=(2,), shares=(40,))
    answer = fitted(name, laws.measured(groups)).predict(laws.pairs(batches=(4,)), solo())
    assert np.isfinite(answer.mean).all()
    assert (answer.std > 0).all()
