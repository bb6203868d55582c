"""Gaussian weights in blocks against the textbook."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.errors import InputError
from solvers.models.belief.interference import Blocks, Rows

WIDTH = {"all": 2, "one": 1, "two": 1}


def prior(name: str) -> tuple[Floats, Floats]:
    return np.full(WIDTH[name], 0.5), np.full(WIDTH[name], 2.0)


FRESH = Blocks.fresh(prior, 0.1)


def rows(seed: int, count: int = 40) -> tuple[Rows, Floats]:
    """Every row is about `all`, even ones about `one`, odd ones about `two`; the design with columns in this order."""
    random = np.random.default_rng(seed)
    design = random.normal(size=(count, 4))
    even = np.arange(count) % 2 == 0
    design[~even, 2] = 0.0
    design[even, 3] = 0.0
    target = design @ np.array([1.0, -1.0, 2.0, 0.0]) + random.normal(scale=0.1, size=count)
    parts = [
        ("all", np.arange(count), design[:, :2]),
        ("one", np.flatnonzero(even), design[even, 2:3]),
        ("two", np.flatnonzero(~even), design[~even, 3:]),
    ]
    return Rows(target=target, scale=np.ones(count), variance=np.zeros(count), parts=parts), design


def test_updating_is_exact() -> None:
    given, design = rows(0)
    covariance = np.linalg.inv(np.eye(4) / 4.0 + design.T @ design / 0.01)
    mean = covariance @ (np.full(4, 0.5) / 4.0 + design.T @ given.target / 0.01)
    found = FRESH.updated(given)
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.covariance == pytest.approx(covariance, abs=1e-9)
    assert found.noise == FRESH.noise


def test_learning_all_at_once_finds_the_noise() -> None:
    given, _ = rows(1, count=400)
    found = Blocks.fresh(prior, 0.5).learned(given)
    assert found.mean == pytest.approx([1.0, -1.0, 2.0, 0.0], abs=0.05)
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
    assert FRESH.learned(mad).mean == pytest.approx(FRESH.learned(given).mean, abs=0.1)
    one = Rows(
        target=target[3:4], scale=np.ones(1), variance=np.zeros(1), parts=[("all", np.zeros(1, int), np.ones((1, 2)))]
    )
    known = FRESH.learned(given)
    assert known.updated(one).mean == pytest.approx(known.mean, abs=0.1)


def test_blocks_nobody_met_are_at_their_prior() -> None:
    given, _ = rows(5)
    only = Rows(target=given.target, scale=given.scale, variance=given.variance, parts=given.parts[:2])
    found = FRESH.learned(only)
    mean, covariance = found.local(["two", "one"])
    assert mean[0] == 0.5
    assert covariance[0].tolist() == [4.0, 0.0]
    assert mean[1] == found.mean[2]
    assert covariance[1, 1] == found.covariance[2, 2]


def test_packing() -> None:
    found = FRESH.learned(rows(6)[0])
    names = list(found.start)
    back = Blocks.unpacked(prior, found.noise, names, found.mean, np.array(found.packed()))
    assert np.array_equal(back.covariance, found.covariance)
    assert back.start == found.start
    with pytest.raises(InputError):
        Blocks.unpacked(prior, found.noise, names[:-1], found.mean, np.array(found.packed()))
