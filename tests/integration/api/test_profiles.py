"""Measurements in every form in, and what is believed out, over HTTP."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from tests.integration.api.world import World

pytestmark = pytest.mark.integration

SOLO = (
    "model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms,throughput_rps,power_w,memory_mib,l2_util_pct,"
    "dram_util_pct"
)
PAIRS = "gpu_type,model_a,batch_a,share_pct_a,model_b,batch_b,share_pct_b,latency_ms_a,latency_ms_b"


def sent(world: World, *lines: str, query: str = "", who: str = "admin") -> Any:
    body = "\n".join(lines).encode()
    return world.call("POST", f"/v1/profiles{query}", who, body=body, headers={"Content-Type": "text/csv"})


def grid() -> list[str]:
    """Sixteen measured configurations."""
    return [
        f"resnet50,t4,{batch},{share},,{2 + 1.5 * batch * 100 / share:.4f},,{20 + share / 4},{900 + 10 * batch},,"
        for batch in (1, 4, 8, 16)
        for share in (20, 40, 60, 100)
    ]


def asked(world: World, *queries: dict[str, Any], who: str = "viewer") -> Any:
    return world.call("POST", "/v1/predictions", who, plain=list(queries))


QUESTION: dict[str, Any] = {"model": "resnet50", "gpu_type": "t4", "batch": 8, "share_pct_sm": 50.0}


def test_the_solo_form_is_stored_whole(world: World) -> None:
    answer = sent(world, SOLO, "resnet50,t4,4,50,,12.5,310,31,1200,40,60", "resnet50,t4,8,50,1005,40,,,,,")
    assert answer.status_code == 200, answer.text
    assert answer.json()["points"] == 2
    points = world.call("GET", "/v1/profiles/resnet50/t4").json()["points"]
    whole = next(point for point in points if point["batch"] == 4)
    assert (whole["clock_mhz_sm"], whole["latency_ms_mean"], whole["memory_mib"]) == (1590, 12.5, 1200)
    assert (whole["throughput_rps"], whole["l2_util_pct"], whole["dram_util_pct"]) == (310, 40, 60)
    sparse = next(point for point in points if point["batch"] == 8)
    assert (sparse["clock_mhz_sm"], sparse["memory_mib"], sparse["power_w"]) == (1005, None, None)


def test_pairs_are_stored_once_whatever_their_order(world: World) -> None:
    first = sent(world, PAIRS, "t4,resnet50,8,50,resnet50,4,37.5,9,7", "t4,resnet50,4,37.5,resnet50,8,50,7.5,9.5")
    assert first.json() == {
        "points": 0,
        "pairs": 2,
        "configurations": 1,
        "skipped": [],
        "skipped_count": 0,
        "doubtful": [],
    }
    page = world.call("GET", "/v1/profiles/resnet50/t4/pairs").json()
    assert page["next_cursor"] is None
    (pair,) = page["items"]
    assert (pair["batch_a"], pair["share_pct_a"], pair["latency_ms_a"]) == (4, 37.5, 7.5)
    assert (pair["batch_b"], pair["share_pct_b"], pair["latency_ms_b"]) == (8, 50, 9.5)
    assert world.call("DELETE", "/v1/models/resnet50").status_code == 409
    assert world.call("DELETE", "/v1/profiles/resnet50/t4").status_code == 204
    assert world.call("GET", "/v1/profiles/resnet50/t4/pairs").json()["items"] == []


def test_pairs_are_paged(world: World) -> None:
    lines = [f"t4,resnet50,{batch},{share},resnet50,16,50,1,2" for batch in (1, 2) for share in (12.5, 25)]
    assert sent(world, PAIRS, *lines).json()["configurations"] == 4
    found, cursor = [], ""
    for _ in lines:
        page = world.call("GET", f"/v1/profiles/resnet50/t4/pairs?limit=1{cursor}").json()
        found += [(item["batch_a"], item["share_pct_a"]) for item in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [(1, 12.5), (1, 25), (2, 12.5), (2, 25)]
    assert page["next_cursor"] is None


@pytest.mark.parametrize(
    ("header", "row", "pointer"),
    [
        (SOLO, "resnet50,t4,4,120,,1,,,,,", "row:3/share_pct_sm"),
        (SOLO, "resnet50,t4,4,37.5,,1,,,,,", "row:3/share_pct_sm"),
        (SOLO, "resnet50,t4,4,50,,,,30,,,", "row:3/latency_ms"),
        (SOLO, "resnet50,t4,4,50,,1", "row:3"),
        (SOLO, "stranger,t4,4,50,,1,,,,,", "row:3/model"),
        (SOLO, "resnet50,card,4,50,,1,,,,,", "row:3/gpu_type"),
        (PAIRS, "t4,resnet50,4,50,stranger,4,50,1,1", "row:3/model_b"),
        (PAIRS, "t4,resnet50,4,50,resnet50,0,50,1,1", "row:3/batch_b"),
    ],
)
def test_a_bad_row_is_named_and_may_be_left_out(world: World, header: str, row: str, pointer: str) -> None:
    good = "resnet50,t4,4,50,,12.5,,,,," if header == SOLO else "t4,resnet50,4,50,resnet50,8,50,1,2"
    refused = sent(world, header, good, row)
    assert refused.status_code == 422
    assert [error["pointer"] for error in refused.json()["errors"]] == [pointer]
    assert world.call("GET", "/v1/profiles").json()["items"] == []
    kept = sent(world, header, good, row, query="?skip_bad=true")
    assert kept.status_code == 200
    assert kept.json()["points"] + kept.json()["pairs"] == 1
    assert [fault["pointer"] for fault in kept.json()["skipped"]] == [pointer]
    assert kept.json()["skipped_count"] == 1


def test_what_is_strange_is_told_and_stored(world: World) -> None:
    kept = sent(world, SOLO, "resnet50,t4,4,50,,18,,,,,", "resnet50,t4,4,50,,0.018,,,,,", "resnet50,t4,8,50,,40,,,,,")
    (doubt,) = kept.json()["doubtful"]
    assert (kept.status_code, doubt["pointer"], doubt["code"]) == (200, "row:3", "value-doubtful")
    assert "18 ms at row:2 are of one configuration; are these seconds among milliseconds?" in doubt["detail"]
    pair = sent(world, PAIRS, "t4,resnet50,8,50,resnet50,1,50,1.1,7")
    assert pair.json()["doubtful"][0] == {
        "pointer": "row:2", "code": "value-doubtful", "detail": "1.1 ms beside a neighbour, 40 ms alone"
    }  # fmt: skip
    units = sent(world, SOLO, "resnet50,t4,4,50,,18,,90000,949944320,,", "resnet50,t4,8,50,,40,,70000,0.9,,")
    assert [(doubt["pointer"], doubt["detail"].partition(";")[2]) for doubt in units.json()["doubtful"]] == [
        ("row:2", " are these bytes or KiB?"), ("row:3", " are these milliwatts?")
    ]  # fmt: skip
    assert world.call("GET", "/v1/profiles").json()["items"][0]["points"] == 2
    assert sent(world, SOLO, *grid()).json()["doubtful"] == []


def test_nothing_but_bad_rows_is_refused(world: World) -> None:
    refused = sent(world, SOLO, "resnet50,t4,0,50,,1,,,,,", query="?skip_bad=true")
    assert refused.status_code == 422
    assert [error["pointer"] for error in refused.json()["errors"]] == ["row:2/batch", ""]


def test_something_is_believed_before_anything_is_measured(world: World) -> None:
    (answer,) = asked(world, QUESTION).json()
    assert answer["mean"] > 0
    assert answer["std"] > 0
    assert answer["origin"] in ("library", "scaled")
    assert answer["support"] is False
    assert answer["source"]


def test_measurements_are_believed_at_once(world: World) -> None:
    before = asked(world, QUESTION).json()[0]
    assert sent(world, SOLO, *grid()).status_code == 200
    after = asked(world, QUESTION).json()[0]
    assert after["mean"] == pytest.approx(2 + 1.5 * 8 * 100 / 50, rel=0.15)
    assert after["std"] / after["mean"] < before["std"] / before["mean"]
    assert (after["origin"], after["support"]) == ("measured", True)
    assert after["distance"] < 1
    assert after["source"] == "fitted to 16 stored points of resnet50 on t4"


def test_every_quantity_percentile_and_neighbour_is_answered(world: World) -> None:
    assert sent(world, SOLO, *grid()).status_code == 200
    neighbour = {"model": "resnet50", "batch": 8, "share_pct_sm": 50.0}
    mean, p90, p99, crowded, rate, power, memory = asked(
        world,
        QUESTION,
        {**QUESTION, "percentile": 90.0},
        {**QUESTION, "quantity": "latency_ms_p99"},
        {**QUESTION, "neighbours": [neighbour]},
        {**QUESTION, "quantity": "throughput_rps"},
        {**QUESTION, "quantity": "power_w"},
        {**QUESTION, "quantity": "memory_mib"},
    ).json()
    assert mean["mean"] <= p90["mean"] <= p99["mean"]
    assert crowded["mean"] >= mean["mean"]
    assert rate["mean"] == pytest.approx(1000 * 8 / mean["mean"], rel=0.1)
    assert power["mean"] == pytest.approx(32.5, rel=0.2)
    assert memory["mean"] == pytest.approx(980, rel=0.1)


def test_measured_company_is_believed(world: World) -> None:
    neighbour = {"model": "resnet50", "batch": 8, "share_pct_sm": 40.0}
    question = {**QUESTION, "share_pct_sm": 40.0, "neighbours": [neighbour]}
    assert sent(world, SOLO, *grid()).status_code == 200
    alone = 2 + 1.5 * 8 * 100 / 40
    before = asked(world, question).json()[0]
    rows = [
        f"t4,resnet50,{batch},40,resnet50,8,40,{1.6 * (2 + 1.5 * batch * 2.5)},{1.6 * alone}" for batch in (1, 4, 8, 16)
    ]
    assert sent(world, PAIRS, *rows).status_code == 200
    after = asked(world, question).json()[0]
    assert abs(after["mean"] - 1.6 * alone) < abs(before["mean"] - 1.6 * alone)
    assert after["mean"] == pytest.approx(1.6 * alone, rel=0.15)


def test_csv_is_answered_as_csv(world: World) -> None:
    assert sent(world, SOLO, *grid()).status_code == 200
    body = b"share_pct_sm,model,gpu_type,batch\n50,resnet50,t4,8\n20,resnet50,t4,1\n"
    answer = world.call("POST", "/v1/predictions", "viewer", body=body, headers={"Content-Type": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert list(rows[0])[4:9] == ["latency_ms", "latency_ms_std", "throughput_rps", "power_w", "memory_mib"]
    assert [(row["origin"], row["support"]) for row in rows] == [("measured", "true")] * 2
    assert [row["batch"] for row in rows] == ["8", "1"]
    assert float(rows[0]["latency_ms"]) == pytest.approx(asked(world, QUESTION).json()[0]["mean"], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"batch": 0}, "/1/batch"),
        ({"share_pct_sm": 0.0}, "/1/share_pct_sm"),
        ({"share_pct_sm": 101.0}, "/1/share_pct_sm"),
        ({"clock_mhz_sm": -1.0}, "/1/clock_mhz_sm"),
        ({"percentile": 40.0}, "/1/percentile"),
        ({"quantity": "power_w", "percentile": 90.0}, "/1/percentile"),
        ({"quantity": "happiness"}, "/1/quantity"),
        ({"neighbours": [{"model": "a", "batch": 1}]}, "/1/neighbours/0/share_pct_sm"),
        ({"colour": "red"}, "/1/colour"),
    ],
)
def test_impossible_questions_are_refused(refusing_world: World, change: dict[str, Any], pointer: str) -> None:
    refused = asked(refusing_world, QUESTION, {**QUESTION, **change})
    assert refused.status_code == 422
    assert [error["pointer"] for error in refused.json()["errors"]] == [pointer]


def test_too_many_and_no_questions_are_refused(refusing_world: World) -> None:
    assert asked(refusing_world).status_code == 422
    assert asked(refusing_world, *([QUESTION] * 10_001)).status_code == 422
    bad = b"model,gpu_type,batch,share_pct_sm\nresnet50,t4,1,50\nresnet50,t4,x,50\n"
    refused = refusing_world.call("POST", "/v1/predictions", body=bad, headers={"Content-Type": "text/csv"})
    assert [error["pointer"] for error in refused.json()["errors"]] == ["row:3/batch"]


def test_what_nobody_ever_saw_is_null(world: World) -> None:
    (answer,) = asked(world, {**QUESTION, "model": "stranger", "gpu_type": "card"}).json()
    assert (answer["mean"], answer["std"], answer["origin"], answer["distance"]) == (None, None, None, None)


def test_measurements_are_proposed_where_they_tell_most(world: World) -> None:
    path = "/v1/profiles/resnet50/t4/next-points"
    fresh = world.call("GET", f"{path}?budget=5", "viewer").json()["items"]
    assert len({(item["batch"], item["share_pct_sm"], item["clock_mhz_sm"]) for item in fresh}) == 5
    assert sent(world, SOLO, *grid()).status_code == 200
    known = world.call("GET", f"{path}?budget=64", "viewer").json()["items"]
    measured = {(batch, share) for batch in (1, 4, 8, 16) for share in (20, 40, 60, 100)}
    highest = {(item["batch"], item["share_pct_sm"]) for item in known if item["clock_mhz_sm"] == 1590}
    assert highest
    assert not highest & measured
    assert max(item["std_pct"] for item in known) < max(item["std_pct"] for item in fresh)
    assert world.call("GET", f"{path}?budget=0").status_code == 422
    assert world.call("GET", "/v1/profiles/stranger/t4/next-points").status_code == 404
    assert world.call("GET", "/v1/profiles/resnet50/card/next-points").status_code == 404
