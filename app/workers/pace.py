"""When the next cycle is due: pure decisions on what was seen, so that the loops themselves have nothing to decide.

What the database shows now is compared with what the last cycle planned for; sights, demands and moments are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.store.telemetry import Hearing
from solvers.cycle.record import CycleRecord, HoldReason, Lane
from solvers.domain.ids import ServiceId
from solvers.domain.ownership import owners_of
from solvers.domain.policy import Policy

RETRY_S = 3.0
"""How soon a cycle is tried again after a hold that time alone may lift, or after a failure."""
RETRY_S_MAX = 60.0
"""Repeated failures double the wait up to this."""

MISSED = 2.0
"""So many reports."""
RETURN_S = 30.0
"""How long agents that found nobody wait at most before they call again."""
A_MOMENT_S = 0.1
_PASSING = {HoldReason.NO_PLAN, HoldReason.STALE_DATA, HoldReason.SUPERSEDED, HoldReason.COOLDOWN}
_OF_ALL = {HoldReason.FATAL_FINDINGS, HoldReason.SUPERSEDED, HoldReason.LEASE_LOST}
"""What holds one plan of several policies whole, whatever each of them said."""


class CycleCause(StrEnum):
    PLACE = "place"
    INTENT = "intent"
    FLEET = "fleet"
    ENDED = "ended"
    DEMAND = "demand"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSight:
    """What a cheap look at the database shows: a mark of all documents, the nodes that report, by each time after which
    some policy calls them silent, all that ever did, and how many jobs and tasks are done, whose share is free.
    """

    intent: str
    live_nodes: tuple[tuple[str, ...], ...]
    hearing: Hearing
    works_ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleMemory:
    """What the loops remember of the last cycles: the sight they began with, the demand they planned for, when to try
    again, and how many failed in a row."""

    sight: DatabaseSight | None = None
    planned_rps: Mapping[ServiceId, float]
    retry_at_s: float | None = None
    failures: int = 0


NOTHING_YET = CycleMemory(planned_rps={})


def cause_of(sight: DatabaseSight, memory: CycleMemory, now_s: float) -> CycleCause | None:
    """Why a cycle should run right now, if it should."""
    if memory.sight is None or sight.intent != memory.sight.intent:
        return CycleCause.INTENT
    if sight.live_nodes != memory.sight.live_nodes:
        return CycleCause.FLEET
    if sight.works_ended != memory.sight.works_ended:
        return CycleCause.ENDED
    if memory.retry_at_s is not None and now_s >= memory.retry_at_s:
        return CycleCause.RETRY
    return None


def deaf(sight: DatabaseSight, report_interval_s: float) -> bool:
    """Whether it is we who are away: all nodes at once have missed reports."""
    return sight.hearing.unheard_s > MISSED * report_interval_s


def heard(sight: DatabaseSight) -> int:
    """How many nodes are heard, by the least patient policy."""
    return min(map(len, sight.live_nodes), default=0)


def incomplete(sight: DatabaseSight, deaf_at_s: float | None, now_s: float) -> bool:
    """Whether some nodes are heard and others are not because we were deaf a moment ago: they fall silent one after the
    other as their last reports age, and come back one after the other. None of them is lost for that.
    """
    return deaf_at_s is not None and now_s < deaf_at_s + RETURN_S and 0 < heard(sight) < sight.hearing.nodes


def remember(sight: DatabaseSight, records: Sequence[CycleRecord], now_s: float) -> CycleMemory:
    """The memory after cycles that began with this sight. Only the acting lane's is tried again."""
    if not records:
        return CycleMemory(sight=sight, planned_rps={})
    acting = next((record for record in records if record.lane is Lane.ACT), None)
    picture = (acting or records[0]).snapshot
    planned_rps = {demand.service: demand.rate_rps_upper for demand in picture.demands}
    retry_at_s = None if acting is None else _retry_at_s(acting, now_s)
    return CycleMemory(sight=sight, planned_rps=planned_rps, retry_at_s=retry_at_s)


def remember_failure(sight: DatabaseSight, before: CycleMemory, now_s: float) -> CycleMemory:
    """The memory after cycles that raised: nothing new is known, and the next try waits longer each time."""
    wait_s = min(RETRY_S * 2.0 ** min(before.failures, 16), RETRY_S_MAX)
    return replace(before, sight=sight, retry_at_s=now_s + wait_s, failures=before.failures + 1)


def _retry_at_s(record: CycleRecord, now_s: float) -> float | None:
    """Of several policies the first that time alone may let change something."""
    waits = [now_s + RETRY_S] if record.generation is not None and _made_room(record) else []
    reasons = set(record.decision.reasons) if record.decision is not None else {HoldReason.NO_PLAN}
    parts = record.plan.parts if record.plan is not None else ()
    if not parts or reasons & _OF_ALL:
        found = [_passes_at_s(record, record.snapshot.policy, reasons, now_s)]
    else:
        policies = {policy.name: policy for policy in (record.snapshot.policy, *record.snapshot.policies)}
        found = [_passes_at_s(record, policies[part.policy], set(map(HoldReason, part.held)), now_s) for part in parts]
    return min((*waits, *(at_s for at_s in found if at_s is not None)), default=None)


def _passes_at_s(record: CycleRecord, policy: Policy, reasons: set[HoldReason], now_s: float) -> float | None:
    """When a policy's plan that was held for these reasons may be held no more; None where it takes news."""
    if not reasons or not reasons <= _PASSING:
        return None
    if reasons != {HoldReason.COOLDOWN}:
        return now_s + RETRY_S
    if record.generation is not None:
        return now_s + policy.cooldown_s + A_MOMENT_S
    # The picture's times are of the database's clock; the cycle began by ours, a moment before it was taken.
    left_s = record.snapshot.target.promoted_at_s + policy.cooldown_s - record.snapshot.taken_at_s
    return max(record.started_at_s + left_s, now_s) + A_MOMENT_S


def _made_room(record: CycleRecord) -> bool:
    """Whether somebody is short who had to plan around replicas of another policy that have left its devices now."""
    plan = record.plan
    if plan is None or not plan.parts or not plan.unplaced:
        return False
    owners = owners_of(record.snapshot)
    return any(
        owners.policy_for(item.workload).name != owners.policy_at(item.device).name
        for item in record.snapshot.target.assignments
    )
