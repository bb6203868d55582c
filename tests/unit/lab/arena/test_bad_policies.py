"""Policies that break, hang, lie, change what they are given or let another stand in: their run fails, and says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.arena.contenders import entry_of
from lab.arena.running import Event, RunEnded, RunRecord, RunTask, run_task
from lab.arena.workers import run_in_workers
from tests.unit.lab.arena.fake import scenario, tasks

BODY = """
from solvers.planners.greedy.planner import Greedy
from solvers.planners.base import PlannerSpec

class Mine(Greedy):
    spec = PlannerSpec(name="mine", version="1", knobs=())

    def propose(self, request, state, reporter):
        {deed}
        return super().propose(request, state, reporter)
"""


def task_of(folder: Path, contender: str, **more: str) -> RunTask:
    (made,) = tasks([scenario(folder, "one", asks="yes", **more)], ["greedy"], seeds=1)
    return replace(made, entry=entry_of(contender))


DEAF = "its process ended with status 1, as where a planner thinks on when its time is over"


def record_of(folder: Path, deed: str, limit_s: float = 600.0) -> RunRecord:
    (folder / "mine.py").write_text(BODY.format(deed=deed), encoding="utf-8")
    task = replace(task_of(folder, f"{folder}/mine.py:Mine"), planner_s_max=limit_s)
    return run_task(task, lambda _part: None).record


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("raise RuntimeError('not\\ntoday')", "planner mine at 1e+06 s: RuntimeError: not today"),
        ("raise SystemExit(3)", "planner mine at 1e+06 s: SystemExit: 3"),
        ("object.__setattr__(request.snapshot, 'services', ())", "it changed the request that it was given"),
        ("return 42", "planner mine at 1e+06 s: answered with int, not with Proposal"),
    ],
)
def test_what_a_policy_does_wrong_is_its_runs_error(tmp_path: Path, deed: str, said: str) -> None:
    record = record_of(tmp_path, deed)
    assert record.outcome is None
    assert record.error is not None
    assert said in record.error
    other = run_task(task_of(tmp_path, "greedy"), lambda _part: None).record
    assert (other.error, other.outcome is None) == (None, False)


def test_a_policy_that_thinks_for_ever_is_ended_though_it_catches_everything(tmp_path: Path) -> None:
    lines = ("while True:", "    try:", "        sum(range(100))", "    except Exception:", "        pass")
    deed = "\n        ".join(lines)
    record = record_of(tmp_path, deed, limit_s=0.2)
    assert record.error == "planner mine at 1e+06 s: it thought for more than 0.2 s"


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("__import__('signal').signal(14, 1); __import__('time').sleep(600)", DEAF),
        ("sum(range(10**11))", DEAF),
        ("raise KeyboardInterrupt", "planner mine at 1e+06 s: KeyboardInterrupt"),
    ],
)
def test_a_worker_is_ended_with_a_policy_that_hears_nothing(
    tmp_path: Path, deed: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ignores signals, or is in native code; one that interrupts as the keyboard does is heard."""
    (tmp_path / "mine.py").write_text(BODY.format(deed=deed), encoding="utf-8")
    heard: list[Event] = []
    run_in_workers([replace(task_of(tmp_path, f"{tmp_path}/mine.py:Mine"), planner_s_max=0.2)], 1, heard.append)
    (error,) = [event.finished.record.error for event in heard if isinstance(event, RunEnded)]
    assert str(error).startswith(said)
    assert capfd.readouterr().err == ""


def test_a_policy_that_keeps_to_its_own_is_let_be(tmp_path: Path) -> None:
    assert record_of(tmp_path, "self.__class__.seen = request.snapshot").error is None


def test_who_never_made_a_sound_plan_did_not_run(tmp_path: Path) -> None:
    record = run_task(task_of(tmp_path, "greedy", refuted="greedy"), lambda _part: None).record
    assert record.error == "every plan was refuted: fatal_findings: capacity_short (sim/echo#0)"


def test_no_planner_stands_in_for_an_actor_that_was_trained_for_another_fleet(tmp_path: Path) -> None:
    record = run_task(task_of(tmp_path, "inss_rl"), lambda _part: None).record
    assert record.outcome is None
    said = str(record.error)
    assert "for these networks and GPUs: train one and name it; another planner would stand in" in said
