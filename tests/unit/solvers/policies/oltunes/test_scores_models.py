"""FM-FTRL and the predictors it is compared with: each learns an invented law, says how sure it is, and comes back."""

from __future__ import annotations

import json
from functools import cache
from typing import cast

import numpy as np
import pytest

from solvers.errors import InputError
from solvers.models import suite
from solvers.models.base import Answer, Facts, Groups, GroupSamples, Origin, Quantity, Queries, Samples
from solvers.models.parts.seen import NO_SAMPLES
from solvers.policies.oltunes.learned import LearnedInterference, LearnedSolo
from tests import laws

NAMES = ("fm-ftrl", "mf", "rf")
HELD_OUT_MAPE = {"fm-ftrl": 0.08, "mf": 0.15, "rf": 0.3}


@cache
def split() -> tuple[Samples, Samples]:
    samples = laws.solo(shares=tuple(range(10, 101, 10)))
    order = np.random.default_rng(3).permutation(len(samples))
    return samples.take(order[:160]), samples.take(order[160:])


@cache
def fitted(name: str) -> LearnedSolo:
    return cast("LearnedSolo", suite.make_solo(name, laws.facts(), 1).fit(split()[0]))


@cache
def beside(name: str) -> tuple[LearnedInterference, LearnedSolo, GroupSamples]:
    solo = fitted("fm-ftrl")
    groups = laws.pairs()
    told = GroupSamples(groups=groups, latency_ms=solo.predict(groups.members).mean * laws.slowdown(groups))
    count = int(groups.group[-1]) + 1
    order = np.random.default_rng(6).permutation(count)
    shown, hidden = told.take_groups(order[: count // 2]), told.take_groups(order[count // 2 :])
    model = suite.make_interference(name, laws.facts(), 1).fit(shown, solo, split()[0])
    return cast("LearnedInterference", model), solo, hidden


def same(one: Answer, two: Answer) -> None:
    for column in ("mean", "std", "support", "distance", "origin"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column))


@pytest.mark.parametrize("name", NAMES)
def test_unseen_cells_are_met(name: str) -> None:
    unseen = split()[1]
    for quantity in (Quantity.LATENCY_MS, Quantity.THROUGHPUT_RPS):
        answer = fitted(name).predict(unseen.queries, quantity)
        errors = np.abs(answer.mean / unseen.column(quantity) - 1.0)
        assert errors.mean() < HELD_OUT_MAPE[name]
        within = np.abs(answer.mean - unseen.column(quantity)) <= 1.96 * answer.std
        assert within.mean() > 0.8
        assert (answer.origin == Origin.MEASURED).all()


def test_the_machine_is_nearest_of_the_three() -> None:
    unseen = split()[1]
    squares = {
        name: np.square(np.log(fitted(name).predict(unseen.queries).mean / unseen.latency_ms)).mean() for name in NAMES
    }
    assert squares["fm-ftrl"] < min(squares["mf"], squares["rf"])


@pytest.mark.parametrize("name", NAMES)
def test_learning_is_deterministic_and_a_dump_answers_the_same(name: str) -> None:
    asked = split()[1].queries
    again = suite.make_solo(name, laws.facts(), 1).fit(split()[0])
    same(again.predict(asked), fitted(name).predict(asked))
    plain = json.loads(json.dumps(fitted(name).dump(), allow_nan=False))
    back = suite.load_solo(name, plain, laws.facts())
    for quantity in (Quantity.LATENCY_MS, Quantity.THROUGHPUT_RPS):
        same(back.predict(asked, quantity), fitted(name).predict(asked, quantity))
    more = split()[1].take(np.arange(5))
    same(back.update(more).predict(asked), fitted(name).update(more).predict(asked))


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_dump_is_refused(name: str) -> None:
    for part in ("regressor", "scale", "reach", "window"):
        plain = fitted(name).dump()
        assert isinstance(plain, dict)
        del plain[part]
        with pytest.raises(InputError):
            suite.load_solo(name, plain, laws.facts())


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_model_is_answered_widely_and_from_afar(name: str) -> None:
    known = fitted(name).predict(Queries.of("vgg", laws.GPU, [1, 8, 32], 50))
    answer = fitted(name).predict(Queries.of("nobody", laws.GPU, [1, 8, 32], 50))
    assert np.isfinite(answer.mean).all()
    assert np.isinf(answer.distance).all()
    assert not answer.support.any()
    assert (answer.origin == Origin.SCALED).all()
    if name != "rf":  # A forest knows no more than how far its trees disagree.
        assert ((answer.std / answer.mean) > 2.0 * (known.std / known.mean)).all()


@pytest.mark.parametrize("name", NAMES)
def test_before_anything_was_seen(name: str) -> None:
    fresh = suite.make_solo(name, Facts())
    answer = fresh.predict(Queries.of("res", "v100", [1, 2], 50))
    assert np.isfinite(answer.mean).all()
    assert (answer.std >= answer.mean).all()
    assert np.isinf(answer.distance).all()
    same(fresh.fit(NO_SAMPLES).predict(Queries.of("res", "v100", [1, 2], 50)), answer)
    with pytest.raises(InputError):
        fresh.predict(Queries.of("res", "v100", 1, 50), Quantity.POWER_W)
    plain = json.loads(json.dumps(fresh.dump(), allow_nan=False))
    back = suite.load_solo(name, plain, Facts())
    same(back.predict(Queries.of("res", "v100", [1, 2], 50)), answer)


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_latency_teach_nothing(name: str) -> None:
    learnt = split()[0].take(np.arange(30))
    holes = Samples.of(Queries.of("res", laws.GPU, [3, 5], 33), [np.nan, np.nan], power_w=[50.0, 60.0])
    same(
        fitted(name).update(holes).predict(learnt.queries),
        fitted(name).predict(learnt.queries),
    )


def test_single_samples_teach_the_machine() -> None:
    learnt, unseen = split()
    model = suite.make_solo("fm-ftrl", laws.facts(), 1)

    def error(of: LearnedSolo) -> float:
        return float(np.abs(np.log(of.predict(unseen.queries).mean / unseen.latency_ms)).mean())

    assert isinstance(model, LearnedSolo)
    assert model.spec.online
    before = error(model)
    wide = model.predict(unseen.queries)
    for row in range(len(learnt)):
        model = model.update(learnt.take(np.array([row])))
    once = error(model)
    assert once < 0.5 * before
    told = model.predict(unseen.queries)
    assert (told.std / told.mean).mean() < 0.5 * (wide.std / wide.mean).mean()
    assert (told.distance < 2.0).all()
    # Going over the window again is what a missed prediction asks for.
    assert error(model.retrained()) < 0.5 * once


def test_training_again_follows_what_has_changed() -> None:
    slower = split()[0].take(np.arange(40))
    slower = Samples.of(slower.queries, 2.0 * slower.latency_ms)
    model = fitted("fm-ftrl")
    stale = model.predict(slower.queries).mean
    for row in range(40):
        model = model.update(slower.take(np.array([row])))
    again = model.retrained().predict(slower.queries).mean
    assert np.abs(np.log(again / slower.latency_ms)).mean() < 0.7 * np.abs(np.log(stale / slower.latency_ms)).mean()
    empty = suite.make_solo("fm-ftrl", laws.facts())
    assert isinstance(empty, LearnedSolo)
    same(empty.retrained().predict(slower.queries), empty.predict(slower.queries))


def test_both_targets_come_from_one_evaluation() -> None:
    model = fitted("fm-ftrl")
    asked = split()[1].queries
    latency, throughput = model.predict_both(asked)
    same(latency, model.predict(asked))
    same(throughput, model.predict(asked, Quantity.THROUGHPUT_RPS))


@pytest.mark.parametrize("name", NAMES)
def test_slowdowns_at_unseen_cells(name: str) -> None:
    model, solo, asked = beside(name)
    truth = laws.slowdown(asked.groups)
    answer = model.predict(asked.groups, solo)
    unexplained = np.square(answer.mean - truth).sum() / np.square(truth - truth.mean()).sum()
    assert 1.0 - unexplained > {"fm-ftrl": 0.8, "mf": 0.3, "rf": 0.8}[name]
    assert (np.abs(answer.mean - truth) <= 1.96 * answer.std).mean() > 0.8
    plain = json.loads(json.dumps(model.dump(), allow_nan=False))
    back = suite._part(suite.INTERFERENCE_MODELS, name).load(plain, laws.facts())
    same(back.predict(asked.groups, solo), answer)


@pytest.mark.parametrize("name", NAMES)
def test_company_decides_who_is_slowed_down(name: str) -> None:
    model, solo, _ = beside(name)
    members = Queries.of(["res", "vgg", "alex", "nobody", "res"], laws.GPU, 8, 20)
    answer = model.predict(Groups(members=members, group=np.array([0, 1, 1, 1, 2])), solo)
    np.testing.assert_array_equal(answer.mean[[0, 4]], 1.0)
    np.testing.assert_array_equal(answer.std[[0, 4]], 0.0)
    assert answer.support[[0, 4]].all()
    assert np.isfinite(answer.mean).all()
    assert (answer.std[1:4] > 0).all()
    assert np.isinf(answer.distance[1:4]).all()
    assert not answer.support[1:4].any()


@pytest.mark.parametrize("name", NAMES)
def test_groups_teach_on_top(name: str) -> None:
    model, solo, asked = beside(name)
    fresh = suite.make_interference(name, laws.facts(), 1)
    assert (fresh.predict(asked.groups, solo).mean > 1.0).all()
    lonely = GroupSamples(
        groups=Groups(members=Queries.of("res", laws.GPU, [1, 2], 50), group=np.arange(2)),
        latency_ms=np.array([9.0, 9.0]),
    )
    same(model.update(lonely, solo).predict(asked.groups, solo), model.predict(asked.groups, solo))
    more = asked.take_groups(np.arange(10))
    told = model.update(more, solo).predict(more.groups, solo)
    assert (told.distance == 0.0).all()
    holes = GroupSamples(groups=more.groups, latency_ms=np.where(np.arange(20) == 3, np.nan, more.latency_ms))
    partly = model.update(holes, solo).predict(more.groups, solo)
    np.testing.assert_array_equal(partly.distance > 0, np.isin(np.arange(20), (2, 3)))
