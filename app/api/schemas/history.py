"""Targets, receipts, cycles and audit events on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from app.store.cycles import CycleState
from solvers.cycle.record import CycleRecord, Decision, Lane


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TargetLine(_Closed):
    """One generation."""

    generation: int
    plan_id: str
    parent_generation: int
    promoted_at: datetime
    promoted_by: str
    fencing_token: int | None


class ReceiptLine(_Closed):
    """What a node read back; `document` is its NodeReceipt."""

    id: int
    node_id: str
    boot_id: str
    generation: int
    plan_id: str | None
    outcome: str
    observed_at: datetime
    received_at: datetime
    elapsed_ms: float
    problems: list[str]
    document: dict[str, Any]


class CycleSummary(_Closed):
    """A cycle without its record."""

    id: str
    lane: Lane
    state: CycleState
    step: str
    holder: str
    fencing_token: int
    started_at: datetime
    ended_at: datetime | None
    elapsed_ms: float | None
    policy: str | None
    planner: str | None
    snapshot_digest: str | None
    plan_digest: str | None
    generation: int | None
    decision: Decision | None
    findings_count: int
    software_version: str


class StoredCycle(CycleSummary):
    """A cycle with all that is needed to replay it; null for one that died before it knew anything."""

    record: CycleRecord | None


class EventLine(_Closed):
    """One entry of the audit trail."""

    id: int
    at: datetime
    name: str
    actor: str
    subject: str
    project: str | None
    request_id: str | None
    facts: dict[str, Any]
