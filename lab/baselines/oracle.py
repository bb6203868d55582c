"""The oracle: the best plan there is, found by looking at all of them; for small pictures, to say what others regret.

Owns the search over whole fleets: all fillings of every device, one device after the other, keeping those partial plans
that no other serves as much as for as little. The best is the policy's: least unserved, no promise broken, cheapest; it
is sized as if nothing stood yet. Of plans alike in that it takes the first, so churn and balance are not searched. It
refuses whatever couples devices otherwise (budgets, quotas, shared power caps, failure domains, what is pinned,
training jobs), LLMs, other orders of the objective, and pictures that are too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from solvers.domain.arrays import Floats, Parallel, Whole
from solvers.domain.device import PowerScope
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import ReplicaId
from solvers.domain.plan import Assignment, Proposal, ProposalStatus
from solvers.domain.policy import Term
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.options import Beliefs
from solvers.models.worth import cost_by_device
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, search_of, seat_of
from solvers.planners.tuning import Tune, TunedRecord
from solvers.planners.writer import replica_of, rounded_rps
from solvers.problems.choice import UNKNOWN, Option
from solvers.problems.needs import Need

# --- Everything that one GPU may hold, and what it serves and costs then


class TooManyError(Exception):
    """There is more to look at than was allowed. Never leaves the oracle."""


@dataclass(frozen=True, slots=True)
class FillingCandidate:
    """One measured configuration of one need, by its number; `latency_ms` and rate are those of a device alone."""

    need: int
    option: Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a device holds. Rates by need, requests/s."""

    held: tuple[tuple[FillingCandidate, float, float], ...]
    """Each with the rate it serves here and how many times its latency alone it takes."""
    rates_rps: tuple[float, ...]
    counts: tuple[int, ...]
    usd_per_h: float


@dataclass(slots=True, kw_only=True)
class Fillings:
    draft: Draft
    needs: list[Need]
    at_most: int
    looked_at: int = 0
    _candidates: dict[int, list[FillingCandidate]] = field(default_factory=dict)
    _appraisal: Appraisal | None = None

    @staticmethod
    def of(draft: Draft, needs: list[Need], at_most: int) -> Fillings:
        """With the candidates of every class of devices: all that keeps its promise alone."""
        made = Fillings(draft=draft, needs=needs, at_most=at_most)
        snapshot = draft.case.snapshot
        # Without margin and interference an option is what it is alone; neighbours are reckoned with where they are.
        alone = replace(
            snapshot,
            policy=replace(snapshot.policy, interference_margin=1.0),
            profiles=tuple(replace(item, interference=None) for item in snapshot.profiles),
        )
        beliefs = Beliefs.of(alone, draft.fleet.classes)
        for number, need in enumerate(needs):
            options, _ = beliefs.options(need)
            for index in range(len(options)):
                option = beliefs.option(need, options, index)
                own = replace(option, batch_min=option.batch, batch_max=option.batch, press=UNKNOWN)
                made._candidates.setdefault(option.device_class, []).append(FillingCandidate(number, own))
        return made

    def on(self, device: int) -> list[Filling]:
        """All fillings of a device, the empty one first. Raises TooManyError."""
        kinds = self._candidates.get(int(self.draft.fleet.class_of[device]), [])
        nothing = Filling(held=(), rates_rps=(0.0,) * len(self.needs), counts=(0,) * len(self.needs), usd_per_h=0.0)
        return [nothing, *self._more(device, kinds, 0, [])]

    def _more(
        self, device: int, kinds: list[FillingCandidate], start: int, held: list[FillingCandidate]
    ) -> Iterator[Filling]:
        fleet = self.draft.fleet
        for at in range(start, len(kinds)):
            candidate = kinds[at]
            need = self.needs[candidate.need]
            seat = seat_of(need, candidate.option, device)
            if not fleet.fits(search_of(need, seat), device):
                continue
            self.looked_at += 1
            if self.looked_at > self.at_most:
                raise TooManyError
            together = [*held, candidate]
            judged = self._judged(device, together)
            # More neighbours only slow: what breaks a promise now breaks it in every larger set.
            if judged is None:
                continue
            yield judged
            fleet.put(seat)
            try:
                yield from self._more(device, kinds, at, together)
            finally:
                fleet.lift(seat)

    def _judged(self, device: int, held: list[FillingCandidate]) -> Filling | None:
        """What these serve together; None when one of them breaks its promise."""
        case, fleet = self.draft.case, self.draft.fleet
        items = [
            assignment_on(self.draft, self.needs[each.need], each.option, device, n) for n, each in enumerate(held)
        ]
        fresh = Appraisal.of(fleet, case.beliefs.profiles, case.snapshot.policy, items, {})
        if self._appraisal is None:
            self._appraisal = fresh
        appraisal = replace(self._appraisal, company=fresh.company)
        rates, counts = [0.0] * len(self.needs), [0] * len(self.needs)
        found: list[tuple[FillingCandidate, float, float]] = []
        for candidate, item in zip(held, items, strict=True):
            (shown,) = appraisal.capacities_rps(self.needs[candidate.need], [item])
            if shown is None or shown <= 0:
                return None
            rates[candidate.need] += rounded_rps(shown)
            counts[candidate.need] += 1
            found.append((candidate, rounded_rps(shown), appraisal.slowdown(item)))
        cost = sum(cost_by_device(case.snapshot, fleet, tuple(items), {}).values())
        return Filling(held=tuple(found), rates_rps=tuple(rates), counts=tuple(counts), usd_per_h=cost)


