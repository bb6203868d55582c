"""Planning cycles as traces for OpenTelemetry: OTLP over HTTP in its JSON form, without another package.

Loaded only where HEADROOM_OTLP_ENDPOINT is set. A cycle is a trace, its steps are spans in it, planners that were asked
are events of the step that asked them. The trace's id is made of the cycle's, so that whoever reads one in a log finds
the other. A receiver that does not answer holds up no cycle: spans wait in a short line and the oldest are lost.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from app.logs import EventLog
from headroom_client.way import way
from solvers.cycle.record import CycleRecord, CycleStep
from solvers.errors import InputError
from solvers.version import VERSION

WAITING_MAX = 64
"""Cycles."""
ANSWER_S = 5.0
_INTERNAL, _ERROR = 1, 2
_log = EventLog("headroom.traces")
Attribute = Mapping[str, Any]


class Tracer:
    """Sends cycles, from a thread of its own."""

    def __init__(self, endpoint: str, headers: str, holder: str) -> None:
        """Raises InputError for an address or headers that cannot be used."""
        if not endpoint.startswith(("http://", "https://")):
            raise InputError("HEADROOM_OTLP_ENDPOINT begins with http:// or https://, such as http://collector:4318")
        pairs = [each.partition("=") for each in headers.split(",") if each.strip()]
        if not all(name.strip() and separator for name, separator, _ in pairs):
            raise InputError("HEADROOM_OTLP_HEADERS is NAME=VALUE, several by commas")
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._headers = {name.strip(): text.strip() for name, _, text in pairs}
        self._resource = _attributes(
            {"service.name": "headroom-planner", "service.version": VERSION, "service.instance.id": holder}
        )
        self._waiting: queue.Queue[CycleRecord | None] = queue.Queue(WAITING_MAX)
        self._dropped = self._failed = 0
        self._well = True
        self._thread = threading.Thread(target=self._send_all, name="traces", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Cycles of which nobody heard."""
        return self._dropped + self._failed

    def put(self, record: CycleRecord) -> None:
        """Have a cycle told; never waits."""
        while True:
            try:
                self._waiting.put_nowait(record)
            except queue.Full:
                self._drop()
            else:
                return

    def close(self) -> None:
        """Send what waits, unless that takes too long."""
        while self._waiting.full():
            self._drop()
        self._waiting.put(None)
        self._thread.join(ANSWER_S)

    def _drop(self) -> None:
        try:
            self._waiting.get_nowait()
        except queue.Empty:
            return
        self._dropped += 1

    def _send_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._send(record)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                if self._well:
                    _log.warning("traces.untold", url=self._url, reason=str(error), lost=self.lost)
                self._well = False
                self._failed += 1
            else:
                self._well = True

    def _send(self, record: CycleRecord) -> None:
        scope = {"scope": {"name": "headroom"}, "spans": spans_of(record)}
        body = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        headers = {"Content-Type": "application/json", **self._headers}
        httpx.post(
            self._url, content=json.dumps(body), headers=headers, timeout=ANSWER_S, **way(httpx.URL(self._url))
        ).raise_for_status()


def spans_of(record: CycleRecord) -> list[dict[str, Any]]:
    """The cycle and its steps, one after the other."""
    trace = hashlib.sha256(record.id.encode()).hexdigest()[:32]
    begun_ms, steps = record.started_at_s * 1000.0, list[dict[str, Any]]()
    at_ms = begun_ms
    for timing in record.timings:
        step = _span(trace, record, timing.step.value, (at_ms, at_ms + timing.elapsed_ms))
        step["parentSpanId"] = _id(record, "cycle")
        if timing.step is CycleStep.PROPOSE:
            step["events"] = [_attempt(at_ms, item.planner, item.outcome, item.error) for item in record.attempts]
        steps.append(step)
        at_ms += timing.elapsed_ms
    cycle = _span(trace, record, "cycle", (begun_ms, at_ms))
    cycle["attributes"] = _attributes(_facts(record))
    if record.plan is None:
        cycle["status"] = {"code": _ERROR, "message": "no planner gave a plan"}
    return [cycle, *steps]


def _facts(record: CycleRecord) -> Mapping[str, object]:
    plan, decision, answered = record.plan, record.decision, record.answered
    return {
        "headroom.cycle": record.id,
        "headroom.lane": record.lane.value,
        "headroom.devices": len(record.snapshot.devices),
        "headroom.services": len(record.snapshot.services),
        "headroom.findings": len(record.findings),
        "headroom.generation": record.generation,
        "headroom.planner": None if answered is None else answered.planner,
        "headroom.ending": None if answered is None else answered.ending.value,
        "headroom.plan": record.plan_digest,
        "headroom.cost_usd_per_h": None if plan is None else plan.objective.cost_usd_per_h,
        "headroom.gap_pct": None if plan is None else plan.gap_pct,
        "headroom.unplaced": None if plan is None else len(plan.unplaced),
        "headroom.promoted": None if decision is None else decision.promote,
        "headroom.reasons": None if decision is None else [reason.value for reason in decision.reasons],
    }


def _attempt(at_ms: float, planner: str, outcome: str, error: str | None) -> dict[str, Any]:
    facts = {"headroom.planner": planner, "headroom.outcome": outcome, "headroom.error": error}
    return {"timeUnixNano": _nanos(at_ms), "name": "planner", "attributes": _attributes(facts)}


def _span(trace: str, record: CycleRecord, name: str, bounds_ms: Sequence[float]) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": _id(record, name),
        "name": f"headroom.{name}",
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanos(bounds_ms[0]),
        "endTimeUnixNano": _nanos(bounds_ms[1]),
    }


def _id(record: CycleRecord, name: str) -> str:
    return hashlib.sha256(f"{record.id}/{name}".encode()).hexdigest()[:16]


def _nanos(ms: float) -> str:
    """64-bit integers are texts in this form."""
    return str(round(ms * 1e6))


def _attributes(facts: Mapping[str, object]) -> list[Attribute]:
    return [{"key": key, "value": _value(fact)} for key, fact in facts.items() if fact is not None]


def _value(fact: object) -> dict[str, Any]:
    if isinstance(fact, bool):
        return {"boolValue": fact}
    if isinstance(fact, int):
        return {"intValue": str(fact)}
    if isinstance(fact, float):
        return {"doubleValue": fact}
    if isinstance(fact, list):
        return {"arrayValue": {"values": [_value(each) for each in fact]}}
    return {"stringValue": str(fact)}
