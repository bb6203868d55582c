"""The greedy planner: add what is missing, else save; move what stands only to serve notably more.

When something is missing, its answer only adds, so that an urgent plan never carries along changes that could wait;
jobs yield before services move, and services move only when that serves notably more. When nothing is missing, its
answer saves. Deterministic, needs no random numbers, and ends by itself long before any deadline.
"""

from __future__ import annotations

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.case import Case
from solvers.planners.greedy.explain import alternatives
from solvers.planners.greedy.pack import Aim, GreedyPacking, Turn, lack_of, pack
from solvers.planners.writer import SequentialAnswer, write_answer

SPEC = PlannerSpec(
    name="greedy",
    about="the cheapest option that fits, one workload after the other",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)


REARRANGE_GAIN = 0.1
"""What stands is moved about only if that serves at least this part of what is unserved otherwise."""

REARRANGED = (
    (Aim.HOLD, Turn.LARGEST),
    (Aim.SAVE, Turn.LARGEST),
    (Aim.AFRESH, Turn.LARGEST),
    (Aim.AFRESH, Turn.WORTHIEST),
)
"""What is tried while something is short, the least change first."""


class Greedy(Stateless):
    """See the module."""

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        """A plan always, however much of the demand it can place."""
        case = Case.of(request)
        packing = _best(case)
        answer = SequentialAnswer(
            settled=tuple(packing.settled),
            pinned=case.pinned,
            explain=lambda settled: alternatives(case, settled),
        )
        plan = write_answer(request, SPEC, answer)
        reporter.event("greedy.packed", assignments=len(plan.assignments), unplaced=len(plan.unplaced))
        return Proposal(
            status=ProposalStatus.FEASIBLE, planner=SPEC.name, plan=plan, reasons=(_summary(request, packing, plan),)
        )


def _best(case: Case) -> GreedyPacking:
    if not any(case.standing.values()):
        best = pack(case, Aim.AFRESH)
        if not _is_short(best):
            return best
        other = pack(case, Aim.AFRESH, turn=Turn.WORTHIEST)
        return other if other.unserved < best.unserved else best
    best = pack(case, Aim.HOLD, jobs_hold=True)
    for aim, turn in REARRANGED:
        if not _is_short(best):
            break
        other = pack(case, aim, turn=turn)
        if other.unserved < (1 - REARRANGE_GAIN) * best.unserved:
            best = other
    if best.changes(case):
        return best
    saving = pack(case, Aim.SAVE, jobs_hold=True)
    return saving if saving.unserved <= best.unserved + 1e-6 else best


def _is_short(packing: GreedyPacking) -> bool:
    """Whether a service or task lacks something that any packing could give it; jobs wait for what is spare."""
    return any(
        any(lack_of(item))
        for item in packing.settled
        if item.need.kind is not WorkloadKind.JOB and not item.need.refusal
    )


def _summary(request: PlanRequest, packing: GreedyPacking, plan: Plan) -> Reason:
    """The bill by share beside the price of all devices in use as a whole."""
    in_use = {DeviceId(item.device) for item in plan.assignments}
    whole = sum(
        packing.fleet.classes[kind].usd_per_h
        for device, kind in zip(packing.fleet.devices, packing.fleet.class_of, strict=True)
        if device.id in in_use
    )
    facts = (
        Fact(name="usd_per_h", value=round(plan.objective.cost_usd_per_h, 6)),
        Fact(name="whole_devices_usd_per_h", value=round(float(whole), 6)),
        Fact(name="devices_in_use", value=float(len(in_use))),
        Fact(name="unserved", value=round(plan.objective.unserved, 6)),
    )
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=request.snapshot.cluster, facts=facts)
