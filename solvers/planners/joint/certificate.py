"""How much dearer than the best a plan can be: a bound for whatever plan, whoever made it.

Any prices of what is asked for prove a bound: what a plan serves at these prices, less what the best contents of every
device could be worth above what they cost. So prices of an earlier solve prove something of today's problem, and
nobody needs to have solved it: where none are known, those of the cheapest single replica do. The problem here leaves
out what would make it narrower than the truth: who stands beside pinned replicas may move, and what is left of a device
is open to all who fit, at no price where it is paid for already, pressed by nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, floor, inf, log

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole, least_of, most_of
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import CostBasis, Term
from solvers.domain.snapshot import Snapshot
from solvers.engines.deadline import Deadline
from solvers.models.worth import cost_by_device, pinned_settings
from solvers.planners.base import PlanRequest
from solvers.planners.joint.reading.formulation import Reading, assemble
from solvers.planners.joint.reading.pools import pools_of
from solvers.planners.joint.reading.work import staying_of
from solvers.planners.joint.solve.branch import NEAR, Leaves, Tree, few_devices
from solvers.planners.joint.solve.generate import Bound, Pace, generate, singles
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.pricing import Look, Pricing, lagrangian
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.joint import WHOLE_PCT, JointProblem, Workload
from solvers.problems.needs import needs_of
from solvers.problems.patterns import Judged, Layout, Pattern, Prices


@dataclass(frozen=True, kw_only=True)
class Loosened:
    """A problem of which every plan for a snapshot is a layout that costs no more than the plan without what is pinned:
    who stands beside pinned replicas may move, and what those leave of a device is open to all who fit.
    """

    snapshot: Snapshot
    fleet: Fleet
    problem: JointProblem
    pinned: tuple[Assignment, ...]
    room_pct: Floats
    """By pool: share that is not taken."""
    paid: Flags
    """By pool: whether something pinned stands on its devices, which cost nothing more then."""


def loosened(snapshot: Snapshot, movable: tuple[WorkloadId, ...], reading: Reading | None = None) -> Loosened:
    """See the class. `reading`: of the same, where it was read."""
    if reading is not None and not reading.pinned:
        picture, fleet, problem = reading.snapshot, reading.fleet, reading.problem
        whole, none = np.full(len(problem.pools), float(WHOLE_PCT)), np.zeros(len(problem.pools), dtype=bool)
        return Loosened(snapshot=picture, fleet=fleet, problem=problem, pinned=(), room_pct=whole, paid=none)
    picture = snapshot.with_offers()
    needs = needs_of(picture, movable)
    fleet = open_fleet(picture, pinned_settings(picture, movable))
    staying = staying_of(picture, movable, needs, fleet, beside=False)
    pools = pools_of(picture, fleet, (), by_failure_domain=any(n.affinity.failure_domains_min > 1 for n in needs))
    first = np.array(pools.first, dtype=np.intp)
    taken = np.array(fleet.occupants[first] > 0, dtype=bool)
    paid = taken & (picture.policy.cost_basis is CostBasis.DEVICE)
    places = ([fleet.index[name] for name in names] for names in pools.devices)
    left_w = np.maximum(0.0, fleet.limit_w - fleet.idle_w - fleet.dynamic_w)
    # What those who stay draw is paid already: nothing more is, than is left up to the limit.
    opened = tuple(
        replace(pool, usd_per_h=pool.usd_per_h * (not free), idle_w=0.0, limit_w=float(left_w[at].min()), capped=False)
        if rest
        else pool
        for pool, rest, free, at in zip(pools.pools, taken.tolist(), paid.tolist(), places, strict=True)
    )
    problem, _ = assemble(picture, fleet, replace(pools, pools=opened), staying.left)
    room_pct = np.asarray(fleet.share_free[first], dtype=np.float64)
    return Loosened(snapshot=picture, fleet=fleet, problem=problem, pinned=staying.pinned, room_pct=room_pct, paid=paid)


DUST = 1e-6
PART_PROVEN = 0.005
"""Of what devices cost: where duals are not the best ones, to look closer is worth nothing."""
SINGLES_MAX = 30_000
"""Replicas looked at one by one at every percent; of more, at some shares."""
AT_ONCE_MAX = 50_000
"""Replicas whose columns are laid out at a time, for the sake of memory."""
ALONE_MAX = 60_000
"""Replicas alone that are looked at to see what a device carries."""
FAR = 0.5
"""Of the cost: a bound below says that prices are no good, and single replicas may prove more."""
APART = 1.15
"""Some shares: each so many times as large as the one before."""
RATE_STEPS = 400
"""For each e-fold: what branching asks for is a whole number of them, rounded down."""
MORE, HARDER, NEAR_ENOUGH = 1.02, 1.4, 0.01
"""What was shown is looked at anew where so much more is served or may be done, and it is not so near the cost."""
CLOSER_UNITS, AGAIN_UNITS, CARRIED = 2200, 150, 0.98
"""What branching may take in all for rates like these, and at a time where it goes on from what was proven before; the
part of that which must hold to go on from it."""
SURELY_DEVICES = 1e4
"""So many of the dearest everything counts that is served."""
WARM_MAX = 600
"""Patterns that branching begins with, and the renewal of prices."""
RENEWED_GAP = 0.01
"""Of the relaxed optimum over those, prices of today are settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What branching has proven: on this fleet, serving these rates, requests/s, costs no less."""

    fleet: str
    rates: Mapping[WorkloadId, float] = field(default_factory=dict)
    usd_per_h: float = 0.0
    effort: float = 0.0
    """Work that was allowed for it, by how near would have been enough; all of it where it ended by itself."""
    leaves: Leaves | None = field(default=None, compare=False)
    """Where branching ended."""
    had: Mapping[WorkloadId, float] = field(default_factory=dict)
    had_usd: float = inf
    """What a layout serves, and what it costs: of no more than that nothing more can be proven."""

    def of(self, fleet: str, rates: Mapping[WorkloadId, float]) -> Shown:
        """What of it holds of this."""
        if fleet != self.fleet:
            return Shown(fleet=fleet)
        holds = all(rates[name] >= rate for name, rate in self.rates.items())
        return self if holds else replace(self, rates={}, usd_per_h=0.0)

    def most_usd(self, rates: Mapping[WorkloadId, float], usd_per_h: float) -> float:
        """What serving these rates is known to cost at most."""
        serves = bool(self.had) and all(self.had.get(name, 0.0) >= rate for name, rate in rates.items())
        return min(usd_per_h, self.had_usd) if serves else usd_per_h

    def more(self, rates: Mapping[WorkloadId, float]) -> bool:
        """Whether much more is asked than that was proven of."""
        return any(rate > MORE * self.rates.get(name, -1.0) for name, rate in rates.items())

    def far(self, rates: Mapping[WorkloadId, float], usd_per_h: float, effort: float) -> bool:
        """Whether more may be proven of being asked for so much more, or with so much more effort."""
        return (self.more(rates) or effort > HARDER * self.effort) and self.usd_per_h < usd_per_h * (1 - NEAR_ENOUGH)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    problem: Loosened
    rows: Rows
    judge: Judge
    proof: Bound | None
    """At a solve's prices, where they are known and there was time to find out what contents are worth at them."""
    warm: tuple[Pattern, ...] = ()
    """What branching begins with: contents that a solve found, in these numbers."""
    found: tuple[Layout, ...] = ()
    """Layouts in these numbers: what they cost nobody needs to prove more than."""

    @staticmethod
    def of(problem: Loosened, prices: Prices | None, deadline: Deadline) -> Certificate:
        rows, judge, proof = Rows(problem.problem), Judge(problem.problem), None
        if prices is not None:
            duals, worth = rows.duals(prices), prices.worth_usd
            if worth is None and problem.problem.kinds and not deadline.over:
                look = Look(part=PART_PROVEN, step_pct=max(1, rows.problem.share_step_pct))
                worth = Pricing(judge, rows, judge.width).price(duals, look, deadline, 0.0).ceilings
            proof = None if worth is None or not np.isfinite(worth).all() else Bound.of(rows, duals, worth)
        return Certificate(problem=problem, rows=rows, judge=judge, proof=proof)

    def renewed(self, deadline: Deadline) -> Certificate:
        """With prices of today, where those of an earlier solve prove too little: they settle from there, over the
        contents that it found.
        """
        if self.proof is None or not self.warm or deadline.over:
            return self
        master = Master(self.problem.problem, self.judge)
        master.offer(singles(master.problem, master.width))
        master.offer(master.of_patterns(self.warm))
        found = generate(master, deadline, Pace(gap=RENEWED_GAP, first_pct=1, proven=self.proof))
        return self if found is None or found.bound is None else replace(self, proof=found.bound)

    @property
    def prices(self) -> Prices | None:
        """What the proof is at."""
        return None if self.proof is None else self.rows.prices(self.proof.duals, self.proof.worth)

    @property
    def near(self) -> float:
        """Part of the cost: so near, a bound is near enough."""
        return max(NEAR, self.problem.snapshot.policy.gap_pct_target / 100)

    @cached_property
    def at_a_glance(self) -> Bound | None:
        """What single replicas prove."""
        problem = self.problem.problem
        return _at_a_glance(self.problem, self.rows) if problem.workloads and problem.kinds else None

    def bound(self, plan: Plan) -> float:
        """On the cost of serving what this plan serves, $/h; never above what it costs."""
        least = self._served(plan)
        outside_usd, cost = self._outside_usd(plan), plan.objective.cost_usd_per_h
        # What a plan disproves was never true of it: its own numbers are not those that the prices are about.
        bound = outside_usd
        for alone in (False, True):
            if (proof := self.at_a_glance if alone else self.proof) is not None:
                usd = outside_usd + max(0.0, lagrangian(least, proof.duals, proof.worth))
                bound = max(bound, usd) if usd <= cost * (1 + DUST) else bound
            if bound > outside_usd and bound >= FAR * cost:
                break
        return min(cost, bound)

    def closer(self, plan: Plan, known: Shown | None, deadline: Deadline) -> tuple[Plan, Shown | None]:
        """The plan with what branching proves of it, of a stopover of where it leads, where devices are few and that
        is more; and what was shown, which goes on to hold for whoever is asked for as much on the same fleet. What
        stands with less headroom is held against plans that have all of it, as what is planned has to, and run jobs as
        fast; it may be cheaper. Where no plan has all of it, against those that serve as much. Where capacity counts
        before cost, devices are taken for more than is asked, and what serving that costs is never near.
        """
        if plan.toward is not None:
            to, known = self.closer(plan.arrived, known, deadline)
            return replace(plan, toward=replace(plan.toward, bound_usd_per_h=to.bound_usd_per_h)), known
        loose, policy, cost = self.problem, self.problem.snapshot.policy, plan.objective.cost_usd_per_h
        outside_usd, bound = self._outside_usd(plan), plan.bound_usd_per_h or 0.0
        if policy.before_cost(Term.CAPACITY) or not few_devices(loose.problem) or bound >= cost * (1 - self.near):
            return plan, known
        served = plan.served_rps
        # All of its rate, where it is served as far as it must be: what lacks is headroom.
        asked = {
            work.id: work.rate_rps if 0 < work.rate_least_rps <= served[work.id] * (1 + DUST) else served[work.id]
            for work in loose.problem.workloads
        }
        less = any(served[name] < rate for name, rate in asked.items())
        shown = self._shown(asked, cost - outside_usd, known, deadline)
        if less and shown.usd_per_h > cost - outside_usd + loose.problem.dearest_usd:
            shown, less = self._shown(served, cost - outside_usd, known, deadline), False
        usd = outside_usd + shown.usd_per_h
        # What a plan disproves was never true of it, but for one that stands with less than it is asked for.
        better = bound < usd and (less or usd <= cost * (1 + DUST))
        return (replace(plan, bound_usd_per_h=min(usd, cost)) if better else plan), shown

    def _shown(self, rates: Mapping[WorkloadId, float], usd: float, known: Shown | None, deadline: Deadline) -> Shown:
        """Of these rates: what is known, or more, where that is not near what is known to serve them."""
        problem = serving(self.problem.problem, rates)
        fleet = repr((problem.fingerprint, problem.caps, [item.devices for item in problem.pools]))
        asked = {item.id: item.rate_rps for item in problem.workloads}
        known = (known or Shown(fleet=fleet)).of(fleet, asked)
        for layout in self.found:
            had = dict(zip(asked, layout.served_rps(problem).tolist(), strict=True))
            if layout.usd_per_h < known.most_usd(asked, inf) and all(had[name] >= rate for name, rate in asked.items()):
                known = replace(known, had=had, had_usd=layout.usd_per_h)
        usd = known.most_usd(asked, usd)
        if deadline.over or not known.far(asked, usd, CLOSER_UNITS / self.near):
            return known
        begin = told = known.leaves
        if told is not None:
            enough = usd * (1 - max(self.near, NEAR_ENOUGH))
            begin, rising = told.at(problem.rate_rps, problem.rate_rps), problem.rate_rps > told.rates
            if begin.usd(problem) < enough:
                begin = told.at(problem.rate_rps, most_on_a_device(problem, rising))
            if (found := begin.usd(problem)) >= enough:
                return replace(known, rates=asked, usd_per_h=max(found, known.usd_per_h), leaves=begin)
            # Where little is left of it, to begin anew is quicker.
            begin = begin if found >= CARRIED * told.bound.min() else None
        if begin is not None:
            deadline = Deadline(deadline.time_left_s, min(AGAIN_UNITS, int(deadline.units_until(0.0))))
        shown, leaves = branched(problem, usd, deadline, self.warm, self.near, begin)
        spent = CLOSER_UNITS if deadline.left_part > 0.0 else deadline.work_units or CLOSER_UNITS
        effort = spent / self.near + (0.0 if known.more(asked) else known.effort)
        return replace(known, rates=asked, usd_per_h=max(shown, known.usd_per_h), effort=effort, leaves=leaves)

    def _outside_usd(self, plan: Plan) -> float:
        """What those cost that the problem leaves out."""
        settings = {item.device: item for item in plan.settings}
        pinned = {item.replica for item in self.problem.pinned}
        outside = tuple(item for item in plan.assignments if item.replica in pinned)
        return sum(cost_by_device(self.problem.snapshot, self.problem.fleet, outside, settings).values())

    def _served(self, plan: Plan) -> Rows:
        """The rows, asking for no more than the plan gives."""
        problem = self.problem.problem
        served, replicas = plan.served_rps, Counter(item.workload for item in plan.assignments)
        least, found = copy(self.rows), self.rows.lower.copy()
        for number, work in enumerate(problem.workloads):
            part = served[work.id] / work.rate_rps if replicas[work.id] else 0.0
            found[number] = min(found[number], part)
            if (row := int(self.rows.fewest[number])) >= 0:
                found[row] = min(found[row], replicas[work.id])
        least.lower = found
        return least


