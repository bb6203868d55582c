"""Pack all workloads onto the fleet, one after the other: holding what stands, saving on it, or afresh.

Services come by priority, then the largest first, or, where not all can be served, those whose served rate counts most
for the room it takes; then tasks and jobs by priority. Holding: every standing replica that keeps its promise stays
exactly as it is, and only a workload that is short gets more. Saving: a workload keeps the standing replicas it needs,
unless a fresh choice is cheaper by more than `STAY_MARGIN` and has room beside what stands, so that the new can be
ready before the old one goes; a workload that is short may take its own room anew. Tasks and jobs come last and hold no
place against services, but for jobs that may not be evicted again and, where so asked, all jobs that stand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.workload import WorkloadKind
from solvers.models.options import Beliefs
from solvers.planners.case import CAPACITY_DUST, Case, Menu, affordable, put_pinned, take_standing, with_last_resort
from solvers.planners.seating import Placed, Settled, place_job, seat_of, stay
from solvers.planners.writer import limited
from solvers.problems.choice import ChoiceAsk, Option, OptionChoice, choose
from solvers.problems.fleet import Fleet, RoomSearch, open_fleet
from solvers.problems.needs import Need

# --- Serve one workload on the fleet as it is now: configuration by price, device by best fit, next configuration when
# there is no room
#
# The inner loop of the greedy planner adds replicas until the rate and the floor are met, and says what blocks when
# they are not. It does not move what other workloads hold.


@dataclass(slots=True)
class Filler:
    """Adds replicas of one workload to what is already placed of it."""

    fleet: Fleet
    beliefs: Beliefs
    menu: Menu
    fewest: bool = False

    def fill(self, settled: Settled) -> None:
        """Place until served or blocked; blockers are left in `settled`."""
        need, options = settled.need, self.menu.options
        exhausted = np.zeros(len(options), dtype=bool)
        while settled.rate_rps_wanting > 0 or len(settled.placed) < need.replicas_floor:
            room = self._room(settled, exhausted)
            choice = choose(options, self._ask(settled, room))
            if choice is None:
                settled.blockers.extend(self._blockers(settled, room))
                return
            option = self.beliefs.option(need, options, choice.option)
            if not self._place(settled, option, choice):
                # Whatever is at least as large in every respect would find no room either.
                exhausted |= (
                    (options.device_class == option.device_class)
                    & (options.share_pct >= option.share_pct)
                    & (options.memory_mib >= option.memory_mib)
                    & (options.power_w >= option.power_w)
                )

    def _place(self, settled: Settled, option: Option, choice: OptionChoice) -> bool:
        # While failure domains are missing, every replica may want another type, so they are chosen one by one.
        for _ in range(1 if self._lacks_domains(settled) else choice.replicas):
            found = self._device_for(settled, option)
            if isinstance(found, ReasonCode):
                settled.blockers.append(_blocked(found, option))
                return False
            settled.add(Placed(seat=seat_of(settled.need, option, found), option=option))
        return True

    @staticmethod
    def _lacks_domains(settled: Settled) -> bool:
        return len(settled.domains) < settled.need.domains_floor

    def _device_for(self, settled: Settled, option: Option) -> int | ReasonCode:
        spread = self._lacks_domains(settled)
        search = RoomSearch(
            need=settled.need,
            share_pct=option.share_pct,
            memory_mib=option.memory_mib,
            power_w=option.power_w,
            device_class=option.device_class,
            domains_used=settled.domains if spread else frozenset(),
            press=option.press,
        )
        taken = {item.seat.device for item in settled.placed}
        for device in self.menu.familiar:
            known = int(self.fleet.failure_domain[device]) in search.domains_used
            right_class = self.fleet.class_of[device] == option.device_class
            if device not in taken and right_class and not known and self.fleet.fits(search, device):
                return device
        return self.fleet.find(search)

    def _ask(self, settled: Settled, room: Floats) -> ChoiceAsk:
        need, count = settled.need, len(settled.placed)
        budget = np.inf if need.budget_usd_per_h is None else need.budget_usd_per_h - settled.usd_per_h
        return ChoiceAsk(
            rate_rps=settled.rate_rps_wanting,
            floor=max(0, need.replicas_floor - count),
            ceiling=need.replicas_max - count,
            room=room,
            budget_usd_per_h=max(0.0, float(budget)),
            quota_gpus=max(0.0, self.fleet.quota_left.get(need.project, np.inf)),
            fewest=self.fewest,
        )

    def _room(self, settled: Settled, exhausted: Flags) -> Floats:
        """Room per option; only in new failure domains while some are missing and there is any."""
        if self._lacks_domains(settled) and settled.placed:
            elsewhere = np.where(exhausted, 0.0, self._room_outside(settled.need, settled.domains))
            if elsewhere.any():
                return elsewhere
        return np.where(exhausted, 0.0, self._room_outside(settled.need, frozenset()))

    def _room_outside(self, need: Need, domains: frozenset[int]) -> Floats:
        options = self.menu.options
        room = np.zeros(len(options))
        for index in np.unique(options.device_class):
            mine = options.device_class == index
            sizes = options.share_pct[mine].astype(np.float64), options.memory_mib[mine].astype(np.float64)
            room[mine] = self.fleet.replicas_bound(need, self.fleet.open_to(need, domains, int(index)), sizes)
        return room

    def _blockers(self, settled: Settled, room: Floats) -> list[Reason]:
        """Why nothing more can be added: the owner's own bounds, else what each class lacks."""
        need, options = settled.need, self.menu.options
        if len(settled.placed) >= need.replicas_max:
            return [
                Reason(
                    code=ReasonCode.REPLICAS_MAX,
                    subject=need.workload,
                    facts=(Fact(name="replicas_max", value=float(need.replicas_max)),),
                )
            ]
        if not len(options):
            return [self.menu.refusals[index] for index in sorted(self.menu.refusals)]
        ask = self._ask(settled, room)
        reasons: list[Reason] = []
        for index in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == index)
            smallest = self.beliefs.option(need, options, int(mine[np.argmin(options.share_pct[mine])]))
            found = self._device_for(settled, smallest)
            if isinstance(found, ReasonCode):
                reasons.append(_blocked(found, smallest))
            elif smallest.usd_per_h > ask.budget_usd_per_h:
                numbers = smallest.usd_per_h, ask.budget_usd_per_h
                reasons.append(limited(ReasonCode.BUDGET, smallest.gpu_type, *numbers))
            elif (gpus := float(options.gpus[mine].min())) > ask.quota_gpus:
                reasons.append(limited(ReasonCode.QUOTA, smallest.gpu_type, gpus, ask.quota_gpus))
        return [*reasons, *(self.menu.refusals[index] for index in sorted(self.menu.refusals))]


