"""Commands that look again and again, and words and numbers that lead nowhere: each is told in a line."""

from __future__ import annotations

import os
import sys
from typing import Any

import httpx
import pytest

from app.cli.output import Exit
from app.cli.program import run
from tests.unit.app.cli.conftest import Api, Headroom, page
from tests.unit.app.cli.test_commands import fleet, service

HUGE = "9" * 400


@pytest.mark.parametrize(
    "words",
    [
        ("report", "cost", "--from", "0001-01-01T00:00+05:00"),
        ("report", "cost", "--to", "9999-12-31T23:59-05:00"),
        ("report", "cost", "--last", f"{HUGE}d"),
        ("report", "cost", "--last", f"{HUGE * 20}d"),
        ("report", "focus", "--from", "0001-01-01T00:00+05:00"),
        ("drain", "n", "--wait", "--timeout", f"{HUGE}d"),
        ("drain", "n", "--timeout", f"{HUGE * 20}d"),
        ("token", "create", "ops", "--role", "viewer", "--ttl", f"{HUGE}d"),
        ("rollback", "3", "--cooldown", f"{HUGE}m"),
        ("task", "submit", "m", "--inputs", "5", "--deadline", f"{HUGE}h"),
        ("task", "submit", "m", "--inputs", "5", "--min-rate", "inf"),
        ("task", "submit", "m", "--inputs", "5", "--min-rate", "nan"),
        ("task", "submit", "m", "--inputs", "5", "--min-rate", "1", "--lambda", "nan"),
        ("task", "list", "-n", HUGE),
        ("profile", "p/s", "--node", "n", "--budget", f"{HUGE}m"),
        ("top", "-n", "1", "--interval", "inf"),
        ("top", "-n", "1", "--interval", "1e300"),
        ("top", "-n", "1", "--interval", "nan"),
        ("get", "services", "--watch", "--looks", "1", "--interval", "inf"),
        ("get", "services", "--watch", "--looks", "1", "--interval", "nan"),
        ("get", "services", "-n", HUGE),
        ("get", "events", "-n", HUGE),
        ("plans", "-n", HUGE),
        ("webhook", "deliveries", "w", "-n", HUGE),
        ("doctor", "--limit-s", "nan"),
        ("plan", "--deadline-s", "nan"),
        ("traffic", "-f", "none.yaml", "--day-s", "inf"),
        ("traffic", "-f", "none.yaml", "--anchor-s", "inf"),
    ],
)
def test_numbers_and_moments_beyond_sense_are_refused_in_one_line(
    api: Api, headroom: Headroom, words: tuple[str, ...]
) -> None:
    api.answers |= {f"GET /v1/{route}": page() for route in ("services", "events", "plans", "tasks/status")}
    api.answers |= {"GET /v1/webhooks/w/deliveries": page(), "GET /v1/fleet": {}}
    said = headroom(*words)
    assert (said.status, len(said.err.splitlines()), len(said.err) < 300) == (Exit.USAGE, 1, True), said.err
    assert not api.asked
    assert "none.yaml" not in said.err


@pytest.mark.parametrize("command", ["logs", "explain"])
@pytest.mark.parametrize("name", ["a/b/c", "a/", "/b", "/"])
def test_a_workload_of_another_shape_is_refused(api: Api, headroom: Headroom, command: str, name: str) -> None:
    said = headroom(command, name)
    assert (said.status, said.err) == (
        Exit.USAGE,
        f"headroom: a workload is named NAME or PROJECT/NAME, got {name!r}\n",
    )
    assert not api.asked


@pytest.mark.parametrize(
    "words", [("logs",), ("explain",), ("task", "show"), ("task", "cancel"), ("routes", "list", "--service")]
)
@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "a b", "résnet", "A", "a\nb", "a?b", "#", "x" * 300])
def test_what_is_no_name_is_told_before_it_is_asked_for(
    api: Api, headroom: Headroom, words: tuple[str, ...], name: str
) -> None:
    said = headroom(*words, f"vision/{name}")
    quoted = repr(name if len(name) <= 80 else name[:80] + "…")
    assert said.status == Exit.USAGE
    assert f"PROJECT/NAME: {quoted} must be 1 to 63 of a-z" in said.err
    assert said.err.count("\n") == 1
    assert not api.asked


