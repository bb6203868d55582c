"""The greedy planner: pack around what stands and afresh, and answer with the better plan.

Owns the choice between the two packings and the proposal's status. A fresh packing wins only if it serves more, or
costs less by more than the stay margin, because everything it moves costs a start. Deterministic, needs no random
numbers, and ends by itself long before any deadline.
"""

from __future__ import annotations

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.planners.answer import Answer, write_plan
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.greedy.explain import alternatives
from solvers.planners.greedy.pack import STAY_MARGIN, Case, Packing, pack

SPEC = PlannerSpec(
    name="greedy",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)


class Greedy(Stateless):
    """See the module."""

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        """A plan always, however much of the demand it can place."""
        case = Case.of(request)
        packing = pack(case, around_standing=True)
        if any(case.standing.values()):
            packing = _better(packing, pack(case, around_standing=False))
        answer = Answer(
            settled=tuple(packing.settled),
            pinned=case.pinned,
            standing=case.standing,
            explain=lambda settled: alternatives(case, settled),
        )
        plan = write_plan(request, SPEC, answer)
        reporter.event("greedy.packed", assignments=len(plan.assignments), unplaced=len(plan.unplaced))
        return Proposal(
            status=ProposalStatus.FEASIBLE, planner=SPEC.name, plan=plan, reasons=(_summary(request, packing, plan),)
        )


def _better(around: Packing, afresh: Packing) -> Packing:
    if afresh.unserved < around.unserved - 1e-6:
        return afresh
    cheaper = afresh.usd_per_h < (1 - STAY_MARGIN) * around.usd_per_h
    return afresh if afresh.unserved <= around.unserved + 1e-6 and cheaper else around


def _summary(request: PlanRequest, packing: Packing, plan: Plan) -> Reason:
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
