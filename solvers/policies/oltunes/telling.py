"""What OLTunes' planner says of its choices, as reasons: scores, estimated power, affinity, groups, places in line.

Owns which facts are told of whom. Scores are relative to a task's own candidates, estimated power is the paper's score
and no unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import isfinite

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.plan import Assignment
from solvers.planners.draft import Draft
from solvers.policies.oltunes.groups import JoinedReplica, WaitingWork
from solvers.policies.oltunes.memory import Flight, OltunesMemory
from solvers.policies.oltunes.queues import WindowPace
from solvers.policies.oltunes.rating import Rated
from solvers.policies.oltunes.scores import worth_a_slice

CANDIDATES_TOLD = 5


def told(
    item: Assignment, joined: JoinedReplica | None, waiting: WaitingWork | None, flight: Flight | None
) -> Assignment:
    """An assignment whose first reason says why this configuration, and why this group."""
    facts: tuple[Fact, ...] = ()
    if joined is not None and waiting is not None:
        facts = (*_scored(waiting.rated, joined.row), *_grouped(joined))
    elif flight is not None and flight.device == item.device:
        facts = (Fact(name="group", value=float(flight.group)), *_affinity(flight.affinity))
    if not facts or not item.reasons:
        return item
    first, *others = item.reasons
    return replace(item, reasons=(replace(first, facts=(*first.facts, *facts)), *others))


def candidates_told(draft: Draft, waiting: WaitingWork, taken: Collection[int]) -> tuple[Reason, ...]:
    """The best of the configurations that were looked at and not taken, best first."""
    rated = waiting.rated
    small = {int(row) for each in rated.small.values() for row in each}
    rows = {int(row) for kept in (rated.small, rated.any) for each in kept.values() for row in each} - set(taken)
    best = sorted(rows, key=lambda row: (-rated.score[row], row))[:CANDIDATES_TOLD]
    found = []
    for row in best:
        option = draft.option(waiting.need, row)
        facts = (
            Fact(name="share_pct_sm", value=float(option.share_pct)),
            Fact(name="batch", value=float(option.batch)),
            *_scored(rated, row),
            *(() if row in small else (Fact(name="fits_a_full_group", value="false"),)),
        )
        found.append(Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=option.gpu_type, facts=facts))
    return tuple(found)


def waits_told(waiting: WaitingWork) -> Reason:
    """Its place in line."""
    facts = (
        Fact(name="queue", value="latency-critical" if waiting.urgent or waiting.boost else "throughput-oriented"),
        Fact(name="queue_position", value=float(waiting.position)),
        Fact(name="deadline_over_latency", value=round(waiting.priority, 4)),
        Fact(name="in_time", value=str(bool(waiting.rated.in_time.any())).lower()),
    )
    return Reason(code=ReasonCode.WAITS_IN_LINE, subject=waiting.need.workload, facts=facts)


def cycle_told(pace: WindowPace, memory: OltunesMemory) -> tuple[Fact, ...]:
    """Window, size of groups, and what was learned so far."""
    return (
        Fact(name="window_ms", value=pace.window_ms),
        Fact(name="group_max", value=float(pace.group_max)),
        Fact(name="lessons", value=float(memory.lessons.lessons)),
        Fact(name="retrainings", value=float(memory.lessons.retrainings)),
    )


def slice_told(draft: Draft, joined: Sequence[JoinedReplica], spare_mib: float) -> Iterable[Reason]:
    """Devices that were empty, and of which a new group leaves so much that the rest would do as a MIG slice of its
    own. Nobody cuts a GPU for a plan: that is its host's administrator, so the plan can only say so.
    """
    fleet, stood = draft.fleet, {item.device for item in draft.case.snapshot.target.assignments}
    for device in sorted({item.device for item in joined}):
        whole = fleet.devices[device]
        used_pct = 100.0 - float(fleet.share_free[device])
        if whole.mig is not None or whole.id in stood:
            continue
        if not worth_a_slice(used_pct, float(fleet.memory_free[device]), spare_mib):
            continue
        facts = (
            Fact(name="kept_share_pct_sm", value=used_pct),
            Fact(name="spare_memory_mib", value=float(fleet.memory_free[device])),
            Fact(name="because", value="only its host's administrator cuts a GPU"),
        )
        yield Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=f"a MIG slice of {whole.id}", facts=facts)


def _scored(rated: Rated, row: int) -> tuple[Fact, ...]:
    score = float(rated.score[row])
    return (
        *((Fact(name="score", value=round(score, 6)),) if isfinite(score) else ()),
        Fact(name="epc_score", value=round(float(rated.epc[row]), 3)),
        Fact(name="predicted_latency_ms", value=round(float(rated.latency_ms[row]), 3)),
    )


def _grouped(joined: JoinedReplica) -> tuple[Fact, ...]:
    return (
        Fact(name="group", value=float(joined.group)),
        Fact(name="member", value=float(joined.members)),
        *_affinity(joined.affinity),
        *((Fact(name="affinity_below_threshold", value="true"),) if joined.below_threshold else ()),
        *((Fact(name="tuned", value="true"),) if joined.tuned else ()),
    )


def _affinity(number: float | None) -> tuple[Fact, ...]:
    return () if number is None else (Fact(name="affinity", value=round(number, 2)),)
