"""What-if questions from the command line: files of changes, where they are answered, and what people see."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.output import Exit
from solvers.domain.codec import canonical_json, digest, from_json, to_plain
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from tests import builders
from tests.unit.app.cli.conftest import Api, Headroom

GREEDY = builders.policy(planners=("greedy",))
PICTURE = builders.lab([builders.service(), builders.service("speech", rate_rps_declared=40.0)], policy=GREEDY)
CHANGES = """
rates: [{service: demo/vision, factor: 3}]
---
kind: changes
nodes_lost: [c]
remove: [demo/speech]
---
kind: service
project: demo
name: extra
model: resnet50
slo: {latency_ms: 60}
rate_rps_declared: 20
---
kind: policy
name: default
utilisation_max: 0.8
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "s.json").write_text(canonical_json(PICTURE))
    (tmp_path / "changes.yaml").write_text(CHANGES)
    return tmp_path


def test_a_file_is_asked_and_stays_as_it_is(files: Path, headroom: Headroom) -> None:
    before = (files / "s.json").read_bytes()
    said = headroom("simulate", "-f", f"{files}/changes.yaml", "--snapshot", f"{files}/s.json", "-o", "json")
    assert said.status == Exit.OK, said.err
    found = said.json["simulation"]
    assert said.json["advised"] is None
    assert found["before"]["snapshot"] == digest(PICTURE)
    assert {row["workload"]: row["fate"] for row in found["workloads"]} == {
        "demo/extra": "added", "demo/speech": "removed", "demo/vision": "kept",
    }  # fmt: skip
    again = headroom("simulate", "-f", f"{files}/changes.yaml", "--snapshot", f"{files}/s.json", "-o", "json")
    assert again.out == said.out
    assert (files / "s.json").read_bytes() == before


def test_people_see_both_plans_and_what_moves(files: Path, headroom: Headroom) -> None:
    said = headroom("simulate", "-f", f"{files}/changes.yaml", "--snapshot", f"{files}/s.json", "--advise")
    assert said.status == Exit.OK, said.err
    lines = said.out.splitlines()
    assert lines[0].startswith("before sha256:")
    assert any(line.startswith("cost, $/h ") and "+" in line for line in lines)
    assert any(line.startswith("energy, kWh a day ") for line in lines)
    assert any(line.startswith("moves of replicas, from the plan before: ") for line in lines)
    assert any(line.startswith("demo/speech  removed ") and "none" in line for line in lines)
    assert any(line.startswith("one more of which GPU type? now $") for line in lines)
    assert sum(line.startswith("1 x ") for line in lines) == 3


def test_people_see_what_waiting_jobs_would_be_worth(files: Path, headroom: Headroom) -> None:
    waiting = replace(PICTURE, jobs=(builders.job(value_usd_per_h=3.0, memory_mib=10**6),))
    (files / "s.json").write_text(canonical_json(waiting))
    (files / "changes.yaml").write_text("remove: [demo/train]\n")
    said = headroom("simulate", "-f", f"{files}/changes.yaml", "--snapshot", f"{files}/s.json")
    (line,) = [line for line in said.out.splitlines() if line.startswith("worth of jobs undone, $/h ")]
    before, after, difference = line.split()[-3:]
    assert (float(before) > 0, after, difference) == (True, "0", f"-{before}")
    said = headroom("plan", "--snapshot", f"{files}/s.json", "-q")
    assert f"jobs undone would be worth ${float(before):.2f}/h\n" in said.out


@pytest.mark.parametrize(
    ("options", "count"),
    [(("--advise",), 3), (("--advise", "2"), 2), (("--advise=1",), 1), (("--advise", "-o", "json"), 3)],
)
def test_advise_may_stand_without_its_number(
    options: tuple[str, ...], count: int, files: Path, headroom: Headroom
) -> None:
    said = headroom("simulate", "--snapshot", f"{files}/s.json", "-o", "json", *options)
    assert said.status == Exit.OK, said.err
    assert said.json["simulation"] is None
    assert len(said.json["advised"]["advice"]) == count


def test_a_server_is_sent_the_changes_and_how_to_plan(files: Path, api: Api, headroom: Headroom) -> None:
    local = headroom("simulate", "-f", f"{files}/changes.yaml", "--snapshot", f"{files}/s.json", "-o", "json").json
    api.answers["POST /v1/simulations"] = local
    said = headroom("simulate", "-f", f"{files}/changes.yaml", "--seed", "3", "--work-units", "9", "--lane", "shadow")
    assert said.status == Exit.OK
    sent = api.body()
    assert {name: sent[name] for name in ("seed", "work_units", "lane", "advise", "devices")} == {
        "seed": 3, "work_units": 9, "lane": "shadow", "advise": 0, "devices": 1,
    }  # fmt: skip
    assert sent["changes"]["policy"] == {"utilisation_max": 0.8}
    assert [item["name"] for item in sent["changes"]["services"]] == ["extra"]
    assert set(sent["changes"]) == {"rates", "nodes_lost", "remove", "services", "policy"}
    assert "planner" not in sent


