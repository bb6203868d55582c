"""Gaussian weights in blocks against the textbook."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.errors import InputError
from solvers.models.belief.blocks import Blocks, Rows

WIDTH = {"all": 2, "one": 1, "two": 1}


def prior(name: str) -> tuple[Floats, Floats]:
    return np.full(WIDTH[name], 0.5), np.full(WIDTH[name], 2.0)


FRESH = Blocks(prior=prior, apart=lambda _: False, noise=0.1)
APART = Blocks(prior=prior, apart=lambda name: name != "all", noise=0.1)
NAMES = ("all", "one", "two")


def rows(seed: int, count: int = 40) -> tuple[Rows, Floats]:
    """Every row is about `all`, even ones about `one`, odd ones about `two`; the design with columns in this order."""
    random = np.random.default_rng(seed)
    design = random.normal(size=(count, 4))
    even = np.arange(count) % 2 == 0
    design[~even, 2] = 0.0
    design[even, 3] = 0.0
    target = design @ np.array([1.0, -1.0, 2.0, 0.0]) + random.normal(scale=0.1, size=count)
    parts = [
        ("all", np.flatnonzero(even), design[even, :2]),
        ("all", np.flatnonzero(~even), design[~even, :2]),
        ("one", np.flatnonzero(even), design[even, 2:3]),
        ("two", np.flatnonzero(~even), design[~even, 3:]),
    ]
    return Rows(target=target, scale=np.ones(count), variance=np.zeros(count), parts=parts), design


def together(first: Rows, second: Rows) -> Rows:
    """The rows of both."""
    both = [*first.parts, *((name, where + len(first), features) for name, where, features in second.parts)]
    ends = [np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("target", "scale", "variance")]
    return Rows(target=ends[0], scale=ends[1], variance=ends[2], parts=both)


def of_both(count: int = 3) -> tuple[Rows, Floats]:
    """Rows about everything at once, so that `one` and `two` meet."""
    design = np.random.default_rng(9).normal(size=(count, 4))
    parts = [
        (name, np.arange(count), design[:, columns])
        for name, columns in zip(NAMES, (slice(0, 2), slice(2, 3), slice(3, 4)), strict=True)
    ]
    told = Rows(
        target=design @ np.array([1.0, -1.0, 2.0, 0.0]), scale=np.ones(count), variance=np.zeros(count), parts=parts
    )
    return told, design


def exact(design: Floats, target: Floats) -> tuple[Floats, Floats]:
    """The textbook's mean and covariance."""
    covariance = np.linalg.inv(np.eye(4) / 4.0 + design.T @ design / 0.01)
    return covariance @ (np.full(4, 0.5) / 4.0 + design.T @ target / 0.01), covariance


@pytest.mark.parametrize("fresh", [FRESH, APART])
def test_updating_is_exact(fresh: Blocks) -> None:
    given, design = rows(0)
    found = fresh.updated(given)
    mean, covariance = exact(design, given.target)
    assert found.local(NAMES)[0] == pytest.approx(mean, abs=1e-6)
    assert found.local(NAMES)[1] == pytest.approx(covariance, abs=1e-9)
    assert found.noise == fresh.noise


def test_blocks_that_meet_later_know_of_each_other() -> None:
    (given, design), (late, more) = rows(0), of_both()
    mean, covariance = exact(np.concatenate([design, more]), np.concatenate([given.target, late.target]))
    found = APART.updated(given).updated(late)
    assert found.local(NAMES)[0] == pytest.approx(mean, abs=1e-6)
    assert found.local(NAMES)[1] == pytest.approx(covariance, abs=1e-9)
    assert found.circles["one"] is found.circles["two"]


@pytest.mark.parametrize("meet", [False, True])
def test_standing_apart_changes_nothing_that_is_learned(meet: bool) -> None:
    given = together(rows(7)[0], of_both()[0]) if meet else rows(7)[0]
    dense, apart = FRESH.learned(given), APART.learned(given)
    assert apart.noise == pytest.approx(dense.noise, rel=1e-9)
    for mine, other in zip(apart.local(NAMES), dense.local(NAMES), strict=True):
        assert mine == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("fresh", [FRESH, APART])