def solved_usd(about: Reading | Loosened, plan: Plan, layout: Layout) -> float:
    """What a solve's bound says of a plan: that holds for plans that serve everybody, where nothing is pinned. It
    counts what jobs do not earn, which is no part of a plan's cost.
    """
    works, short, served = about.problem.workloads, {item.workload for item in plan.unplaced}, plan.served_rps
    all_of = {item.id: item.id not in short and served[item.id] >= item.rate_rps * (1 - DUST) for item in works}
    if layout.bound_usd_per_h is None or about.pinned or not all(item.may_wait or all_of[item.id] for item in works):
        return 0.0
    parts = ((item, min(1.0, served[item.id] / item.rate_rps)) for item in works if item.may_wait)
    usd = layout.bound_usd_per_h - sum((item.unserved_usd * (1 - part) for item, part in parts), start=0.0)
    cost = plan.objective.cost_usd_per_h
    return min(usd, cost) if usd <= cost * (1 + DUST) else 0.0


def serving(problem: JointProblem, served_rps: Mapping[WorkloadId, float]) -> JointProblem:
    """The same, asking for no more than is served, a little less so that it holds longer; how many replicas do
    it, and in how many domains, is left out.
    """
    works, usd = list[Workload](), SURELY_DEVICES * max(problem.dearest_usd, DUST)
    for item in problem.workloads:
        rate = min(item.rate_rps, served_rps[item.id])
        rate = exp(floor(RATE_STEPS * log(rate)) / RATE_STEPS) if rate > 0 else 0.0
        asked = replace(item, rate_rps=rate, rate_least_rps=min(rate, item.rate_least_rps), unserved_usd=usd)
        works.append(replace(asked, replicas_min=0, domains_min=1, may_wait=False))
    return replace(problem, workloads=tuple(works))


