"""Minutes of telemetry to outcomes: what an LLM's replica executes teaches nothing of batches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

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
            uuid=uuid,
            seconds=60.0,
            clock_mhz_sm_min=1590,
            clock_mhz_sm_max=1590,
            clock_mhz_sm_mean=1590.0,
            throttled=False,
            hindered=False,
            healthy=True,
        )
        for minute, uuid in sorted({(row.minute, row.uuid) for row in rows})
    ]
    return [found.model for found in outcomes_of(rows, boards, fleet, START)]


def test_executions_of_services_become_outcomes_and_those_of_llms_do_not() -> None:
    later = replace(ROW, minute=START + timedelta(minutes=1))
    chat = replace(later, replica="demo/chat#0", model="chatter-7b")
    assert models([ROW, later]) == ["resnet50", "resnet50"]
    assert models([later, chat]) == ["chatter-7b", "resnet50"]
    assert models([later, chat], replace(FLEET, token_services=frozenset({"demo/chat"}))) == ["resnet50"]
    assert models([ROW], replace(FLEET, token_services=frozenset({"demo/vis"}))) == ["resnet50"]


@pytest.mark.parametrize(
    "odd",
    [{"batch_mean": 1e7}, {"executed_ms": 1e-9}, {"executed_ms": 1e12}, {"batch": 2_000_000, "executions": 0.0}],
    ids=["batch", "no time", "ages", "limit"],
)
def test_numbers_that_no_process_has_teach_nothing_of_its_device_and_stop_no_other(odd: dict[str, Any]) -> None:
    elsewhere = builders.device("b", 0, "t4")
    fleet = replace(FLEET, devices={T4.id: T4, elsewhere.id: elsewhere})
    beside = replace(ROW, replica="demo/speech#0", model="bert-base")
    good = replace(ROW, uuid=elsewhere.id, replica="demo/text#0", model="vgg16")
    assert models([ROW, replace(beside, **odd), good], fleet) == ["vgg16"]
