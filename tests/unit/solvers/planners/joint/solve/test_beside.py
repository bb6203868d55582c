"""Of many workloads, by time alone and with a processor to spare, the bound is sought beside the search."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from benchmarks.instances.family import family_problem
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve import solve as solving
from solvers.planners.joint.solve.generate import Bound
from solvers.planners.joint.solve.solve import TURNS_WORKLOADS_MAX, SolveOrder, solve
from tests.unit.solvers.planners.joint.solve.scenes import check_layout

MANY, FEW = family_problem(200, TURNS_WORKLOADS_MAX + 8, 1), family_problem(16, 10, 1)


@pytest.fixture
def proving(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads in which a bound was sought, on two processors."""
    names, proven = list[str](), solving._proof

    def named(*asked: Any, **more: Any) -> Bound | None:
        names.append(threading.current_thread().name)
        return proven(*asked, **more)

    monkeypatch.setattr(solving, "_proof", named)
    monkeypatch.setattr(solving, "PROCESSORS", 2)
    return names


def busy(monkeypatch: pytest.MonkeyPatch, crowding: float) -> None:
    monkeypatch.setattr(Deadline, "crowding", property(lambda _: crowding))


def test_both_go_on_at_once_and_what_is_proven_holds(proving: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch, 1.0)
    layout = solve(MANY, SolveOrder(), Deadline(3.0))
    assert [name.startswith("bound") for name in proving] == [True]
    check_layout(MANY, layout)
    known = solve(MANY, SolveOrder(), Deadline(1e9, 1_000))
    assert layout.bound_usd_per_h is not None
    assert known.bound_usd_per_h is not None
    assert layout.bound_usd_per_h <= min(layout.usd_per_h, known.usd_per_h) * (1 + 1e-9)


def test_counted_work_is_done_one_after_the_other(proving: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch, 1.0)
    solve(MANY, SolveOrder(), Deadline(1e9, 300))
    assert proving == [threading.current_thread().name]


def test_nobody_shares_what_a_busy_machine_leaves(proving: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch, 2.0)
    solve(MANY, SolveOrder(), Deadline(1.5))
    assert set(proving) <= {threading.current_thread().name}


def test_few_workloads_are_searched_alone(proving: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch, 1.0)
    solve(FEW, SolveOrder(), Deadline(1.0))
    assert not any(name.startswith("bound") for name in proving)
