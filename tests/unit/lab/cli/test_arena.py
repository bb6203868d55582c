"""The arena from the command line: runs, resumes, compares, lists, judges; failures are one line and an exit status."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli.output import Exit
from lab.arena import loading, workers
from lab.claims import catalogue
from lab.claims.claim import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort
from lab.cli import arena, one
from tests.unit.app.cli.conftest import Headroom
from tests.unit.lab.arena.fake import scenario


@pytest.fixture(autouse=True)
def fake_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to this process alone, so its runs happen here."""
    monkeypatch.setattr(loading, "KINDS", {**loading.KINDS, "fake": "tests.unit.lab.arena.fake"})
    monkeypatch.setattr(workers, "run_in_workers", lambda tasks, _jobs, hear: workers.run_here(tasks, 1, hear))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run_of(*files: Path, out: Path) -> tuple[str, ...]:
    return ("arena", "run", *map(str, files), "--out", str(out), "--jobs", "1")


def test_it_runs_what_a_scenario_proposes_and_writes_everything(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    said = headroom(*run_of(scenario(tmp_path, "one"), out=out))
    assert said.status == Exit.OK, said.err
    assert "ours against hetsev, by cost_usd: +" in said.out
    assert said.out.splitlines()[-1] == "2 seeds tell large differences only: run 10 or more"
    assert said.err.splitlines()[-1].startswith("[6/6] one × headroom, seed 1: ")
    assert {path.name for path in out.iterdir()} == {
        "runs", "times", "wanted.json", "report.html", "results.parquet", "services.parquet", "jobs.parquet",
        "windows.parquet",
    }  # fmt: skip


def test_a_second_call_runs_only_what_is_missing(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    one = scenario(tmp_path, "one")
    first = headroom(*run_of(one, out=out), "--planners", "hetsev,k8s_hpa", "--seeds", "2")
    kept = (out / "results.parquet").read_bytes()
    again = headroom(*run_of(one, out=out), "--planners", "hetsev,k8s_hpa", "--seeds", "2")
    assert (again.out, again.err) == (first.out, "")
    assert (out / "results.parquet").read_bytes() == kept
    more = headroom(*run_of(one, out=out), "--planners", "hetsev,k8s_hpa", "--seeds", "3")
    assert [line.partition(":")[0] for line in more.err.splitlines()] == [
        "[1/2] one × hetsev, seed 2", "[2/2] one × k8s_hpa, seed 2",
    ]  # fmt: skip
    fresh = headroom(*run_of(one, out=out), "--planners", "hetsev", "--seeds", "1", "--fresh")
    assert len(fresh.err.splitlines()) == 1


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    one = scenario(tmp_path, "one", fails="hetsev")
    said = headroom(*run_of(one, out=out), "--planners", "hetsev,k8s_hpa", "--seeds", "1", "-o", "json")
    assert said.status == Exit.FAILED
    assert said.err.splitlines()[-1] == f"headroom: 1 of 2 runs failed; {out}/failures tells where"
    assert said.json["failures"] == {"one × hetsev, seed 0": "hetsev cannot run here"}
    ranks = {row["contender"]: row["rank"] for row in said.json["scenarios"][0]["rows"]}
    assert ranks == {"hetsev": None, "k8s_hpa": 1}


def test_tuning_and_ones_own_planner_compete_beside_the_rest(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "from solvers.planners.greedy.planner import Greedy\n"
        "from solvers.planners.base import PlannerSpec\n"
        "class Mine(Greedy):\n    spec = PlannerSpec(name='mine', version='1', knobs=())\n"
    )
    said = headroom(
        *run_of(scenario(tmp_path, "one"), out=out), "--planners", "hetsev", "--planner", f"{own}:Mine",
        "--set", "hetsev.saturation=0.6", "--policy", "utilisation_max=0.8", "--seeds", "1", "-o", "json",
    )  # fmt: skip
    assert said.status == Exit.OK, said.err
    assert {row["contender"] for row in said.json["scenarios"][0]["rows"]} == {
        "hetsev(saturation=0.6)[utilisation_max=0.8]", "mine.py:Mine[utilisation_max=0.8]",
    }  # fmt: skip


def test_an_interruption_keeps_what_is_finished(
    tmp_path: Path, out: Path, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = arena.run_tasks, 0

    def interrupted(tasks: Any, engine: Any, jobs: Any, hear: Callable[[Any], None]) -> None:
        def stops(event: Any) -> None:
            nonlocal seen
            hear(event)
            seen += 1
            if seen == 5:
                raise KeyboardInterrupt

        real(tasks, engine, jobs, stops)

    monkeypatch.setattr(arena, "run_tasks", interrupted)
    wanted = (*run_of(scenario(tmp_path, "one"), out=out), "--planners", "hetsev,k8s_hpa", "--seeds", "2")
    said = headroom(*wanted)
    assert said.status == 130
    assert "seed 1" not in said.err
    assert len(list((out / "runs").iterdir())) == 1
    monkeypatch.setattr(arena, "run_tasks", real)
    assert len(headroom(*wanted).err.splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--planners", "nobody"), Exit.USAGE, "there is no planner 'nobody'"),
        (("--planners", "hetsev", "--set", "hetsev.nothing=1"), Exit.USAGE, "no parameter nothing"),
        (("--planner", "gone.py:Mine"), Exit.NOT_FOUND, "there is no file gone.py"),
        (("--planners", "hetsev", "--reference", "nobody"), Exit.USAGE, "no run of 'nobody'"),
        (("--planners", ","), Exit.USAGE, "name contenders with --planners"),
        (("--planners", "hetsev", "--seed-from", "1" + 20 * "0"), Exit.USAGE, "'--seed-from'"),
        (("--out", __file__), Exit.USAGE, f"{__file__}: this is no folder"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    *, options: tuple[str, ...], status: Exit, words: str, tmp_path: Path, out: Path, headroom: Headroom
) -> None:
    said = headroom(*run_of(scenario(tmp_path, "one"), out=out), *options)
    assert said.status == status
    assert words in said.err
    assert len(said.err.splitlines()) == 1, "it is told before anything runs"


def test_unknown_scenarios_name_the_known(out: Path, headroom: Headroom) -> None:
    said = headroom("arena", "run", "nowhere", "--out", str(out))
    assert said.status == Exit.NOT_FOUND
    assert said.err.startswith("headroom: there is no file and no scenario nowhere; known are ")
    assert "hetsev-production" in said.err


def test_a_scenarios_fault_names_its_line(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: fake\nname: bad\nnonsense: 1\n")
    said = headroom(*run_of(bad, out=out))
    assert said.status == Exit.USAGE
    assert f"{bad}:3: nonsense" in said.err


def test_results_are_compared_and_reported_again(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    headroom(*run_of(scenario(tmp_path, "one"), out=out))
    page = (out / "report.html").read_bytes()
    said = headroom("arena", "compare", str(out), "--reference", "k8s_hpa", "-o", "json")
    assert said.json["scenarios"][0]["reference"] == "k8s_hpa"
    (out / "report.html").unlink()
    assert headroom("arena", "report", str(out)).out.splitlines()[-1] == str(out / "report.html")
    assert (out / "report.html").read_bytes() == page
    assert headroom("arena", "compare", str(tmp_path / "no")).status == Exit.USAGE


def test_the_standing_of_ours_is_told_in_words_and_numbers(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    headroom(*run_of(scenario(tmp_path, "one"), out=out))
    answer = headroom("arena", "standing", str(out), "-o", "json").json
    ((told,), (family,)) = answer["scenarios"], answer["families"]
    assert (family["family"], family["gain_pct"]) == ("one", told["founding"]["gain_pct"])
    assert (told["founding"]["against"], told["all_others"]["against"]) == ("hetsev", "hetsev")
    said = headroom("arena", "standing", str(out)).out
    assert f"{told['founding']['gain_pct']['mean']:+.1f} %" in said
    for what in ("five, by scenario", "five, by family"):
        assert f"against the best of the {what}: clearly better, or alone in keeping the guard, on" in said
    assert headroom("arena", "standing", str(out), str(out)).out == said
    lost = headroom("arena", "standing", str(out), "--ours", "melange")
    assert lost.status == Exit.NOT_FOUND
    assert "no run of 'melange' that counts" in lost.err


def test_programs_read_figures_without_words(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    headroom(*run_of(scenario(tmp_path, "one", fails="k8s_hpa"), out=out))
    compared = list(csv.DictReader(io.StringIO(headroom("arena", "compare", str(out), "-o", "csv").out)))
    read = headroom("arena", "compare", str(out), "-o", "json").json["scenarios"][0]
    (ours,) = [line for line in compared if (line["contender"], line["metric"]) == ("headroom", "cost_usd")]
    (row,) = [each for each in read["rows"] if each["contender"] == "headroom"]
    (cell,) = [each for each in row["cells"] if each["metric"] == "cost_usd"]
    assert (ours["guard kept"], ours["seeds"]) == (row["guard"], str(cell["summary"]["n"]))
    assert [float(ours[name]) for name in ("mean", "low", "high")] == [
        cell["summary"][name] for name in ("mean", "low", "high")
    ]
    assert float(ours["relative %"]) == cell["versus"]["relative_pct"]["mean"]
    assert [(line["failed"], line["metric"], line["mean"]) for line in compared if line["contender"] == "k8s_hpa"] == [
        ("2", "", "")
    ]
    places, families = headroom("arena", "standing", str(out), "-o", "csv").out.split("\n\n")
    (duel,) = [line for line in csv.DictReader(io.StringIO(places)) if line["among"] == "the five"]
    (told,) = headroom("arena", "standing", str(out), "-o", "json").json["scenarios"]
    assert (float(duel["gain %"]), float(duel["ours"])) == (told["founding"]["gain_pct"]["mean"], told["ours"]["mean"])
    (family,) = csv.DictReader(io.StringIO(families))
    assert (family["family"], family["standing"]) == ("one", duel["standing"])


def test_results_that_are_no_longer_so_are_told_to_be(
    tmp_path: Path, out: Path, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scenario(tmp_path, "one")
    headroom(*run_of(one, out=out))
    monkeypatch.setattr(arena, "built_in", lambda: [one])
    for command in ("standing", "compare"):
        assert headroom("arena", command, str(out), "-o", "json").json["out_of_date"] == []
        assert "run them again" not in headroom("arena", command, str(out)).out
    scenario(tmp_path, "one", fails="melange")
    next((out / "runs").iterdir()).unlink()
    changed = "one is another file now than these runs read: run them again"
    for command in ("standing", "compare"):
        read = headroom("arena", command, str(out), "-o", "json")
        assert (read.json["out_of_date"], read.json["missing"]) == ([changed], 1)
        said = headroom("arena", command, str(out)).out
        for told in (said, read.err):
            assert changed in told
            assert "1 run that belongs here is not there, or not whole" in told


def test_a_run_of_ours_that_failed_is_in_its_standing(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    headroom(*run_of(scenario(tmp_path, "one", fails="headroom"), out=out))
    (told,) = headroom("arena", "standing", str(out), "-o", "json").json["scenarios"]
    assert (told["failed"], told["ours"], told["founding"]["standing"]) == (2, None, "failed")
    said = headroom("arena", "standing", str(out)).out
    assert "2 failed" in said
    assert "on 0 of 1; level or somewhat better on 0; untold on 0; failed on 1" in said


def test_held_out_seeds_are_run_from_where_one_says(tmp_path: Path, out: Path, headroom: Headroom) -> None:
    one = scenario(tmp_path, "one")
    said = headroom(*run_of(one, out=out), "--planners", "hetsev,k8s_hpa", "--seeds", "2", "--seed-from", "1000")
    assert [line.rpartition(": ")[0].partition(" × ")[2] for line in said.err.splitlines()] == [
        "hetsev, seed 1000", "hetsev, seed 1001", "k8s_hpa, seed 1000", "k8s_hpa, seed 1001",
    ]  # fmt: skip
    alone = headroom("simulate", "--scenario", str(one), "--planner", "k8s_hpa", "--seed", "1001", "-o", "json").json
    told = {item["name"]: item["value"] for item in alone["metrics"]}
    more = headroom(*run_of(one, out=out), "--planners", "hetsev", "--seeds", "12", "--seed-from", "1000", "-o", "json")
    compared = more.json["scenarios"][0]
    assert (compared["seeds"], compared["unshared"]) == ([1000, 1001], list(range(1002, 1012)))
    (row,) = (row for row in compared["rows"] if row["contender"] == "k8s_hpa")
    (cost,) = (cell["summary"] for cell in row["cells"] if cell["metric"] == "cost_usd")
    assert cost["low"] < told["cost_usd"] < cost["high"]
    page = (out / "report.html").read_text()
    assert "not counted, since not everybody ran under them: 1002, " in page


def test_folders_hold_scenarios(tmp_path: Path, headroom: Headroom) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    empty = headroom("arena", "run", str(folder))
    assert (empty.status, empty.out) == (Exit.NOT_FOUND, "")
    assert empty.err.startswith(f"headroom: there is no scenario in {folder}")
    assert [path.stem for path in arena.scenario_paths([str(scenario(folder, "one")), str(folder)])] == ["one"]


def test_the_list_names_scenarios_and_contenders(
    headroom: Headroom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: nothing\n")
    monkeypatch.setattr(arena, "built_in", lambda: [scenario(tmp_path, "one"), broken])
    said = headroom("arena", "list", "-o", "json")
    assert [item["name"] for item in said.json["scenarios"]] == ["one"]
    assert "no kind nothing" in said.json["unread"]["broken"]
    assert {"headroom", "hetsev", "morak"} <= set(said.json["contenders"])
    assert headroom("arena", "list", "-o", "name").out == "one\n"
    table = headroom("arena", "list").out
    assert "broken: cannot be read here: " in table
    assert "A fake called one" in table


def test_claims_are_printed_as_the_catalogue_tells_them(headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    efforts: list[Effort] = []

    def judge(effort: Effort) -> ClaimEvidence:
        efforts.append(effort)
        return ClaimEvidence(measured="7", status=ClaimStatus.NOT_REPRODUCED, note="why")

    made = Claim(id="AC-X-01", kind=ClaimClass.STATISTICAL, stated="8", judge=judge)
    monkeypatch.setattr(catalogue, "claims", lambda only: (made,))
    said = headroom("arena", "claims", "--seeds", "5", "--examples", "9", "--from", "here", "-o", "json")
    assert said.status == Exit.OK
    assert said.json == [
        {"id": "AC-X-01", "class": "S", "stated": "8", "measured": "7", "status": "not_reproduced", "note": "why"}
    ]
    assert (efforts[0].seeds, efforts[0].examples, efforts[0].results) == (5, 9, Path("here"))
    assert said.err == "AC-X-01: not_reproduced\n"


def test_one_scenario_is_run_once(tmp_path: Path, headroom: Headroom) -> None:
    one = str(scenario(tmp_path, "one", fails="greedy"))
    said = headroom("simulate", "--scenario", one, "--planner", "k8s_hpa", "--seed", "3", "-o", "json")
    assert (said.status, said.err) == (Exit.OK, "")
    assert (said.json["contender"], said.json["seed"]) == ("k8s_hpa", 3)
    assert headroom("simulate", "--scenario", one, "--planner", "k8s_hpa", "--seed", "3", "-o", "json").out == said.out
    table = headroom("simulate", "--scenario", one).out
    assert "hetsev, seed 0" in table
    assert "violation %" in table
    failed = headroom("simulate", "--scenario", one, "--planner", "greedy")
    assert failed.status == Exit.FAILED
    assert failed.err == "headroom: one × greedy, seed 0: greedy cannot run here\n"
    for mixed in (("--advise",), ("--lane", "act")):
        assert headroom("simulate", "--scenario", one, *mixed).status == Exit.USAGE


def test_every_fault_of_a_scenario_is_a_line(tmp_path: Path, headroom: Headroom) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: world\nname: bad\ncolour: red\nsize: 3\n")
    for command in (("arena", "run", str(bad)), ("simulate", "--scenario", str(bad))):
        said = headroom(*command)
        assert said.status == Exit.USAGE
        assert {f"headroom: {bad}:3: colour: there is no such field here"} < set(said.err.splitlines())
        assert all(line.startswith(f"headroom: {bad}:") for line in said.err.splitlines())


def test_limits_of_planning_override_the_scenarios_policy(
    tmp_path: Path, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(one, "simulate_scenario", lambda output, **wish: asked.append(wish))
    said = headroom("simulate", "--scenario", "one", "--work-units", "50", "--deadline-s", "2")
    assert said.status == Exit.OK
    assert asked[0]["policy"] == ("deadline_s=2.0", "work_units=50")
