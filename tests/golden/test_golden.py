"""Stored snapshots and the plans they must lead to, as text that a person can review. `--golden-rewrite` writes the
texts anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.codec import from_json
from solvers.domain.snapshot import Snapshot
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders
from tests.golden.render import render

CASES = sorted(Path(__file__).parent.glob("cases/*.snapshot.json"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 4


@pytest.mark.parametrize("case", CASES, ids=[path.name.removesuffix(".snapshot.json") for path in CASES])
def test_a_snapshot_leads_to_its_plan(case: Path, golden_rewrite: bool) -> None:
    snapshot = from_json(Snapshot, case.read_text())
    movable = movable_workloads(snapshot, Lane.ACT)
    proposal = propose("greedy", builders.request(snapshot, movable))
    assert proposal.plan is not None
    text = render(proposal, verify(snapshot, proposal.plan, movable))
    expected = case.with_name(case.name.replace(".snapshot.json", ".plan.txt"))
    if golden_rewrite:
        expected.write_text(text)
    assert text == expected.read_text()
