"""Groups have all devices and workloads between them, and their layouts are layouts of the whole."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.engines import deadline as deadline_module
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve import groups
from solvers.planners.joint.solve import solve as solving
from solvers.planners.joint.solve.groups import GroupLayout, groups_of, together
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solve import Phases, SolveOrder, first_layout, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.solve.scenes import check_layout, scene


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "WORKLOADS_MAX", 8)
    monkeypatch.setattr(groups, "WORKLOADS_EACH", 6)


def test_nothing_is_lost_in_the_deal() -> None:
    problem = scene(3, services=16, devices=9)
    parts = groups_of(problem)
    assert len(parts) == 4
    devices = np.sum([group.problem.pool_devices for group in parts], axis=0)
    assert devices.tolist() == problem.pool_devices.tolist()
    assert sorted(np.concatenate([group.variants for group in parts]).tolist()) == list(range(len(problem.variants)))
    assert sum(cap.limit_w for group in parts for cap in group.problem.caps) == pytest.approx(problem.caps[0].limit_w)
    for group in parts:
        for place, number in enumerate(group.variants.tolist()):
            inside = group.problem.workloads[group.problem.variants[place].workload]
            assert inside.id == problem.workloads[problem.variants[number].workload].id


def test_layouts_come_back_in_the_whole_problems_numbers() -> None:
    problem = scene(3, services=16, devices=9)
    parts = groups_of(problem)
    layouts = [GroupLayout(group=group, layout=first_layout(group.problem)) for group in parts]
    merged = together(layouts)
    check_layout(problem, merged)
    assert sum(merged.counts) == sum(sum(item.layout.counts) for item in layouts) > 0
    assert sum(len(group.standing(merged).patterns) for group in parts) == len(merged.patterns)


def test_a_solve_in_groups_keeps_every_rule_and_is_no_worse_than_the_first_answer() -> None:
    problem = scene(5, services=16, devices=9)
    layout = solve(problem, SolveOrder(), Deadline(1e9, 200))
    check_layout(problem, layout)
    assert layout.facts["groups"] == 4
    first = together([GroupLayout(group=item, layout=first_layout(item.problem)) for item in groups_of(problem)])
    assert layout.value(problem) <= first.value(problem) + 1e-9


def test_any_number_of_processors_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scene(5, services=16, devices=9)
    found = []
    for processors in (1, 2, 3):
        monkeypatch.setattr(solving, "PROCESSORS", processors)
        layout = solve(problem, SolveOrder(), Deadline(1e9, 300))
        found.append((layout.patterns, layout.counts, layout.bound_usd_per_h))
    assert found[0] == found[1] == found[2]


def test_groups_prices_prove_a_bound_on_the_whole() -> None:
    problem = scene(5, services=16, devices=9)
    layout = solve(problem, SolveOrder(), Deadline(1e9, 400))
    assert layout.facts["groups"] == 4
    assert layout.bound_usd_per_h is not None
    assert layout.bound_usd_per_h <= layout.value(problem) + 1e-6


def test_nothing_is_written_beside_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes a plan beside them takes the time of those to come."""
    problem, told, alone = scene(5, services=16, devices=9), list[str](), solving._alone

    def noted(*args: Any) -> GroupLayout:
        told.append("group")
        return alone(*args)

    monkeypatch.setattr(solving, "_alone", noted)
    solve(problem, SolveOrder(better=lambda _layout: told.append("handed over")), Deadline(1e9, 300))
    assert told == ["handed over", *["group"] * 4, "handed over"]


def test_whom_no_group_had_time_for_counts_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without patterns that serve them all prices would be those of what is missing, and prove nothing."""
    problem, alone = scene(5, services=16, devices=9), solving._alone

    def late(*args: Any) -> GroupLayout:
        *_, place, item = args
        return replace(item, patterns=None) if place else alone(*args)

    monkeypatch.setattr(solving, "_alone", late)
    layout = solve(problem, SolveOrder(), Deadline(1e9, 1000))
    relaxed = layout.facts["relaxed_usd_per_h"]
    assert relaxed <= layout.judged_usd(problem) + 1e-6
    assert layout.bound_usd_per_h is not None
    assert layout.bound_usd_per_h >= 0.9 * relaxed


def test_groups_have_time_however_long_the_first_answer_took(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, searched, first = scene(5, services=16, devices=9), list[float](), solving.first_layout

    def slow(part: JointProblem, time_left_s: float = 1e9, master: Master | None = None) -> Layout:
        late_s[0] += 20.0
        return first(part, time_left_s, master)

    def turn(_phases: Phases, deadline: Deadline, _seed: int) -> Layout:
        searched.append(deadline.seconds)
        return _phases.found

    late_s, clock = [0.0], time.monotonic
    monkeypatch.setattr(deadline_module.time, "monotonic", lambda: clock() + late_s[0])
    monkeypatch.setattr(solving, "first_layout", slow)
    monkeypatch.setattr(Phases, "turn", turn)
    monkeypatch.setattr(solving, "_proven_together", lambda _problem, merged, *_: merged)
    solve(problem, SolveOrder(), Deadline(100.0))
    assert len(searched) == 4
    assert all(4.0 < seconds < 11.0 for seconds in searched)
