"""A narrow solve that leaves somebody short is not the last word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint import change
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.solve import SolveOrder
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Standing
from tests.unit.solvers.planners.joint.seat.floors import pattern, problem, workload


class Engine:
    """Solves greedily and remembers for how many workloads it was asked."""

    def __init__(self, *, blind_below: int = 0) -> None:
        self.asked: list[int] = []
        self._blind_below = blind_below

    def __call__(self, made: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        self.asked.append(len(made.workloads))
        return Layout(patterns=(), counts=()) if len(made.workloads) < self._blind_below else first_layout(made)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened but what must be."""
    monkeypatch.setattr(change, "LOOSE_DEVICES_MAX", 0)


def world(devices: int) -> tuple[JointProblem, SolveOrder]:
    rates = (40.0, 60.0, 20.0, 20.0)
    made = problem(devices=(devices,), workloads=tuple(workload(place, rate) for place, rate in enumerate(rates)))
    standing = tuple(
        Standing(pattern=pattern(made, (place, int(rate))), devices=1) for place, rate in enumerate(rates) if place != 1
    )
    return made, SolveOrder(standing=standing)


def served(made: JointProblem, layout: Layout) -> list[bool]:
    short = made.rate_rps - layout.served_rps(made)
    return [bool(item <= 1e-6) for item in short]


def test_where_nobody_is_short_the_narrow_solve_is_enough() -> None:
    made, order = world(devices=6)
    engine = Engine()
    found = change._narrowly(engine, made, order, frozenset({1}), Deadline(10.0))
    assert engine.asked == [1]
    assert served(made, found) == [True] * 4


def test_somebody_short_has_the_whole_solved() -> None:
    made, order = world(devices=6)
    engine = Engine(blind_below=2)
    found = change._narrowly(engine, made, order, frozenset({1}), Deadline(10.0))
    assert engine.asked == [1, 4]
    assert served(made, found) == [True] * 4


def test_what_need_not_be_served_solves_nothing_anew() -> None:
    made, order = world(devices=6)
    one = replace(made.workloads[1], rate_least_rps=0.0)
    works = (made.workloads[0], one, *made.workloads[2:])
    engine = Engine(blind_below=2)
    change._narrowly(engine, replace(made, workloads=works), order, frozenset({1}), Deadline(10.0))
    assert engine.asked == [1]


def test_a_whole_solve_that_serves_no_more_is_not_taken() -> None:
    made, order = world(devices=6)
    engine = Engine(blind_below=9)
    found = change._narrowly(engine, made, order, frozenset({1}), Deadline(10.0))
    assert engine.asked == [1, 4]
    assert served(made, found) == [True, False, True, True]
