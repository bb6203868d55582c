"""What a plan itself says of its choices: per assignment why there and why not elsewhere, per gap what blocks it.

Owns the split of a plan's reasons into those that speak for a choice and those that say why something else was not
chosen, and their wire form. The wording is `sentences`. It refuses to know where plans come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.services.explaining.sentences import sentence
from solvers.domain.codec import to_plain
from solvers.domain.evidence import Reason, ReasonCode
from solvers.domain.plan import Assignment, Plan, Unplaced

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A reason with its sentence."""

    reason: Reason
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One assignment: where it went, why, and why not elsewhere."""

    assignment: Assignment
    gpu_type: str | None
    why: tuple[Told, ...]
    alternatives: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGap:
    """A workload that found no place, or not enough of it."""

    workload: str
    kind: str
    rate_rps_short: float
    why: tuple[Told, ...]


def choices(plan: Plan, gpu_types: Mapping[str, str], workload: str | None) -> tuple[Explained, ...]:
    """A plan's assignments, of one workload where named. `gpu_types`: by device."""
    wanted = (item for item in plan.assignments if workload in (None, item.workload))
    return tuple(_explained(item, gpu_types.get(item.device)) for item in wanted)


def gaps(plan: Plan, workload: str | None) -> tuple[ExplainedGap, ...]:
    """What a plan leaves short, of one workload where named."""
    return tuple(_gap(item) for item in plan.unplaced if workload in (None, item.workload))


def plain_choice(item: Explained) -> dict[str, Any]:
    """As JSON data."""
    return {
        "assignment": to_plain(item.assignment),
        "gpu_type": item.gpu_type,
        "why": [_plain(each) for each in item.why],
        "alternatives": [_plain(each) for each in item.alternatives],
    }


def plain_gap(item: ExplainedGap) -> dict[str, Any]:
    """As JSON data."""
    return {**asdict(item), "why": [_plain(each) for each in item.why]}


def _explained(item: Assignment, gpu_type: str | None) -> Explained:
    told = _told(item.reasons)
    return Explained(
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


def _told(reasons: Iterable[Reason]) -> tuple[Told, ...]:
    return tuple(Told(reason=reason, sentence=sentence(reason)) for reason in reasons)


def _plain(item: Told) -> dict[str, Any]:
    return {"reason": to_plain(item.reason), "sentence": item.sentence}
