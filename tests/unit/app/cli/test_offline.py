"""Plans and verdicts from files alone: exit statuses, numbers, and one line for a file that cannot be read."""

from __future__ import annotations

import gzip
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import offline
from app.cli.files import write_value
from app.cli.output import Exit, usd
from app.services.whatif.made import Wish, standing_on
from solvers.domain.codec import canonical_json, digest, from_json
from solvers.domain.evidence import ReasonCode, Reporter
from solvers.domain.ids import ModelName
from solvers.domain.plan import Plan
from solvers.domain.workload import ServiceMode
from solvers.planners import registry
from solvers.planners.base import Planner, PlanRequest, Thought
from solvers.planners.joint.certificate import certified
from solvers.planners.registry import propose, think
from tests import builders
from tests.unit.app.cli.conftest import Headroom

GREEDY = builders.policy(planners=("greedy",))
PICTURE = builders.lab([builders.service(), builders.service("speech", rate_rps_declared=40.0)], policy=GREEDY)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "s.json").write_text(canonical_json(PICTURE))
    return tmp_path


def test_a_plan_from_a_file_is_the_planners_and_verifies(files: Path, headroom: Headroom) -> None:
    said = headroom(
        "plan", "--snapshot", f"{files}/s.json", "--planner", "greedy", "--deadline-s", "2", "--seed", "7",
        "--out", f"{files}/p.json",
    )  # fmt: skip
    assert said.status == Exit.OK, said.err
    plan = from_json(Plan, (files / "p.json").read_text())
    asked = replace(builders.request(PICTURE, seed=7), budget=replace(builders.request(PICTURE).budget, deadline_s=2.0))
    alone = propose("greedy", asked).plan
    assert alone is not None
    assert plan == certified(asked, alone)
    assert f"plan {digest(plan)}" in said.out
    assert f"by greedy: {usd(plan.objective.cost_usd_per_h)}/h, at most" in said.out
    assert "unserved: nothing" in said.out
    assert "verified: yes" in said.out
    verdict = headroom("verify", "--snapshot", f"{files}/s.json", "--plan", f"{files}/p.json")
    assert (verdict.status, verdict.out) == (Exit.OK, "nothing is wrong with this plan\n")


def test_the_policys_chain_is_tried_in_order(files: Path, headroom: Headroom) -> None:
    chained = replace(PICTURE, policy=builders.policy(planners=("missing", "greedy")))
    (files / "c.json").write_text(canonical_json(chained))
    said = headroom("plan", "--snapshot", f"{files}/c.json", "-o", "json")
    assert said.status == Exit.OK
    assert [item["planner"] for item in said.json["attempts"]] == ["missing", "greedy"]
    assert (said.json["planner"], said.json["verified"]) == ("greedy", True)


def test_compressed_files_and_standard_output_hold_the_same(files: Path, headroom: Headroom) -> None:
    (files / "s.json.gz").write_bytes(gzip.compress((files / "s.json").read_bytes()))
    said = headroom("plan", "--snapshot", f"{files}/s.json.gz", "--out", "-")
    again = headroom("plan", "--snapshot", f"{files}/s.json", "--out", f"{files}/p.json.gz")
    assert (said.status, again.status) == (Exit.OK, Exit.OK)
    assert said.out.encode() == gzip.decompress((files / "p.json.gz").read_bytes())
    assert headroom("verify", "--snapshot", f"{files}/s.json.gz", "--plan", f"{files}/p.json.gz").status == Exit.OK


def test_demand_that_cannot_be_served_is_said_with_numbers(files: Path, headroom: Headroom) -> None:
    flood = builders.lab([builders.service(rate_rps_declared=1e6, replicas_max=1024)], policy=GREEDY)
    (files / "s.json").write_text(canonical_json(flood))
    said = headroom("plan", "--snapshot", f"{files}/s.json", "--out", f"{files}/p.json")
    assert said.status == Exit.OK
    (short,) = from_json(Plan, (files / "p.json").read_text()).unplaced
    assert short.rate_rps_short > 1e5
    assert f"unserved: 1 workload, {short.rate_rps_short:,.0f} requests/s short" in said.out
    codes = [reason.code.value.replace("_", " ") for reason in short.reasons]
    assert codes
    assert all(code in said.out for code in codes)


