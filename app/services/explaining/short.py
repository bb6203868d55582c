"""What a plan leaves short, a line for each workload, for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from app.records import record_of
from app.services.explaining.explaining import ExplainedGap
from app.services.explaining.sentences import facts_text, four_digits
from solvers.domain.evidence import Reason, ReasonCode
from solvers.domain.plan import Assignment
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind

PART_LEAST = 0.001


@value
class ShortLine:
    """A workload for which a plan has no place, too little of it, or none that keeps its SLO."""

    id: str
    """Of the workload, `project/name`."""
    kind: str
    """service, job or task."""
    rate_rps_short: float
    part_short: float | None
    """Of its rate, as it was planned for, 0 to 1; null where what is missing is no rate."""
    told: str
    """How much of it, and why: the reason of its planner's that has to give first. Explanations have them all."""


def short_lines(standing: Iterable[Assignment], found: Iterable[ExplainedGap]) -> tuple[ShortLine, ...]:
    """Services first, for people wait for them; among these who lacks the largest part of its rate."""
    served: defaultdict[str, float] = defaultdict(float)
    missed: dict[str, ShortLine] = {}
    for item in standing:
        served[item.workload] += item.capacity_rps
        for why in item.reasons:
            if why.code is ReasonCode.NEAREST_KNOWN:
                missed[item.workload] = _missed_line(item, why)
    lines = [_short_line(gap, served[gap.workload]) for gap in found]
    short = {line.id for line in lines}
    lines += [line for name, line in missed.items() if name not in short]
    return tuple(
        sorted(lines, key=lambda item: (item.kind != WorkloadKind.SERVICE, -(item.part_short or 0.0), item.id))
    )


def _short_line(gap: ExplainedGap, served_rps: float) -> ShortLine:
    # Where some of a rate is missing, all that stands is used: both together are what was asked.
    asked_rps = gap.rate_rps_short + served_rps
    part = gap.rate_rps_short / asked_rps if gap.rate_rps_short > 0 else None
    said = "too little place"
    if part is not None:
        much = f"{100 * part:.3g} %" if part >= PART_LEAST else f"less than {100 * PART_LEAST:.3g} %"
        said = f"{much} of {four_digits(asked_rps)} requests/s unserved"
    if not served_rps and gap.kind != WorkloadKind.SERVICE:
        said = "no place"
    return record_of(ShortLine, gap, id=gap.workload, part_short=part, told=f"{said}: {_first(gap)}")


def _first(gap: ExplainedGap) -> str:
    """Why, first of all; that the fleet has none of a type is said of every such type, for none of them is meant."""
    if not gap.why:
        return "its planner gave no reason"
    first, told = gap.why[0].reason, gap.why[0].sentence.removesuffix(".")
    if first.code is not ReasonCode.NO_DEVICE_OF_TYPE:
        return told
    types = (item.reason.subject for item in gap.why if item.reason.code is first.code)
    return told.replace(f"of type {first.subject}", f"of type {', '.join(types)}")


def _missed_line(item: Assignment, why: Reason) -> ShortLine:
    """Of a service that is served whole and cannot keep its promise."""
    told = f"served, but nothing known keeps its SLO{facts_text(why.facts)}"
    return ShortLine(id=item.workload, kind=item.kind.value, rate_rps_short=0.0, part_short=None, told=told)
