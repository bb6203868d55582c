"""Loads, ordered pairs and features, and nearness to encounters."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.base import Groups, Queries
from solvers.models.belief.pressure import PRIOR_MEAN, PRIOR_STD, WIDTHS, Edges, Encounters, oversold, places
from solvers.models.parts.disturbed import STRANGER_STEPS, STRANGERS_STEPS


def groups(numbers: list[int], shares: list[float]) -> Groups:
    return Groups(members=Queries.of("m", "V100", 8.0, shares), group=np.array(numbers, dtype=np.int64))


def test_edges_are_every_ordered_pair_of_a_group() -> None:
    edges = Edges.of(groups([0, 0, 3, 5, 5, 5], [10.0] * 6))
    pairs = sorted(zip(edges.own.tolist(), edges.other.tolist(), strict=True))
    assert pairs == [(0, 1), (1, 0), (3, 4), (3, 5), (4, 3), (4, 5), (5, 3), (5, 4)]


def test_oversold_shares_are_split_among_neighbours_and_rise_with_every_one() -> None:
    shares = np.array([0.6, 0.6, 0.3])
    both, all_three = groups([0, 0], [60.0] * 2), groups([0, 0, 0], [60.0, 60.0, 30.0])
    two = oversold(both, Edges.of(both), shares[:2])
    assert two == pytest.approx([0.2, 0.2])
    edges = Edges.of(all_three)
    three = oversold(all_three, edges, shares)
    assert np.bincount(edges.own, weights=three) == pytest.approx([0.5, 0.5, 0.5])
    first = three[(edges.own == 0) & (edges.other == 1)][0]
    assert first > two[0]
    fitting = groups([0, 0], [50.0, 50.0])
    assert oversold(fitting, Edges.of(fitting), np.array([0.5, 0.5])).tolist() == [0.0, 0.0]


def test_every_weight_has_a_prior() -> None:
    assert len(PRIOR_MEAN) == len(PRIOR_STD) == sum(WIDTHS)
    assert np.all(PRIOR_STD > 0.0)


def test_nearness() -> None:
    kind = ("V100", "a", "b")
    one = places(np.array([0.4]), np.array([0.6]), np.array([0.4]), np.array([0.6]))
    met = Encounters().joined([(kind, one)])
    doubled = places(np.array([0.6]), np.array([0.6]), np.array([0.4]), np.array([0.6]))
    assert met.nearness(kind, one)[0].tolist() == [0.0]
    assert met.nearness(kind, one)[1].tolist() == [True]
    steps, inside = met.nearness(kind, doubled)
    assert steps == pytest.approx([1.0])
    assert not inside[0]
    assert met.nearness(("V100", "b", "a"), one)[0].tolist() == [STRANGERS_STEPS]
    assert met.nearness(("V100", "a", "c"), one)[0].tolist() == [STRANGER_STEPS]
    assert met.nearness(("V100", "c", "d"), one)[0].tolist() == [np.inf]
    assert met.nearness(("T4", "a", "b"), one)[0].tolist() == [np.inf]


def test_repeated_places_do_not_pile_up() -> None:
    kind = ("V100", "a", "b")
    rows = places(*(np.full(50, 0.4) for _ in range(4)))
    met = Encounters().joined([(kind, rows)])
    assert len(met.measured[kind]) == 1
    assert len(met.joined([(kind, rows)]).measured[kind]) == 1
    assert len(met.joined([(kind, rows[:1] + 1.0)]).measured[kind]) == 2
    assert Encounters.from_plain(met.to_plain()).nearness(kind, rows)[0].max() == 0.0