def branched(
    problem: JointProblem,
    usd_per_h: float,
    deadline: Deadline,
    warm: tuple[Pattern, ...] = (),
    near: float = NEAR,
    begin: Leaves | None = None,
) -> tuple[float, Leaves | None]:
    """What serving every rate costs at least, as far as branching proves that where so near to so much is enough; and
    where that ended. It goes on from where it ended `begin`, of other rates.
    """
    master = Master(problem, Judge(problem))
    master.offer(singles(problem, master.width))
    master.offer(master.of_patterns(warm))
    proven, search, leaves = [0.0], master, begin
    for counting in (False, True):  # replicas when devices have nothing more to say
        if not deadline.over and (begin is None or counting >= begin.counting):
            told = begin if begin is not None and counting == begin.counting else None
            tree = Tree(search=search, usd=usd_per_h, deadline=deadline, counting=counting, near=near, begin=told)
            proven.append(tree.run())
            search, leaves = tree.master, tree.leaves()
    return max(proven), leaves


def certified(request: PlanRequest, plan: Plan) -> Plan:
    """A plan with what single replicas prove of it, where its planner proves nothing."""
    if plan.bound_usd_per_h is not None:
        return plan
    found = Certificate.of(loosened(request.snapshot, request.movable), None, Deadline(0.0))
    return replace(plan, bound_usd_per_h=found.bound(plan))


