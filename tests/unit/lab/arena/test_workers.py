"""Worker processes: all runs end, whatever becomes of a worker."""

from __future__ import annotations

from pathlib import Path

from lab.arena.running import Began, Event, RunEnded, RunPart
from lab.arena.workers import run_here, steps
from lab.cli.arena import EngineOption, run_tasks
from tests.unit.lab.arena.fake import scenario, tasks


def test_workers_tell_of_every_run_and_survive_the_death_of_one(tmp_path: Path) -> None:
    wanted = tasks(
        [scenario(tmp_path, "one", dies="k8s_hpa", fails="greedy")], ["hetsev", "k8s_hpa", "greedy"], seeds=2
    )
    heard: list[Event] = []
    run_here(wanted, 2, heard.append)
    ended = {event.task: event.finished.record for event in heard if isinstance(event, RunEnded)}
    assert set(ended) == set(wanted)
    assert sum(isinstance(event, Began) for event in heard) == len(wanted)
    by_label = {
        label: [ended[task] for task in wanted if task.entry.contender.label == label]
        for label in ("hetsev", "k8s_hpa", "greedy")
    }
    assert all(item.outcome is not None for item in by_label["hetsev"])
    assert {item.error for item in by_label["k8s_hpa"]} == {"its process ended with status 3"}
    assert {item.error for item in by_label["greedy"]} == {"greedy cannot run here"}
    here: list[Event] = []
    run_here([task for task in wanted if task.entry.contender.label == "hetsev"], 1, here.append)
    assert [event.finished.record for event in here if isinstance(event, RunEnded)] == by_label["hetsev"]
    assert [event.part for event in here if isinstance(event, RunPart)] == [0.5, 0.5]


def test_only_whole_steps_are_told() -> None:
    told: list[float] = []
    hear = steps(told.append)
    for part in (0.001, 0.011, 0.015, 0.5, 0.505, 1.0):
        hear(part)
    assert told == [0.011, 0.5, 1.0]


def test_a_run_that_ends_its_process_ends_no_command_that_runs_one_at_a_time(tmp_path: Path) -> None:
    heard: list[Event] = []
    run_tasks(
        tasks([scenario(tmp_path, "one", dies="hetsev")], ["hetsev"], seeds=1), EngineOption.LOCAL, 1, heard.append
    )
    errors = [event.finished.record.error for event in heard if isinstance(event, RunEnded)]
    assert errors == ["its process ended with status 3"]
