"""What planners keep from one plan of a file to the next, in a file of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli.files import write_value
from app.cli.offline import MEMORY, FileMemory
from app.cli.output import Exit
from app.services.whatif.made import standing_on
from solvers.domain.codec import from_json
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget
from solvers.planners.registry import create, think
from tests import builders
from tests.unit.app.cli.conftest import Headroom

SERVICES = [builders.service(f"each-{number}", rate_rps_declared=400.0) for number in range(4)]
PICTURE = builders.lab(SERVICES, policy=builders.policy(planners=("joint",)))
UNITS = 20


def planned(headroom: Headroom, folder: Path, picture: Snapshot, *more: str) -> tuple[dict[str, object], Plan]:
    """What the command says, and the plan that it writes."""
    write_value(f"{folder}/s.json", picture)
    words = ("--work-units", str(UNITS), "--seed", "1", "--out", f"{folder}/p.json", "-o", "json", *more)
    said = headroom("plan", "--snapshot", f"{folder}/s.json", *words)
    assert said.status == Exit.OK, said.err
    return {**said.json, "err": said.err}, from_json(Plan, (folder / "p.json").read_text())


def later(plan: Plan) -> Snapshot:
    """Half a minute later the plan stands, and one service is asked for more."""
    changed = (replace(SERVICES[0], rate_rps_declared=480.0), *SERVICES[1:])
    picture = replace(PICTURE, services=changed, taken_at_s=PICTURE.taken_at_s + 30.0)
    return standing_on(picture, plan)


def opened(said: dict[str, Any]) -> float:
    facts = {item["name"]: item["value"] for item in said["insight"]["facts"]}
    return float(facts["workloads_open"])


def test_the_next_plan_begins_with_what_was_kept_and_is_the_services(headroom: Headroom, tmp_path: Path) -> None:
    where = ("--memory", f"{tmp_path}/m.json")
    said, first = planned(headroom, tmp_path, PICTURE, *where)
    assert said["memory"] == "begins"
    state = FileMemory.of(f"{tmp_path}/m.json", PICTURE.cluster).recall("joint")
    picture = later(first)
    said, plan = planned(headroom, tmp_path, picture, *where)
    assert (said["memory"], opened(said)) == ("read", 1.0)
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=UNITS))
    assert plan == think(create("joint"), request, state, SilentReporter()).proposal.plan
    assert FileMemory.of(f"{tmp_path}/m.json", PICTURE.cluster).recall("joint") != state
    said, _ = planned(headroom, tmp_path, picture)
    assert (said["memory"], opened(said)) == (None, 4.0)


def other(**changes: object) -> Callable[[str], str]:
    """The same file, sealed again, with other content."""

    def made(text: str) -> str:
        stored = {key: item for key, item in json.loads(text).items() if key not in ("what", "format", "digest")}
        MEMORY.write("other.json", **(stored | changes))
        return Path("other.json").read_text()

    return made


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other(cluster="elsewhere"), "of elsewhere"),
        (other(version="0.0"), "version 0.0"),
        (other(states={"joint": "no base64"}), "is damaged"),
        (other(states=["joint"]), "is damaged"),
        (lambda text: text.replace('"format":1', '"format":9'), "another version"),
        (lambda text: text.replace('"states":{"joint":"', '"states":{"joint":"AAAA'), "changed after it was written"),
    ],
)
def test_a_memory_that_cannot_be_used_is_told_in_one_line_and_replaced(
    change: Callable[[str], str], told: str, headroom: Headroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "m.json"
    _, first = planned(headroom, tmp_path, PICTURE, "--memory", str(file))
    file.write_text(change(file.read_text()))
    said, plan = planned(headroom, tmp_path, PICTURE, "--memory", str(file))
    assert told in str(said["memory"])
    assert said["err"] == f"headroom: {said['memory']}; planned without it\n"
    assert plan == first
    assert FileMemory.of(str(file), PICTURE.cluster).told == "read"


def test_what_is_no_memory_is_left_as_it_is(headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("dear all")
    said, _ = planned(headroom, tmp_path, PICTURE, "--memory", str(file))
    assert "this is no memory file" in str(said["memory"])
    assert file.read_text() == "dear all"


def test_a_memory_that_a_planner_does_not_know_is_as_good_as_none(headroom: Headroom, tmp_path: Path) -> None:
    file = f"{tmp_path}/m.json"
    _, first = planned(headroom, tmp_path, PICTURE)
    memory = FileMemory(file=file, cluster=PICTURE.cluster)
    memory.keep("joint", b"of another age")
    memory.write()
    said, plan = planned(headroom, tmp_path, PICTURE, "--memory", file)
    assert (said["memory"], plan) == ("read", first)


def test_a_plan_and_a_memory_have_files_of_their_own(headroom: Headroom, tmp_path: Path) -> None:
    write_value(f"{tmp_path}/s.json", PICTURE)
    words = ("--out", f"{tmp_path}/both.json", "--memory", f"{tmp_path}/./both.json")
    said = headroom("plan", "--snapshot", f"{tmp_path}/s.json", *words)
    assert said.status == Exit.USAGE
    assert said.err == f"headroom: {tmp_path}/both.json: this file cannot hold both the plan and what planners keep\n"
    assert not (tmp_path / "both.json").exists()
