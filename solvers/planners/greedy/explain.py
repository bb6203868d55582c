"""Why not another GPU type: one reason per type that was not chosen, and the runner-up on the type that was.

Prices compared here are those of the whole workload on that type if the fleet were empty.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Flags
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.planners.case import Case
from solvers.planners.greedy.pack import STAY_MARGIN
from solvers.planners.seating import Settled
from solvers.problems.choice import ChoiceAsk, OptionChoice, Options, choose

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
    best = _best(settled, menu.options, of_type)
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
    best = _best(settled, options, other)
    if best is None:
        return []
    return [Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=gpu_type, facts=_facts(settled, options, best))]


def _best(settled: Settled, options: Options, allowed: Flags) -> OptionChoice | None:
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
