"""The group `profiles`: what is sent, and how refusals are told by line and column."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.output import Exit
from tests.unit.app.cli.conftest import Api, Headroom, page

SHARE = {"pointer": "row:17/share_pct_sm", "code": "value-invalid", "detail": "120 must be at most 100"}
SHORT = {"pointer": "row:18", "code": "value-invalid", "detail": "3 cells under 11 columns"}
DONE = {"points": 3, "pairs": 1, "configurations": 4, "skipped": [], "skipped_count": 0}
POINT: dict[str, Any] = {
    "model": "resnet50", "gpu_type": "t4", "batch": 8, "share_pct_sm": 50, "clock_mhz_sm": 1590,
    "latency_ms_mean": 12.5, "latency_ms_p99": None, "memory_mib": None, "power_w": 30.0, "origin": "measured",
}  # fmt: skip
PAIR: dict[str, Any] = {
    "model_a": "bert-base", "batch_a": 1, "share_pct_a": 37.5, "latency_ms_a": 4.5,
    "model_b": "resnet50", "batch_b": 8, "share_pct_b": 50.0, "latency_ms_b": 13.5,
}  # fmt: skip


def refused(*faults: dict[str, str]) -> httpx.Response:
    return httpx.Response(422, json={"code": "field-invalid", "detail": "invalid", "errors": list(faults)})


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text("model,gpu_type,batch,share_pct_sm,latency_ms\nresnet50,t4,8,50,12.5\n", encoding="utf-8")
    return path


def test_csv_is_sent_as_it_is(api: Api, headroom: Headroom, sheet: Path) -> None:
    api.answers["POST /v1/profiles"] = DONE
    said = headroom("profiles", "import", str(sheet))
    assert said.status == Exit.OK
    assert [word in said.out for word in ("points.csv", "3", "1")] == [True] * 3
    sent = api.asked[-1]
    assert sent.headers["content-type"] == "text/csv"
    assert sent.content == sheet.read_bytes()
    assert sent.url.params.get("skip_bad") is None


def test_a_list_of_points_is_sent_as_json(api: Api, headroom: Headroom, tmp_path: Path) -> None:
    api.answers["POST /v1/profiles"] = DONE
    path = tmp_path / "points.json"
    path.write_text(json.dumps([POINT]), encoding="utf-8")
    assert headroom("profiles", "import", str(path)).status == Exit.OK
    assert api.body() == [POINT]
    path.write_text('{"points": []}', encoding="utf-8")
    said = headroom("profiles", "import", str(path))
    assert (said.status, "expected a list" in said.err) == (Exit.USAGE, True)


def test_refused_rows_are_named_by_line_and_column(api: Api, headroom: Headroom, sheet: Path) -> None:
    api.answers["POST /v1/profiles"] = refused(SHARE, SHORT)
    said = headroom("profiles", "import", str(sheet))
    assert (said.status, said.out) == (Exit.USAGE, "")
    assert said.err.splitlines() == [
        f"{sheet}:17: share_pct_sm: 120 must be at most 100",
        f"{sheet}:18: 3 cells under 11 columns",
        f"headroom: {sheet}: nothing of it was imported (--skip-bad leaves bad rows out)",
    ]


def test_skipped_rows_are_named_too(api: Api, headroom: Headroom, sheet: Path) -> None:
    api.answers["POST /v1/profiles"] = {**DONE, "skipped": [SHARE], "skipped_count": 1}
    said = headroom("profiles", "import", str(sheet), "--skip-bad")
    assert said.status == Exit.OK
    assert said.err == f"{sheet}:17: share_pct_sm: 120 must be at most 100\n"
    assert api.asked[-1].url.params["skip_bad"] == "true"


def test_faults_of_lists_keep_their_pointers(api: Api, headroom: Headroom, tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text("[{}]", encoding="utf-8")
    api.answers["POST /v1/profiles"] = refused({"pointer": "/0/batch", "code": "missing", "detail": "Field required"})
    said = headroom("profiles", "import", str(path))
    assert said.err.splitlines()[0] == f"{path}: /0/batch: Field required"


def test_what_there_is_is_listed_and_shown(api: Api, headroom: Headroom) -> None:
    line = {"model": "resnet50", "gpu_type": "t4", "points": 60, "imported_at": "2026-01-01T00:00:00Z"}
    api.answers["GET /v1/profiles"] = page(line)
    assert "resnet50" in headroom("profiles", "list").out
    assert headroom("profiles", "list", "-o", "json").json == [line]
    api.answers["GET /v1/profiles/resnet50/t4"] = {"model": "resnet50", "gpu_type": "t4", "points": [POINT]}
    api.answers["GET /v1/profiles/resnet50/t4/pairs"] = page(PAIR)
    shown = headroom("profiles", "show", "resnet50", "t4")
    assert all(text in shown.out for text in ("12.5", "measured", "bert-base", "37.5"))
    assert headroom("profiles", "show", "resnet50", "t4", "-o", "json").json["pairs"] == [PAIR]


def test_pairs_alone_are_shown_and_nothing_is_no_profile(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/profiles/resnet50/t4/pairs"] = page(PAIR)
    assert "bert-base" in headroom("profiles", "show", "resnet50", "t4").out
    api.answers["GET /v1/profiles/resnet50/t4/pairs"] = page()
    assert headroom("profiles", "show", "resnet50", "t4").status == Exit.NOT_FOUND


def test_proposals_come_as_a_table_or_as_a_form_to_fill_in(api: Api, headroom: Headroom) -> None:
    found = {
        "model": "resnet50",
        "gpu_type": "t4",
        "batch": 8,
        "share_pct_sm": 40,
        "clock_mhz_sm": 1590,
        "std_pct": 31.5,
    }
    api.answers["GET /v1/profiles/resnet50/t4/next-points"] = {"items": [found]}
    said = headroom("profiles", "next-points", "resnet50", "t4", "--budget", "4")
    assert "31.5" in said.out
    assert api.asked[-1].url.params["budget"] == "4"
    (row,) = csv.DictReader(io.StringIO(headroom("profiles", "next-points", "resnet50", "t4", "--csv").out))
    assert (row["batch"], row["clock_mhz_sm"], row["latency_ms"]) == ("8", "1590", "")
    assert list(row)[-1] == "dram_util_pct"


@pytest.mark.parametrize(("progress", "words"), [("learning", "ask again"), ("failed", "log"), ("learned", "")])
def test_proposals_say_when_not_everything_was_learned(api: Api, headroom: Headroom, progress: str, words: str) -> None:
    answer = httpx.Response(200, json={"items": []}, headers={"Headroom-Belief": progress})
    api.answers["GET /v1/profiles/resnet50/t4/next-points"] = answer
    said = headroom("profiles", "next-points", "resnet50", "t4")
    assert said.status == Exit.OK
    assert (words in said.err) if words else not said.err


def test_a_long_file_goes_in_parts_and_lines_keep_their_numbers(
    api: Api, headroom: Headroom, sheet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.modelling.PART_LENGTH_MAX", 40)
    header, row = sheet.read_text(encoding="utf-8").splitlines(keepends=True)
    sheet.write_text(header + row * 5, encoding="utf-8")
    api.answers["POST /v1/profiles"] = DONE
    assert headroom("profiles", "import", str(sheet), "-o", "json").json[0]["points"] == 9
    assert [request.content.decode() for request in api.asked] == [header + row * 2, header + row * 2, header + row]
    api.answers["POST /v1/profiles"] = {**DONE, "skipped": [{**SHARE, "pointer": "row:3/batch"}], "skipped_count": 1}
    said = headroom("profiles", "import", str(sheet), "--skip-bad")
    assert [line.split(": ")[0] for line in said.err.splitlines()] == [f"{sheet}:{line}" for line in (3, 5, 7)]
