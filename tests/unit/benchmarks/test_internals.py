"""What is told of a solve: all phases that take time, and as much counted work whatever the machine does beside it."""

from __future__ import annotations

import pytest

from benchmarks.door import internals
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout


def test_every_phase_is_told_and_counted_work_is_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[Deadline, Layout]]()

    def watched(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        layout = solve(problem, order, deadline)
        seen.append((deadline, layout))
        return layout

    monkeypatch.setattr(internals, "solve", watched)
    found = internals.measured(internals.Size(gpus=16, services=6, seconds=0.5), 1, counted=True)
    (deadline, layout) = seen[0]
    assert {name for name in layout.facts if name.endswith("_s")} <= set(internals.PHASES)
    assert found["count_s"] == layout.facts["count_s"]
    assert deadline.work_units == 500
    assert deadline.seconds >= 60
    assert found["relaxed"] == layout.facts["relaxed_usd_per_h"]
