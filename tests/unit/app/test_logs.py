"""Log lines: JSON, ids from context, no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from app.clock import new_secret
from app.logs import EventLog, LogReporter, bound, configure_logs, scrub
from solvers.errors import StateError


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs("info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_carries_event_facts_and_context(stream: io.StringIO) -> None:
    events = EventLog("headroom.test")
    with bound(cycle="c1"), bound(plan="p1"):
        events.info("plan.promoted", generation=3)
    events.info("plan.forgotten")
    inside, outside = lines(stream)
    assert inside["event"] == "plan.promoted"
    assert (inside["cycle"], inside["plan"], inside["generation"]) == ("c1", "p1", 3)
    assert inside["level"] == "info"
    assert "cycle" not in outside


def test_errors_keep_their_code_and_traceback(stream: io.StringIO) -> None:
    events = EventLog("headroom.test")
    try:
        raise StateError("no such\nthing")
    except StateError as error:
        events.error("cycle.failed", error)
        events.warning("cycle.delayed", error)
    failed, delayed = lines(stream)
    assert failed["error_code"] == "state-conflict"
    assert failed["error"] == "no such"
    assert "Traceback" in str(failed["traceback"])
    assert "traceback" not in delayed


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://headroom:hunter2hunter2@db/headroom",
        "host=db password=hunter2hunter2 user=x",
        "Authorization: Bearer hunter2hunter2",
        pytest.param(f"sent {new_secret('hrt')}", id="secret"),
    ],
)
def test_scrub_removes_credentials(text: str) -> None:
    scrubbed = scrub(text)
    assert "***" in scrubbed
    assert "hunter2" not in scrubbed


def test_secrets_never_reach_the_line(stream: io.StringIO) -> None:
    secret = new_secret("hr")
    events = EventLog("headroom.test")
    events.info("token.issued", token=secret, detail=f"made {secret}")
    logging.getLogger("foreign.library").info("connecting with %s", secret)
    try:
        raise ValueError(f"bad url postgresql://u:{secret}@h/d")
    except ValueError as error:
        events.error("database.failed", error)
    text = stream.getvalue()
    assert len(lines(stream)) == 3
    assert secret not in text
    assert secret[3:] not in text


def test_the_reporter_logs(stream: io.StringIO) -> None:
    reporter = LogReporter(EventLog("headroom.core"))
    reporter.event("plan.searched", candidates=2)
    reporter.event("plan.searched", candidates=3)
    assert [line["candidates"] for line in lines(stream)] == [2, 3]


@pytest.mark.parametrize("name", ["planner.failed", "planner.stopped", "joint.failed"])
def test_what_the_core_calls_an_error_is_a_fact(stream: io.StringIO, name: str) -> None:
    LogReporter(EventLog("headroom.core")).event(name, planner="joint", error="out of memory")
    (line,) = lines(stream)
    assert (line["event"], line["planner"], line["error"]) == (name, "joint", "out of memory")
    assert line["level"] == ("info" if name == "joint.failed" else "warning")
