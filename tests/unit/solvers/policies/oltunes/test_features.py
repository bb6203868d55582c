"""What OLTunes' predictor sees: one place on the printed grid, both sides between, nothing for unknown names."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.base import Facts, Groups, Queries
from solvers.policies.oltunes.features import Vocabulary, feature_rows
from solvers.policies.oltunes.history import alone
from tests import laws

EMPTY = Facts()


def vocabulary(roles: int = 1) -> Vocabulary:
    return Vocabulary(roles=roles).grown(Queries.of(["res", "vgg"], "v100", 4, 50))


def dense(queries: Queries, words: Vocabulary | None = None, facts: Facts = EMPTY) -> np.ndarray:
    words = words or vocabulary()
    return feature_rows(alone(queries), words, facts).dense(words.width)


def test_every_step_of_the_grid_has_places_of_its_own() -> None:
    batches, shares = 2.0 ** np.arange(11), np.arange(5, 101, 5)
    matrix = dense(Queries.of("res", "v100", np.repeat(batches, 20), np.tile(shares, 11)))
    assert len(np.unique(matrix, axis=0)) == 220
    assert (matrix[:, 0] == 1.0).all()
    batch_part, share_part = matrix[:, 1:12], matrix[:, 12:32]
    np.testing.assert_array_equal(batch_part.argmax(axis=1), np.repeat(np.arange(11), 20))
    np.testing.assert_array_equal(share_part.argmax(axis=1), np.tile(np.arange(20), 11))
    for part in (batch_part, share_part):
        assert set(np.unique(part)) == {0.0, 1.0}
        np.testing.assert_array_equal(part.sum(axis=1), 1.0)


def test_between_steps_both_sides_are_active_by_nearness() -> None:
    matrix = dense(Queries.of("res", "v100", 12, 48))
    assert matrix[0, 1 + 3] == pytest.approx(4 - np.log2(12))
    assert matrix[0, 1 + 4] == pytest.approx(np.log2(12) - 3)
    assert matrix[0, 12 + 8] == pytest.approx(0.4)
    assert matrix[0, 12 + 9] == pytest.approx(0.6)


def test_beyond_the_grid_the_last_step_counts() -> None:
    matrix = dense(Queries.of("res", "v100", [1024, 4096], [5, 1]))
    np.testing.assert_array_equal(matrix[0, 1:32], matrix[1, 1:32])


def test_names_get_places_when_they_are_met_and_keep_them() -> None:
    before = vocabulary()
    after = before.grown(Queries.of(["alex", "res"], "a100", 1, 10))
    assert after.names[: len(before.names)] == before.names
    assert after.width == before.width + 2
    assert after.grown(Queries.of("alex", "a100", 1, 10)) == after
    known = Queries.of(["res", "vgg"], "v100", 4, 50)
    np.testing.assert_array_equal(dense(known, after)[:, : before.width], dense(known, before))
    assert Vocabulary.load(after.dump()) == after


def test_unknown_names_have_no_feature() -> None:
    matrix = dense(Queries.of(["res", "nobody"], "nowhere", 4, 50))
    named = matrix[:, -len(vocabulary().names) :]
    np.testing.assert_array_equal(named.sum(axis=1), [1.0, 0.0])
    np.testing.assert_array_equal(matrix[0, : -len(vocabulary().names)], matrix[1, : -len(vocabulary().names)])


def test_facts_and_clocks_are_seen() -> None:
    queries = Queries.of(["alex", "ssd", "ssd", "ssd"], "v100", 4, 50, [np.nan, np.nan, 765.0, 1530.0])
    blind, seeing = dense(queries), dense(queries, facts=laws.facts())
    differing = np.flatnonzero((blind != seeing).any(axis=0))
    # Clock, parameters and memory of the model; this GPU type has the memory that counts as usual.
    assert len(differing) == 3
    assert not np.array_equal(seeing[0], seeing[1])
    assert not np.array_equal(seeing[1], seeing[2])
    # Without facts the highest clock met stands for the highest there is.
    met = Vocabulary(roles=1).grown(queries)
    learnt = dense(queries, met)
    np.testing.assert_array_equal(learnt[1], learnt[3])
    assert not np.array_equal(learnt[1], learnt[2])


def test_members_see_their_neighbours_in_places_of_their_own() -> None:
    words = vocabulary(roles=2)
    first, second = Queries.of("res", "v100", 4, 40), Queries.of("vgg", "v100", 8, 60)
    both = feature_rows(Groups.pairs(first, second), words, EMPTY).dense(words.width)
    single = feature_rows(alone(first), words, EMPTY).dense(words.width)
    own = single[0] != 0
    np.testing.assert_array_equal(both[0, own], single[0, own])
    assert (both[0, ~own] != 0).any()
    assert not np.array_equal(both[0], both[1])


def test_a_third_member_adds_to_what_the_others_see() -> None:
    words = vocabulary(roles=2)
    members = Queries.of(["res", "vgg", "vgg"], "v100", [4, 8, 8], [40, 30, 30])
    three = Groups(members=members, group=np.zeros(3, dtype=np.int64))
    two = Groups(members=members.take(np.array([0, 1])), group=np.zeros(2, dtype=np.int64))
    seen_three, seen_two, seen_alone = (
        feature_rows(groups, words, EMPTY).dense(words.width)[0]
        for groups in (three, two, alone(members.take(np.array([0]))))
    )
    np.testing.assert_allclose(seen_three - seen_alone, 2.0 * (seen_two - seen_alone))