def test_a_job_that_waits_is_short_of_no_requests(files: Path, headroom: Headroom) -> None:
    waiting = builders.lab(jobs=(builders.job(memory_mib=10_000_000),), policy=GREEDY)
    (files / "s.json").write_text(canonical_json(waiting))
    said = headroom("plan", "--snapshot", f"{files}/s.json")
    assert said.status == Exit.OK
    assert "unserved: 1 workload (weighted" in said.out


def test_only_the_lanes_workloads_move_and_verify_asks_for_the_same_lane(files: Path, headroom: Headroom) -> None:
    shadow = builders.lab([builders.service(), builders.service("ghost", mode=ServiceMode.SHADOW)], policy=GREEDY)
    (files / "s.json").write_text(canonical_json(shadow))
    for lane, services in (("act", {"demo/vision"}), ("shadow", {"demo/vision", "demo/ghost"})):
        out = ("--snapshot", f"{files}/s.json", "--lane", lane)
        assert headroom("plan", *out, "--out", f"{files}/p.json").status == Exit.OK
        plan = from_json(Plan, (files / "p.json").read_text())
        assert {item.workload for item in plan.assignments} == services
        assert headroom("verify", *out, "--plan", f"{files}/p.json").status == Exit.OK
    said = headroom("verify", f"{files}/p.json", f"{files}/s.json", "--movable", "demo/visoin")
    told = "headroom: --movable: there is no workload demo/visoin; did you mean demo/vision?\n"
    assert (said.status, said.out, said.err) == (Exit.USAGE, "", told)


def test_a_policy_without_a_planner_that_there_is_is_wrong_input(files: Path, headroom: Headroom) -> None:
    plain = json.loads((files / "s.json").read_text())
    plain["policy"]["planners"] = ["gredy"]
    (files / "s.json").write_text(json.dumps(plain))
    for command in (("plan",), ("explain", "vision"), ("simulate", "--advise")):
        said = headroom(*command, "--snapshot", f"{files}/s.json")
        assert said.status == Exit.USAGE
        assert said.err.startswith(f"headroom: {files}/s.json: /policy/planners: there is no planner gredy; ")
    assert headroom("plan", "--snapshot", f"{files}/s.json", "--planner", "greedy").status == Exit.OK


def test_a_refuted_plan_is_named_line_by_line(files: Path, headroom: Headroom) -> None:
    headroom("plan", "--snapshot", f"{files}/s.json", "--out", f"{files}/p.json")
    plain = json.loads((files / "p.json").read_text())
    plain["assignments"][0]["memory_mib_limit"] = 10**6
    (files / "p.json").write_text(json.dumps({"plan": plain}))
    said = headroom("verify", "--snapshot", f"{files}/s.json", "--plan", f"{files}/p.json")
    assert said.status == Exit.FOUND_WRONG
    assert any(line.startswith("fatal: memory_exceeded: ") for line in said.out.splitlines())
    positional = headroom("verify", f"{files}/p.json", f"{files}/s.json")
    assert (positional.status, positional.out) == (said.status, said.out)
    table = headroom("verify", f"{files}/p.json", f"{files}/s.json", "-o", "csv").out.splitlines()
    assert table[0] == "severity,code,subject,facts"
    assert any(line.startswith("fatal,memory_exceeded,") for line in table[1:])
    plain["assignments"][0]["memory_mib_limit"] = 2000
    plain["objective"]["cost_usd_per_h"] += 1e-5
    (files / "p.json").write_text(json.dumps({"plan": plain}))
    told = headroom("verify", f"{files}/p.json", f"{files}/s.json").out
    (wrong,) = re.findall(r"cost_wrong: lab, usd_per_h ([\d.]+), usd_per_h_claimed ([\d.]+)", told)
    assert float(wrong[1]) - float(wrong[0]) == pytest.approx(1e-5)


