"""Explanations from files and from a server: candidates, what binds, ways out, why not, what an SLO costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli.output import Exit
from solvers.domain.codec import canonical_json, to_plain
from solvers.domain.snapshot import Snapshot
from tests import builders
from tests.unit.app.cli.conftest import Api, Headroom

JOINT = builders.policy(planners=("joint", "greedy"))
LAB = builders.lab(
    [builders.service(), builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=200.0)], policy=JOINT
)
SHORT = builders.snapshot(
    [builders.device("a", 0, "t4")], [builders.service("big", rate_rps_declared=400.0)], policy=JOINT
)
PLAN_ID = "sha256:" + "e" * 64
BY_COUNT = ("--work-units", "60")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "s.json").write_text(canonical_json(LAB))
    (tmp_path / "short.json").write_text(canonical_json(SHORT))
    return tmp_path


def test_a_plan_shows_candidates_and_what_binds(files: Path, headroom: Headroom) -> None:
    said = headroom("plan", "--snapshot", f"{files}/s.json", *BY_COUNT)
    assert said.status == Exit.OK, said.err
    lines = [line.split() for line in said.out.splitlines()]
    (marked,) = [line for line in lines if line[:2] == ["*", "demo/fast"]]
    assert marked[-2:] == ["cheapest", "feasible"]
    assert sum(line[-1:] == ["costlier"] for line in lines) >= 4
    quiet = headroom("plan", "--snapshot", f"{files}/s.json", "-q", *BY_COUNT)
    assert "demo/fast" not in quiet.out
    assert "verified: yes" in quiet.out


def test_a_plan_as_json_carries_the_insight(files: Path, headroom: Headroom) -> None:
    found = headroom("plan", "--snapshot", f"{files}/s.json", "-o", "json", *BY_COUNT).json
    assert {item["candidate"]["workload"] for item in found["insight"]["candidates"]} == {"demo/fast", "demo/vision"}
    assert {item["name"] for item in found["insight"]["contenders"]} == {"greedy", "joint"}
    assert any(item["price"]["resource"] == "gpu" for item in found["insight"]["prices"])


def test_what_must_be_served_is_told_first(files: Path, headroom: Headroom) -> None:
    said = headroom("explain", "demo/vision", "--snapshot", f"{files}/s.json", *BY_COUNT)
    (told,) = [line for line in said.out.splitlines() if "must be served" in line]
    assert told.endswith(" requests/s must be served now, as declared: nobody has counted any lately")
    assert said.out.index(told) < said.out.index("why")


def test_a_greedy_plan_has_candidates_too(files: Path, headroom: Headroom) -> None:
    found = headroom("plan", "--snapshot", f"{files}/s.json", "--planner", "greedy", "-o", "json", *BY_COUNT).json
    assert len(found["insight"]["candidates"]) == 8
    assert found["insight"]["prices"] == []


def test_ways_out_are_told_where_demand_is_short(files: Path, headroom: Headroom) -> None:
    said = headroom("plan", "--snapshot", f"{files}/short.json", *BY_COUNT)
    assert "demo/big: 1 more t4 (1 now)" in said.out
    assert "as if it stayed unserved" in said.out
    told = headroom("explain", "big", "--snapshot", f"{files}/short.json", *BY_COUNT)
    assert told.status == Exit.OK, told.err
    assert "demo/big: 1 more t4 (1 now)" in told.out


def test_a_job_that_waits_is_told_as_waiting_and_not_as_a_fault(files: Path, headroom: Headroom) -> None:
    jobs = (builders.job("here"), builders.job("later", memory_mib=1_000_000))
    waits = builders.snapshot([builders.device("a", 0, "v100")], jobs=jobs, policy=JOINT)
    (files / "waits.json").write_text(canonical_json(waits))
    said = headroom("plan", "--snapshot", f"{files}/waits.json", "-q", *BY_COUNT)
    (line,) = [line for line in said.out.splitlines() if "demo/later" in line]
    assert "memory" in line
    assert "out_of_range" not in said.out.replace(" ", "_")


def test_why_not_says_how_much_dearer_and_proves_it(files: Path, headroom: Headroom) -> None:
    said = headroom("plan", "-q", "--snapshot", f"{files}/s.json", "--why-not", "fast:a100", *BY_COUNT)
    assert said.status == Exit.OK, said.err
    assert "why not demo/fast on a100" in said.out
    assert "would keep the SLO but cost $" in said.out
    assert "Planned with demo/fast on a100 only, everything costs $" in said.out
    found = headroom("plan", "--snapshot", f"{files}/s.json", "--why-not", "fast:a100", "-o", "json", *BY_COUNT).json[
        "why_not"
    ]
    assert found["verdict"] == "dearer"
    assert found["forced"]["cost_usd_per_h_more"] > 0
    assert found["forced"]["verified"]


def test_why_not_says_what_rules_a_type_out(files: Path, headroom: Headroom) -> None:
    tight = replace(LAB.services[0], slo=builders.slo(6.0))
    (files / "tight.json").write_text(canonical_json(replace(LAB, services=(tight, *LAB.services[1:]))))
    said = headroom("plan", "-q", "--snapshot", f"{files}/tight.json", "--why-not", "fast:t4", *BY_COUNT)
    assert "t4 cannot keep the SLO" in said.out
    assert "Planned with" not in said.out


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("fast", Exit.USAGE, "takes SERVICE:GPU_TYPE"),
        ("fast:zx81", Exit.NOT_FOUND, "there is no GPU type zx81"),
        ("nobody:t4", Exit.NOT_FOUND, "there is no workload named nobody"),
        ("demo/nobody:t4", Exit.NOT_FOUND, "there is no workload demo/nobody"),
    ],
)
def test_why_not_refuses_what_leads_nowhere(
    files: Path, headroom: Headroom, asked: str, status: Exit, words: str
) -> None:
    said = headroom("plan", "--snapshot", f"{files}/s.json", "--why-not", asked, *BY_COUNT)
    assert (said.status, said.out) == (status, "")
    assert words in said.err


def test_an_explanation_from_a_file_prices_the_slo(files: Path, headroom: Headroom) -> None:
    said = headroom("explain", "fast", "--snapshot", f"{files}/s.json", "--slo-curve", *BY_COUNT)
    assert said.status == Exit.OK, said.err
    assert "demo/fast#0" in said.out
    for title in ("why", "what it could have", "what binds", "what its SLO costs"):
        assert f"\n{title}\n" in said.out
    (now,) = [line.split() for line in said.out.splitlines() if "(now)" in line]
    assert (now[0], now[3]) == ("12", "0")


def test_options_go_where_they_mean_something(files: Path, headroom: Headroom) -> None:
    said = headroom("explain", "fast", "--seed", "3")
    assert "go with --snapshot or --slo-curve" in said.err
    said = headroom("explain", "fast", "--snapshot", f"{files}/s.json", "--plan", PLAN_ID)
    assert "--plan needs a server" in said.err
    said = headroom("explain", "nobody", "--snapshot", f"{files}/s.json")
    assert (said.status, said.err) == (Exit.NOT_FOUND, "headroom: there is no workload named nobody\n")


def served(picture: Snapshot) -> dict[str, Any]:
    """A server's answers about a plan whose why-not was answered from its insight."""
    summary = {
        "id": PLAN_ID, "generation": None, "state": "proposed", "planner": "joint", "cost_usd_per_h": 2.0,
        "bound_usd_per_h": None, "gap_told": "how far from the optimum was not proven", "unplaced_count": 0,
    }  # fmt: skip
    why_not = {
        "workload": "demo/fast", "gpu_type": "a100", "verdict": "dearer", "candidate": None,
        "sentence": "It is dearer.",
    }  # fmt: skip
    insight = {"contenders": [], "prices": [], "candidates": [], "ways_out": [], "facts": []}
    told = {"gap_told": summary["gap_told"], "cheaper": None}
    explained = {**told, "summary": summary, "assignments": [], "unplaced": [], "waiting": None, "insight": insight}
    return {
        "POST /v1/plans": summary,
        f"GET /v1/plans/{PLAN_ID}/explain": {**explained, "why_not": why_not},
        "GET /v1/snapshot": to_plain(picture),
        "GET /v1/services": {"items": [to_plain(item) for item in picture.services], "next_cursor": None},
        "GET /v1/jobs": {"items": [], "next_cursor": None},
        "GET /v1/tasks": {"items": [], "next_cursor": None},
        "GET /v1/gpu-types": {"items": [{"name": "a100"}, {"name": "t4"}], "next_cursor": None},
    }


