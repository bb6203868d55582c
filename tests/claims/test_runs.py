"""Runs that claims are judged by: kept where the effort says, and none left out; and times, which are a processor's."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from lab.claims.claim import Effort, mean_metric, outcomes, run_kept, scenarios, timed
from solvers.errors import EngineError, InputError
from tests.unit.lab.arena.fake import LOADER, scenario


def test_runs_are_kept_and_read_again(tmp_path: Path) -> None:
    path, effort = scenario(tmp_path, "one"), Effort(seeds=2, results=tmp_path / "kept")
    found = run_kept(path, ("hetsev", "k8s_hpa"), effort, LOADER)
    assert {label: [item.seed for item in some] for label, some in found.items()} == {
        "hetsev": [0, 1],
        "k8s_hpa": [0, 1],
    }
    assert mean_metric(found["k8s_hpa"], "cost_usd") == pytest.approx(20, rel=0.1)
    kept = {item: item.stat().st_mtime_ns for item in (tmp_path / "kept" / "runs").iterdir()}
    assert len(kept) == 4
    assert run_kept(path, ("hetsev", "k8s_hpa"), effort, LOADER) == found
    assert {item: item.stat().st_mtime_ns for item in (tmp_path / "kept" / "runs").iterdir()} == kept
    assert run_kept(path, ("hetsev",), Effort(seeds=1), LOADER)["hetsev"] == found["hetsev"][:1]


def test_a_failed_run_judges_nothing(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="one × hetsev, seed 0: hetsev cannot run here"):
        run_kept(scenario(tmp_path, "one", fails="hetsev"), ("hetsev",), Effort(seeds=1), LOADER)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no scenario nowhere"):
        outcomes("nowhere", ("hetsev",), Effort())
    with pytest.raises(InputError, match="no scenario nowhere"):
        scenarios("nowhere")
    assert len(scenarios("hetsev-cost")) == 4
    found = run_kept(scenario(tmp_path, "one"), ("hetsev",), Effort(seeds=1), LOADER)["hetsev"]
    with pytest.raises(EngineError, match="no metric nothing"):
        mean_metric(found, "nothing")


def test_what_others_do_meanwhile_takes_no_time() -> None:
    working = [sys.executable, "-c", "import time; sum(range(5_000_000)); print(1000.0 * time.process_time())"]
    waited_ms, told = timed(partial(subprocess.run, working, check=True, capture_output=True))
    assert waited_ms < float(told.stdout)
