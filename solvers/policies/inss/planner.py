"""InSS: batches by bisection where everybody stands; a new placement by the knapsack only where that fails.

When the rates change, batches alone are tried first; only when some service is late or short, the knapsack (or the
plain rule) places everybody afresh, and only if that serves more than what stands. New shares reach a device as every
plan does: the replacement serves before the old process goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Flags
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.plan import Proposal, ProposalStatus
from solvers.engines.base import Limits, create
from solvers.errors import InputError
from solvers.planners.base import SERVING, Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.case import Case, affordable
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, Settled, seat_of
from solvers.policies.inss.actor import Artefact, project
from solvers.policies.inss.batching import Batching, workloads_short
from solvers.policies.inss.belief import InssBelief, Member
from solvers.policies.inss.placing import (
    InssParameters,
    KnapsackColumns,
    LeftoverShare,
    Placer,
    Placing,
    actor_for,
    columns_of,
    exact,
    greedy,
    learned,
    staying,
)
from solvers.problems.choice import Option
from solvers.problems.needs import Need

KNOBS = (Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH)
SPEC = PlannerSpec(
    name="inss",
    about="batches by bisection first; placement and shares by a knapsack only where that fails",
    version="1",
    knobs=KNOBS,
    pursues=SERVING,
)
SPEC_NI = PlannerSpec(
    name="inss_ni", about="inss that knows no interference", version="1", knobs=KNOBS, pursues=SERVING
)
SPEC_RL = PlannerSpec(
    name="inss_rl", about="inss whose placements a trained actor chooses", version="1", knobs=KNOBS, pursues=SERVING
)
NODES_MAX = 2000.0


@dataclass(frozen=True, slots=True)
class Inss(Stateless):
    parameters: InssParameters = field(default_factory=InssParameters)
    interference: bool = True
    spec: PlannerSpec = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        """Batches first, then everything."""
        case, reasons = Case.of(request), list[Reason]()
        belief = InssBelief(case=case, interference=self.interference)
        standing = Draft.of(request, case)
        try:
            learns = self.parameters.placing is Placing.LEARNED
            artefact = actor_for(standing, self.parameters.actor) if learns else None
        except InputError as error:
            return self._without_actor(str(error))
        batching = Batching(draft=standing, belief=belief, batch_max=self.parameters.batch_max, reasons=reasons)
        if any(case.standing.get(need.workload) for need in standing.needs) and batching.settle():
            reporter.event("inss.batched", replicas=float(len(reasons)))
            return standing.proposal(self.spec, tuple(reasons))
        moved = _Allocation(parameters=self.parameters, draft=Draft.of(request, case), belief=belief, artefact=artefact)
        moved.settle()
        reporter.event("inss.placed", columns=float(moved.columns), rounds=float(moved.rounds))
        gain_rps = self.parameters.gain_part_min * sum(need.rate_rps_least for need in standing.needs)
        if any(case.standing.values()) and moved.short_rps() >= batching.short_rps - gain_rps:
            return standing.proposal(self.spec, (*reasons, moved.reason()))
        return moved.draft.proposal(self.spec, (*reasons, moved.reason()))

    def _without_actor(self, why: str) -> Proposal:
        reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=self.spec.name, facts=(Fact(name="needs", value=why),))
        return Proposal(status=ProposalStatus.NOT_APPLICABLE, planner=self.spec.name, plan=None, reasons=(reason,))


@dataclass(slots=True, kw_only=True)
class _Allocation:
    """Case 2: everybody placed afresh."""

    parameters: InssParameters
    draft: Draft
    belief: InssBelief
    columns: int = 0
    rounds: int = 0
    by_rule: bool = False
    artefact: Artefact | None = None

    def settle(self) -> None:
        """Choose columns, put them into the books, complete them. No column counts what a plan must prove: of who is
        short by the books those that they count as too little are struck, and everything is chosen again. What comes of
        that is taken where nobody is short any more; to lack a little less is not worth what InSS counts otherwise.
        """
        listed = columns_of(self.draft, self.belief, self.parameters)
        self.columns = len(listed.problem)
        allowed = np.ones(len(listed.problem), dtype=np.bool_)
        first: Draft | None = None
        while True:
            self._seat(listed, allowed)
            self._complete(listed)
            first = first or self.draft
            short = [need.workload for need in listed.needs if self.draft.open(need).rate_rps_short > 0]
            scant = listed.scant(allowed, short)
            if not len(scant) or self.rounds >= self.parameters.rounds_max:
                break
            allowed[scant] = False
            self.draft = Draft.of(first.request, first.case)
        if short:
            self.draft = first

    def _complete(self, listed: KnapsackColumns) -> None:
        """Fill what is missing, give leftover share away, fill what is short then."""
        draft = self.draft
        for need, wanted in zip(listed.needs, listed.problem.wanted, strict=True):
            if len(draft.open(need).placed) < wanted:
                self._fill(need)
        if self.parameters.leftover is LeftoverShare.DISTRIBUTE:
            for device in range(len(draft.fleet.devices)):
                self._give_away(device)
        for need in listed.needs:
            if draft.open(need).rate_rps_short > 0:
                self._fill(need)

    def _fill(self, need: Need) -> None:
        """With the cheapest options that fit."""
        draft, every = self.draft, np.ones(len(self.draft.options(need)), dtype=np.bool_)
        draft.fill(draft.open(need), every, draft.at_home(need, draft.best_fit))

    def _seat(self, listed: KnapsackColumns, allowed: Flags) -> None:
        """Put what is chosen into the books. Whom they refuse (they judge neighbours and memory of their own) is struck
        and everything chosen again; of all attempts the one that refuses fewest stands.
        """
        best, fewest = self.draft, math.inf
        while True:
            refused = self._put(listed, self.chosen(listed, allowed))
            if len(refused) < fewest:
                best, fewest = self.draft, len(refused)
            if not refused or self.rounds >= self.parameters.rounds_max:
                break
            allowed[refused] = False
            self.draft = Draft.of(best.request, best.case)
        self.draft = best

    def _put(self, listed: KnapsackColumns, chosen: Flags) -> list[int]:
        """Columns that the books refused."""
        draft, refused = self.draft, list[int]()
        for need in draft.needs:
            if not len(draft.options(need)):
                draft.refuse(need)
        for column in map(int, np.flatnonzero(chosen)):
            need, option = listed.needs[int(listed.problem.model[column])], listed.options[column]
            settled, among = draft.open(need), listed.problem.gpu[column : column + 1]
            blocked = draft.put(settled, option, draft.best_fit, among)
            if blocked is not None:
                draft.block(settled, blocked, option)
                refused.append(column)
        return refused

    def chosen(self, listed: KnapsackColumns, allowed: Flags) -> Flags:
        """Solve, look who sits together, strike what breaks, solve again."""
        problem = listed.problem
        placer = self._placer(listed)
        chosen = np.zeros(len(problem), dtype=np.bool_)
        while self.rounds < self.parameters.rounds_max:
            self.rounds += 1
            found = placer(problem, allowed)
            self.by_rule = self.by_rule or found is None
            chosen = greedy(problem, allowed) if found is None else found
            late = listed.broken(chosen, self.belief)
            if not late:
                return chosen
            allowed[late] = False
        return chosen & allowed

    def _placer(self, listed: KnapsackColumns) -> Placer:
        if self.artefact is not None:
            return learned(self.draft, listed, self.artefact)
        if self.parameters.placing is Placing.GREEDY or len(listed.problem) > self.parameters.columns_max:
            self.by_rule = True
            return greedy
        engine, limits = create(self.parameters.engine), Limits(work=NODES_MAX, gap=self.parameters.gap)
        return lambda problem, allowed: exact(problem, allowed, engine, limits)

    def _give_away(self, device: int) -> None:
        """Leftover share in proportion to what everybody has, as far as larger shares were measured and fit."""
        draft, fleet = self.draft, self.draft.fleet
        mine = [
            (settled, item)
            for need in draft.needs
            for settled in (draft.open(need),)
            for item in settled.placed
            if item.seat.device == device and item.option is not None and not self._stays(settled, item)
        ]
        free = math.floor(float(fleet.share_free[device]) + 1e-9)
        if not mine or free <= 0:
            return
        taken = [item.seat.share_pct for _, item in mine]
        given = project([float(share) for share in taken], sum(taken) + free, spread=True)
        for (settled, item), share in zip(mine, given, strict=True):
            larger = self._grown(settled, item, share)
            if larger is not None:
                exchange(self.draft, settled, item, larger)

    def _stays(self, settled: Settled, item: Placed) -> bool:
        """Whether no process has to start for it: leftover share is not worth that."""
        return item.option is None or staying(self.draft, settled.need, item.option, item.seat.device) is not None

    def short_rps(self) -> float:
        """What is left unserved by InSS' belief, beside the very neighbours, once what waits is served or dropped."""
        draft, belief, served_rps = self.draft, self.belief, dict[str, float]()
        members: dict[int, list[Member]] = {}
        for need in draft.needs:
            for item in draft.open(need).placed:
                if item.option is not None:
                    members.setdefault(item.seat.device, []).append((need, item.option))
        for together in members.values():
            for at, (need, option) in enumerate(together):
                rate, beside = need.rate_rps_least / len(draft.open(need).placed), belief.beside(at, together)
                if belief.in_time(need, option, beside, rate):
                    each = min(rate, belief.throughput_rps(need, option, beside))
                    served_rps[need.workload] = served_rps.get(need.workload, 0.0) + each
        return sum(max(0.0, need.rate_rps_least - served_rps.get(need.workload, 0.0)) for need in draft.needs)

    def _grown(self, settled: Settled, item: Placed, share_pct: int) -> Option | None:
        """The same batch or more at the largest share up to this one."""
        assert item.option is not None
        options, now = self.draft.options(settled.need), item.option
        able = np.flatnonzero(
            (options.device_class == now.device_class)
            & (options.share_pct > now.share_pct)
            & (options.share_pct <= share_pct)
            & (options.batch == now.batch)
            & (options.capacity_rps >= now.capacity_rps)
        )
        if not len(able):
            return None
        return self.draft.option(settled.need, int(able[np.argmax(options.share_pct[able])]))

    def reason(self) -> Reason:
        """How the placement came about."""
        short = len(workloads_short(self.draft))
        facts = (
            Fact(name="columns", value=float(self.columns)),
            Fact(name="rounds", value=float(self.rounds)),
            Fact(name="by_rule", value=float(self.by_rule)),
            Fact(name="short", value=float(short)),
            *(() if self.artefact is None else (Fact(name="actor", value=self.artefact.digest[:16]),)),
        )
        subject = self.draft.request.snapshot.cluster
        return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=subject, facts=facts)


def exchange(draft: Draft, settled: Settled, item: Placed, option: Option) -> bool:
    """Give a replica another configuration on its device, if every rule allows it."""
    draft.fleet.lift(item.seat)
    settled.placed.remove(item)
    made = Placed(seat=seat_of(settled.need, option, item.seat.device), option=option)
    fits = draft.fleet.fits(draft.search(settled.need, option), item.seat.device) and affordable(settled, made)
    settled.add(made if fits else item)
    return fits


def inss_ni() -> Inss:
    """InSS that knows no interference."""
    return Inss(interference=False, spec=SPEC_NI)


def inss_rl() -> Inss:
    """InSS whose placements a trained actor chooses."""
    return Inss(parameters=InssParameters(placing=Placing.LEARNED), spec=SPEC_RL)
