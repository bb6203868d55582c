"""One GPU type for everything: sized once for the peak on whole GPUs, or cheapest for the demand of the day.

Owns two baselines. `static_peak` remembers the highest rate it ever saw of each service and the type it once chose, and
gives every replica a GPU of its own. `best_single_type` chooses shares and batches as freely as the table allows, and
its type anew in every cycle. Both try every type that the fleet has and take the one whose plan the policy's objective
likes best. They refuse to mix types.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import GpuTypeName, WorkloadId
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Stateless, Thought, kept, recalled
from solvers.planners.case import Case
from solvers.planners.draft import Draft, on_whole_devices
from solvers.problems.needs import Need

STATIC_PEAK = PlannerSpec(
    name="static_peak",
    about="whole GPUs of one type for the highest rate ever seen",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT),
)
BEST_SINGLE_TYPE = PlannerSpec(
    name="best_single_type",
    about="the best plan that uses one GPU type only",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
FORM = "static-peak-1"


@value
class Peak:
    """The highest rate that was ever seen of a service."""

    workload: WorkloadId
    rate_rps: float


@value
class Settlement:
    form: str = FORM
    gpu_type: GpuTypeName | None = None
    peaks: tuple[Peak, ...] = ()


@dataclass(frozen=True, slots=True)
class BestSingleType(Stateless):
    spec: ClassVar[PlannerSpec] = BEST_SINGLE_TYPE

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        case = Case.of(request)
        chosen, proposal = _best(request, case, self.spec, _types(case))
        reporter.event("best_single_type.chosen", gpu_type=str(chosen))
        return proposal


@dataclass(frozen=True, slots=True)
class StaticPeak(Recalling):
    spec: ClassVar[PlannerSpec] = STATIC_PEAK

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan for the peak, and the peak to remember."""
        before = recalled(Settlement, state) or Settlement()
        peaks = {item.workload: item.rate_rps for item in before.peaks}
        case = on_whole_devices(Case.of(request))
        for need in case.needs:
            peaks[need.workload] = max(peaks.get(need.workload, 0.0), need.rate_rps)
        case = replace(case, needs=tuple(replace(need, rate_rps=peaks[need.workload]) for need in case.needs))
        types = _types(case)
        if before.gpu_type in types:
            types = [before.gpu_type]
        chosen, proposal = _best(request, case, self.spec, types)
        reporter.event("static_peak.sized", gpu_type=str(chosen))
        known = tuple(Peak(workload=name, rate_rps=peaks[name]) for name in sorted(peaks))
        return Thought(proposal=proposal, state=kept(Settlement(gpu_type=chosen, peaks=known)))


def _types(case: Case) -> list[GpuTypeName]:
    return sorted({item.gpu_type for item in case.beliefs.classes})


def _best(
    request: PlanRequest, case: Case, spec: PlannerSpec, types: list[GpuTypeName]
) -> tuple[GpuTypeName | None, Proposal]:
    """The type whose plan is best, and that plan; of equals the first by name."""
    terms = case.snapshot.policy.terms
    found: list[tuple[tuple[float, ...], GpuTypeName | None, Proposal]] = []
    tried: list[GpuTypeName | None] = [*types] or [None]
    for gpu_type in tried:
        draft = Draft.of(request, case)
        for need in draft.needs:
            _fill(draft, need, gpu_type)
        facts = (Fact(name="gpu_type", value=str(gpu_type)),)
        reason = Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=str(gpu_type), facts=facts)
        proposal = draft.proposal(spec, (reason,))
        assert proposal.plan is not None
        found.append((proposal.plan.objective.key(terms), gpu_type, proposal))
    _, chosen, best = min(found, key=lambda item: (item[0], item[1] or ""))
    return chosen, best


def _fill(draft: Draft, need: Need, gpu_type: GpuTypeName | None) -> None:
    if gpu_type is None or not len(draft.options(need)):
        draft.refuse(need)
        return
    of_type = [number for number, kind in enumerate(draft.fleet.classes) if kind.gpu_type == gpu_type]
    allowed = np.isin(draft.options(need).device_class, of_type)
    settled = draft.open(need)
    if not allowed.any():
        refusals = draft.case.menus[need.workload].refusals
        mine = [reason for number, reason in sorted(refusals.items()) if reason.subject == gpu_type]
        settled.blockers.extend(mine or [Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject=gpu_type)])
    draft.fill(settled, allowed, draft.at_home(need, draft.best_fit))