def assignment_on(draft: Draft, need: Need, option: Option, device: int, number: int) -> Assignment:
    """A replica as it would stand in a plan, at one batch: envelopes are not searched."""
    fixed = replace(option, batch_min=option.batch, batch_max=option.batch)
    return replica_of(need, fixed, draft.fleet.devices[device].id).named(ReplicaId(f"{need.workload}#{number}"))


SPEC = PlannerSpec(
    name="oracle",
    about="the best plan there is, by looking at all of them; refuses all but small pictures",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
DUST = 1e-6
ROWS_PER_KEPT = 50
ORDER = (Term.UNSERVED, Term.SLO_RISK, Term.COST)


@value
class OracleParameters(TunedRecord):
    devices_max: Annotated[int, Tune("devices in a picture", 1, 64)] = 8
    fillings_max: Annotated[
        int, Tune("sets of replicas on one device that are looked at, over all devices", 1, 10**7)
    ] = 4000
    partial_plans_max: Annotated[int, Tune("partial plans that are kept from device to device", 1, 10**7)] = 2000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Partial(Parallel):
    """Partial plans over the devices so far, one a row."""

    rates: Floats
    """By need: requests/s, no more than is wanted."""
    counts: Floats
    usd: Floats
    steps: Whole
    """By row: the filling of every device so far."""

    @staticmethod
    def of(choices: list[Filling], needs: list[Need]) -> _Partial:
        """One device alone."""
        return _Partial(
            rates=np.minimum([item.rates_rps for item in choices], [need.rate_rps for need in needs]),
            counts=np.array([item.counts for item in choices], dtype=np.float64),
            usd=np.array([item.usd_per_h for item in choices]),
            steps=np.arange(len(choices))[:, None],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Stateless):
    parameters: OracleParameters = field(default_factory=OracleParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        """The best plan, or why it was not looked for."""
        case = Case.of(request)
        draft = Draft.of(request, case)
        wanted = [need for need in draft.needs if len(draft.options(need))]
        for need in draft.needs:
            if not len(draft.options(need)):
                draft.refuse(need)
        refused = self._coupled(case)
        if refused is not None:
            return _refusal(refused)
        looked_at = 0
        if wanted:
            try:
                looked_at = self._search(draft, wanted)
            except TooManyError:
                return _refusal("too many plans: fewer devices, services or measured configurations, or larger limits")
        reporter.event("oracle.looked", fillings=float(looked_at))
        proposal = draft.proposal(SPEC)
        plan = proposal.plan
        proven = plan is not None and plan.objective.slo_risk == 0
        return replace(proposal, status=ProposalStatus.OPTIMAL) if proven else proposal

    def _coupled(self, case: Case) -> str | None:
        """What keeps devices from being looked at one by one, in words."""
        snapshot, services = case.snapshot, [need for need in case.needs if need.kind is not WorkloadKind.JOB]
        if not case.needs:
            return None
        names = {need.project for need in case.needs}
        reasons = {
            f"more than {self.parameters.devices_max} devices": len(snapshot.devices) > self.parameters.devices_max,
            "pinned replicas": bool(case.pinned),
            "training jobs": len(services) < len(case.needs),
            "LLMs, or services that choose among networks": any(need.tokens or need.alternatives for need in services),
            "budgets": any(need.budget_usd_per_h is not None for need in services),
            "quotas": any(item.name in names and item.quota_gpus is not None for item in snapshot.projects),
            "power caps over several devices": any(cap.scope is not PowerScope.DEVICE for cap in snapshot.power_caps),
            "failure domains": any(need.affinity.failure_domains_min > 1 for need in services),
            "an objective of another order": snapshot.policy.terms[: len(ORDER)] != ORDER,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _search(self, draft: Draft, needs: list[Need]) -> int:
        """Find the best plan and write it into the draft; how many fillings were looked at."""
        fillings = Fillings.of(draft, needs, self.parameters.fillings_max)
        usable = [device for device in range(len(draft.fleet.devices)) if draft.fleet.usable[device]]
        whole = [fillings.on(device) for device in usable]
        most = sum(np.array([item.counts for item in choices]).max(axis=0) for choices in whole)
        # A ceiling that cannot be reached sets no plan apart.
        ceilings = np.array(
            [need.replicas_max if most[at] > need.replicas_max else np.inf for at, need in enumerate(needs)]
        )
        listed = [[choices[row] for row in _front(_Partial.of(choices, needs), needs, ceilings)] for choices in whole]
        best = self._best(listed, needs, ceilings)
        for device, at, choices in zip(usable, best, listed, strict=True):
            _write(draft, needs, device, choices[at])
        for need in needs:
            settled = draft.open(need)
            if settled.rate_rps_short or settled.replicas_missing:
                draft.block(settled, ReasonCode.NO_SHARE_LEFT, draft.option(need, 0))
        return fillings.looked_at

    def _best(self, listed: list[list[Filling]], needs: list[Need], ceilings: Floats) -> Whole:
        """Of every device the number of its filling."""
        none, wanted = np.zeros((1, len(needs))), [need.rate_rps for need in needs]
        plans = _Partial(rates=none, counts=none, usd=np.zeros(1), steps=np.zeros((1, 0), dtype=np.int64))
        for choices in listed:
            one = _Partial.of(choices, needs)
            if len(plans.usd) * len(choices) > ROWS_PER_KEPT * self.parameters.partial_plans_max:
                raise TooManyError
            row, choice = np.divmod(np.arange(len(plans.usd) * len(choices)), len(choices))
            grown = _Partial(
                rates=np.minimum(plans.rates[row] + one.rates[choice], wanted),
                counts=plans.counts[row] + one.counts[choice],
                usd=plans.usd[row] + one.usd[choice],
                steps=np.concatenate([plans.steps[row], choice[:, None]], axis=1),
            )
            keep = _front(grown, needs, ceilings)
            if len(keep) > self.parameters.partial_plans_max:
                raise TooManyError
            plans = grown.take(keep)
        best: Whole = plans.steps[_best_row(plans, needs)]
        return best


def _best_row(plans: _Partial, needs: list[Need]) -> int:
    """Least unserved by weight, then least below what capacity is sized for, then cheapest."""
    weight = np.array([need.weight for need in needs])
    least = np.array([need.rate_rps_least for need in needs])
    sized = np.array([need.rate_rps for need in needs])
    floor = np.array([need.replicas_min for need in needs])
    missing = np.maximum(0, floor - plans.counts)
    short = np.where(least - plans.rates > DUST * np.maximum(1, least), least - plans.rates, 0.0)
    unserved = (short + missing) @ weight
    wanting = np.where(sized - plans.rates > DUST * np.maximum(1, sized), sized - plans.rates, 0.0) @ weight
    return int(np.lexsort((np.round(plans.usd, 9), np.round(wanting, 6), np.round(unserved, 6)))[0])


def _front(plans: _Partial, needs: list[Need], ceiling: Floats) -> Whole:
    """Rows that no other row serves as much as for as little, the cheapest first; ceilings on replicas kept."""
    floor = np.array([need.replicas_min for need in needs])
    # Replicas count for them up to the floor, and against them where a ceiling can be reached.
    against = np.where(np.isfinite(ceiling), -plans.counts, 0.0)
    merits = np.concatenate([np.round(plans.rates, 6), np.minimum(plans.counts, floor), against], axis=1)
    order = np.lexsort((-merits.sum(axis=1), np.round(plans.usd, 9)))
    kept: list[int] = []
    front = np.zeros((0, merits.shape[1]))
    for row in order:
        if (plans.counts[row] > ceiling).any() or (front >= merits[row]).all(axis=1).any():
            continue
        kept.append(int(row))
        front = np.concatenate([front, merits[row][None, :]])
    return np.array(kept, dtype=np.int64)


def _write(draft: Draft, needs: list[Need], device: int, filling: Filling) -> None:
    for number, (candidate, rate_rps, slowdown) in enumerate(filling.held):
        need = needs[candidate.need]
        item = assignment_on(draft, need, candidate.option, device, number)
        if item.latency_ms_planned is not None:
            item = replace(item, latency_ms_planned=item.latency_ms_planned * slowdown)
        class_index = int(draft.fleet.class_of[device])
        option = draft.case.beliefs.as_it_stands(need, class_index, item, capacity_rps=rate_rps, slowdown=slowdown)
        draft.open(need).add(Placed(seat=seat_of(need, option, device), option=option))


def _refusal(why: str) -> Proposal:
    facts = (Fact(name="not_searched_with", value=why),)
    reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=SPEC.name, facts=facts)
    return Proposal(status=ProposalStatus.NOT_APPLICABLE, planner=SPEC.name, plan=None, reasons=(reason,))
