"""The group `task`: what is submitted, and how tasks are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.output import Exit
from solvers.domain.codec import canonical_json
from solvers.domain.workload import QualityClass, Slo, SloKind
from tests import builders
from tests.unit.app.cli.conftest import Api, Headroom, page

TASKS = (("high", "bert"), ("low", "resnet50"))

WAITING: dict[str, Any] = {
    "id": "demo/night",
    "project": "demo",
    "name": "night",
    "model": "resnet50",
    "mode": "auto",
    "state": "waiting",
    "priority": 50,
    "class_lambda": 0.3,
    "submitted_at": "2026-01-01T00:00:00Z",
    "begun_at": None,
    "finished_at": None,
    "deadline_at": "2026-01-01T02:00:00Z",
    "deadline_kept": None,
    "throughput_rps_min": None,
    "inputs_total": 1000,
    "inputs_done": 250.0,
    "evictions": 0,
    "queue_position": 2,
    "group": None,
    "rate_rps_predicted": None,
    "latency_ms_predicted": None,
    "latency_ms_measured": None,
    "finish_at_predicted": None,
    "why": ["No share is left."],
}
RUNNING = {
    **WAITING,
    "state": "running",
    "queue_position": None,
    "group": {
        "device": "GPU-a-0",
        "gpu_type": "t4",
        "tasks": ["demo/day", "demo/night"],
        "batch": 8,
        "share_pct_sm": 40,
        "memory_mib_limit": 2000,
    },
    "rate_rps_predicted": 100.0,
    "latency_ms_predicted": 80.0,
    "finish_at_predicted": "2026-01-01T01:00:00.5Z",
    "why": [],
}


def test_a_task_is_submitted_as_it_is_asked_for(api: Api, headroom: Headroom) -> None:
    api.answers["POST /v1/tasks"] = {"project": "demo", "name": "task-1"}
    said = headroom(
        "task", "submit", "resnet50", "--inputs", "1000", "--deadline", "2h", "--project", "demo", "--lambda", "0.7",
        "--gpu-type", "t4",
    )  # fmt: skip
    assert (said.status, said.out.strip()) == (Exit.OK, "demo/task-1")
    assert api.body() == {
        "model": "resnet50",
        "inputs_total": 1000,
        "slo": {"kind": "deadline", "deadline_s": 7200.0},
        "project": "demo",
        "class_lambda": 0.7,
        "gpu_types_allowed": ["t4"],
    }
    assert headroom("task", "submit", "resnet50", "--inputs", "5", "--min-rate", "2").status == Exit.OK
    assert api.body()["slo"] == {"kind": "throughput", "throughput_rps_min": 2.0}


@pytest.mark.parametrize("words", [(), ("--deadline", "2h", "--min-rate", "2"), ("--deadline", "soon")])
def test_a_promise_is_named_once(api: Api, headroom: Headroom, words: tuple[str, ...]) -> None:
    said = headroom("task", "submit", "resnet50", "--inputs", "5", *words)
    assert said.status == Exit.USAGE
    assert said.err.count("\n") == 1
    assert api.asked == []


def test_a_refusal_is_one_line(api: Api, headroom: Headroom) -> None:
    fault = {"pointer": "/model", "code": "unknown-reference", "detail": "there is no model nobody"}
    problem = {"status": 422, "code": "field-invalid", "detail": "A field is invalid", "errors": [fault]}
    api.answers["POST /v1/tasks"] = httpx.Response(422, json=problem)
    said = headroom("task", "submit", "nobody", "--inputs", "5", "--deadline", "2h")
    assert said.status == Exit.USAGE
    assert "/model: there is no model nobody" in said.err
    assert said.err.count("\n") == 1


def test_the_list_says_where_tasks_are(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/tasks/status"] = page(WAITING, {**RUNNING, "id": "demo/day"})
    said = headroom("task", "list", "--state", "late", "--project", "demo")
    assert said.status == Exit.OK
    assert [word in said.out for word in ("demo/night", "2. in line", "25", "t4 GPU-a-0", "01:00:00")] == [True] * 5
    asked = api.asked[-1].url.params
    assert (asked["state"], asked["project"]) == ("late", "demo")
    assert headroom("task", "list", "--state", "lost").status == Exit.USAGE


def test_one_task_is_shown_with_its_group_and_why(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/tasks/demo/night/status"] = RUNNING
    said = headroom("task", "show", "demo/night")
    assert [word in said.out for word in ("demo/day", "40 %", "100/s", "80 ms")] == [True] * 4
    api.answers["GET /v1/tasks/demo/night/status"] = WAITING
    assert "No share is left." in headroom("task", "show", "demo/night").out
    assert headroom("task", "show", "demo/night", "-o", "json").json == WAITING
    assert headroom("task", "show", "demo/other").status == Exit.NOT_FOUND
    assert headroom("task", "show", "night").status == Exit.USAGE


def test_explain_tells_candidates_and_why_this_group(headroom: Headroom, tmp_path: Path) -> None:
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=600.0)
    low = builders.model("resnet50", quality_class=QualityClass.LOW)
    tasks = tuple(builders.task(name, model=model, slo=slo, inputs_total=6_000) for name, model in TASKS)
    profiles = tuple(builders.profile(model, "t4") for _, model in TASKS)
    picture = builders.snapshot((builders.device("a", 0, "t4"),), (), profiles=profiles)
    path = tmp_path / "snapshot.json"
    path.write_text(canonical_json(replace(picture, tasks=tasks, models=(low, builders.model("bert")))), "utf-8")
    said = headroom("explain", "demo/high", "--snapshot", str(path), "--planner", "oltunes")
    assert said.status == Exit.OK
    assert [word in said.out for word in ("score", "epc score", "group 0", "affinity 75")] == [True] * 4
    assert "was looked at and rejected" in said.out


def test_cancelling_deletes(api: Api, headroom: Headroom) -> None:
    api.answers["DELETE /v1/tasks/demo/night"] = httpx.Response(204)
    said = headroom("task", "cancel", "demo/night")
    assert (said.status, said.out.strip()) == (Exit.OK, "cancelled demo/night")


def test_a_label_without_a_value_is_told_as_it_was_typed(api: Api, headroom: Headroom) -> None:
    said = headroom("task", "submit", "resnet50", "--inputs", "5", "--deadline", "1h", "--label", "a=b", "--label", "x")
    assert (said.status, said.err) == (Exit.USAGE, "headroom: --label takes KEY=VALUE, got 'x'\n")
    assert not api.asked
