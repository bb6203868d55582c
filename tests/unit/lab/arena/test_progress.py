"""What people see while runs go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.arena.running import Began, RunEnded, RunPart, failed
from lab.arena.workers import Bars, ProgressLines, teller
from tests.unit.lab.arena.fake import scenario, tasks


def test_without_a_terminal_every_run_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (task,) = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    with teller(1) as tell:
        assert isinstance(tell, ProgressLines)
        tell(Began(task=task))
        tell(RunPart(task=task, part=0.5))
        tell(RunEnded(task=task, finished=failed(task, "gone")))
    assert capsys.readouterr().err == "[1/1] one × hetsev, seed 0: failed: gone\n"


def test_bars_follow_runs_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (task,) = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    with Bars(1) as bars:
        bars(Began(task=task))
        bars(RunPart(task=task, part=0.5))
        bars(RunEnded(task=task, finished=failed(task, "gone")))
    said = capsys.readouterr().err
    assert "one × hetsev, seed 0 failed: gone" in said
    assert "1/1" in said
