"""A plan explained from what is stored: its choices, what is left short, and the planner's insight.

Per assignment: why there, and why not elsewhere. Per gap: what blocks it. Of the insight: what binds and what it is
worth, every candidate, ways out for who is short. The wording is `sentences`'. A project is told what concerns its own
workloads and what GPUs are worth, and never who else could yield. No plan is made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby

from app.records import record_of
from app.services.explaining.sentences import (
    DUST_USD,
    candidate_sentence,
    price_sentence,
    sentence,
    too_large,
    way_sentence,
)
from solvers.domain.evidence import (
    Candidate,
    Contender,
    Fact,
    Insight,
    Reason,
    ReasonCode,
    Relaxation,
    Resource,
    ShadowPrice,
)
from solvers.domain.ids import GpuTypeName
from solvers.domain.plan import Assignment, Plan, Unplaced
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.errors import NotFoundError

_OF_WORKLOADS = frozenset(
    {Resource.LATENCY_MS, Resource.RATE_RPS, Resource.REPLICA, Resource.REPLICA_LEAST, Resource.BUDGET_USD}
)
"""Prices whose subject is a workload."""


@value
class ToldPrice:
    """What one more unit of something scarce would save."""

    price: ShadowPrice
    sentence: str


@value
class ToldCandidate:
    """What a workload has, or could have, on one GPU type."""

    candidate: Candidate
    sentence: str


@value
class WayOut:
    """What would have to give together so that a workload is served; without a workload, all who are short."""

    workload: str | None
    relaxations: tuple[Relaxation, ...]
    sentence: str


@value
class ToldInsight:
    """What the planner found out beside its plan; empty where it tells nothing."""

    contenders: tuple[Contender, ...]
    prices: tuple[ToldPrice, ...]
    candidates: tuple[ToldCandidate, ...]
    ways_out: tuple[WayOut, ...]
    facts: tuple[Fact, ...]


class WhyNotVerdict(StrEnum):
    """What became of a GPU type for a workload."""

    CHOSEN = "chosen"
    DEARER = "dearer"
    NOT_DEARER = "not_dearer"
    """At shadow prices, in parts of devices."""
    NO_ROOM = "no_room"
    RULED_OUT = "ruled_out"
    NOT_LOOKED_AT = "not_looked_at"


@value
class WhyNot:
    """Why a workload is not on a GPU type; the nearest candidate where there is one."""

    workload: str
    gpu_type: str
    verdict: WhyNotVerdict
    candidate: Candidate | None
    sentence: str


def told(
    insight: Insight | None, project: str | None, workload: str | None, pools: Mapping[str, str] | None = None
) -> ToldInsight:
    """What is told of an insight: of one workload where named, to one project where it is one that asks."""
    seen = _seen_by(insight or Insight(), project)
    mine = [item for item in seen.candidates if workload in (None, item.workload)]
    return ToldInsight(
        contenders=seen.contenders,
        prices=tuple(
            ToldPrice(price=item, sentence=price_sentence(item))
            for item in seen.prices
            if workload is None or item.resource not in _OF_WORKLOADS or item.subject == workload
        ),
        candidates=tuple(
            ToldCandidate(candidate=item, sentence=candidate_sentence(item, (pools or {}).get(item.workload)))
            for item in ranked(mine)
        ),
        ways_out=tuple(_ways(item for item in seen.relaxations if workload is None or item.workload == workload)),
        facts=seen.facts,
    )


def ranked(items: Iterable[Candidate]) -> list[Candidate]:
    """By workload: the chosen ones, then the next best by what they would add, then what is ruled out."""

    def place(item: Candidate) -> tuple[object, ...]:
        more = item.usd_per_h if item.usd_per_h_more is None else item.usd_per_h_more
        return item.workload, not item.chosen, not item.feasible, more, item.gpu_type, item.model

    return sorted(items, key=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """GPU types: those that are known, and those of which there are devices."""

    known: frozenset[str]
    there: frozenset[str]

    @staticmethod
    def of(picture: Snapshot) -> Types:
        """Those of a picture; what is on offer counts as there."""
        return Types(
            known=frozenset(str(item.name) for item in picture.gpu_types),
            there=frozenset(str(item.gpu_type) for item in picture.with_offers().devices),
        )


def why_not(
    plan: Plan, insight: Insight | None, asked: tuple[str, str], types: Types, pool: str | None = None
) -> WhyNot:
    """Why a workload is not on a GPU type. Raises NotFoundError for a type that nobody knows."""
    workload, gpu_type = asked
    if gpu_type not in types.known:
        raise NotFoundError(f"there is no GPU type {gpu_type}", gpu_type=gpu_type)
    candidates = insight.candidates if insight is not None else ()
    found = ranked(item for item in candidates if item.workload == workload and item.gpu_type == gpu_type)
    if found:
        item, told = found[0], candidate_sentence(found[0], pool)
        return record_of(WhyNot, item, verdict=_verdict(item), candidate=item, sentence=told)
    reasons = _said(plan, workload, GpuTypeName(gpu_type))
    if gpu_type not in types.there:
        reasons.append(Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject=gpu_type))
    text = " ".join(dict.fromkeys(sentence(reason, pool) for reason in reasons))
    return WhyNot(
        workload=workload,
        gpu_type=gpu_type,
        verdict=WhyNotVerdict.RULED_OUT if reasons else WhyNotVerdict.NOT_LOOKED_AT,
        candidate=None,
        sentence=text or f"The planner did not say what {workload} could do on {gpu_type}.",
    )


def _verdict(item: Candidate) -> WhyNotVerdict:
    if item.chosen:
        return WhyNotVerdict.CHOSEN
    if not item.feasible:
        return WhyNotVerdict.RULED_OUT
    if item.usd_per_h_more is None:
        return WhyNotVerdict.NO_ROOM
    return WhyNotVerdict.DEARER if item.usd_per_h_more > DUST_USD else WhyNotVerdict.NOT_DEARER


def _said(plan: Plan, workload: str, gpu_type: GpuTypeName) -> list[Reason]:
    """What the plan itself says of a type, which every planner tells in its reasons."""
    of = [item.reasons for item in plan.assignments if item.workload == workload]
    of += [item.reasons for item in plan.unplaced if item.workload == workload]
    return [reason for reasons in of for reason in reasons if reason.subject == gpu_type]


def _seen_by(insight: Insight, project: str | None) -> Insight:
    if project is None:
        return insight
    prefix = f"{project}/"
    return replace(
        insight,
        contenders=(),
        prices=tuple(
            item
            for item in insight.prices
            if item.resource in (Resource.GPU, Resource.MEMORY_GIB)
            or (item.resource in _OF_WORKLOADS and item.subject.startswith(prefix))
            or (item.resource is Resource.QUOTA_GPU and item.subject == project)
        ),
        candidates=tuple(item for item in insight.candidates if item.workload.startswith(prefix)),
        relaxations=tuple(
            item
            for item in insight.relaxations
            if item.workload is not None
            and item.workload.startswith(prefix)
            and (item.resource is not Resource.RATE_RPS or item.subject.startswith(prefix))
        ),
        facts=(),
    )


def _ways(items: Iterable[Relaxation]) -> Iterable[WayOut]:
    def way(item: Relaxation) -> tuple[str, int]:
        return item.workload or "", item.way

    for (workload, _), group in groupby(sorted(items, key=way), way):
        together = tuple(group)
        yield WayOut(workload=workload or None, relaxations=together, sentence=way_sentence(together))


_FOR = frozenset(
    {
        ReasonCode.CHEAPEST_FEASIBLE,
        ReasonCode.KEPT_STANDING,
        ReasonCode.KEPT_AT_RISK,
        ReasonCode.NEAREST_KNOWN,
        ReasonCode.PINNED_BY_MODE,
        ReasonCode.FILLS_SPARE_SHARE,
        ReasonCode.REPLICAS_MIN,
    }
)
"""Reasons that speak for a choice; the others say why something else was not chosen."""


@value
class ToldReason:
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


Pools = Mapping[str, str]
"""The policy that decides on each workload; empty while one decides on everything."""


def choices(
    plan: Plan, gpu_types: Mapping[str, str], workload: str | None, pools: Pools | None = None
) -> tuple[ExplainedAssignment, ...]:
    """A plan's assignments, of one workload where named. `gpu_types`: by device."""
    owners = pools or {}
    return tuple(
        ExplainedAssignment(
            assignment=item,
            gpu_type=gpu_types.get(item.device),
            why=_told((reason for reason in item.reasons if reason.code in _FOR), owners.get(item.workload)),
            alternatives=_told(
                (reason for reason in item.reasons if reason.code not in _FOR), owners.get(item.workload)
            ),
        )
        for item in plan.assignments
        if workload in (None, item.workload)
    )