def _blocked(code: ReasonCode, option: Option) -> Reason:
    facts = (
        Fact(name="share_pct_sm", value=float(option.share_pct)),
        Fact(name="memory_mib", value=float(option.memory_mib)),
        Fact(name="power_w", value=round(option.power_w, 3)),
    )
    return Reason(code=code, subject=option.gpu_type, facts=facts)


STAY_MARGIN = 0.2
"""A running configuration is left only for one that is cheaper by more than this part."""


class Aim(Enum):
    """How much of what stands may change."""

    HOLD = "hold"
    SAVE = "save"
    AFRESH = "afresh"


class Turn(Enum):
    """Which service of one priority chooses first."""

    LARGEST = "largest"
    WORTHIEST = "worthiest"
    CHOOSIEST = "choosiest"


@dataclass(slots=True, kw_only=True)
class GreedyPacking:
    """The fleet's books with every workload settled on them."""

    fleet: Fleet
    settled: list[Settled] = field(default_factory=list)

    @property
    def unserved(self) -> float:
        return sum(item.need.weight * (item.rate_rps_short + item.replicas_missing) for item in self.settled)

    def changes(self, case: Case) -> bool:
        """Whether anything differs from what stands."""
        kept = [item.standing for settled in self.settled for item in settled.placed]
        return None in kept or len(kept) != sum(len(items) for items in case.standing.values())


