"""Each client command against canned answers: what it asks for, and what people and programs see of the answer."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.cli import watch
from app.cli.output import Exit
from app.cli.program import INTERRUPTED
from tests.unit.app.cli.conftest import Api, Headroom, page

PLAN_ID = "sha256:" + "a" * 64


def service(name: str, project: str = "vision", **more: Any) -> dict[str, Any]:
    return {"project": project, "name": name, "model": "resnet50", "slo": {"latency_ms": 80}, **more}


def device(node: str, index: int, *replicas: str, share: int = 50) -> dict[str, Any]:
    return {
        "id": f"GPU-{node}-{index}",
        "node": node,
        "index": index,
        "gpu_type": "t4",
        "up": True,
        "healthy": True,
        "share_pct_sm_held": share,
        "utilisation_pct": 40.0,
        "power_w": 33.3,
        "memory_mib_used": 900.0,
        "replicas": [{"replica": replica} for replica in replicas],
    }


FAR = "at most 25.0 % above the optimum with 1 workload that is not on auto left as it is, which costs $2.40/h or more"
COST = {"cost_usd_per_h": 3.0, "bound_usd_per_h": 2.4, "gap_told": FAR}
CHEAPER = "plan eeeeeeeeeeee waits for approval and costs $0.54/h less than what stands: headroom approve eeeeeeeeeeee"
UNLED = "no planner leads since 2026-01-01 00:00:00 UTC: nothing is planned until one runs (headroom planner)"


def fleet(plan: bool = True) -> dict[str, Any]:
    slo = {"kind": "latency", "latency_ms": 80.0, "percentile": 99.0, "scope": "end_to_end"}
    place = {"rack": "r", "failure_domain": "z"}
    return {
        "cluster": "default",
        "generation": 7 if plan else 0,
        "plan": {"id": PLAN_ID, "planner": "greedy", "unplaced_count": 9, **COST} if plan else None,
        "promoted_at_s": 0.0,
        "unled": UNLED,
        "short": [
            {"id": f"vision/{name}", "told": "12 % of 300 requests/s unserved: t4 has too little SM share left"}
            for name in ("big", *"abcdefgh")
        ],
        "planning": {
            "at": "2026-01-01T00:00:00Z", "planner": "greedy", "ending": "finished", "stood_in": True,
            "answered": "greedy, standing in for joint; planner joint overran its deadline and was killed",
        },
        "cost": {"planned_usd_per_h": 1.5, "fleet_usd_per_h": 20.0},
        "slo_attainment": 0.987,
        "nodes": [
            {**place, "id": "n1", "up": True, "age_s": 1.0, "generation_applied": 7, "devices": 2},
            {**place, "id": "n2", "up": False, "age_s": None, "generation_applied": 0, "devices": 0},
        ],
        "devices": [device("n1", 0, "vision/resnet50#0"), device("n1", 1, share=0)],
        "services": [
            {
                "id": "vision/resnet50", "mode": "auto", "slo": slo, "replicas_ready": 1, "replicas_planned": 2,
                "rate_rps": None, "rate_rps_declared": 300.0, "latency_ms_p99": None, "slo_attainment": 0.5,
            }
        ],
        "jobs": [
            {
                "id": "vision/train", "kind": "job", "model": "vgg16", "replicas_ready": 0, "replicas_planned": 0,
                "done": 250.0, "total": 1000, "evictions": 3,
            }
        ],
    }  # fmt: skip


def told(code: str, subject: str, **facts: float) -> dict[str, Any]:
    reason = {
        "code": code,
        "subject": subject,
        "facts": [{"name": name, "value": fact} for name, fact in facts.items()],
    }
    return {"reason": reason, "sentence": f"{subject} {code}."}


NOTHING_KNOWN: dict[str, Any] = {"contenders": [], "prices": [], "candidates": [], "ways_out": [], "facts": []}


def explanation(*gaps: dict[str, Any]) -> dict[str, Any]:
    def replica(ordinal: int) -> dict[str, Any]:
        return {
            "assignment": {
                "replica": f"vision/resnet50#{ordinal}", "kind": "service", "workload": "vision/resnet50",
                "device": f"GPU-{ordinal}", "share_pct_sm": 40, "memory_mib_limit": 1000, "batch": 8,
                "latency_ms_planned": 70.0 + ordinal, "capacity_rps": 100.0,
            },
            "gpu_type": "t4",
            "why": [told("cheapest_feasible", "t4", usd_per_h=0.4)],
            "alternatives": [told("costlier", "a100", usd_per_h=0.7, chosen_usd_per_h=0.4, share_pct_sm=9, replicas=1)],
        }  # fmt: skip

    found = {"assignments": [replica(0), replica(1)], "unplaced": list(gaps), "cheaper": CHEAPER, "why_not": None}
    return {**empty(), **found}


def summary(**more: Any) -> dict[str, Any]:
    return {
        "id": PLAN_ID, "state": "proposed", "generation": None, "planner": "greedy", "cost_usd_per_h": 2.0,
        "bound_usd_per_h": 1.9, "unplaced_count": 0, "cycle_id": "c-1", "gap_told": FAR, **more,
    }  # fmt: skip


def empty(waiting: dict[str, Any] | None = None) -> dict[str, Any]:
    """An explanation of a plan in which nobody has a part."""
    nothing = {"assignments": [], "unplaced": [], "waiting": waiting, "insight": NOTHING_KNOWN}
    return {"summary": summary(), "gap_told": FAR, "cheaper": None, **nothing}


# -- declare ----------------------------------------------------------------------------------------------------------


def test_get_lists_a_kind_as_a_table_and_as_files(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/services"] = page(service("a", mode="auto"), service("b", mode="off"))
    lines = headroom("get", "services").out.splitlines()
    assert lines[0].split() == [
        "project",
        "name",
        "model",
        "latency_ms",
        "percentile",
        "rate_rps_declared",
        "priority",
        "mode",
    ]
    assert [line.split()[1] for line in lines[1:]] == ["a", "b"]
    found = yaml.safe_load(headroom("get", "services", "-o", "yaml").out)
    assert found[0] == {"kind": "service", **service("a", mode="auto")}
    assert [item["name"] for item in headroom("get", "services", "-o", "json").json] == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (("service", "vision/a"), "/v1/services/vision/a"),
        (("service", "a"), "/v1/services"),
        (("services/vision/a",), "/v1/services/vision/a"),
        (("services", "a/b/c"), None),
        (("plan", "x/y"), None),
        (("profile", "resnet50/t4"), "/v1/profiles/resnet50/t4"),
        (("plans/sha256:a",), "/v1/plans/sha256:a"),
        (("cycle", "c-1"), "/v1/cycles/c-1"),
        (("power-cap", "node", "n1"), "/v1/power-caps/node/n1"),
        (("node", "n1"), "/v1/nodes/n1"),
    ],
)
def test_get_names_one_document(api: Api, headroom: Headroom, names: tuple[str, ...], path: str | None) -> None:
    said = headroom("get", *names)
    if path is None:
        assert said.status == Exit.USAGE
    else:
        # A document that is not there is told with its nearest neighbours, which are asked for then.
        assert (said.status, api.asked[0].url.path) == (Exit.NOT_FOUND, path)


@pytest.mark.parametrize(
    ("arguments", "limit", "shown"), [(("get", "cycles"), "50", 50), (("get", "cycle", "-n", "2"), "2", 2)]
)
def test_get_reads_so_much_of_a_history_and_no_more(
    api: Api, headroom: Headroom, arguments: tuple[str, ...], limit: str, shown: int
) -> None:
    decision = {"reasons": ["cooldown", "small_gain"]}
    api.answers["GET /v1/cycles"] = page(*({"id": f"c-{n}", "decision": decision} for n in range(60)))
    lines = headroom(*arguments).out.splitlines()
    assert len(lines) == shown + 1
    assert lines[1].split()[-2:] == ["cooldown,", "small_gain"]
    assert api.asked[-1].url.params["limit"] == limit


def test_get_reads_what_was_written_down(api: Api, headroom: Headroom) -> None:
    point = {"model": "resnet50", "gpu_type": "t4", "batch": 4, "neighbours": ["bert"]}
    profile = {"model": "resnet50", "gpu_type": "t4", "points": [point, point]}
    api.answers["GET /v1/profiles/resnet50/t4"] = profile
    lines = headroom("get", "profile", "resnet50/t4").out.splitlines()
    assert (len(lines), lines[1].split()[:3]) == (3, ["resnet50", "t4", "4"])
    assert headroom("get", "profile", "resnet50/t4", "-o", "json").json == profile
    api.answers["GET /v1/plans"] = page(summary(id="sha256:b", lane="act"))
    assert headroom("get", "plans").out.splitlines()[1].split()[:3] == ["sha256:b", "act", "proposed"]
    api.answers["GET /v1/events"] = page({"at": "t", "name": "service.created", "actor": "x", "subject": "nodes/n1"})
    assert "service.created" in headroom("get", "events", "nodes/n1").out
    assert api.asked[-1].url.params["subject"] == "nodes/n1"
    unknown = headroom("get", "pods")
    assert unknown.status == Exit.USAGE
    assert all(kind in unknown.err for kind in ("service", "profile", "plan", "cycle", "event"))


def test_apply_goes_on_after_a_failure_and_says_so(api: Api, headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: project\nname: good\n---\nkind: project\nname: bad\n")
    api.answers["PUT /v1/projects/good"] = httpx.Response(201, json={"name": "good"})
    problem = {"detail": "no", "code": "field-invalid", "errors": [{"pointer": "/name", "detail": "too bad"}]}
    api.answers["PUT /v1/projects/bad"] = httpx.Response(422, json=problem)
    said = headroom("apply", "-f", str(file))
    assert said.status == Exit.USAGE
    assert said.out.splitlines() == ["created    project/good", "failed     project/bad"]
    assert "a.yaml:5: name: too bad (field-invalid)" in said.err
    assert said.err.splitlines()[-1] == "headroom: 1 of 2 documents failed"
    api.answers["PUT /v1/projects/bad"] = httpx.Response(200, json={}, headers={"ETag": '"2"'})
    outcomes = headroom("apply", "-f", str(file), "-o", "json").json
    assert [line["outcome"] for line in outcomes] == ["created", "updated"]


def test_each_device_is_looked_at_once_for_all_nodes() -> None:
    looked: list[str] = []

    class Device(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            looked.append(name)
            return super().__getitem__(name)

    devices = [Device(device(f"n{index % 50}", index)) for index in range(100)]
    found = watch._with_devices([{"id": f"n{index}"} for index in range(51)], devices)
    assert [len(node["devices"]) for node in found] == [*(50 * [2]), 0]
    assert looked == 100 * ["node"]


@pytest.mark.parametrize(
    ("end", "status"), [(httpx.ConnectError("refused"), Exit.UNREACHABLE), (KeyboardInterrupt(), INTERRUPTED)]
)
@pytest.mark.parametrize("verb", ["apply", "delete"])
def test_what_was_done_before_an_interruption_is_said(
    api: Api, headroom: Headroom, tmp_path: Path, end: BaseException, status: int, verb: str
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("---\n".join(f"kind: project\nname: {name}\n" for name in "abc"))
    for method in ("PUT", "DELETE"):
        api.answers[f"{method} /v1/projects/a"] = api.answers[f"{method} /v1/projects/c"] = httpx.Response(201, json={})
        api.answers[f"{method} /v1/projects/b"] = end
    said = headroom(verb, "-f", str(file), "-o", "json")
    first, last = ("a", "c") if verb == "apply" else ("c", "a")
    assert said.status == status
    done = "created" if verb == "apply" else "deleted"
    assert said.json == [
        {"document": f"project/{first}", "outcome": done},
        {"document": "project/b", "outcome": "unknown"},
        {"document": f"project/{last}", "outcome": "not sent"},
    ]


def test_an_edit_whose_answer_was_lost_may_be_done(
    api: Api, headroom: Headroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i s/resnet50/vit/")
    api.answers["GET /v1/services/vision/a"] = service("a")
    api.answers["PUT /v1/services/vision/a"] = httpx.ReadTimeout("late")
    said = headroom("edit", "service", "vision/a")
    (kept,) = tmp_path.glob("headroom-*.yaml")
    assert (said.status, f"what was changed is not known; your text is in {kept}" in said.err) == (6, True)


def test_delete_by_name_and_by_file(api: Api, headroom: Headroom, tmp_path: Path) -> None:
    api.answers["DELETE /v1/services/vision/a"] = httpx.Response(204)
    api.answers["DELETE /v1/profiles/resnet50/t4"] = httpx.Response(204)
    assert headroom("delete", "service", "vision/a").out == "deleted service/vision/a\n"
    assert headroom("delete", "profile", "resnet50/t4").status == Exit.OK
    assert headroom("delete", "service", "vision/b").status == Exit.NOT_FOUND
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"kind": "project", "name": "p"}, {"kind": "service", **service("a")}]))
    api.answers["DELETE /v1/projects/p"] = httpx.Response(204)
    lines = headroom("delete", "-f", str(file)).out.splitlines()
    assert lines == ["deleted    service/vision/a", "deleted    project/p"]


# -- plan -------------------------------------------------------------------------------------------------------------


def test_plan_shows_choices_others_and_the_gap(api: Api, headroom: Headroom) -> None:
    api.answers["POST /v1/plans"] = summary(unplaced_count=1)
    gap = {"workload": "vision/big", "kind": "service", "rate_rps_short": 9.0, "why": [told("no_profile", "x")]}
    api.answers[f"GET /v1/plans/{PLAN_ID}/explain"] = explanation(gap)
    said = headroom("plan", "--lane", "approve")
    assert said.status == Exit.OK
    assert api.body(0) == {"lane": "approve"}
    # Whose bound that is, and that somebody could have it cheaper, stand beside the cost.
    assert said.out.splitlines()[1:3] == [f"proposed, by greedy, $2.00/h, {FAR}", CHEAPER]
    chosen, other = (line.split() for line in said.out.splitlines()[4:6])
    assert chosen == ["*", "vision/resnet50", "t4", "2", "40", "8", "71", "200", "0.4", "cheapest", "feasible"]
    assert other == ["a100", "1", "9", "0.7", "costlier"]
    assert "vision/big" in said.out
    assert "x no_profile." in said.out
    assert "1 workload found no place" in said.err
    assert not any(request.url.path.endswith("/apply") for request in api.asked)


def test_plan_applies_only_when_told(api: Api, headroom: Headroom) -> None:
    api.answers["POST /v1/plans"] = summary()
    api.answers[f"GET /v1/plans/{PLAN_ID}/explain"] = explanation()
    api.answers[f"POST /v1/plans/{PLAN_ID}/apply"] = {"plan_id": PLAN_ID, "generation": 8}
    assert headroom("plan", "--apply", "-o", "json").json["generation"] == 8


def test_explain_finds_a_workload_by_its_name(api: Api, headroom: Headroom) -> None:
    api.answers |= {"GET /v1/services": page(service("resnet50")), "GET /v1/jobs": page(), "GET /v1/tasks": page()}
    api.answers |= {"GET /v1/fleet": fleet(), f"GET /v1/plans/{PLAN_ID}/explain": explanation()}
    said = headroom("explain", "resnet50")
    assert api.asked[-1].url.params["workload"] == "vision/resnet50"
    assert said.out.count("t4 cheapest_feasible.") == 1
    assert "vision/resnet50#1" in said.out
    assert "a100 costlier." in said.out


@pytest.mark.parametrize(
    ("projects", "status", "words"),
    [((), Exit.NOT_FOUND, "no workload named x"), (("a", "b"), Exit.USAGE, "ambiguous: a/x, b/x")],
)
def test_explain_refuses_names_that_lead_nowhere(
    api: Api, headroom: Headroom, projects: tuple[str, ...], status: Exit, words: str
) -> None:
    api.answers |= {"GET /v1/jobs": page(), "GET /v1/tasks": page()}
    api.answers["GET /v1/services"] = page(*(service("x", project) for project in projects))
    said = headroom("explain", "x")
    assert said.status == status
    assert words in said.err


def test_explain_before_the_first_plan_and_about_a_stranger(api: Api, headroom: Headroom) -> None:
    api.answers |= {"GET /v1/fleet": fleet(plan=False), "GET /v1/plans": page()}
    said = headroom("explain", "vision/x")
    assert (said.status, said.err) == (Exit.NOT_FOUND, "headroom: no plan stands yet\n")
    api.answers[f"GET /v1/plans/{PLAN_ID}/explain"] = empty()
    said = headroom("explain", "vision/x", "--plan", PLAN_ID).out.splitlines()
    assert said[-2:] == ["vision/x has no part in this plan", "a newer one may: headroom plans, then --plan ID"]
    problem = {"detail": "there is no workload vision/x", "code": "not-found"}
    api.answers[f"GET /v1/plans/{PLAN_ID}/explain"] = httpx.Response(404, json=problem)
    said = headroom("explain", "vision/x", "--plan", PLAN_ID)
    assert (said.status, said.out) == (Exit.NOT_FOUND, "")
    assert said.err == "headroom: there is no workload vision/x (not-found)\n"


def test_explain_tells_what_a_workload_waits_for(api: Api, headroom: Headroom) -> None:
    waiting = {"mode": "approve", "plan_id": "sha256:w", "sentence": "vision/x is on approve: plan sha256:w waits."}
    api.answers |= {"GET /v1/fleet": fleet(plan=False), "GET /v1/plans": page({"id": "sha256:w"})}
    api.answers["GET /v1/plans/sha256:w/explain"] = empty(waiting)
    said = headroom("explain", "vision/x")
    assert said.out.splitlines()[-2:] == ["vision/x has no part in this plan", waiting["sentence"]]
    assert next(asked for asked in api.asked if asked.url.path == "/v1/plans").url.params["state"] == (
        "awaiting_approval"
    )


def test_replay_takes_the_newest_finished_cycle(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/cycles"] = page()
    said = headroom("replay")
    assert (said.status, said.err) == (Exit.NOT_FOUND, "headroom: no cycle has finished yet\n")
    assert api.asked[-1].url.params["state"] == "closed"
    api.answers |= {"GET /v1/cycles": page({"id": "c-9"}, {"id": "c-8"}), "GET /v1/cycles/c-9": {"record": None}}
    said = headroom("replay")
    assert (said.status, said.err) == (Exit.NOT_FOUND, "headroom: cycle c-9 ended before it had a record\n")


# -- watch and account ------------------------------------------------------------------------------------------------


def test_status_tells_the_fleet_at_a_glance(api: Api, headroom: Headroom) -> None:
    told = ["costs $3.49/h more than what stands"]
    waits = {"id": f"sha256:{'e' * 64}", "state": "awaiting_approval", "blocked": [], "told": told}
    api.answers["GET /v1/plans"] = {"items": [{**waits, "expires_at": None}], "next_cursor": None}
    api.answers["GET /v1/fleet"] = fleet()
    out = headroom("status").out
    told = "plan eeeeeeeeeeee waits for approval: costs $3.49/h more than what stands"
    assert f"{told}; headroom diff eeeeeeeeeeee or headroom approve eeeeeeeeeeee\n" in out
    assert "cluster default: 1 of 2 nodes up, 2 devices, 25 % of the SMs held" in out
    assert "cost $1.50/h of $20.00/h, SLO kept: 98.7 %" in out
    assert "WARNING: planned by greedy, standing in for joint; planner joint overran its deadline and was killed" in out
    lines = out.splitlines()
    at = lines.index(f"generation 7 by greedy, since 1970-01-01 00:00:00 UTC, when planned {FAR}, 9 without a place")
    # Who that is, how much of its rate, and why.
    assert lines[at + 1] == "vision/big: 12 % of 300 requests/s unserved: t4 has too little SM share left"
    assert lines[at + 9] == "and 1 more: headroom explain WORKLOAD says why of each"
    assert f"WARNING: {UNLED}" in lines
    line = next(line for line in out.splitlines() if line.startswith("vision/resnet50"))
    assert line.split() == ["vision/resnet50", "auto", "p99", "80", "ms", "1/2", "300", "-", "50.0", "%"]
    seen, now = {**fleet()["plan"], "seen_at": "2026-01-01T02:03:04+01:00"}, datetime.now(UTC)
    api.answers["GET /v1/fleet"] = {**fleet(), "plan": seen, "promoted_at_s": now.timestamp()}
    since = f"since {now:%H:%M:%S} UTC, as of 2026-01-01 01:03:04 UTC"
    assert f"{since} {FAR}, 9 without a place\n" in headroom("status").out
    api.answers["GET /v1/fleet"] = fleet()
    assert "25.0 %" in next(line for line in out.splitlines() if line.startswith("vision/train"))
    assert headroom("status", "-o", "json").json == fleet()
    api.answers["GET /v1/fleet"] = fleet(plan=False)
    assert "no plan yet" in headroom("status").out
    assert "p99 ms end to end" in headroom("status").out


def test_an_empty_cluster_says_what_to_do(api: Api, headroom: Headroom) -> None:
    nothing = {"nodes": [], "devices": [], "services": [], "jobs": [], "short": [], "problems": []}
    cost = {"planned_usd_per_h": 0.0, "fleet_usd_per_h": 0.0}
    api.answers |= {"GET /v1/fleet": {**fleet(plan=False), **nothing, "cost": cost}, "GET /v1/plans": page()}
    out = headroom("status").out
    assert "cost $0.00/h of $0.00/h" in out
    assert out.splitlines()[-1].startswith("no services yet: headroom apply -f FILE")
    assert headroom("nodes").out.splitlines()[0].startswith("no nodes yet: headroom agent")
    # Programs have the columns all the same.
    assert headroom("nodes", "-o", "csv").out.startswith("node,rack,")


def test_remarks_on_plans_have_lines_of_their_own(api: Api, headroom: Headroom) -> None:
    fields = {"lane": "approve", "created_at": "2026-01-01T00:00:00Z", "decided_by": None, "comment": None}
    waits = {"state": "awaiting_approval", "blocked": [], "told": ["costs as much as what stands"], "expires_at": None}
    api.answers["GET /v1/plans"] = page({**summary(), **fields, **waits})
    lines = headroom("plans").out.splitlines()
    assert "awaiting approval" in lines[1]
    assert lines[2:] == ["", f"{PLAN_ID.removeprefix('sha256:')[:12]}: costs as much as what stands"]
    assert "costs as much" in headroom("plans", "-o", "csv").out.splitlines()[1]


def test_nodes_hold_their_devices(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/fleet"] = fleet()
    out = headroom("nodes").out
    assert "never seen" in out
    assert "██████████··········" in out
    assert [len(node["devices"]) for node in headroom("nodes", "-o", "json").json] == [2, 0]


def test_a_gpu_that_its_node_does_not_report_or_calls_ill_is_marked(api: Api, headroom: Headroom) -> None:
    found = fleet()
    found["devices"] = [
        {**device("n1", 0), "up": False, "healthy": None},
        {**device("n1", 1), "healthy": False},
        {**device("n1", 2), "slow_factor": 1.4},
        device("n1", 3),
    ]
    api.answers["GET /v1/fleet"] = found
    lines = headroom("nodes", "-o", "csv").out.splitlines()[-4:]
    assert [line.split(",")[3] for line in lines] == ["silent", "ill", "slow", "up"]


def test_top_looks_again_and_outlives_an_outage(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/fleet"] = fleet()
    assert "vision/resnet50#0" in headroom("top", "-n", "2", "--interval", "0.2").out
    assert len(api.asked) == 3


def test_cost_asks_for_a_span_and_shows_the_sum(api: Api, headroom: Headroom) -> None:
    line = {"key": "vision/a", "usd": 1.25, "usd_energy": 0.01, "share_gpu_h": 2.5, "energy_kwh": 0.4}
    api.answers["GET /v1/costs"] = {
        "by": "project", "accounting": "memory", "start": "s", "end": "e", "usd": 1.25, "items": [line],
    }  # fmt: skip
    said = headroom("report", "cost", "--by", "project", "--last", "2d", "--accounting", "memory")
    asked = api.asked[-1].url.params
    assert (asked["by"], asked["accounting"], "project" in asked) == ("project", "memory", False)
    assert asked["from"] < asked["to"]
    assert [row.split() for row in said.out.splitlines()[2:]] == [
        ["vision/a", "$1.25", "$0.0100", "2.5", "0.4"],
        ["total", "$1.25", "-", "-", "-"],
    ]


def test_budgets_are_told_to_people_in_dollars_and_to_spreadsheets_in_numbers(api: Api, headroom: Headroom) -> None:
    line = {
        "budget": "all", "project": None, "label": None, "month": "2026-11-01T00:00:00+00:00",
        "usd_per_month": 100000.0, "usd_spent": 1234.5, "usd_per_h": 2.25, "usd_forecast": 2000.75, "at_risk": False,
    }  # fmt: skip
    api.answers["GET /v1/budget-forecasts"] = {"items": [line]}
    assert "$1,234.50" in headroom("budget").out
    (told,) = csv.DictReader(io.StringIO(headroom("budget", "-o", "csv").out))
    assert told == {name: "" if value is None else str(value) for name, value in line.items()} | {"at_risk": "false"}


@pytest.mark.parametrize(
    ("accounted", "told", "said"),
    [
        (None, "", "nothing accounted yet in this span; minutes are accounted about a minute after they end"),
        (
            "2026-11-29T21:57:00Z",
            ", accounted until 2026-11-29T21:57:00Z",
            "nothing accounted yet in this span; minutes are accounted about a minute after they end",
        ),
        ("2026-11-29T22:00:00Z", "", "nothing was spent in this span"),
    ],
)
def test_cost_says_up_to_when_it_is_accounted(
    api: Api, headroom: Headroom, accounted: str | None, told: str, said: str
) -> None:
    start, end = "2026-11-28T22:00:00Z", "2026-11-29T22:00:00Z"
    answer = {"by": "service", "accounting": "share", "start": start, "end": end, "usd": 0.0, "items": []}
    api.answers["GET /v1/costs"] = {**answer, "accounted_until": accounted}
    shown = headroom("report", "cost")
    assert (shown.status, shown.err) == (Exit.OK, f"headroom: {said}\n")
    assert shown.out.splitlines()[0] == f"{start} to {end}, accounting: share{told}"
    asked = headroom("report", "cost", "-o", "json")
    assert (asked.json["items"], asked.err) == ([], "")
    empty = headroom("report", "cost", "-o", "csv")
    assert (empty.out.splitlines(), empty.err) == (["key,usd,start,end,accounting,accounted_until"], shown.err)


def test_cost_as_csv_says_of_each_line_what_the_other_formats_say_above_all(api: Api, headroom: Headroom) -> None:
    of = {"start": "2026-11-28T22:00:00Z", "end": "2026-11-29T22:00:00Z", "accounting": "share"}
    of |= {"accounted_until": "2026-11-29T21:57:00Z"}
    items = [{"key": "vision/a", "usd": 1.5}, {"key": "=b", "usd": 0.5}]
    api.answers["GET /v1/costs"] = {**of, "by": "service", "usd": 2.0, "items": items}
    told = headroom("report", "cost", "-o", "csv")
    first, second = csv.DictReader(io.StringIO(told.out))
    assert (first, second) == ({"key": "vision/a", "usd": "1.5", **of}, {"key": "'=b", "usd": "0.5", **of})
    assert told.err == ""


# -- access -----------------------------------------------------------------------------------------------------------


def test_a_token_is_made_listed_and_ended(api: Api, headroom: Headroom) -> None:
    api.answers["POST /v1/tokens"] = {"id": "t-1", "secret": "hr_x"}
    said = headroom("token", "create", "ci", "--role", "operator", "--project", "vision", "--ttl", "2h")
    assert said.out == "hr_x\n"
    assert api.body() == {"name": "ci", "role": "operator", "project": "vision", "ttl_s": 7200}
    assert (
        headroom("token", "create", "hosts", "--join", "--node", "gpu-7", "--uses", "3", "--ttl", "1d").out == "hr_x\n"
    )
    joining = {"role": "agent", "purpose": "join", "subject": "gpu-7", "uses_max": 3, "ttl_s": 86_400}
    assert api.body() == {"name": "hosts", **joining}
    item = dict.fromkeys(("id", "name", "role", "purpose", "project", "subject", "expires_at", "last_used_at"))
    api.answers["GET /v1/tokens"] = page(
        {**item, "id": "t-1", "state": "good", "uses_max": 3, "uses": 2}, {**item, "id": "t-2", "state": "used"}
    )
    lines = headroom("token", "list").out.splitlines()[1:]
    assert [word for line in lines for word in ("good", "used") if word in line] == ["good", "used"]
    assert "2 of 3" in lines[0]
    api.answers["DELETE /v1/tokens/t-1"] = httpx.Response(204)
    assert headroom("token", "revoke", "t-1").out == "revoked t-1\n"


@pytest.mark.parametrize("command", ["bootstrap", "seed"])
def test_first_tokens_need_a_named_database(headroom: Headroom, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.delenv("HEADROOM_DATABASE_URL", raising=False)
    monkeypatch.setenv("HEADROOM_ADMIN_TOKEN", "x" * 30)
    said = headroom("token", command)
    assert said.status == Exit.USAGE
    assert "HEADROOM_DATABASE_URL" in said.err


def test_short_secrets_are_refused(headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_ADMIN_TOKEN", "short")
    assert "at least 24 characters" in headroom("token", "seed").err


def test_one_secret_is_of_one_token(headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HEADROOM_ADMIN_TOKEN", "HEADROOM_JOIN_TOKEN"):
        monkeypatch.setenv(variable, "x" * 30)
    said = headroom("token", "seed")
    assert said.status == Exit.USAGE
    assert "HEADROOM_ADMIN_TOKEN, HEADROOM_JOIN_TOKEN" in said.err


def test_open_prints_a_link_and_opens_it_unless_told_otherwise(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    api.answers["POST /v1/sign-in-links"] = {"path": "/session/link?code=hrl_x", "expires_at": "2026-01-01T00:00:00Z"}
    link = headroom("open", "--print").out.strip()
    assert link.startswith("http")
    assert link.endswith("/session/link?code=hrl_x")
    assert opened == []
    assert headroom("open").out.strip() == link
    assert opened == [link]
