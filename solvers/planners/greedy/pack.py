"""Pack all workloads onto the fleet, one after the other: holding what stands, saving on it, or afresh.

Owns the order (services by priority, then the largest first; then tasks and jobs by priority) and how much of what
stands may change. Holding: every standing replica that keeps its promise stays exactly as it is, and only a workload
that is short gets more. Saving: a workload keeps the standing replicas it needs, unless a fresh choice is cheaper by
more than `STAY_MARGIN` and has room beside what stands, so that the new can be ready before the old one goes; a
workload that is short may take its own room anew. Tasks and jobs come last and hold no place against services, but for
jobs that may not be evicted again and, where so asked, all jobs that stand.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.options import Beliefs
from solvers.models.worth import pinned_settings
from solvers.planners.base import PlanRequest
from solvers.planners.greedy.fill import Filler, Menu
from solvers.planners.greedy.jobs import place_job, stay
from solvers.planners.seating import Placed, Settled, seat_of, standing_seat
from solvers.problems.choice import Ask, Choice, Option, choose
from solvers.problems.fleet import Fleet, Search, Seat, open_fleet
from solvers.problems.needs import Need, needs_of, pinned_assignments

STAY_MARGIN = 0.2
"""A running configuration is left only for one that is cheaper by more than this part."""
CAPACITY_DUST = 1e-5
"""Planned rates are rounded."""


class Aim(Enum):
    """How much of what stands may change."""

    HOLD = "hold"
    SAVE = "save"
    AFRESH = "afresh"


@dataclass(slots=True, kw_only=True)
class Case:
    """One request, prepared once for both packings."""

    snapshot: Snapshot
    movable: tuple[WorkloadId, ...]
    beliefs: Beliefs
    needs: tuple[Need, ...]
    held: dict[DeviceId, DeviceSetting]
    """Settings that stay: all of devices with pinned replicas, and the clocks that stand."""
    pinned: tuple[Assignment, ...]
    standing: dict[WorkloadId, list[Assignment]]
    appraisal: Appraisal
    """Of what stands, all together."""
    menus: dict[WorkloadId, Menu]

    @staticmethod
    def of(request: PlanRequest) -> Case:
        """Split the standing target into pinned and movable and list every workload's options."""
        snapshot = request.snapshot.with_offers()
        held = _held(snapshot, request.movable)
        fleet = open_fleet(snapshot, held)
        beliefs = Beliefs.of(snapshot, fleet.classes)
        movable = set(request.movable)
        standing: dict[WorkloadId, list[Assignment]] = defaultdict(list)
        for assignment in sorted(snapshot.target.assignments, key=lambda item: item.replica):
            if assignment.workload in movable:
                standing[assignment.workload].append(assignment)
        pinned = tuple(item for item in pinned_assignments(snapshot, request.movable) if item.device in fleet.index)
        needs = needs_of(snapshot, request.movable)
        menus: dict[WorkloadId, Menu] = {}
        for need in needs:
            if need.kind is not WorkloadKind.JOB:
                options, refusals = beliefs.options(need)
                places = (fleet.index.get(item.device) for item in standing[need.workload])
                familiar = tuple(place for place in places if place is not None)
                menus[need.workload] = Menu(options=options, refusals=refusals, familiar=familiar)
        return Case(
            snapshot=snapshot,
            movable=request.movable,
            beliefs=beliefs,
            needs=needs,
            held=held,
            pinned=pinned,
            standing=standing,
            appraisal=Appraisal.of(fleet, beliefs.profiles, snapshot.policy, (snapshot.target.assignments, held)),
            menus=menus,
        )

    def assess(self, fleet: Fleet, need: Need, standing: Assignment) -> tuple[Option | None, bool]:
        """A standing replica by today's beliefs, and whether that holds only while it has its device to itself. Where
        the careful reading of `options` shows less than was planned, what it does beside its very neighbours counts.
        """
        class_index = int(fleet.class_of[fleet.index[standing.device]])
        option = self.beliefs.assess(need, class_index, standing)
        planned_rps = standing.capacity_rps
        if option is not None and option.capacity_rps >= planned_rps * (1 - CAPACITY_DUST):
            return option, False
        shown_rps = self.appraisal.capacities_rps(need, [standing])[0]
        if shown_rps is None or standing.model != need.model:
            return option, False
        if option is not None and option.capacity_rps >= shown_rps * (1 - CAPACITY_DUST):
            return option, False
        slowdown = self.appraisal.slowdown(standing)
        made = self.beliefs.as_it_stands(
            need, class_index, standing, capacity_rps=min(planned_rps, shown_rps), slowdown=slowdown
        )
        return made, made.press.pressure is None and slowdown < self.beliefs.factor(need, fleet.classes[class_index])