def pack(case: Case, aim: Aim, *, jobs_hold: bool = False, turn: Turn = Turn.LARGEST) -> GreedyPacking:
    """Settle every need of the case. `jobs_hold`: jobs keep their place before services choose."""
    fleet = open_fleet(case.snapshot, case.held)
    put_pinned(case, fleet)
    services = sorted(
        (need for need in case.needs if need.kind is WorkloadKind.SERVICE),
        key=lambda need: (-need.priority, -_rank(turn, case, fleet, need), need.workload),
    )
    rest = [need for need in case.needs if need.kind is not WorkloadKind.SERVICE]
    jobs = {WorkloadId(job.id): job for job in case.snapshot.jobs}
    packing = GreedyPacking(fleet=fleet)
    protected = _protected(case, fleet, rest, all_of_them=jobs_hold)
    reserved = {} if aim is Aim.AFRESH else {need.workload: take_standing(case, fleet, need) for need in services}
    for need in services:
        for item in reserved.get(need.workload, []):
            fleet.lift(item.seat)
        packing.settled.append(_settle(case, fleet, need, reserved.get(need.workload, []), aim))
        if aim is Aim.SAVE and not any(lack_of(packing.settled[-1])):
            # What goes keeps its room from all others: it ends only when its successor is ready.
            _take(fleet, _gone(reserved[need.workload], packing.settled[-1]))
    for need in rest:
        if need.workload in protected:
            packing.settled.append(protected[need.workload])
        elif need.kind is WorkloadKind.JOB:
            standing = case.standing.get(need.workload, [])
            job = jobs[need.workload]
            worth = case.worth_of_job(fleet, need, job)
            packing.settled.append(place_job(fleet, need, job, standing, worth))
        else:
            kept = take_standing(case, fleet, need)
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


def _rank(turn: Turn, case: Case, fleet: Fleet, need: Need) -> float:
    match turn:
        case Turn.LARGEST:
            return _size(case, need)
        case Turn.WORTHIEST:
            return _worth(case, need)
        case Turn.CHOOSIEST:
            return _choosy(case, fleet, need)


def _size(case: Case, need: Need) -> float:
    """Part of a device that the preferred configuration takes, for placing the largest first."""
    choice = _choice_if_empty(case, need)
    if choice is None:
        return 0.0
    option = case.beliefs.option(need, case.menus[need.workload].options, choice.option)
    device_class = case.beliefs.classes[option.device_class]
    return max(option.share_pct / 100, option.memory_mib / device_class.memory_mib)


def _worth(case: Case, need: Need) -> float:
    """What of the demand a GPU could serve at best, as the objective counts it."""
    options = case.menus[need.workload].options
    return need.weight * float((options.capacity_rps / options.gpus).max()) if len(options) else 0.0


def _choosy(case: Case, fleet: Fleet, need: Need) -> float:
    """The fewer devices keep the promise, the sooner: others can go elsewhere."""
    classes = np.unique(case.menus[need.workload].options.device_class)
    return -float((fleet.eligible(need) & np.isin(fleet.class_of, classes)).sum())


def _choice_if_empty(case: Case, need: Need) -> OptionChoice | None:
    """What the need would choose if it had the whole fleet: no real choice can be cheaper."""
    options = case.menus[need.workload].options
    room = np.full(len(options), float(need.replicas_max))
    ask = ChoiceAsk(rate_rps=need.rate_rps, floor=need.replicas_floor, ceiling=need.replicas_max, room=room)
    return choose(options, ask)


def _settle(case: Case, fleet: Fleet, need: Need, reserved: list[Placed], aim: Aim) -> Settled:
    """What the aim makes of one need; all its room must be free when called."""
    if not reserved:
        return with_last_resort(case, _fresh(case, fleet, need))
    kept = _around(case, fleet, need, reserved, aim)
    if aim is Aim.HOLD:
        return with_last_resort(case, kept)
    if any(lack_of(kept)):
        return with_last_resort(case, _instead(case, kept))
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
    """Rate, replicas and failure domains that are missing and could be had; nothing lacks when all are zero."""
    spread = settled.need.domains_floor - len(settled.domains)
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
        if (aim is Aim.HOLD or not enough) and affordable(settled, item):
            settled.add(item)
    if any(lack_of(settled)):
        Filler(fleet, case.beliefs, case.menus[need.workload]).fill(settled)
    return settled


def _price_per_rate(item: Placed) -> tuple[float, str]:
    weight = item.option.weight_usd_per_h if item.option is not None else 0.0
    return weight / max(item.capacity_rps, 1e-9), item.standing.replica if item.standing is not None else ""


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
