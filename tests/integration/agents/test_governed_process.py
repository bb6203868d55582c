"""The governor in a real agent process: batches move between plans, the plan stays applied, and a restart goes on."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.agents.control_plane import ControlPlane
from tests.integration.agents.test_agent_process import AgentProcess, agent, applied, plane, replica, target

__all__ = ["agent", "plane"]

pytestmark = pytest.mark.integration


@pytest.fixture
def users(plane: ControlPlane) -> Iterator[threading.Event]:
    """Requests for replica `a` from the moment the event is set, until the test ends."""
    begun, ended = threading.Event(), threading.Event()

    def send() -> None:
        begun.wait()
        body = json.dumps({"replicas": {"a": 100}, "interval_s": 0.5})
        while not ended.is_set():
            at = urlsplit(plane.joins[-1]["endpoint"]).netloc
            # While the agent is being restarted, nobody answers, or not to the end.
            with suppress(OSError, http.client.HTTPException), closing(http.client.HTTPConnection(at, timeout=5)) as to:
                to.request("POST", "/load", body)
                to.getresponse().read()
            ended.wait(0.25)

    thread = threading.Thread(target=send)
    thread.start()
    yield begun
    ended.set()
    begun.set()
    thread.join(timeout=20)


def batch_of(plane: ControlPlane) -> int:
    rows = [row for row in plane.reports[-1]["replicas"] if row["replica"] == "a"] if plane.reports else []
    return int(rows[0]["batch"]) if rows else 0


def test_batches_follow_what_is_measured_and_the_plan_stays_applied(
    plane: ControlPlane, agent: AgentProcess, users: threading.Event
) -> None:
    agent.start()
    plane.wait_for(lambda: plane.joins)
    # No batch of this model is executed within a millisecond, so that every period asks for a smaller one.
    tight: dict[str, Any] = {"latency_ms_limit": 1.0, "latency_execution_only": True}
    plane.promote(target(plane, 1, [replica("a", 50, **tight)], [replica("b", 30, batch_min=8, batch_max=8)]))
    plane.wait_for(lambda: applied(plane, 1))
    users.set()
    plane.wait_for(lambda: 0 < batch_of(plane) <= 5, deadline_s=30.0)
    assert plane.reports[-1]["generation_applied"] == 1
    assert [row["batch"] for row in plane.reports[-1]["replicas"] if row["replica"] == "b"] == [8]
    assert {receipt["outcome"] for receipt in plane.receipts} <= {"partial", "applied"}
    assert [receipt["outcome"] for receipt in plane.receipts].count("applied") >= 1
    assert agent.events("governor.decided")

    agent.end(signal.SIGTERM)
    held = batch_of(plane)
    seen = len(plane.reports)
    agent.start()
    plane.wait_for(lambda: len(plane.reports) > seen + 1 and batch_of(plane) > 0)
    assert batch_of(plane) <= held


def test_turned_off_it_leaves_the_plan_as_it_is(
    plane: ControlPlane, agent: AgentProcess, users: threading.Event
) -> None:
    agent.start("--governor", "off")
    plane.wait_for(lambda: plane.joins)
    tight: dict[str, Any] = {"latency_ms_limit": 1.0, "latency_execution_only": True}
    plane.promote(target(plane, 1, [replica("a", 50, **tight)], []))
    plane.wait_for(lambda: applied(plane, 1))
    users.set()
    # Long enough for three periods of a governor, told by the reports of the agent itself.
    plane.wait_for(lambda: sum(_violated(report) > 0.0 for report in plane.reports) >= 30, deadline_s=30.0)
    assert {row["batch"] for report in plane.reports for row in report["replicas"]} == {8}
    assert agent.events("governor.decided") == []


def _violated(report: dict[str, Any]) -> float:
    return sum(float(row["violated"]) for row in report["replicas"])