def test_who_would_be_short_is_told_why(files: Path, headroom: Headroom) -> None:
    (files / "much.yaml").write_text("rates: [{service: demo/vision, rate_rps: 90000}]\n")
    said = headroom("simulate", "-f", f"{files}/much.yaml", "--snapshot", f"{files}/s.json")
    assert said.status == Exit.OK, said.err
    assert re.search(r"^demo/vision: [\d.]+ % of 90000 requests/s unserved: \w", said.out, re.MULTILINE)


def test_a_policy_with_a_pool_is_sent_by_its_name(files: Path, api: Api, headroom: Headroom) -> None:
    (files / "edge.yaml").write_text("kind: policy\nname: edge\npool: {gpu_types: [t4]}\nutilisation_max: 0.8\n")
    headroom("simulate", "-f", f"{files}/edge.yaml")
    fields = {"name": "edge", "pool": {"gpu_types": ["t4"]}, "utilisation_max": 0.8}
    assert api.body()["changes"] == {"policy": fields}


def test_what_the_server_points_at_is_told(files: Path, api: Api, headroom: Headroom) -> None:
    problem = {
        "status": 422, "code": "field-invalid", "detail": "there is no node z",
        "errors": [{"pointer": "/changes/nodes_lost/0", "code": "reference-unknown", "detail": "there is no node z"}],
    }  # fmt: skip
    api.answers["POST /v1/simulations"] = httpx.Response(422, json=problem)
    said = headroom("simulate", "-f", f"{files}/changes.yaml")
    assert said.status == Exit.USAGE
    assert "/changes/nodes_lost/0" in said.err


def test_a_refuted_plan_is_said(files: Path, api: Api, headroom: Headroom) -> None:
    local = headroom("simulate", "-f", f"{files}/changes.yaml", "--snapshot", f"{files}/s.json", "-o", "json").json
    local["simulation"]["after"]["verified"] = False
    api.answers["POST /v1/simulations"] = local
    assert headroom("simulate", "-f", f"{files}/changes.yaml").status == Exit.FOUND_WRONG


WRONG: dict[str, tuple[str, str]] = {
    "name": ("nodes_lost: [z]\nremove: [demo/nobody]", "/nodes_lost/0: there is no node z"),
    "field": ("rate: 2", "/rate: unknown field"),
    "form": ("rates: [{service: demo/vision}]", "/rates/0/factor: say either factor or rate_rps"),
    "profiles": ("kind: profiles\npoints: []", "profiles stand in a document of kind changes"),
    "twice": ("rate_factor: 2\n---\nrate_factor: 3", "`rate_factor` is said twice"),
    "policies": (
        "policy: {seed: 2}\n---\nkind: policy\nname: edge\npool: {gpu_types: [t4]}",
        "one question changes one policy, edge or default",
    ),
    "kind": ("kind: surprise\nname: x", "unknown kind 'surprise'"),
    "text": ("5", "expected an object"),
    "nothing": ("rate_factor: 1", "there is nothing to simulate"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_wrong_changes_are_one_line_with_their_place(case: str, files: Path, headroom: Headroom) -> None:
    text, told = WRONG[case]
    (files / "wrong.yaml").write_text(text)
    said = headroom("simulate", "-f", f"{files}/wrong.yaml", "--snapshot", f"{files}/s.json")
    assert (said.status, said.out) == (Exit.USAGE, "")
    assert said.err.startswith(f"headroom: {files}/wrong.yaml")
    assert told in said.err
    assert len(said.err.splitlines()) == 1


def test_a_question_without_content_is_wrong_usage(headroom: Headroom) -> None:
    said = headroom("simulate")
    assert said.status == Exit.USAGE
    assert "name a file of changes" in said.err


# -- snapshot export --------------------------------------------------------------------------------------------------


def test_an_exported_snapshot_is_canonical(files: Path, api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/snapshot"] = to_plain(PICTURE)
    said = headroom("snapshot", "export", "--out", f"{files}/out.json")
    assert (said.status, said.out) == (Exit.OK, f"{files}/out.json: {digest(PICTURE)}\n")
    assert (files / "out.json").read_text() == canonical_json(PICTURE) + "\n"
    assert headroom("snapshot", "export").out == canonical_json(PICTURE) + "\n"


def test_the_snapshot_of_a_stored_plan_gives_that_plan_again(files: Path, api: Api, headroom: Headroom) -> None:
    plan = headroom("plan", "--snapshot", f"{files}/s.json", "--out", "-").out
    name = digest(from_json(Plan, plan))
    record: dict[str, Any] = {"snapshot": to_plain(PICTURE)}
    api.answers[f"GET /v1/plans/{name}"] = {"cycle_id": "c1"}
    api.answers["GET /v1/cycles/c1"] = {"record": record}
    assert headroom("snapshot", "export", "--plan", name, "--out", f"{files}/of.json.gz").status == Exit.OK
    assert headroom("plan", "--snapshot", f"{files}/of.json.gz", "--out", "-").out == plan
    api.answers["GET /v1/cycles/c1"] = {"record": None}
    assert headroom("snapshot", "export", "--plan", name).status == Exit.NOT_FOUND


def test_a_server_of_another_version_is_told_apart(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/snapshot"] = {**json.loads(canonical_json(PICTURE)), "surprise": 1}
    said = headroom("snapshot", "export")
    assert said.status == Exit.USAGE
    assert "/surprise: unknown field" in said.err
    assert from_json(Snapshot, canonical_json(PICTURE)) == PICTURE
