"""What a learner remembers: a bounded window of whole groups, and how near a question is to what was met."""

from __future__ import annotations

import json

import numpy as np

from solvers.models.base import Facts, Groups, Queries
from solvers.policies.oltunes.history import POINTS_MAX, HistoryWindow, Reach, alone

EMPTY = Facts()


def met(queries: Queries) -> Reach:
    return Reach(met={}).extended(alone(queries), EMPTY)


def pairs(count: int, start: int = 0) -> Groups:
    batch = start + np.arange(1, count + 1)
    return Groups.pairs(Queries.of("a", "v100", batch, 40), Queries.of("b", "v100", batch, 60))


def test_distance_counts_usual_steps() -> None:
    reach = met(Queries.of("res", "v100", [1, 4], [20, 60]))
    asked = Queries.of("res", "v100", [1, 2, 8, 1, 64], [20, 20, 60, 40, 60])
    near = reach.of(alone(asked), EMPTY)
    np.testing.assert_allclose(near.distance, [0.0, 1.0, 1.0, 1.0, 4.0])
    np.testing.assert_array_equal(near.support, [True, True, False, True, False])
    np.testing.assert_array_equal(near.points, 2)


def test_other_models_and_types_are_infinitely_far() -> None:
    reach = met(Queries.of("res", "v100", [1, 4], [20, 60]))
    near = reach.of(alone(Queries.of(["vgg", "res"], ["v100", "a100"], 1, 20)), EMPTY)
    assert np.isinf(near.distance).all()
    assert not near.support.any()
    assert (near.points == 0).all()


def test_a_pair_is_known_by_both_names_whoever_comes_first() -> None:
    known = Groups.pairs(Queries.of("a", "v100", 4, 40), Queries.of("b", "v100", 8, 60))
    reach = Reach(met={}).extended(known, EMPTY)
    turned = Groups.pairs(Queries.of("b", "v100", 8, 60), Queries.of("a", "v100", 4, 40))
    other = Groups.pairs(Queries.of("b", "v100", 8, 60), Queries.of("c", "v100", 4, 40))
    nearer = Groups.pairs(Queries.of("a", "v100", 4, 40), Queries.of("b", "v100", 16, 60))
    assert (reach.of(turned, EMPTY).distance == 0.0).all()
    assert np.isinf(reach.of(other, EMPTY).distance).all()
    np.testing.assert_allclose(reach.of(nearer, EMPTY).distance, 1.0)


def test_meeting_again_adds_nothing_and_places_are_bounded() -> None:
    first = met(Queries.of("res", "v100", [1, 4], 20))
    again = first.extended(alone(Queries.of("res", "v100", [4, 1, 2], 20)), EMPTY)
    assert len(again.met["v100", "res"]) == 3
    many = met(Queries.of("res", "v100", np.arange(1, POINTS_MAX + 50), 20))
    assert len(many.met["v100", "res"]) == POINTS_MAX


def test_the_window_keeps_the_latest_groups_whole() -> None:
    window = HistoryWindow.empty(1)
    for start in range(5):
        more = pairs(3, start=10 * start)
        window = window.extended(HistoryWindow(groups=more, targets=np.full((6, 1), float(start))), 9)
    assert len(window.groups) == 8
    np.testing.assert_array_equal(window.groups.group, [0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(window.targets[:, 0], [3, 3, 4, 4, 4, 4, 4, 4])
    np.testing.assert_array_equal(window.groups.members.batch, [33, 33, 41, 41, 42, 42, 43, 43])


def test_groups_join_by_name() -> None:
    other = Groups.pairs(Queries.of("b", "a100", 1, 40), Queries.of("c", "a100", 2, 60))
    both = pairs(1).joined(other)
    names = [both.members.models[index] for index in both.members.model]
    assert names == ["a", "b", "b", "c"]
    np.testing.assert_array_equal(both.group, [0, 0, 1, 1])


def test_memory_comes_back_as_it_was() -> None:
    groups = pairs(3)
    window = HistoryWindow(groups=groups, targets=np.arange(12.0).reshape(6, 2))
    back = HistoryWindow.load(json.loads(json.dumps(window.dump(), allow_nan=False)), 2)
    np.testing.assert_array_equal(back.targets, window.targets)
    np.testing.assert_array_equal(back.groups.members.clock_mhz, groups.members.clock_mhz)
    reach = Reach(met={}).extended(groups, EMPTY)
    again = Reach.load(json.loads(json.dumps(reach.dump())))
    asked = pairs(6)
    np.testing.assert_array_equal(again.of(asked, EMPTY).distance, reach.of(asked, EMPTY).distance)
    empty = HistoryWindow.load(json.loads(json.dumps(HistoryWindow.empty(2).dump())), 2)
    assert empty.targets.shape == (0, 2)