def test_a_server_is_asked_why_not_and_its_picture_is_planned_with_the_rule(api: Api, headroom: Headroom) -> None:
    api.answers |= served(replace(LAB, policy=builders.policy(planners=("greedy",))))
    said = headroom("plan", "-q", "--why-not", "demo/fast:a100")
    assert said.status == Exit.OK, said.err
    asked = [request.url.params for request in api.asked if request.url.path.endswith("/explain")]
    assert (asked[-1]["workload"], asked[-1]["why_not"]) == ("demo/fast", "a100")
    assert "It is dearer." in said.out
    assert "Planned with demo/fast on a100 only" in said.out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("demo/fast", "--why-not takes SERVICE:GPU_TYPE"),
        ("demo/fats:a100", "there is no workload demo/fats; did you mean demo/fast or demo/vision?"),
        ("fats:a100", "there is no workload named fats; did you mean fast?"),
        ("demo/fast:a10", "there is no GPU type a10; did you mean a100?"),
    ],
)
def test_a_question_is_checked_before_anything_is_planned(api: Api, headroom: Headroom, asked: str, said: str) -> None:
    api.answers |= served(LAB)
    found = headroom("plan", "--why-not", asked)
    assert found.err == f"headroom: {said}\n"
    assert not [request for request in api.asked if request.method == "POST"]


def test_a_server_that_did_not_look_is_helped_out(api: Api, headroom: Headroom) -> None:
    answers = served(replace(LAB, policy=builders.policy(planners=("greedy",))))
    explained = answers[f"GET /v1/plans/{PLAN_ID}/explain"]
    explained["why_not"] |= {
        "workload": "demo/vision", "verdict": "not_looked_at", "sentence": "Nobody looked.",
    }  # fmt: skip
    api.answers |= answers
    said = headroom("plan", "-q", "--why-not", "demo/vision:a100")
    assert said.status == Exit.OK, said.err
    assert "Nobody looked." not in said.out
    assert "Planned with demo/vision on a100 only" in said.out
