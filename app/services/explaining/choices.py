"""What a plan itself says of its choices: per assignment why there and why not elsewhere, per gap what blocks it.

Owns the split of a plan's reasons into those that speak for a choice and those that say why something else was not
chosen. The wording is `sentences`. It refuses to know where plans come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.services.explaining.sentences import sentence
from solvers.domain.evidence import Reason, ReasonCode
from solvers.domain.plan import Assignment, Plan, Unplaced
from solvers.domain.value import value

_FOR = frozenset(
    {
        ReasonCode.CHEAPEST_FEASIBLE,
        ReasonCode.KEPT_STANDING,
        ReasonCode.PINNED_BY_MODE,
        ReasonCode.FILLS_SPARE_SHARE,
        ReasonCode.REPLICAS_MIN,
    }
)
"""Reasons that speak for a choice; the others say why something else was not chosen."""


@value
class ToldReason:
    """A reason in words and in values."""

    reason: Reason
    sentence: str


@value
class ExplainedAssignment:
    """One replica: where it went, why, and why not on other GPU types."""

    assignment: Assignment
    gpu_type: str | None
    why: tuple[ToldReason, ...]
    alternatives: tuple[ToldReason, ...]


@value
class ExplainedGap:
    """A workload that found no place, or not enough of it."""

    workload: str
    kind: str
    rate_rps_short: float
    why: tuple[ToldReason, ...]


def choices(plan: Plan, gpu_types: Mapping[str, str], workload: str | None) -> tuple[ExplainedAssignment, ...]:
    """A plan's assignments, of one workload where named. `gpu_types`: by device."""
    wanted = (item for item in plan.assignments if workload in (None, item.workload))
    return tuple(_explained(item, gpu_types.get(item.device)) for item in wanted)


def gaps(plan: Plan, workload: str | None) -> tuple[ExplainedGap, ...]:
    """What a plan leaves short, of one workload where named."""
    return tuple(_gap(item) for item in plan.unplaced if workload in (None, item.workload))


def _explained(item: Assignment, gpu_type: str | None) -> ExplainedAssignment:
    told = _told(item.reasons)
    return ExplainedAssignment(
        assignment=item,
        gpu_type=gpu_type,
        why=tuple(each for each in told if each.reason.code in _FOR),
        alternatives=tuple(each for each in told if each.reason.code not in _FOR),
    )


def _gap(item: Unplaced) -> ExplainedGap:
    return ExplainedGap(
        workload=item.workload,
        kind=item.kind.value,
        rate_rps_short=item.rate_rps_short,
        why=_told(item.reasons),
    )


def _told(reasons: Iterable[Reason]) -> tuple[ToldReason, ...]:
    return tuple(ToldReason(reason=reason, sentence=sentence(reason)) for reason in reasons)
