"""Deadlines by counted work: they end by work alone, also when there is none to do."""

from __future__ import annotations

import pytest

from solvers.engines.deadline import Deadline


def test_counted_work_ends_a_deadline_whatever_the_clock_says() -> None:
    deadline = Deadline(0.0, work_units=4)
    assert (deadline.over, deadline.left_part) == (True, 1.0)
    deadline = Deadline(60.0, work_units=4)
    assert (deadline.over, deadline.left_s) == (False, 60.0)
    deadline.spend(3)
    assert deadline.left_part == pytest.approx(0.25)
    deadline.spend()
    assert (deadline.over, deadline.left_s, deadline.left_part) == (True, 0.0, 0.0)


def test_no_work_at_all_is_over_at_once() -> None:
    deadline = Deadline(60.0, work_units=0)
    assert (deadline.over, deadline.left_part) == (True, 0.0)


def test_by_time_nothing_is_left_of_no_time() -> None:
    deadline = Deadline(0.0)
    assert (deadline.over, deadline.left_part) == (True, 0.0)