@pytest.mark.parametrize("words", [("get",), ("delete",), ("patch", "-p", "{}"), ("edit",)])
@pytest.mark.parametrize("name", ["vision/", "/resnet50", "", "/", "..", "vision/..", "../..", "vision//resnet50"])
def test_a_key_with_an_empty_part_or_dots_is_not_taken_for_another(
    api: Api, headroom: Headroom, words: tuple[str, ...], name: str
) -> None:
    said = headroom(*words, "service", name)
    got = repr(name) if name.strip("/") else "nothing"
    assert (said.status, said.err) == (Exit.USAGE, f"headroom: a service is named PROJECT/NAME, got {got}\n")
    assert not api.asked


def test_a_deletion_of_profiles_with_an_empty_part_is_refused(api: Api, headroom: Headroom) -> None:
    said = headroom("delete", "profile", "resnet50//t4")
    assert (said.status, said.err) == (
        Exit.USAGE,
        "headroom: one of profiles is named MODEL/GPU_TYPE, got 'resnet50//t4'\n",
    )
    assert not api.asked


class Looks(dict[str, Any]):
    """Answers that the second look finds changed."""

    def __init__(self, *looks: Any) -> None:
        super().__init__()
        self.looks = list(looks)

    def get(self, path: str, default: Any = None) -> Any:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def test_what_only_moved_down_a_watched_list_is_not_called_deleted(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    first, second, last = service("a"), service("b"), service("c")
    words = ("get", "services", "-n", "1", "--watch", "-o", "json", "--looks")
    api.answers = Looks(page(second, last), page(first, second, last))
    said = headroom(*words, "1")
    assert said.err == ""
    assert [name in said.out for name in ('"a"', '"b"', '"c"')] == [True, True, False]
    api.answers = Looks(page(second, last), page(first, second, last), page(first, last))
    assert headroom(*words, "2").err == "deleted service/vision/b\n"


def test_top_outlives_a_server_without_its_database(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    away = httpx.Response(503, json={"code": "database-unavailable", "detail": "the database is away"})
    api.answers = Looks(fleet(), away, fleet())
    said = headroom("top", "-n", "2")
    assert (said.status, len(api.asked), said.err) == (Exit.OK, 3, "")
    api.answers = Looks(fleet(), away)
    assert "the database is away" in headroom("top", "-n", "1").out


def test_whoever_waits_outlives_a_restart_of_the_server(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    away = httpx.Response(503, json={"code": "transient", "detail": "the database is away"})
    tries = [away, away]
    told = "headroom: the database is away (transient); asking again\n"

    api.answers = Looks(page(service("a")), *tries, page(service("a"), service("b")))
    said = headroom("get", "services", "--watch", "--looks", "1", "-o", "name")
    assert (said.status, said.out, said.err) == (Exit.OK, "service/vision/a\nservice/vision/b\n", told)

    full = {"node": "n1", "schedulable": False, "empty": False, "planned": ["vision/a#0"], "running": []}
    full |= {"blocks": ["vision/a#0 is planned there"], "age_s": 1.0}
    api.answers = Looks(full, *tries, {**full, "empty": True, "blocks": [], "short": []})
    said = headroom("drain", "n1", "--wait")
    assert (said.status, said.err) == (Exit.OK, told)
    assert "n1 is empty: safe to reboot" in said.out

    run = {"id": 1, "uuid": "GPU-1", "state": "running", "measured": 0, "doubtful": 0, "detail": ""}
    api.answers = Looks(run, run, *tries, {**run, "state": "done"})
    said = headroom("profile", "vision/a", "--node", "n1", "-o", "json")
    assert (said.status, told in said.err, said.json["state"]) == (Exit.OK, True, "done")


def test_waiting_for_a_server_that_stays_away_ends_with_the_time_given(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(1000))
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("time.monotonic", lambda: float(next(now_s)))
    full = {"node": "n1", "schedulable": False, "empty": False, "planned": [], "running": [], "blocks": ["why"]}
    api.answers = Looks(full, httpx.Response(503, json={"code": "transient", "detail": "the database is away"}))
    assert headroom("drain", "n1", "--wait", "--timeout", "9s").status == Exit.FAILED


def test_a_node_that_is_empty_says_who_is_short_of_a_place(api: Api, headroom: Headroom) -> None:
    empty = {
        "node": "n1",
        "schedulable": False,
        "empty": True,
        "planned": [],
        "running": [],
        "blocks": [],
        "age_s": 1.0,
        "short": fleet()["short"],
    }
    api.answers["POST /v1/nodes/n1/drain"] = empty
    head = "n1 is empty: safe to reboot (headroom uncordon n1 puts it back)"
    for words in (("drain", "n1", "--wait"), ("drain", "n1")):
        lines = headroom(*words).out.splitlines()
        assert lines[:2] == [head, "not served as asked now:"]
        assert lines[2] == "  vision/big: 12 % of 300 requests/s unserved: t4 has too little SM share left"
        assert lines[-1] == "  and 1 more: headroom explain WORKLOAD says why of each"
    assert headroom("drain", "n1", "-o", "json").json["short"] == empty["short"]
    # A server of an earlier version tells nobody.
    del empty["short"]
    assert headroom("drain", "n1", "--wait").out == f"{head}\n"


OLD, NEW = "0" * 64, "f" * 64
IN_TIME, OVER = "2999-01-01T00:00:00+00:00", "2026-01-31T00:00:00+00:00"


def _key(node: str, authority: str | None, day: int, **facts: str | None) -> dict[str, Any]:
    item = {"node_id": node, "key": f"{node}{day}", "authority": authority, "issued_at": f"2026-01-{day:02}T00:00:00Z"}
    return {"expires_at": IN_TIME, "revoked_at": None, **item, **facts}


@pytest.mark.parametrize(
    ("signer", "last"),
    [
        (NEW, f"{NEW[:16]} signs, but not the newest key of b: `headroom ca retire` would shut it out"),
        (OLD, f"{OLD[:16]} signs, but not the newest key of a: `headroom ca retire` would shut it out"),
        (None, None),
    ],
)
def test_who_still_has_a_key_of_the_authority_before(
    api: Api, headroom: Headroom, signer: str | None, last: str | None
) -> None:
    """What counts is the newest key of each: the one before is good for a month, and is shown."""
    keys = [
        _key("a", OLD, 1), _key("a", NEW, 2), _key("b", NEW, 1, revoked_at=OVER), _key("b", OLD, 2),
        _key("gone", NEW, 1, expires_at=OVER), _key("gone", OLD, 1, revoked_at=OVER),
        {**_key("bare", None, 1), "key": None, "issued_at": None, "expires_at": None},
    ]  # fmt: skip
    api.answers |= {"GET /v1/identities": page(*keys), "GET /v1/authorities": {"sha256": signer}}
    lines = headroom("nodes", "identities").out.splitlines()
    assert lines[len(keys) + 1 :] == ([] if last is None else [last])
    assert headroom("nodes", "identities", "-o", "json").json == keys


def test_when_every_node_has_a_key_of_the_authority_that_signs(api: Api, headroom: Headroom) -> None:
    keys = [_key("a", OLD, 1), _key("a", NEW, 2)]
    api.answers |= {"GET /v1/identities": page(*keys), "GET /v1/authorities": {"sha256": NEW}}
    assert headroom("nodes", "identities").out.endswith(f"\n{NEW[:16]} signs, and signed every node's newest key\n")


def test_top_ends_where_its_token_is_refused(api: Api, headroom: Headroom) -> None:
    api.answers = Looks(fleet(), httpx.Response(401, json={"code": "token-invalid", "detail": "no such token"}))
    assert headroom("top", "-n", "2").status == Exit.REFUSED


def test_top_tells_a_pipe_every_look_until_its_reader_leaves(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    api.answers["GET /v1/fleet"] = fleet()
    assert headroom("top", "-n", "3").out.count("nodes up") == 3
    api.asked.clear()
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        assert (run(["top", "-n", "9"]), len(api.asked)) == (Exit.OK, 2)


@pytest.mark.parametrize("words", [("report", "cost"), ("report", "focus")])
@pytest.mark.parametrize("last", ["0h", "0w", "0months"])
def test_a_span_of_no_time_is_told_as_it_was_typed(
    api: Api, headroom: Headroom, words: tuple[str, ...], last: str
) -> None:
    said = headroom(*words, "--last", last)
    assert (said.status, said.err) == (Exit.USAGE, f"headroom: --last {last} is no time at all\n")
    assert not api.asked
