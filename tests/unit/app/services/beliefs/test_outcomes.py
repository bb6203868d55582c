"""Minutes of telemetry to outcomes: what an LLM's replica executes teaches nothing of batches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from app.services.beliefs.learning import ReportedFleet, outcomes_of
from app.store.telemetry import DeviceMinute, ReplicaMinute
from tests import builders

T4 = builders.device("a", 0, "t4")
START = datetime(2026, 1, 1, tzinfo=UTC)
FLEET = ReportedFleet(devices={T4.id: T4}, gpu_types={"t4": builders.gpu_type("t4")}, clocks_mhz_asked={})
ROW = ReplicaMinute(
    minute=START,
    uuid=T4.id,
    replica="demo/vision#0",
    kind="service",
    model="resnet50",
    share_pct_sm=50,
    sm_count=20,
    batch=8,
    ready=True,
    failed=False,
    held_s=60.0,
    completed=400.0,
    dropped=0.0,
    executions=100.0,
    executed_ms=2500.0,
    batch_mean=4.0,
)


def models(rows: list[ReplicaMinute], fleet: ReportedFleet = FLEET) -> list[str]:
    boards = [
        DeviceMinute(
            minute=minute,
            uuid=T4.id,
            seconds=60.0,
            clock_mhz_sm_min=1590,
            clock_mhz_sm_max=1590,
            throttled=False,
            healthy=True,
        )
        for minute in sorted({row.minute for row in rows})
    ]
    return [found.model for found in outcomes_of(rows, boards, fleet, START)]


def test_executions_of_services_become_outcomes_and_those_of_llms_do_not() -> None:
    later = replace(ROW, minute=START + timedelta(minutes=1))
    chat = replace(later, replica="demo/chat#0", model="chatter-7b")
    assert models([ROW, later]) == ["resnet50", "resnet50"]
    assert models([later, chat]) == ["chatter-7b", "resnet50"]
    assert models([later, chat], replace(FLEET, token_services=frozenset({"demo/chat"}))) == ["resnet50"]
    assert models([ROW], replace(FLEET, token_services=frozenset({"demo/vis"}))) == ["resnet50"]
