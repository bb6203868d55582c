"""Cycles that are played: what one promotes stands in the next, and the planner remembers what was asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.door import played

PICTURE = Path(__file__).parents[2] / "golden" / "cases" / "mixed-fleet.snapshot.json"


def test_a_promoted_plan_stands_in_the_next_cycle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(PICTURE), "--cycles", "2", "--units", "50", "--afresh", "60"]
    monkeypatch.setattr(sys, "argv", ["played", *words])
    played.main()
    first, second, afresh = capsys.readouterr().out.splitlines()[2:]
    assert first.startswith("| mixed-fleet, 1 |")
    assert first.endswith("promoted |")
    assert " 0 changes" not in first
    assert second.endswith("| 0 changes, nothing_to_change |")
    assert afresh.startswith("| mixed-fleet, afresh |")
    assert afresh.endswith("promoted |")