def gaps(unplaced: Iterable[Unplaced], workload: str | None, pools: Pools | None = None) -> tuple[ExplainedGap, ...]:
    """What a plan leaves short, of one workload where named; the first reason is the one that has to give first."""
    owners = pools or {}
    return tuple(
        record_of(
            ExplainedGap,
            item,
            kind=item.kind.value,
            why=_told(sorted(item.reasons, key=partial(_nearness, item)), owners.get(item.workload)),
        )
        for item in unplaced
        if workload in (None, item.workload)
    )


_ROOM = (ReasonCode.NO_SHARE_LEFT, ReasonCode.POWER_CAP, ReasonCode.CLIENTS_MAX, ReasonCode.NEIGHBOURS_PRESSURE)
_LAST = (ReasonCode.REPLICAS_MIN, ReasonCode.KEPT_AT_RISK, ReasonCode.NO_DEVICE_OF_TYPE, ReasonCode.TYPE_NOT_ALLOWED)


def _nearness(gap: Unplaced, reason: Reason) -> int:
    """How near a reason is to what would help: where only room is missing before what no room would mend, memory that
    no device has before a promise that none can keep, and what is only missing last. Of a service that is served whole
    the failure domains that it lacks come first.
    """
    code = reason.code
    if not gap.rate_rps_short and any(fact.name == "failure_domains_min" for fact in reason.facts):
        return -1
    if code in (ReasonCode.QUOTA, ReasonCode.BUDGET, ReasonCode.REPLICAS_MAX, ReasonCode.ROOM_UNUSED):
        return 0
    if code in _ROOM or (code is ReasonCode.NO_MEMORY_LEFT and not too_large(reason)):
        return 1
    if code is ReasonCode.NO_MEMORY_LEFT:
        return 2
    return 4 if code in _LAST else 3


def _told(reasons: Iterable[Reason], pool: str | None = None) -> tuple[ToldReason, ...]:
    return tuple(ToldReason(reason=reason, sentence=sentence(reason, pool)) for reason in reasons)
