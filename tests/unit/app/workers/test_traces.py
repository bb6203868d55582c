"""Cycles as OTLP traces before a receiver that the test runs; nothing of it is loaded where it is off."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.workers import traces
from app.workers.traces import WAITING_MAX, Tracer, spans_of
from solvers.cycle.record import Attempt, CycleRecord, CycleStep, Timing
from solvers.domain.ids import CycleId
from solvers.domain.plan import PlannerEnding
from solvers.errors import InputError
from tests.integration.store.plans import record
from tests.waiting import wait_until


def cycle(number: int = 1) -> CycleRecord:
    attempts = (
        Attempt(planner="joint", status="failed", error="overran its deadline", ending=PlannerEnding.KILLED),
        Attempt(planner="greedy", status="feasible"),
    )
    timings = tuple(Timing(step=step, elapsed_ms=10.0) for step in (CycleStep.OBSERVE, CycleStep.PROPOSE))
    return replace(record(f"cycle-{number}"), id=CycleId(f"cycle-{number}"), attempts=attempts, timings=timings)


@contextmanager
def collecting(gate: threading.Event | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A collector: its address and what it was sent. It answers nobody while its gate is closed."""
    sent: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if gate is not None:
                gate.wait(60.0)
            sent.append(
                {
                    "path": self.path,
                    "headers": {name.lower(): told for name, told in self.headers.items()},
                    "body": body,
                }
            )
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", sent
    if gate is not None:
        gate.set()
    server.shutdown()
    server.server_close()


def test_a_collector_is_sent_a_cycle_with_its_steps_and_planners() -> None:
    with collecting() as (address, sent):
        tracer = Tracer(f"{address}/", "authorization=Bearer x, tenant=a", "host:1")
        tracer.put(cycle())
        wait_until(lambda: sent, "a trace")
        tracer.close()
    (each,) = sent
    assert each["path"] == "/v1/traces"
    assert each["headers"]["content-type"] == "application/json"
    assert (each["headers"]["authorization"], each["headers"]["tenant"]) == ("Bearer x", "a")
    (resource,) = each["body"]["resourceSpans"]
    named = {item["key"]: item["value"] for item in resource["resource"]["attributes"]}
    assert named["service.name"] == {"stringValue": "headroom-planner"}
    (scope,) = resource["scopeSpans"]
    root, observe, propose = scope["spans"]
    assert [span["name"] for span in scope["spans"]] == ["headroom.cycle", "headroom.observe", "headroom.propose"]
    assert {span["traceId"] for span in scope["spans"]} == {root["traceId"]}
    assert {span["parentSpanId"] for span in (observe, propose)} == {root["spanId"]}
    assert "parentSpanId" not in root
    assert (len(root["traceId"]), len(root["spanId"])) == (32, 16)
    assert observe["endTimeUnixNano"] == propose["startTimeUnixNano"]
    assert int(root["endTimeUnixNano"]) - int(root["startTimeUnixNano"]) == pytest.approx(20e6, abs=1e3)
    killed, answered = propose["events"]
    assert {item["key"]: item["value"] for item in killed["attributes"]} == {
        "headroom.planner": {"stringValue": "joint"},
        "headroom.outcome": {"stringValue": "killed"},
        "headroom.error": {"stringValue": "overran its deadline"},
    }
    assert answered["timeUnixNano"] == propose["startTimeUnixNano"]
    facts = {item["key"]: item["value"] for item in root["attributes"]}
    assert facts["headroom.cycle"] == {"stringValue": "cycle-1"}
    assert facts["headroom.devices"] == {"intValue": str(len(cycle().snapshot.devices))}


def test_a_cycle_has_the_same_ids_wherever_it_is_told() -> None:
    assert spans_of(cycle()) == spans_of(cycle())
    assert spans_of(cycle(1))[0]["traceId"] != spans_of(cycle(2))[0]["traceId"]


def test_a_collector_that_hangs_holds_up_no_cycle_and_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "ANSWER_S", 60.0)
    gate = threading.Event()
    with collecting(gate) as (address, sent):
        tracer = Tracer(address, "", "host:1")
        first = cycle()
        for number in range(2 * WAITING_MAX):
            tracer.put(replace(first, id=CycleId(f"cycle-{number}")))
        assert tracer.lost >= WAITING_MAX - 1
        gate.set()
        wait_until(lambda: len(sent) + tracer.lost == 2 * WAITING_MAX, "the rest")
        tracer.close()
        told = [each["body"]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] for each in sent]
        assert told[-1] == spans_of(cycle(2 * WAITING_MAX - 1))[0]["traceId"]


@pytest.mark.parametrize(("endpoint", "headers"), [("collector:4318", ""), ("http://c:4318", "Bearer")])
def test_settings_that_lead_nowhere_are_said(endpoint: str, headers: str) -> None:
    with pytest.raises(InputError, match="HEADROOM_OTLP_"):
        Tracer(endpoint, headers, "host:1")


def test_nothing_of_it_is_loaded_where_it_is_off() -> None:
    asked = "import sys, app.bootstrap; sys.exit('app.workers.traces' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
