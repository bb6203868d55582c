"""Patterns and the last full solve survive as bytes, and bytes of any other kind are as good as none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.ids import WorkloadId
from solvers.planners.joint import attempt
from solvers.planners.joint.attempt import NOTHING, Kept, recall, remember
from tests.unit.solvers.planners.joint.seat.floors import pattern, problem


def test_what_is_remembered_is_recalled() -> None:
    made = problem(devices=(4, 2))
    kept = (pattern(made, (0, 20), (1, 60)), pattern(made, (2, 40), kind=2), pattern(made, (0, 20), kind=3))
    state = remember(made, Kept(patterns=kept, full_at_s=7.5))
    assert set(recall(state, made).patterns) == set(kept)
    assert recall(state, made).full_at_s == 7.5
    assert remember(made, Kept(patterns=kept, full_at_s=7.5)) == state
    assert remember(made, Kept(patterns=(*kept, kept[0]), full_at_s=7.5)) == state
    assert recall(remember(made, Kept(patterns=kept)), made).full_at_s is None


def test_patterns_follow_their_names() -> None:
    made = problem()
    state = remember(
        made, Kept(patterns=(pattern(made, (0, 20), (1, 60)), pattern(made, (2, 40)), pattern(made, (3, 80))))
    )
    order = (3, 1, 0)
    names = [replace(made.workloads[number], id=made.workloads[number].id) for number in order]
    later = problem(3, workloads=tuple(names))
    variants = tuple(replace(made.variants[number], workload=place) for place, number in enumerate(order))
    found = recall(state, replace(later, variants=variants)).patterns
    assert {(item.variants, item.shares_pct) for item in found} == {((1, 2), (60, 20)), ((0,), (80,))}


def test_what_keeps_no_rule_any_more_is_left_out() -> None:
    made = problem()
    state = remember(made, Kept(patterns=(pattern(made, (0, 20)), pattern(made, (1, 20)))))
    allowed = made.allowed.copy()
    allowed[0, 1] = False
    assert [item.variants for item in recall(state, replace(made, allowed=allowed)).patterns] == [(0,)]


@pytest.mark.parametrize("state", [b"", b"nonsense", b"PK\x03\x04broken"])
def test_bytes_of_another_kind_are_nothing(state: bytes) -> None:
    assert recall(state, problem()) == NOTHING


def test_an_older_form_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem()
    with monkeypatch.context() as patched:
        patched.setattr(attempt, "_FORM", "joint-0")
        state = remember(made, Kept(patterns=(pattern(made, (0, 20)),), full_at_s=7.5))
    assert recall(state, made) == NOTHING


def test_no_more_is_kept_than_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem()
    monkeypatch.setattr(attempt, "KEPT_MAX", 1)
    first = pattern(made, (3, 100))
    assert recall(remember(made, Kept(patterns=(first, pattern(made, (0, 20))))), made).patterns == (first,)


def test_a_world_without_patterns_is_remembered_too() -> None:
    made = problem()
    state = remember(made, Kept())
    assert recall(state, made) == NOTHING
    assert recall(state, replace(made, allowed=np.zeros_like(made.allowed))) == NOTHING
    assert WorkloadId("demo/w0") == made.workloads[0].id
