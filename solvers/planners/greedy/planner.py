"""The greedy planner: add what is missing, else save; move what stands only to serve notably more.

When something is missing, its answer only adds, so that an urgent plan never carries along changes that could wait;
jobs yield before services move, and services move only when that serves notably more. When nothing is missing, its
answer saves. Deterministic, needs no random numbers, and ends by itself long before any deadline. Told with the plan is
why not another GPU type: one reason per type that was not chosen, and the runner-up on the type that was, by prices of
the whole workload on that type if the fleet were empty.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Flags
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import DeviceId, GpuTypeName
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.case import Case
from solvers.planners.greedy.pack import STAY_MARGIN, Aim, GreedyPacking, Turn, lack_of, pack
from solvers.planners.seating import Settled
from solvers.planners.writer import SequentialAnswer, write_answer
from solvers.problems.choice import ChoiceAsk, OptionChoice, Options, choose

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
    (Aim.AFRESH, Turn.CHOOSIEST),
)
"""What is tried while something is short, the least change first."""


class Greedy(Stateless):
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
        for turn in (Turn.WORTHIEST, Turn.CHOOSIEST):
            if not _is_short(best):
                break
            other = pack(case, Aim.AFRESH, turn=turn)
            best = other if other.unserved < best.unserved else best
        return best
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


_OF_ROOM = {
    ReasonCode.NO_SHARE_LEFT,
    ReasonCode.NO_MEMORY_LEFT,
    ReasonCode.POWER_CAP,
    ReasonCode.ANTI_AFFINITY,
    ReasonCode.CLIENTS_MAX,
    ReasonCode.TAINTED,
    ReasonCode.BUDGET,
    ReasonCode.QUOTA,
}


def alternatives(case: Case, settled: Settled) -> tuple[Reason, ...]:
    """Reasons about every GPU type of the catalogue, in name order; for a chosen type its runner-up configuration."""
    need = settled.need
    if need.kind is WorkloadKind.JOB or not settled.placed:
        return ()
    menu = case.menus[need.workload]
    by_type = np.array([case.beliefs.classes[index].gpu_type for index in menu.options.device_class], dtype=object)
    chosen = {settled.fleet.class_at(item.seat.device).gpu_type for item in settled.placed}
    reasons: list[Reason] = []
    for gpu_type in sorted(item.name for item in case.snapshot.gpu_types):
        of_type = by_type == gpu_type
        if gpu_type in chosen:
            reasons.extend(_runner_up(case, settled, gpu_type, of_type))
        else:
            reasons.append(_why_not(case, settled, gpu_type, of_type))
    return tuple(reasons)


def _why_not(case: Case, settled: Settled, gpu_type: GpuTypeName, of_type: Flags) -> Reason:
    menu, fleet = case.menus[settled.need.workload], settled.fleet
    classes = [index for index, item in enumerate(fleet.classes) if item.gpu_type == gpu_type]
    if not classes:
        return Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject=gpu_type)
    best = _best_choice(settled, menu.options, of_type)
    if best is None:
        return menu.refusals[classes[0]]
    of_class = np.isin(fleet.class_of, classes)
    if not (of_class & fleet.usable).any():
        return Reason(
            code=ReasonCode.NO_DEVICE_OF_TYPE, subject=gpu_type, facts=(Fact(name="devices_usable", value=0.0),)
        )
    if not (of_class & fleet.eligible(settled.need)).any():
        return Reason(code=ReasonCode.TAINTED, subject=gpu_type)
    cheaper = best.weight_usd_per_h < settled.weight_usd_per_h - 1e-9
    blocked = next((item for item in settled.blockers if item.subject == gpu_type and item.code in _OF_ROOM), None)
    if blocked is not None:
        return blocked
    code = ReasonCode.REJECTED_ALTERNATIVE if cheaper else ReasonCode.COSTLIER
    devices = int((of_class & fleet.eligible(settled.need)).sum())
    if cheaper and best.replicas > devices and _one_per_device(settled):
        facts = (Fact(name="replicas", value=float(best.replicas)), Fact(name="devices", value=float(devices)))
        return Reason(code=ReasonCode.ANTI_AFFINITY, subject=gpu_type, facts=facts)
    return Reason(code=code, subject=gpu_type, facts=_facts(settled, menu.options, best))


def _one_per_device(settled: Settled) -> bool:
    affinity = settled.need.affinity
    return affinity.dedicated or affinity.anti_affinity is AntiAffinity.HARD


def _runner_up(case: Case, settled: Settled, gpu_type: GpuTypeName, of_type: Flags) -> list[Reason]:
    options = case.menus[settled.need.workload].options
    used = {(item.seat.share_pct, item.option.batch) for item in settled.placed if item.option is not None}
    other = of_type.copy()
    for share_pct, batch in used:
        other &= ~((options.share_pct == share_pct) & (options.batch == batch))
    best = _best_choice(settled, options, other)
    if best is None:
        return []
    return [Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=gpu_type, facts=_facts(settled, options, best))]


def _best_choice(settled: Settled, options: Options, allowed: Flags) -> OptionChoice | None:
    need = settled.need
    room = np.where(allowed, float(need.replicas_max), 0.0)
    floor = max(1, need.replicas_floor)
    return choose(options, ChoiceAsk(rate_rps=need.rate_rps, floor=floor, ceiling=need.replicas_max, room=room))


def _facts(settled: Settled, options: Options, choice: OptionChoice) -> tuple[Fact, ...]:
    """The alternative's price and shape; `room_usd_per_h` is what choices are made by (share or memory, whichever is
    more).
    """
    facts = [
        Fact(name="usd_per_h", value=round(float(options.usd_per_h[choice.option]) * choice.replicas, 6)),
        Fact(name="room_usd_per_h", value=round(choice.weight_usd_per_h, 6)),
        Fact(name="chosen_usd_per_h", value=round(settled.usd_per_h, 6)),
        Fact(name="chosen_room_usd_per_h", value=round(settled.weight_usd_per_h, 6)),
        Fact(name="replicas", value=float(choice.replicas)),
        Fact(name="share_pct_sm", value=float(options.share_pct[choice.option])),
        Fact(name="batch", value=float(options.batch[choice.option])),
        Fact(name="latency_ms", value=round(float(options.latency_ms[choice.option]), 3)),
    ]
    if choice.short_rps > 0:
        # Cheap only because the owner's ceiling on replicas keeps it from serving the rate.
        facts.append(Fact(name="rate_rps_short", value=round(choice.short_rps, 4)))
        facts.append(Fact(name="replicas_max", value=float(settled.need.replicas_max)))
    elif choice.weight_usd_per_h < settled.weight_usd_per_h and any(item.standing for item in settled.placed):
        facts.append(Fact(name="stay_margin_pct", value=100 * STAY_MARGIN))
    return tuple(facts)