def test_a_plan_of_another_snapshot_is_said_to_be_one_before_all_else(files: Path, headroom: Headroom) -> None:
    headroom("plan", "--snapshot", f"{files}/s.json", "--out", f"{files}/p.json")
    plain = json.loads((files / "s.json").read_text())
    (files / "later.json").write_text(json.dumps({**plain, "taken_at_s": plain["taken_at_s"] + 1.0}))
    said = headroom("verify", "--snapshot", f"{files}/later.json", "--plan", f"{files}/p.json")
    assert said.status == Exit.FOUND_WRONG
    made_for = json.loads((files / "p.json").read_text())["snapshot"]
    assert said.out.startswith(f"this plan was made for snapshot {made_for}, not for this one, sha256:")


BAD = {
    "text": ("{", "not JSON: "),
    "number": ('{"cluster": NaN}', "not JSON: NaN is not a JSON number"),
    "place": ('{"cluster": "c", "taken_at_s": 0, "policy": {"name": "p", "seed": "x"}}', "/policy/seed: expected int"),
    "rule": (
        '{"cluster": "c", "taken_at_s": 0, "policy": {"name": "p", "deadline_s": -1}}',
        "/policy/deadline_s: deadline_s must lie between",
    ),
    "list": ("[]", "expected an object"),
    "large": ('{"cluster": "c", "taken_at_s": 1' + 400 * "0" + "}", "too large"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_bad_file_is_one_line_with_its_place(case: str, tmp_path: Path, headroom: Headroom) -> None:
    text, told = BAD[case]
    file = tmp_path / "bad.json"
    file.write_text(text)
    for command in (("plan",), ("verify", "--plan", str(file))):
        said = headroom(*command, "--snapshot", str(file))
        assert (said.status, said.out) == (Exit.USAGE, "")
        assert said.err.startswith(f"headroom: {file}: ")
        assert len(said.err.splitlines()) == 1
    assert told in headroom("plan", "--snapshot", str(file)).err


def test_missing_and_damaged_files_are_one_line(tmp_path: Path, headroom: Headroom) -> None:
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}" * 1000)[:30])
    for name, told in (("none.json", "No such file"), ("cut.json.gz", "damaged gzip data")):
        said = headroom("plan", "--snapshot", f"{tmp_path}/{name}")
        assert said.status == Exit.USAGE
        assert told in said.err
        assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "--planner", "greedy"), "go with --snapshot"),
        (("plan", "--snapshot", "s.json", "--apply"), "--apply needs a server"),
        (("plan", "--snapshot", "s.json", "--planner", "prophet"), "there is no planner prophet"),
        (("plan", "--snapshot", "s.json", "--out", "/no/such/folder/p.json"), "there is no folder"),
        (("verify", "--snapshot", "s.json"), "name both files"),
        (("verify",), "name a plan file and a snapshot file"),
        (("verify", "-", "-"), "standard input can be the plan or the snapshot, not both"),
        (("simulate", "--snapshot", "-", "-f", "-"), "standard input can be the snapshot or the changes, not both"),
        (("simulate", "--snapshot", "s.json", "-f", "x.yaml", "--devices", "3"), "--devices goes with --advise"),
    ],
)
def test_wrong_usage_is_told(words: tuple[str, ...], told: str, headroom: Headroom) -> None:
    said = headroom(*words)
    assert said.status == Exit.USAGE
    assert told in said.err


