"""What groups of devices take is searched: against every possible answer of small cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from solvers.domain.arrays import Floats, Whole
from solvers.engines.anneal import GroupChoices, Heat, RowEnds, annealed
from solvers.engines.highs import Columns

HOW = Heat(hot_usd=1.0, cold_usd=0.01, steps=4_000_000)
ROWS, GROUPS, EACH = 6, 3, 4
"""Demands in the first rows, then one that may be over at a price, then one that may not."""


def drawn(seed: int, devices: tuple[int, ...] = (1, 2, 1)) -> GroupChoices:
    """Demands of one that contents serve in parts, dearer the more they serve."""
    random = np.random.default_rng(seed)
    count = GROUPS * EACH
    served = random.uniform(0.0, 1.0, (count, ROWS - 2)) * (random.random((count, ROWS - 2)) < 0.6)
    value = np.hstack([served, random.uniform(0.0, 1.0, (count, 2))])
    number, row = np.nonzero(value)
    columns = Columns.of(
        served.sum(axis=1) + random.uniform(0.1, 0.5, count), column=number, row=row, value=value[number, row]
    )
    demands = np.arange(ROWS) < ROWS - 2
    must = demands & (np.arange(ROWS) % 2 == 0)
    return GroupChoices(
        columns=columns,
        group=random.permutation(np.repeat(np.arange(GROUPS), EACH)),
        devices=np.array(devices),
        ends=RowEnds(
            lower=np.where(demands, 1.0, -np.inf),
            upper=np.where(demands, np.inf, 1.5),
            first=np.where(must, 0.2, np.where(demands, np.inf, 0.0)),
            first_usd=np.where(demands, 0.8, 0.0),
            short_usd=np.where(must, 5.0, np.inf),
            once_usd=np.where(must, 10.0, np.inf),
            over_usd=np.where(np.arange(ROWS) == ROWS - 2, 2.0, np.inf),
            over_once_usd=np.where(np.arange(ROWS) == ROWS - 2, 1.0, np.inf),
        ),
    )


def every(choices: GroupChoices) -> list[Whole]:
    """All counts that the groups' devices allow."""
    found = list[Whole]()
    for counts in product(*(range(int(choices.devices[group]) + 1) for group in choices.group)):
        made = np.array(counts)
        if (np.bincount(choices.group, weights=made, minlength=GROUPS) <= choices.devices).all():
            found.append(made)
    return found


def nothing(choices: GroupChoices) -> Whole:
    return np.zeros(len(choices.columns), dtype=np.int64)


PRICE: Floats = np.full(ROWS, 1.0)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_all_is_found(seed: int) -> None:
    choices = drawn(seed)
    best = min(choices.usd(counts) for counts in every(choices))
    found = annealed(choices, nothing(choices), PRICE, HOW)
    assert choices.usd(found) == pytest.approx(best)
    assert (np.bincount(choices.group, weights=found, minlength=GROUPS) <= choices.devices).all()


def test_two_exchanges_that_only_gain_together_need_no_heat() -> None:
    """Two groups serve a demand each, and would serve each other's for half; with so little work nothing anneals."""
    row, must = np.array([0, 1, 1, 0]), np.full(2, 100.0)
    choices = GroupChoices(
        columns=Columns.of(np.array([2.0, 1.0, 2.0, 1.0]), column=np.arange(4), row=row, value=np.ones(4)),
        group=np.array([0, 0, 1, 1]),
        devices=np.ones(2, dtype=np.int64),
        ends=RowEnds(
            lower=np.ones(2),
            upper=np.full(2, np.inf),
            first=np.zeros(2),
            first_usd=np.zeros(2),
            short_usd=must,
            once_usd=must,
            over_usd=np.full(2, np.inf),
            over_once_usd=np.full(2, np.inf),
        ),
    )
    begin = np.array([1, 0, 1, 0])
    assert annealed(choices, begin, np.ones(2), replace(HOW, steps=200)).tolist() == [0, 1, 0, 1]
    assert annealed(choices, begin, np.ones(2), replace(HOW, steps=20)).tolist() == begin.tolist()


def test_what_it_begins_with_is_the_least_that_comes_out() -> None:
    choices = drawn(1)
    for begin in every(choices)[::97]:
        found = annealed(choices, begin, PRICE, replace(HOW, steps=200))
        assert choices.usd(found) <= choices.usd(begin)
    begin = every(choices)[5]
    assert (annealed(choices, begin, PRICE, replace(HOW, steps=0)) == begin).all()


def test_it_is_the_same_again_whatever_the_order_of_its_columns() -> None:
    choices = drawn(3)
    found = annealed(choices, nothing(choices), PRICE, HOW)
    assert (annealed(choices, nothing(choices), PRICE, HOW) == found).all()
    order = np.argsort(choices.group, kind="stable")
    turned = annealed(choices.take(order), nothing(choices), PRICE, HOW)
    assert (turned == found[order]).all()


def test_what_may_not_be_over_never_is_though_it_would_be_cheaper() -> None:
    choices = drawn(5, devices=(2, 2, 2))
    free = replace(choices, ends=replace(choices.ends, upper=np.full(ROWS, np.inf)))
    loose = annealed(free, nothing(free), PRICE, HOW)
    over = choices.columns.row == ROWS - 1
    most = 0.9 * float((choices.columns.value * loose[choices.columns.number])[over].sum())
    hard = replace(free, ends=replace(free.ends, upper=np.where(np.arange(ROWS) == ROWS - 1, most, np.inf)))
    found = annealed(hard, nothing(hard), PRICE, HOW)
    assert np.isfinite(hard.usd(found))
    assert np.isinf(hard.usd(loose))
    assert free.usd(loose) < free.usd(found)


def test_without_devices_or_columns_there_is_nothing_to_take() -> None:
    choices = drawn(2, devices=(0, 0, 0))
    assert not annealed(choices, nothing(choices), PRICE, HOW).any()
    none = choices.take(np.zeros(0, dtype=np.int64))
    assert len(annealed(none, nothing(none), PRICE, HOW)) == 0


def test_whatever_once_counts_is_counted_once() -> None:
    """A demand that must be served and lacks half of it: a part at the first price, the rest, and that it lacks."""
    choices = drawn(0)
    held = np.array([0.5, 1.0, 1.0, 1.0, 2.0, 0.0])
    assert choices.ends.usd(held) == pytest.approx(0.2 * 0.8 + 0.3 * 5.0 + 10.0 + 0.5 * 2.0 + 1.0)
    assert np.isinf(choices.ends.usd(np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.6])))