def _held(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> dict[DeviceId, DeviceSetting]:
    """This planner sets no clocks, so it lives with those that stand."""
    in_use = {item.device for item in snapshot.target.assignments}
    clocks = {
        item.device: DeviceSetting(device=item.device, clock_mhz_sm=item.clock_mhz_sm)
        for item in snapshot.target.settings
        if item.clock_mhz_sm is not None and item.device in in_use
    }
    return clocks | pinned_settings(snapshot, movable)


@dataclass(slots=True, kw_only=True)
class Packing:
    """The fleet's books with every workload settled on them."""

    fleet: Fleet
    settled: list[Settled] = field(default_factory=list)

    @property
    def unserved(self) -> float:
        """As the objective counts it."""
        return sum(item.need.weight * (item.rate_rps_short + item.replicas_missing) for item in self.settled)

    def changes(self, case: Case) -> bool:
        """Whether anything differs from what stands."""
        kept = [item.standing for settled in self.settled for item in settled.placed]
        return None in kept or len(kept) != sum(len(items) for items in case.standing.values())


def pack(case: Case, aim: Aim, *, jobs_hold: bool = False) -> Packing:
    """Settle every need of the case. `jobs_hold`: jobs keep their place before services choose."""
    fleet = open_fleet(case.snapshot, case.held)
    _put_pinned(case, fleet)
    services = sorted(
        (need for need in case.needs if need.kind is WorkloadKind.SERVICE),
        key=lambda need: (-need.priority, -_size(case, need), need.workload),
    )
    rest = [need for need in case.needs if need.kind is not WorkloadKind.SERVICE]
    jobs = {WorkloadId(job.id): job for job in case.snapshot.jobs}
    packing = Packing(fleet=fleet)
    protected = _protected(case, fleet, rest, all_of_them=jobs_hold)
    reserved = {} if aim is Aim.AFRESH else {need.workload: _take_standing(case, fleet, need) for need in services}
    for need in services:
        for item in reserved.get(need.workload, []):
            fleet.lift(item.seat)
        packing.settled.append(_settle(case, fleet, need, reserved.get(need.workload, []), aim))
        if aim is Aim.SAVE and not any(lack_of(packing.settled[-1])):
            # What goes keeps its room from everybody else: it ends only when its successor is ready.
            _take(fleet, _gone(reserved[need.workload], packing.settled[-1]))
    for need in rest:
        if need.workload in protected:
            packing.settled.append(protected[need.workload])
        elif need.kind is WorkloadKind.JOB:
            standing = case.standing.get(need.workload, [])
            packing.settled.append(place_job(fleet, need, jobs[need.workload], standing))
        else:
            kept = _take_standing(case, fleet, need)
            for item in kept:
                fleet.lift(item.seat)
            packing.settled.append(_settle(case, fleet, need, kept, aim))
    return packing


def _gone(standing: list[Placed], settled: Settled) -> list[Placed]:
    kept = {item.standing.replica for item in settled.placed if item.standing is not None}
    return [item for item in standing if item.standing is not None and item.standing.replica not in kept]


def _take(fleet: Fleet, items: list[Placed]) -> None:
    for item in items:
        fleet.put(item.seat)


def _put_pinned(case: Case, fleet: Fleet) -> None:
    dedicated: set[str] = {item.id for item in case.snapshot.services if item.affinity.dedicated}
    for assignment in case.pinned:
        alone = assignment.workload in dedicated
        seat = standing_seat(fleet, assignment, dedicated=alone, power_w=assignment.power_w_planned)
        if seat is not None:
            fleet.put(replace(seat, press=case.beliefs.press_of(assignment, fleet.class_at(seat.device))))


def _size(case: Case, need: Need) -> float:
    """Part of a device that the preferred configuration takes, for placing the largest first."""
    choice = _choice_if_empty(case, need)
    if choice is None:
        return 0.0
    option = case.beliefs.option(need, case.menus[need.workload].options, choice.option)
    device_class = case.beliefs.classes[option.device_class]
    return max(option.share_pct / 100, option.memory_mib / device_class.memory_mib)


def _choice_if_empty(case: Case, need: Need) -> Choice | None:
    """What the need would choose if it had the whole fleet: no real choice can be cheaper."""
    options = case.menus[need.workload].options
    room = np.full(len(options), float(need.replicas_max))
    ask = Ask(rate_rps=need.rate_rps, floor=need.replicas_floor, ceiling=need.replicas_max, room=room)
    return choose(options, ask)


def _take_standing(case: Case, fleet: Fleet, need: Need) -> list[Placed]:
    """Put every standing replica that keeps its promise and fits where it stands."""
    taken: list[Placed] = []
    for assignment in case.standing.get(need.workload, []):
        device = fleet.index.get(assignment.device)
        if device is None or len(taken) >= need.replicas_max:
            continue
        option, alone = case.assess(fleet, need, assignment)
        if option is None:
            continue
        seat = _standing_seat(need, option, device, alone=alone)
        if fleet.fits(_search(need, seat), device):
            fleet.put(seat)
            taken.append(Placed(seat=seat, option=option, standing=assignment))
    return taken


def _standing_seat(need: Need, option: Option, device: int, *, alone: bool) -> Seat:
    seat = seat_of(need, option, device)
    return replace(seat, dedicated=True) if alone else seat


def _search(need: Need, seat: Seat) -> Search:
    if seat.dedicated and not need.affinity.dedicated:
        need = replace(need, affinity=replace(need.affinity, dedicated=True))
    return Search(
        need=need, share_pct=seat.share_pct, memory_mib=seat.memory_mib, power_w=seat.power_w, press=seat.press
    )


def _settle(case: Case, fleet: Fleet, need: Need, reserved: list[Placed], aim: Aim) -> Settled:
    """What the aim makes of one need; all its room must be free when called."""
    if not reserved:
        return _with_last_resort(case, _fresh(case, fleet, need))
    kept = _around(case, fleet, need, reserved, aim)
    if aim is Aim.HOLD:
        return _with_last_resort(case, kept)
    if any(lack_of(kept)):
        return _with_last_resort(case, _instead(case, kept))
    return _cheaper(case, kept, _gone(reserved, kept))


def _instead(case: Case, kept: Settled) -> Settled:
    """Another choice in the need's own room, if it lacks less."""
    kept.clear()
    fresh = _fresh(case, kept.fleet, kept.need)
    if lack_of(fresh) < lack_of(kept):
        return fresh
    fresh.clear()
    kept.restore()
    return kept


def _cheaper(case: Case, kept: Settled, gone: list[Placed]) -> Settled:
    """Another choice beside all that stands, if it is notably cheaper."""
    if not _may_be_cheaper(case, kept):
        return kept
    _take(kept.fleet, gone)
    fresh = _fresh(case, kept.fleet, kept.need)
    for item in gone:
        kept.fleet.lift(item.seat)
    saves = fresh.usd_per_h < (1 - STAY_MARGIN) * kept.usd_per_h and fresh.weight_usd_per_h <= kept.weight_usd_per_h
    if saves and not any(lack_of(fresh)):
        kept.clear()
        return fresh
    fresh.clear()
    return kept


def lack_of(settled: Settled) -> tuple[float, int, int]:
    """Rate, replicas and failure domains that are missing; nothing lacks when all are zero."""
    spread = settled.need.affinity.failure_domains_min - len(settled.domains)
    return round(settled.rate_rps_short, 6), settled.replicas_missing, max(0, spread)


def _may_be_cheaper(case: Case, kept: Settled) -> bool:
    """Whether a fresh choice could be worth its changes, judged as if the fleet were empty and replicas divisible."""
    options = case.menus[kept.need.workload].options
    if not len(options):
        return False
    least_usd_per_h = kept.need.rate_rps * float((options.usd_per_h / options.capacity_rps).min())
    if least_usd_per_h > (1 - STAY_MARGIN) * kept.usd_per_h * (1 + CAPACITY_DUST):
        return False
    best = _choice_if_empty(case, kept.need)
    return best is not None and best.weight_usd_per_h <= kept.weight_usd_per_h


def _around(case: Case, fleet: Fleet, need: Need, reserved: list[Placed], aim: Aim) -> Settled:
    """Keep the standing replicas with the best price per rate, when saving only as far as they are needed; add only
    when something lacks.
    """
    settled = Settled(need=need, fleet=fleet)
    for item in sorted(reserved, key=_price_per_rate):
        enough = settled.rate_rps_wanting <= 0 and len(settled.placed) >= need.replicas_floor
        if (aim is Aim.HOLD or not enough) and _affordable(settled, item):
            settled.add(item)
    if any(lack_of(settled)):
        Filler(fleet, case.beliefs, case.menus[need.workload]).fill(settled)
    return settled


def _price_per_rate(item: Placed) -> tuple[float, str]:
    weight = item.option.weight_usd_per_h if item.option is not None else 0.0
    return weight / max(item.capacity_rps, 1e-9), item.standing.replica if item.standing is not None else ""


def _affordable(settled: Settled, item: Placed) -> bool:
    need, fleet = settled.need, settled.fleet
    usd_per_h = fleet.class_at(item.seat.device).usd_per_h * item.seat.share_pct / 100
    within_budget = need.budget_usd_per_h is None or settled.usd_per_h + usd_per_h <= need.budget_usd_per_h + 1e-9
    quota_left = fleet.quota_left.get(need.project, float("inf"))
    return within_budget and fleet.gpus(item.seat.device, item.seat.share_pct) <= quota_left + 1e-9


def _fresh(case: Case, fleet: Fleet, need: Need) -> Settled:
    """Cheapest first; where that leaves something short, fewest replicas first, and the better of the two."""
    menu = case.menus[need.workload]
    cheapest = Settled(need=need, fleet=fleet)
    Filler(fleet, case.beliefs, menu).fill(cheapest)
    if not any(lack_of(cheapest)) or not len(menu.options):
        return cheapest
    cheapest.clear()
    fewest = Settled(need=need, fleet=fleet)
    Filler(fleet, case.beliefs, menu, fewest=True).fill(fewest)
    if lack_of(fewest) < lack_of(cheapest):
        return fewest
    fewest.clear()
    cheapest.restore()
    return cheapest


def _with_last_resort(case: Case, settled: Settled) -> Settled:
    """A workload that is short keeps whatever else of it stands and fits: a slow answer is better than none, and the
    plan says so.
    """
    fleet, need = settled.fleet, settled.need
    held = {item.standing.replica for item in settled.placed if item.standing is not None}
    for assignment in case.standing.get(need.workload, []):
        served = settled.rate_rps_short <= 0 and not settled.replicas_missing
        if served or len(settled.placed) >= need.replicas_max:
            break
        seat = standing_seat(fleet, assignment, dedicated=need.affinity.dedicated, power_w=assignment.power_w_planned)
        if seat is None or assignment.replica in held:
            continue
        option, alone = case.assess(fleet, need, assignment)
        if option is not None:
            seat = _standing_seat(need, option, seat.device, alone=alone)
        item = Placed(seat=seat, option=option, standing=assignment)
        if fleet.fits(_search(need, seat), seat.device) and _affordable(settled, item):
            settled.add(item)
    return settled


def _protected(case: Case, fleet: Fleet, needs: list[Need], *, all_of_them: bool) -> dict[WorkloadId, Settled]:
    """Jobs that were evicted as often as they bear (or all) keep their place before services choose."""
    evictions = {status.workload: status.evictions for status in case.snapshot.job_statuses}
    jobs = {WorkloadId(job.id): job for job in case.snapshot.jobs}
    kept: dict[WorkloadId, Settled] = {}
    for need in needs:
        job = jobs.get(need.workload)
        if need.kind is not WorkloadKind.JOB or job is None or need.refusal is not None:
            continue
        held = all_of_them or evictions.get(need.workload, 0) >= job.evictions_max
        stayed = stay(fleet, need, job, case.standing.get(need.workload, [])) if held else None
        if stayed is not None:
            kept[need.workload] = Settled(need=need, fleet=fleet)
            kept[need.workload].add(stayed)
    return kept