def lone(problem: JointProblem, kinds: Whole, variants: Whole, shares_pct: Whole) -> Judged:
    """Replicas alone on devices, whatever limits what those may draw: with a smaller batch they may keep within it."""
    pools = tuple(replace(item, capped=False) for item in problem.pools)
    return Judge(replace(problem, pools=pools)).alone(kinds, variants, shares_pct)


def most_on_a_device(problem: JointProblem, works: Flags) -> Floats:
    """Of these workloads what one device carries at most, requests/s; infinite where there are too many to see."""
    found, variants = np.where(works, np.inf, 0.0), np.flatnonzero(works[problem.variant_workload])
    if problem.kinds * len(variants) * len(problem.lone_pct) > ALONE_MAX or not len(variants):
        return found
    judged = lone(problem, np.arange(problem.kinds), variants, problem.lone_pct)
    share, alone_rps = judged.rows.shares_pct[:, 0], judged.capacity_rps[:, 0]
    work = problem.variant_workload[judged.rows.variants[:, 0]]
    each = np.array([item.per_device_max for item in problem.workloads])
    most = most_of(alone_rps * np.minimum(each[work], problem.members_max), work, np.zeros(len(works)))
    dense = most_of(alone_rps * WHOLE_PCT / share, work, np.zeros(len(works)))
    return np.where(works, np.minimum(most, dense), 0.0)


