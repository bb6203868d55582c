"""Deadlines end with their time or with their counted work, whichever comes first."""

from __future__ import annotations

import pytest

from solvers.engines.deadline import Deadline


def test_counted_work_ends_a_deadline_and_its_parts_are_of_the_work() -> None:
    deadline = Deadline(3600.0, work_units=4)
    assert (deadline.over, deadline.left_part) == (False, 1.0)
    deadline.spend(3)
    assert deadline.left_part == pytest.approx(0.25)
    deadline.spend()
    assert (deadline.over, deadline.left_s, deadline.left_part, deadline.late) == (True, 0.0, 0.0, False)


def test_time_ends_counted_work() -> None:
    deadline = Deadline(0.0, work_units=4)
    assert (deadline.over, deadline.left_s, deadline.left_part, deadline.late) == (True, 0.0, 0.0, True)


def test_no_work_at_all_is_over_at_once() -> None:
    deadline = Deadline(60.0, work_units=0)
    assert (deadline.over, deadline.left_part) == (True, 0.0)


def test_by_time_nothing_is_left_of_no_time() -> None:
    deadline = Deadline(0.0)
    assert (deadline.over, deadline.left_part) == (True, 0.0)


def test_it_ends_sooner_never_later() -> None:
    deadline = Deadline(60.0)
    deadline.end_within(100.0)
    assert deadline.seconds == 60.0
    deadline.end_within(10.0)
    assert 9.9 < deadline.left_s <= 10.0
    deadline.end_within(-1.0)
    assert deadline.over
