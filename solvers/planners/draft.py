"""A plan in the making: the fleet's books, who is settled on them, and how it becomes a proposal.

Planners of one service after another share an order: what is pinned stands first, standing training jobs keep their
place (none of these planners knows jobs), then the planner settles services and tasks, then waiting jobs take what is
spare. A workload without any option is settled by saying why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import ReplicaId, WorkloadId
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.worth import LAUNCH_S_DEFAULT
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.case import Case, affordable, put_pinned, take_standing, with_last_resort
from solvers.planners.seating import Placed, Settled, place_job, seat_of, stay
from solvers.planners.writer import SequentialAnswer, write_answer
from solvers.problems.choice import ChoiceAsk, Option, Options, choose
from solvers.problems.fleet import Fleet, Places, RoomSearch, open_fleet
from solvers.problems.needs import Need

Score = Callable[[Places], Floats]
"""What a device is worth avoiding, by number; the lowest wins, of equals the first."""
Among = Callable[[], Places]
"""Where one more replica may go by rules of the planner's own, asked anew for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What adds a failure domain: options of which the least has room there, and the devices outside of the present
    domains.
    """

    options: Flags
    places: Places


@dataclass(slots=True, kw_only=True)
class Draft:
    """Books and settled workloads of one attempt at one request."""

    request: PlanRequest
    case: Case
    fleet: Fleet
    settled: dict[WorkloadId, Settled] = field(default_factory=dict)
    let_go: set[ReplicaId] = field(default_factory=set)
    """Standing replicas that were stopped on purpose: nobody keeps them for want of better ones."""

    @staticmethod
    def of(request: PlanRequest, case: Case | None = None) -> Draft:
        """An attempt in which only what is pinned and the standing jobs have their places."""
        known = Case.of(request) if case is None else case
        fleet = open_fleet(known.snapshot, known.held)
        put_pinned(known, fleet)
        draft = Draft(request=request, case=known, fleet=fleet)
        for need, job in draft._jobs():
            stayed = stay(fleet, need, job, known.standing.get(need.workload, [])) if need.refusal is None else None
            if stayed is not None:
                draft.open(need).add(stayed)
        return draft

    def _jobs(self) -> list[tuple[Need, TrainingJob]]:
        jobs = {WorkloadId(job.id): job for job in self.case.snapshot.jobs}
        return [(need, jobs[need.workload]) for need in self.case.needs if need.kind is WorkloadKind.JOB]

    @property
    def needs(self) -> list[Need]:
        """Services and tasks, in the case's order: by kind, falling priority, id."""
        return [need for need in self.case.needs if need.kind is not WorkloadKind.JOB]

    def options(self, need: Need) -> Options:
        """All that keeps the need's promise."""
        return self.case.menus[need.workload].options

    def option(self, need: Need, index: int) -> Option:
        return self.case.beliefs.option(need, self.options(need), index)

    def stop(self, need: Need, item: Placed) -> None:
        """Take a replica off the books, for good where it stands."""
        self.fleet.lift(item.seat)
        self.open(need).placed.remove(item)
        if item.standing is not None:
            self.let_go.add(item.standing.replica)

    def fixed(self, need: Need, share_pct: int, batch: int | None = None) -> list[Option]:
        """One configuration for each class of devices, whatever the demand: the smallest share from `share_pct` on
        (else the largest there is), with the batch that serves most; or with this one, the largest below it where it
        was not measured or breaks the promise, else the smallest.
        """
        options = self.options(need)
        found: list[Option] = []
        for number in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == number)
            shares = options.share_pct[mine]
            enough = shares[shares >= share_pct]
            share = int(enough.min()) if len(enough) else int(shares.max())
            mine = mine[shares == share]
            if batch is not None:
                sizes = options.batch[mine]
                mine = mine[sizes == (sizes[sizes <= batch].max() if (sizes <= batch).any() else sizes.min())]
            keys = (options.batch[mine], options.latency_ms[mine], -options.capacity_rps[mine])
            found.append(self.option(need, int(mine[np.lexsort(keys)[0]])))
        return found

    def launch_s(self, need: Need) -> float:
        """How long a replica takes to start."""
        models = self.case.snapshot.models_by_name()
        return models[need.model].launch_s if need.model in models else LAUNCH_S_DEFAULT

    def open(self, need: Need) -> Settled:
        """The need's settled state, empty at first."""
        if need.workload not in self.settled:
            self.settled[need.workload] = Settled(need=need, fleet=self.fleet)
        return self.settled[need.workload]

    def stand(self) -> dict[WorkloadId, list[Placed]]:
        """Take the place of every standing replica that keeps its promise and fits; callers say what goes."""
        return {need.workload: take_standing(self.case, self.fleet, need) for need in self.needs}

    def keep(self, need: Need, items: list[Placed], kept: list[Placed]) -> Settled:
        """Settle those of the need's taken replicas that stay, as far as the owner can pay for them."""
        for item in items:
            self.fleet.lift(item.seat)
        settled = self.open(need)
        for item in kept:
            if len(settled.placed) < need.replicas_max and affordable(settled, item):
                settled.add(item)
        return settled

    def search(self, need: Need, option: Option) -> RoomSearch:
        return RoomSearch(
            need=need,
            share_pct=option.share_pct,
            memory_mib=option.memory_mib,
            power_w=option.power_w,
            device_class=option.device_class,
            press=option.press,
        )

    def places(self, settled: Settled, option: Option) -> Places | ReasonCode:
        """Devices where one more replica may go under every rule; while failure domains are missing, new ones only if
        there are any.
        """
        need = settled.need
        if len(settled.placed) >= need.replicas_max:
            return ReasonCode.REPLICAS_MAX
        found = self.fleet.room(self.search(need, option))
        if isinstance(found, ReasonCode):
            return found
        seat = seat_of(need, option, int(found[0]))
        if not affordable(settled, Placed(seat=seat, option=option)):
            within = need.budget_usd_per_h is None or settled.usd_per_h + option.usd_per_h <= need.budget_usd_per_h
            return ReasonCode.QUOTA if within else ReasonCode.BUDGET
        known = settled.domains
        if len(known) < need.domains_floor:
            other = found[~np.isin(self.fleet.failure_domain[found], list(known))]
            return other if len(other) else found
        return found

    def put(self, settled: Settled, option: Option, score: Score, among: Places | None = None) -> ReasonCode | None:
        """Place one replica where the score is lowest; or what left no place."""
        found = self.places(settled, option)
        if isinstance(found, ReasonCode):
            return found
        if among is not None:
            found = found[np.isin(found, among)]
        if not len(found):
            return ReasonCode.ANTI_AFFINITY
        device = int(found[np.argmin(score(found))])
        settled.add(Placed(seat=seat_of(settled.need, option, device), option=option))
        return None

    def fill(self, settled: Settled, allowed: Flags, score: Score, among: Among | None = None) -> None:
        """Add replicas of allowed options, the cheapest way first, until the rate and the floor are met and no missing
        failure domain can be had, or nothing more fits; `among` may leave fewer devices.
        """
        need, options, possible = settled.need, self.options(settled.need), allowed.copy()
        quota = self.fleet.quota_left
        while True:
            among_now = None if among is None else among()
            apart = self.apart(settled, possible, among_now)
            if apart is None and settled.rate_rps_wanting <= 0 and len(settled.placed) >= need.replicas_floor:
                return
            more = need.replicas_max - len(settled.placed)
            budget = np.inf if need.budget_usd_per_h is None else need.budget_usd_per_h - settled.usd_per_h
            ask = ChoiceAsk(
                rate_rps=settled.rate_rps_wanting,
                floor=max(0 if apart is None else 1, need.replicas_floor - len(settled.placed)),
                ceiling=more,
                room=np.where(possible if apart is None else apart.options, float(more), 0.0),
                budget_usd_per_h=max(0.0, float(budget)),
                quota_gpus=max(0.0, quota.get(need.project, np.inf)),
            )
            choice = choose(options, ask)
            if choice is None and apart is not None:
                possible &= ~apart.options
                continue
            if choice is None:
                return
            option = self.option(need, choice.option)
            blocked = self.put(settled, option, score, among_now if apart is None else apart.places)
            if blocked is not None:
                self.block(settled, blocked, option)
                larger = (options.share_pct >= option.share_pct) & (options.memory_mib >= option.memory_mib)
                possible &= ~(larger & (options.device_class == option.device_class))
                possible[choice.option] = False
            elif apart is not None:
                possible = allowed.copy()

    def apart(self, settled: Settled, allowed: Flags | None = None, among: Places | None = None) -> Apart | None:
        """Where one more replica, of options that are allowed, adds a failure domain while some are missing; None where
        none is missing, or none can be had.
        """
        need, options, fleet = settled.need, self.options(settled.need), self.fleet
        if not settled.placed or len(settled.domains) >= need.domains_floor:
            return None
        allowed = np.ones(len(options), dtype=np.bool_) if allowed is None else allowed
        places = np.flatnonzero(~np.isin(fleet.failure_domain, list(settled.domains)))
        places = places if among is None else np.intersect1d(places, among)
        found = np.zeros(len(options), dtype=np.bool_)
        for number in np.unique(options.device_class[allowed]):
            mine = np.flatnonzero(allowed & (options.device_class == number))
            least = mine[np.lexsort((options.memory_mib[mine], options.share_pct[mine]))[0]]
            room = self.places(settled, self.option(need, int(least)))
            found[mine] = not isinstance(room, ReasonCode) and bool(np.isin(room, places).any())
        return Apart(options=found, places=places) if found.any() else None

    def narrows(self, need: Need, before: Iterable[Placed], after: Iterable[Placed]) -> bool:
        """Whether those after lie in fewer failure domains than those before, and than the owner asks for."""
        had, has = (
            len({int(self.fleet.failure_domain[item.seat.device]) for item in each}) for each in (before, after)
        )
        return has < min(had, need.domains_floor)

    def at_home(self, need: Need, score: Score) -> Score:
        """The same score, but devices where the need's replicas stand come first, so that little has to move."""
        home = self.case.menus[need.workload].familiar
        return lambda places: score(places) - 1e15 * np.isin(places, home)

    def best_fit(self, places: Places) -> Floats:
        """Least share left over, then least memory."""
        return np.asarray(self.fleet.share_free[places] + self.fleet.memory_free[places] / 1e9)

    def worst_fit(self, places: Places) -> Floats:
        """Empty devices first, then the most free memory."""
        return np.asarray(1e9 * (self.fleet.occupants[places] > 0) - self.fleet.memory_free[places])

    def refuse(self, need: Need) -> Settled:
        """Say of a need without any option why it has none."""
        settled, refusals = self.open(need), self.case.menus[need.workload].refusals
        settled.blockers.extend(refusals[index] for index in sorted(refusals))
        return settled

    def block(self, settled: Settled, code: ReasonCode, option: Option) -> None:
        """Say what left no place for one more replica of an option."""
        facts = (
            Fact(name="share_pct_sm", value=float(option.share_pct)),
            Fact(name="memory_mib", value=float(option.memory_mib)),
        )
        settled.blockers.append(Reason(code=code, subject=option.gpu_type, facts=facts))

    def finish(self) -> None:
        """Let workloads that are short keep what else of theirs stands, and waiting jobs take what is spare."""
        for need in self.needs:
            with_last_resort(self.case, self.open(need), self.let_go)
        self.settle_rest()

    def settle_rest(self) -> None:
        """Say who is short, and let waiting jobs take what is spare."""
        for need in self.needs:
            settled = self.open(need)
            if settled.rate_rps_short and not settled.blockers:
                facts = (Fact(name="rate_rps_short", value=round(settled.rate_rps_short, 4)),)
                settled.blockers.append(Reason(code=ReasonCode.WAITS_IN_LINE, subject=need.workload, facts=facts))
        for need, job in self._jobs():
            if need.workload not in self.settled:
                standing = self.case.standing.get(need.workload, [])
                self.settled[need.workload] = place_job(
                    self.fleet, need, job, standing, self.case.worth_of_job(self.fleet, need, job)
                )

    def plan(self, spec: PlannerSpec) -> Plan:
        order = tuple(self.settled[need.workload] for need in self.case.needs)
        return write_answer(self.request, spec, SequentialAnswer(settled=order, pinned=self.case.pinned))

    def proposal(self, spec: PlannerSpec, reasons: tuple[Reason, ...] = ()) -> Proposal:
        self.finish()
        return self.answered(spec, reasons)

    def answered(self, spec: PlannerSpec, reasons: tuple[Reason, ...] = ()) -> Proposal:
        """As everybody is settled now."""
        plan = self.plan(spec)
        in_use = {item.device for item in plan.assignments}
        facts = (
            Fact(name="usd_per_h", value=round(plan.objective.cost_usd_per_h, 6)),
            Fact(name="devices_in_use", value=float(len(in_use))),
            Fact(name="unserved", value=round(plan.objective.unserved, 6)),
        )
        summary = Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=self.request.snapshot.cluster, facts=facts)
        return Proposal(status=ProposalStatus.FEASIBLE, planner=spec.name, plan=plan, reasons=(summary, *reasons))


def on_whole_devices(case: Case) -> Case:
    """The same case for planners that give every replica a device of its own."""
    needs = tuple(
        need if need.kind is WorkloadKind.JOB else replace(need, affinity=replace(need.affinity, dedicated=True))
        for need in case.needs
    )
    menus = {}
    for need in needs:
        if need.kind is not WorkloadKind.JOB:
            options, refusals = case.beliefs.options(need)
            menus[need.workload] = replace(case.menus[need.workload], options=options, refusals=refusals)
    return replace(case, needs=needs, menus=menus)
