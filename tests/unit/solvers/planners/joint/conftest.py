"""What tests of the joint planner share."""

from __future__ import annotations

import pytest

from solvers.planners.joint import attempt


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """No branching for a nearer bound once there is a plan: for tests that ask what is planned, and of no proof. Where
    work is no object it takes most of it.
    """
    monkeypatch.setattr(attempt, "CLOSER_TIMES", 0)