def _at_a_glance(loose: Loosened, rows: Rows) -> Bound:
    """What can be said of devices by looking at single replicas: no contents are worth more than so many of the best
    replica, nor than all of the share at the best replica's worth for its share, what they draw left out.
    """
    problem, step, shares = loose.problem, max(1, loose.problem.share_step_pct), loose.problem.lone_pct
    open_kinds = np.flatnonzero(problem.pool_devices[problem.kind_pool])
    if len(open_kinds) * len(problem.variants) * len(shares) > SINGLES_MAX:
        # What was measured is among them: where replicas may be no larger, that is one of those.
        apart = np.floor(float(shares[0]) * APART ** np.arange(WHOLE_PCT)).astype(np.int64) // step * step
        shares = np.intersect1d(shares, np.concatenate([apart, problem.shares_pct]))
    # Each at the price of its least share: no replica has one between that and its own here. Of whole devices none.
    low = np.concatenate([shares[:1], np.minimum(shares[:-1] + step, shares[1:])])
    judged = lone(problem, open_kinds, np.arange(len(problem.variants)), shares)
    low_pct = low[np.searchsorted(shares, judged.rows.shares_pct[:, 0])]
    fits = low_pct <= loose.room_pct[problem.kind_pool[judged.rows.kind]]
    judged, low_pct = judged.take(fits), low_pct[fits]
    held_usd = problem.held_usd(judged.rows.kind, judged.rows.variants[:, 0], low_pct) * problem.by_replica
    judged, pool = replace(judged, usd_per_h=held_usd), problem.kind_pool[judged.rows.kind]
    # Duals so low that no replica is worth more than the part of a device that it takes.
    taken = held_usd if problem.by_replica else problem.idle_usd[pool] * low_pct / WHOLE_PCT
    work = problem.variant_workload[judged.rows.variants[:, 0]]
    part = np.minimum(judged.capacity_rps[:, 0] / np.maximum(problem.rate_rps[work], 1e-12), 1.0)
    able = (part > 0) & ~loose.paid[pool]
    usd = least_of(taken[able] / part[able], work[able], problem.unserved_usd)
    each = least_of(taken[able], work[able], np.full(len(problem.workloads), np.inf))
    usd, each = np.where(rows.wanted, usd, 0.0), np.where(np.isfinite(each), each, 0.0)
    many = np.where(rows.fewest >= 0, rows.lower[rows.fewest], 0.0) * each > usd
    duals = np.zeros(rows.count)
    duals[: len(usd)] = np.where(many, 0.0, usd)
    duals[rows.fewest[many]] = each[many]
    # They price neither devices nor what limits them.
    parts = (judged.take(np.s_[at : at + AT_ONCE_MAX]) for at in range(0, len(judged), AT_ONCE_MAX))
    worth = -np.concatenate([np.zeros(0), *(rows.columns(part).reduced(duals) for part in parts)])
    most, dense = (most_of(each, pool, np.zeros(len(problem.pools))) for each in (worth, worth / low_pct))
    clients = np.array([item.clients for item in problem.pools])
    several = np.minimum(clients * most, loose.room_pct * dense) - rows.item_prices(duals).fixed
    return Bound.of(rows, duals, np.maximum(0.0, several))