def test_what_is_left_out_is_foretold_by_the_rest(fresh: Blocks) -> None:
    given, design = rows(8)
    odd = np.arange(40) % 2 == 1
    (mean, std), _ = fresh.without(given, [odd, np.arange(40) < 3])
    kept = np.where(odd[:, None], 0.0, design)
    weights, covariance = exact(kept, np.where(odd, 0.0, given.target))
    assert mean == pytest.approx(design[odd] @ weights, abs=1e-6)
    assert std**2 == pytest.approx(((design[odd] @ covariance) * design[odd]).sum(axis=1), abs=1e-6)


def test_what_is_kept_grows_with_the_pairs_and_not_with_their_square() -> None:
    def kept(pairs: int) -> int:
        blocks = Blocks(prior=lambda name: (np.zeros(3), np.ones(3)), apart=lambda name: name != "all", noise=0.1)
        ones = np.ones((pairs, 3))
        parts = [(name, np.array([row]), ones[:1]) for row in range(pairs) for name in ("all", f"pair {row}")]
        told = Rows(target=np.ones(pairs), scale=np.ones(pairs), variance=np.zeros(pairs), parts=parts)
        return len(json.dumps(blocks.learned(told).to_plain()))

    assert kept(40) < 2.2 * kept(20)


def test_learning_all_at_once_finds_the_noise() -> None:
    given, _ = rows(1, count=400)
    found = replace(FRESH, noise=0.5).learned(given)
    assert found.local(NAMES)[0] == pytest.approx([1.0, -1.0, 2.0, 0.0], abs=0.05)
    assert 0.08 < found.noise < 0.15


def test_known_variance_is_not_taken_for_noise() -> None:
    given, _ = rows(2, count=400)
    shaken = given.target + np.random.default_rng(3).normal(scale=1.0, size=400)
    doubted = Rows(target=shaken, scale=given.scale, variance=np.ones(400), parts=given.parts)
    trusted = Rows(target=shaken, scale=given.scale, variance=np.zeros(400), parts=given.parts)
    assert FRESH.learned(doubted).noise < 0.4
    assert FRESH.learned(trusted).noise > 0.8


def test_far_rows_count_less() -> None:
    given, _ = rows(4, count=100)
    target = given.target.copy()
    target[3] += 1000.0
    mad = Rows(target=target, scale=given.scale, variance=given.variance, parts=given.parts)
    assert FRESH.learned(mad).local(NAMES)[0] == pytest.approx(FRESH.learned(given).local(NAMES)[0], abs=0.1)
    one = Rows(
        target=target[3:4], scale=np.ones(1), variance=np.zeros(1), parts=[("all", np.zeros(1, int), np.ones((1, 2)))]
    )
    known = FRESH.learned(given)
    assert known.updated(one).local(NAMES)[0] == pytest.approx(known.local(NAMES)[0], abs=0.1)


def test_blocks_nobody_met_are_at_their_prior() -> None:
    given, _ = rows(5)
    only = Rows(target=given.target, scale=given.scale, variance=given.variance, parts=given.parts[:3])
    found = FRESH.learned(only)
    mean, covariance = found.local(["two", "one"])
    assert mean[0] == 0.5
    assert covariance[0].tolist() == [4.0, 0.0]
    assert mean[1] == found.shared.offset[2]
    assert covariance[1, 1] == found.shared.covariance[2, 2]


@pytest.mark.parametrize("fresh", [FRESH, APART])
def test_plain_data_and_back(fresh: Blocks) -> None:
    found = fresh.learned(rows(6)[0])
    plain = json.loads(json.dumps(found.to_plain()))
    back = replace(fresh, noise=found.noise).with_plain(plain)
    assert [part.tolist() for part in back.local(NAMES)] == [part.tolist() for part in found.local(NAMES)]
    assert json.dumps(back.to_plain()) == json.dumps(found.to_plain())


@pytest.mark.parametrize(
    "change",
    [{"shared": None}, {"shared": {}}, {"circles": [{}]}, {"circles": None}],
)
def test_other_data_is_refused(change: dict[str, object]) -> None:
    plain = json.loads(json.dumps(APART.learned(rows(6)[0]).to_plain()))
    with pytest.raises(InputError):
        APART.with_plain({**plain, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"touched": [7, 8]},
        {"slope": [1.0]},
        {"mean": []},
        {"covariance": [1.0, 2.0]},
        {"names": ["two", "one"]},
        {"names": ["nobody"]},
    ],
)
def test_circles_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    plain = json.loads(json.dumps(APART.learned(rows(6)[0]).to_plain()))
    plain["circles"][0] |= change
    with pytest.raises(InputError):
        APART.with_plain(plain)