def test_what_a_solver_library_prints_does_not_mix_with_the_answer(
    files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def noisy(planner: Planner, request: PlanRequest, state: bytes | None, reporter: Reporter) -> Thought:
        os.write(1, b"a library speaks\n")
        return think(planner, request, state, reporter)

    monkeypatch.setattr("app.workers.solve_pool.think", noisy)
    with offline.planner_child() as asking:
        asked = asking.propose("greedy", builders.request(PICTURE))
    os.write(1, b"the answer\n")
    said = capfd.readouterr()
    assert asked.plan is not None
    assert (said.out, said.err) == ("the answer\n", "")


LATE = Path(__file__).parent / "late_planners.py"


@pytest.mark.parametrize(
    "command", [("plan", "--out", "p.json"), ("explain", "vision"), ("simulate", "-f", "more.yaml")]
)
def test_what_a_planner_had_found_by_its_deadline_is_the_answer_and_said_loudly(
    files: Path, monkeypatch: pytest.MonkeyPatch, headroom: Headroom, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(files)
    (files / "more.yaml").write_text("kind: changes\nrate_factor: 1.1\n")
    said = headroom(*command, "--snapshot", "s.json", "--planner", f"{LATE}:Finder", "--deadline-s", "1")
    assert said.status == Exit.OK, said.err
    assert f"WARNING: planned by greedy, standing in for finder; planner {LATE}:Finder overran" in said.out


def test_with_nothing_found_in_time_somebody_else_plans_and_everybody_is_served(
    files: Path, headroom: Headroom
) -> None:
    said = headroom("plan", "--snapshot", f"{files}/s.json", "--planner", f"{LATE}:Endless", "--deadline-s", "0.1")
    assert f"WARNING: planned by greedy, standing in for endless; planner {LATE}:Endless overran" in said.out
    assert "unserved: nothing" in said.out


def test_with_nothing_found_in_time_what_stands_and_serves_everybody_is_the_answer(
    files: Path, headroom: Headroom
) -> None:
    planned = registry.propose("greedy", builders.request(PICTURE)).plan
    assert planned is not None
    write_value(f"{files}/standing.json", standing_on(PICTURE, planned))
    look = ("plan", "--snapshot", f"{files}/standing.json", "--planner", f"{LATE}:Endless", "--deadline-s", "0.1")
    said = headroom(*look)
    assert "WARNING: planned by keep-target, standing in for" in said.out
    assert "unserved: nothing" in said.out
    assert "0 started, 0 stopped" in said.out


@pytest.mark.parametrize(("crowding", "left_s"), [(1.0, 1.0), (4.0, 0.95), (100.0, 0.5)])
def test_what_telling_takes_is_kept_from_the_deadline(crowding: float, left_s: float) -> None:
    assert offline.in_time(Wish(deadline_s=1.0), PICTURE, crowding).deadline_s == pytest.approx(left_s, abs=0.02)
    assert offline.in_time(Wish(), PICTURE, crowding) == Wish()


def test_a_planner_is_tuned_for_one_look(files: Path, headroom: Headroom) -> None:
    look = ("plan", "--snapshot", f"{files}/s.json", "--planner", "hetsev", "--out", f"{files}/p.json")
    shares = {}
    for share in (50, 30):
        said = headroom(*look, "--set", f"hetsev.share_pct={share}", "--set", "hetsev.anti_affinity=soft")
        assert said.status == Exit.OK, said.err
        plan = from_json(Plan, (files / "p.json").read_text())
        assert plan.snapshot == digest(PICTURE)
        shares[share] = {item.share_pct_sm for item in plan.assignments}
    assert shares == {50: {50}, 30: {30}}


def test_a_planner_of_ones_own_plans_and_is_tuned_by_its_name(files: Path, headroom: Headroom) -> None:
    example = f"{Path(__file__).parents[4]}/examples/my_policy.py:MyPlanner"
    look = ("plan", "--snapshot", f"{files}/s.json", "--planner", example, "--out", f"{files}/p.json")
    rates = []
    for headroom_set in (1, 3):
        said = headroom(*look, "--set", f"my-policy.headroom={headroom_set}")
        assert said.status == Exit.OK, said.err
        plan = from_json(Plan, (files / "p.json").read_text())
        assert plan.planner == "my-policy"
        assert "WARNING" not in headroom(*look[:-2]).out
        rates.append(sum(item.capacity_rps for item in plan.assignments))
    assert rates[1] > 2 * rates[0]
    wrong = headroom(*look, "--set", "my-policy.margin=1")
    assert (wrong.status, wrong.out) == (Exit.USAGE, "")
    assert "my-policy has no parameter margin; it has headroom, fading, ahead_s" in wrong.err
    missing = headroom("plan", "--snapshot", f"{files}/s.json", "--planner", f"{files}/none.py:Mine")
    assert missing.status == Exit.NOT_FOUND
    shown = headroom("planners", example)
    assert (shown.status, shown.out.split()[0]) == (Exit.OK, "my-policy")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("hetsev.share=30", "hetsev has no parameter share; it has saturation, "),
        ("hetsev.share_pct=much", "hetsev's parameter share_pct must be a whole number from 0 to 100, got 'much'"),
        ("nobody.share=30", "there is no planner nobody; known are "),
        ("gpulet.caution=2", "--set gpulet.caution: gpulet makes no plan here; asked: hetsev"),
        ("share_pct=30", "--set share_pct=30: write PLANNER.PARAMETER=VALUE"),
        ("hetsev.share_pct", "--set hetsev.share_pct: write PLANNER.PARAMETER=VALUE"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(files: Path, headroom: Headroom, setting: str, said: str) -> None:
    found = headroom("plan", "--snapshot", f"{files}/s.json", "--planner", "hetsev", "--set", setting)
    assert (found.status, found.out) == (Exit.USAGE, "")
    assert said in found.err


def test_planners_are_listed_with_what_can_be_tuned(headroom: Headroom) -> None:
    listed = headroom("planners", "-o", "json")
    assert listed.status == Exit.OK
    assert [item["name"] for item in listed.json] == list(registry.names())
    shown = headroom("planners").out
    assert all(name in shown for name in registry.names())
    one = headroom("planners", "hetsev", "-o", "json").json
    first = one["parameters"][0]
    assert (first["name"], first["kind"], first["default"]) == ("saturation", "number", 0.8)
    assert (first["low"], first["high"]) == (0.05, 1)
    told = headroom("planners", "gpulet").out
    assert "20,40,50,60,80,100" in told
    assert "rising whole numbers" in told
    assert "nothing of it can be tuned" in headroom("planners", "joint").out
    unknown = headroom("planners", "nobody")
    assert unknown.status == Exit.USAGE


@pytest.mark.parametrize("planner", ["greedy", "joint"])
def test_without_devices_every_workload_is_told_why(planner: str, files: Path, headroom: Headroom) -> None:
    (files / "s.json").write_text(canonical_json(replace(PICTURE, devices=())))
    said = headroom("plan", "--snapshot", f"{files}/s.json", "--planner", planner, "--out", f"{files}/p.json")
    assert said.status == Exit.OK, said.err
    unplaced = from_json(Plan, (files / "p.json").read_text()).unplaced
    assert [short.reasons[0].code for short in unplaced] == [ReasonCode.NO_DEVICE_OF_TYPE] * 2


def test_a_million_alternatives_are_refused_in_one_line(files: Path, headroom: Headroom) -> None:
    plain = json.loads(canonical_json(PICTURE))
    plain["services"][0]["alternatives"] = [f"model-{number}" for number in range(10**6)]
    (files / "s.json").write_text(json.dumps(plain))
    said = headroom("plan", "--snapshot", f"{files}/s.json")
    assert said.status == Exit.USAGE
    assert said.err.endswith("/services/0/alternatives: alternatives may list 64 at most, got 1000000\n")


GHOST = builders.lab([builders.service(), builders.service("ghost", model=ModelName("resnet500"))], policy=GREEDY)


@pytest.mark.parametrize("command", [("plan",), ("explain", "demo/ghost"), ("simulate", "--advise", "1")])
def test_a_model_that_the_file_does_not_have_is_told_with_its_place(
    files: Path, headroom: Headroom, command: tuple[str, ...]
) -> None:
    models = tuple(model for model in GHOST.models if model.name != "resnet500")
    (files / "g.json").write_text(canonical_json(replace(GHOST, models=models)))
    said = headroom(command[0], "--snapshot", f"{files}/g.json", *command[1:])
    told = f"headroom: {files}/g.json: /services/0/model: there is no model resnet500; did you mean resnet50?\n"
    assert (said.status, said.err) == (Exit.USAGE, told)


def test_who_cannot_be_planned_as_nobody_measured_it_is_told_so(files: Path, headroom: Headroom) -> None:
    profiles = tuple(item for item in GHOST.profiles if item.model != "resnet500")
    (files / "g.json").write_text(canonical_json(replace(GHOST, profiles=profiles)))
    said = headroom("plan", "--snapshot", f"{files}/g.json", "--work-units", "100", "--quiet")
    assert said.status == Exit.OK
    assert "no profile: it was not measured on a100, l4, t4, v100; replicas min" in said.out
