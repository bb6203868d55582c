"""Melange: the cheapest mix of whole GPUs, of several types, that carries every service's load.

Owns the reading of services as demands and of GPU types as options, each replica a whole GPU with the batch that serves
most within the promise, and the placing of the counts that the covering programme finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.plan import Proposal
from solvers.engines.base import create
from solvers.engines.deadline import Deadline
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.case import Case
from solvers.planners.counting.covers import cover
from solvers.planners.counting.demands import Covers
from solvers.planners.draft import Draft, on_whole_devices
from solvers.problems.choice import Option
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="melange",
    about="the cheapest mix of whole GPUs of several types",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.BATCH),
)
WHOLE_PCT = 100
USD_PER_H_LEAST = 0.01
"""Where GPUs cost nothing, fewer of them are still better."""
UNSERVED = 1e4
"""What a service left unserved counts against $/h, times its priority."""
PART_OF_DEADLINE = 0.5
GAP = 1e-4
"""The programme is left when it is proven to be this near to the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Melange(Stateless):
    spec: ClassVar[PlannerSpec] = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        """The mix, placed; what it leaves out gets what is free then."""
        draft = Draft.of(request, on_whole_devices(Case.of(request)))
        for need in draft.needs:
            if not len(draft.options(need)):
                draft.refuse(need)
        wanted = [need for need in draft.needs if len(draft.options(need)) and need.rate_rps > 0]
        options = [(number, option) for number, need in enumerate(wanted) for option in draft.fixed(need, WHOLE_PCT)]
        reasons: tuple[Reason, ...] = ()
        if options:
            reasons = _mixed(draft, wanted, options)
        for need in draft.needs:
            if len(draft.options(need)):
                allowed = np.ones(len(draft.options(need)), dtype=np.bool_)
                draft.fill(draft.open(need), allowed, draft.at_home(need, draft.best_fit))
        reporter.event("melange.mixed", services=float(len(wanted)))
        return draft.proposal(SPEC, reasons)


def _mixed(draft: Draft, wanted: list[Need], options: list[tuple[int, Option]]) -> tuple[Reason, ...]:
    """Solve, place what was counted, and say what was proven."""
    budget = draft.request.budget
    deadline = Deadline(PART_OF_DEADLINE * budget.deadline_s, budget.work_units)
    found = cover(problem_of(draft, wanted, options), create("highs"), deadline, gap=GAP)
    for (number, option), count in zip(options, found.counts.tolist(), strict=True):
        need = wanted[number]
        settled = draft.open(need)
        for _ in range(count):
            blocked = draft.put(settled, option, draft.at_home(need, draft.best_fit))
            if blocked is not None:
                draft.block(settled, blocked, option)
                break
    facts = (
        Fact(name="objective", value=round(found.objective, 6)),
        Fact(name="bound", value=round(found.bound, 6)),
        Fact(name="columns", value=float(found.columns)),
    )
    return (Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=draft.case.snapshot.cluster, facts=facts),)


def problem_of(draft: Draft, wanted: list[Need], options: list[tuple[int, Option]]) -> Covers:
    """Services as demands, free whole GPUs of each class as what is limited."""
    fleet = draft.fleet
    free = fleet.usable & (fleet.occupants == 0) & (fleet.share_free >= WHOLE_PCT)
    return Covers(
        demand=np.array([need.rate_rps for need in wanted]),
        unserved_usd=np.array([UNSERVED * need.weight for need in wanted]),
        option_demand=np.array([number for number, _ in options], dtype=np.int64),
        option_rate=np.array([option.capacity_rps for _, option in options]),
        option_usd=np.array([max(option.usd_per_h, USD_PER_H_LEAST) for _, option in options]),
        option_resource=np.array([option.device_class for _, option in options], dtype=np.int64),
        option_units=np.ones(len(options), dtype=np.int64),
        units=np.bincount(fleet.class_of[free], minlength=len(fleet.classes)).astype(np.int64),
    )
