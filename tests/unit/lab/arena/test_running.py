"""Runs: what decides their identity, and how they fail."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from lab.arena.contenders import entry_of, tuned_entries
from lab.arena.running import deciding, failed, load_bench, run_task, software
from solvers.errors import InputError
from tests.unit.lab.arena.fake import FakeBench, scenario, tasks

ROOT = Path(__file__).resolve().parents[4]


def ignore(part: float) -> None:
    """Nobody listens."""


def test_runs_are_scenario_by_contender_by_seed(tmp_path: Path) -> None:
    made = tasks([scenario(tmp_path, "one"), scenario(tmp_path, "two")], ["hetsev", "k8s_hpa"], seeds=3)
    assert [(task.scenario, task.entry.contender.label, task.seed) for task in made[:4]] == [
        ("one", "hetsev", 0), ("one", "hetsev", 1), ("one", "hetsev", 2), ("one", "k8s_hpa", 0),
    ]  # fmt: skip
    assert len({task.key for task in made}) == len(made) == 12


def test_whatever_decides_an_outcome_decides_the_key(tmp_path: Path) -> None:
    (task,) = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    (tuned,) = tuned_entries([entry_of("hetsev")], ["hetsev.saturation=0.5"], [])
    (file,) = [tmp_path / "mine.py"]
    others = [
        replace(task, seed=1),
        replace(task, software="other"),
        replace(task, scenario_digest="other"),
        replace(task, entry=tuned),
    ]
    for number in (1, 2):
        file.write_text(
            "from solvers.planners.greedy.planner import Greedy\n"
            "from solvers.planners.base import PlannerSpec\n"
            f"class Mine(Greedy):\n    spec = PlannerSpec(name='mine', version='{number}', knobs=())\n"
        )
        others.append(replace(task, entry=entry_of(f"{file}:Mine")))
    assert len({each.key for each in [task, *others]}) == 7
    moved = replace(task, path="/elsewhere.yaml", data="/elsewhere")
    assert moved.key == task.key


def test_two_scenarios_may_not_share_a_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="both called one"):
        tasks([scenario(tmp_path, "one"), scenario(tmp_path / "other", "one")], ["hetsev"])


def test_a_run_hears_its_progress_and_times_its_planner(tmp_path: Path) -> None:
    (task,) = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    heard: list[float] = []
    finished = run_task(task, heard.append)
    assert heard == [0.5]
    assert finished.record.error is None
    assert finished.record.outcome is not None
    assert finished.record.outcome.metric("cost_usd") == pytest.approx(10, rel=0.2)
    assert finished.record == run_task(task, ignore).record


def test_a_failure_is_recorded_with_its_reason(tmp_path: Path) -> None:
    (task,) = tasks([scenario(tmp_path, "one", fails="hetsev")], ["hetsev"], seeds=1)
    finished = run_task(task, ignore)
    assert finished.record.outcome is None
    assert finished.record.error == "hetsev cannot run here"
    assert "EngineError" in finished.traceback
    assert failed(task, "gone").record.key == finished.record.key


@pytest.mark.parametrize("role", ["goal", "guard"])
def test_a_metric_that_nobody_tells_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    (task,) = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    about = load_bench(task.path, task.data, task.loader).about
    wrong = replace(about, goal="cost_us") if role == "goal" else replace(about, guard="cost_us")
    monkeypatch.setattr(FakeBench, "about", wrong)
    record = run_task(task, ignore).record
    assert (record.outcome, record.error) == (None, f"{role}: there is no metric cost_us; did you mean cost_usd?")


def test_an_outcome_of_another_run_is_a_failure(tmp_path: Path) -> None:
    (task,) = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    scenario(tmp_path, "two").rename(task.path)
    error = run_task(task, ignore).record.error
    assert error is not None
    assert error.startswith("asked for the run ('one', 'hetsev', 0)")


def test_the_software_is_named_by_what_decides_outcomes() -> None:
    known, _, content = software().partition("+")
    assert known
    assert len(content) == 12
    decide = {"/".join(file.parts[-2:]) for file in deciding()}
    assert {"world/nodes.py", "truth/truth.py", "lab/outcome.py", "arena/worlds.py", "rolling/bench.py"} <= decide
    assert decide.isdisjoint({"arena/report.py", "cli/arena.py", "hetsev/rules.py"})


TELLS = {"app/logs.py", "app/services/beliefs/beliefs.py"}
"""What deciding modules import that decides nothing there: logs, and the store of what production learned."""


def test_whatever_deciding_modules_import_decides_too() -> None:
    decide = {file.relative_to(ROOT).as_posix() for file in deciding()}
    missed = {(path, name) for path in decide if path.endswith(".py") for name in imported(path) - decide - TELLS}
    assert missed == set()


def imported(path: str) -> set[str]:
    """Modules of this repository that a module names, packages aside."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = (node.module, *(f"{node.module}.{each.name}" for each in node.names))
            found |= {f"{name.replace('.', '/')}.py" for name in names}
    return {name for name in found if (ROOT / name).is_file()}


def test_what_is_compiled_decides_by_its_sources() -> None:
    decide = {file.relative_to(ROOT).as_posix() for file in deciding()}
    assert {"solvers/engines/exchange.c", "solvers/engines/contents.c", "solvers/engines/judging.h"} <= decide
