"""What a joint plan's planner found out, for explanations: prices, candidates, what would have to give.

It never delays a plan: what there is no time for is left out, and that is said. Prices are the duals of a solve, per
GPU, watt, quota, request, replica and budget, and two that are no row's dual: of a looser promise and of more memory.
Those are found by judging the devices in use again with a little more of either; patterns that only become possible
then are not looked at, so both are careful.

For workloads that are short every single thing that is enough is told, and the least for all. Beside the elastic
programme two questions are asked that it knows nothing of: how much longer a promise would have to be, and which
workload of lower priority could yield. What is told is enough while all else stays as planned; with everything planned
anew it may be less. What does not serve a workload wholly is not told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import Fact, Insight, ReasonCode, Relaxation, Resource, ShadowPrice
from solvers.domain.grouping import grouped, summed
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan, Unplaced
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.explain.candidates import candidates_of
from solvers.planners.joint.explain.elastic import Ask, Give, Room, configs_of, elastic_of, settle
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import JointProblem
from solvers.problems.needs import Need
from solvers.problems.patterns import Layout, Patterns, Prices

AT_UNSERVED_PART = 0.999
"""Of what leaving it unserved counts: demand that is worth so much is priced as unserved."""
DUST_USD = 1e-9
LOOSER_PART = 0.01
"""Of a promise: so much looser is tried."""
MIB_PER_GIB = 1024.0
DIGITS = 9
TOLD_BY = {Resource.POWER_W: 10.0, Resource.LATENCY_MS: 10.0}
"""Units at once, of others one."""
SHORT_MAX = 8
"""So many are explained; by priority, then by what is short."""
LOOSER_MAX = 64.0
"""Times a promise."""
HALVINGS = 12
YIELD_MAX = 4
"""So many workloads of lower priority are asked whether they could yield."""
FULLY = 1e-6
_EVERYTHING = frozenset(
    (Resource.GPU, Resource.POWER_W, Resource.QUOTA_GPU, Resource.BUDGET_USD, Resource.REPLICA, Resource.GPU_TYPE)
)


def explained(reading: Reading, layout: Layout, plan: Plan, most: int = SHORT_MAX) -> Insight:
    """Prices, candidates and relaxations of a plan, of so many short workloads at most."""
    problem = reading.problem
    candidates, left_out = candidates_of(reading, plan, layout.prices)
    numbers = {"workloads_without_candidates": left_out}
    if layout.prices is not None:
        # Their prices carry what unserved demand counts, which is far above any money.
        at = layout.prices.demand_usd >= AT_UNSERVED_PART * problem.unserved_usd
        numbers["workloads_priced_as_unserved"] = int((at & (problem.least_rps > 0)).sum())
    short = sum(gap.kind is not WorkloadKind.JOB for gap in plan.unplaced)
    numbers["workloads_short_unexplained"] = max(0, short - most)
    most_usd = math.inf if plan.objective.unserved > 0 else plan.objective.net_usd_per_h
    return Insight(
        prices=prices_of(problem, layout, most_usd),
        candidates=candidates,
        relaxations=relaxations_of(reading, plan, most),
        facts=tuple(Fact(name=name, value=float(number)) for name, number in numbers.items() if number),
    )


def prices_of(problem: JointProblem, layout: Layout, most_usd: float = math.inf) -> tuple[ShadowPrice, ...]:
    """All prices, by resource and subject; none without duals. Where several things bind at once, duals of one may be
    anything up to what they save together: as many units as people are told of never save more than `most_usd`.
    """
    if layout.prices is None:
        return ()
    found = [*_of_rows(problem, layout.prices)]
    if layout.patterns:
        found += [*_of_latency(problem, layout, layout.prices), *_of_memory(problem, layout, layout.prices)]
    most = ((item, most_usd / TOLD_BY.get(item.resource, 1.0)) for item in found)
    bounded = (replace(item, usd_per_h=min(item.usd_per_h, usd)) for item, usd in most)
    return tuple(sorted(bounded, key=lambda item: (item.resource, item.subject)))


def _of_rows(problem: JointProblem, prices: Prices) -> Iterator[ShadowPrice]:
    types = sorted({pool.gpu_type for pool in problem.pools})
    for name in types:
        whole = (at for at, pool in enumerate(problem.pools) if pool.gpu_type == name and not pool.rest)
        yield _price(Resource.GPU, name, max((float(prices.pool_usd[at]) for at in whole), default=0.0))
    for cap, usd in zip(problem.caps, prices.cap_usd, strict=True):
        yield _price(Resource.POWER_W, cap.name, float(usd))
    for (project, _), usd in zip(problem.quotas, prices.quota_usd, strict=True):
        yield _price(Resource.QUOTA_GPU, project, float(usd))
    for number, work in enumerate(problem.workloads):
        if work.rate_least_rps > 0:
            yield _price(Resource.RATE_RPS, work.id, float(prices.demand_usd[number]) / work.rate_rps)
        if prices.most_usd[number] > DUST_USD:
            yield _price(Resource.REPLICA, work.id, float(prices.most_usd[number]))
        if work.replicas_min > 1 or (work.replicas_min and not work.rate_least_rps):
            yield _price(Resource.REPLICA_LEAST, work.id, float(prices.fewest_usd[number]))
        if math.isfinite(work.budget_usd_per_h):
            yield _price(Resource.BUDGET_USD, work.id, float(prices.budget_usd[number]))


def _of_latency(problem: JointProblem, layout: Layout, prices: Prices) -> Iterator[ShadowPrice]:
    """Every promise a little looser; a replica's rate depends on its own promise alone."""
    looser = tuple(replace(work, limit_ms=work.limit_ms * (1 + LOOSER_PART)) for work in problem.workloads)
    _, workload, gained_usd = _gained(problem, replace(problem, workloads=looser), layout, prices)
    by_workload = np.bincount(workload, weights=gained_usd, minlength=len(problem.workloads))
    for number, work in enumerate(problem.workloads):
        if math.isfinite(work.limit_ms) and not work.limit_fixed:
            usd = min(float(by_workload[number]), float(prices.demand_usd[number]))
            yield _price(Resource.LATENCY_MS, work.id, usd / (LOOSER_PART * work.limit_ms))


def _of_memory(problem: JointProblem, layout: Layout, prices: Prices) -> Iterator[ShadowPrice]:
    """Every device with a GiB more."""
    larger = tuple(replace(pool, memory_mib=pool.memory_mib + MIB_PER_GIB) for pool in problem.pools)
    pattern, _, gained_usd = _gained(problem, replace(problem, pools=larger), layout, prices)
    by_pattern = np.bincount(pattern, weights=gained_usd, minlength=len(layout.patterns))
    types = [problem.pools[int(problem.kind_pool[item.kind])].gpu_type for item in layout.patterns]
    for name, total in summed(range(len(types)), types.__getitem__, lambda at: float(by_pattern[at])).items():
        yield _price(Resource.MEMORY_GIB, name, total)


def _gained(before: JointProblem, after: JointProblem, layout: Layout, prices: Prices) -> tuple[Whole, Whole, Floats]:
    """Pattern, workload and $/h: what would be served more, at what demand is worth. One device never counts for more
    than a whole rate, as in the programme that the duals are from.
    """
    judge = Judge(before)
    rows = Patterns.of(layout.patterns, judge.width)
    now, then = judge.judge(rows), Judge(after).judge(rows)
    pattern, place = np.nonzero((now.rows.variants >= 0) & (now.lawful & then.lawful)[:, None])
    workload = before.variant_workload[now.rows.variants[pattern, place]]
    pairs, member = np.unique(np.stack([pattern, workload], axis=1), axis=0, return_inverse=True)
    rate = np.maximum(before.rate_rps[pairs[:, 1]], 1e-12)
    part_now, part_then = (
        np.minimum(1.0, np.bincount(member.ravel(), weights=rates[pattern, place], minlength=len(pairs)) / rate)
        for rates in (now.capacity_rps, then.capacity_rps)
    )
    counts = np.array(layout.counts, dtype=np.float64)[pairs[:, 0]]
    usd = np.maximum(part_then - part_now, 0.0) * counts * prices.demand_usd[pairs[:, 1]]
    return pairs[:, 0], pairs[:, 1], np.asarray(usd)


def _price(resource: Resource, subject: str, usd_per_h: float) -> ShadowPrice:
    usd = round(max(0.0, usd_per_h), DIGITS)
    return ShadowPrice(resource=resource, subject=subject, usd_per_h=usd, binding=usd > DUST_USD)


def relaxations_of(reading: Reading, plan: Plan, most: int = SHORT_MAX) -> tuple[Relaxation, ...]:
    """What would have to give for workloads that are short in a plan; nothing where none is."""
    needs = {need.workload: need for need in reading.needs if need.refusal is None}
    gaps = [gap for gap in plan.unplaced if gap.workload in needs and gap.kind is not WorkloadKind.JOB]
    gaps.sort(key=lambda gap: (-needs[gap.workload].priority, -gap.rate_rps_short, gap.workload))
    told = gaps[:most]
    if not told:
        return ()
    elastic = elastic_of(reading.snapshot, [gap.workload for gap in told])
    found: list[Relaxation] = []
    for gap in told:
        for anew in ((gap.workload,), ()):
            ways = [*_Teller(Room(reading, elastic, plan, anew), needs).ways(gap)]
            if ways:
                # With its own replicas as they are only where anew nothing would have to give: a better plan would do.
                found += ways
                break
    if 1 < len(gaps) <= most:
        together = Room(reading, elastic, plan, (gap.workload for gap in told))
        found += _Teller(together, needs).together(told)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Teller:
    room: Room
    needs: dict[WorkloadId, Need]

    def ways(self, gap: Unplaced) -> Iterator[Relaxation]:
        """Every single thing that is enough, numbered; else the least of several together."""
        need, ask = self.needs[gap.workload], self._ask(gap, 1.0)
        if ask is None:
            yield from self._more_memory(need)
            return
        if settle(self.room, [ask], frozenset()) is not None:
            # Nothing has to give: a better plan would serve it.
            return
        single = (settle(self.room, [ask], frozenset({kind})) for kind in sorted(_EVERYTHING, key=list(Resource).index))
        found = [[*self._told(given, gap.workload)] for given in single if given]
        found += [self._looser(gap, need, frozenset()), self._more_memory(need), self._yielding(need, ask)]
        for number, way in enumerate(filter(None, found), start=1):
            yield from (replace(item, way=number) for item in way)
        if not any(found):
            given = settle(self.room, [ask], _EVERYTHING)
            yield from self._told(given, gap.workload) if given else self._looser_and_more(gap, need)

    def together(self, gaps: Sequence[Unplaced]) -> Iterator[Relaxation]:
        """The least for all; nothing where one of them cannot be served in any of these ways."""
        asks: list[Ask] = []
        promises: list[Relaxation] = []
        for gap in gaps:
            ask = self._ask(gap, 1.0)
            if ask is not None and not len(ask.configs):
                need = self.needs[gap.workload]
                way = self._looser(gap, need, frozenset()) or self._looser(gap, need, _EVERYTHING)
                promises += way
                ask = self._ask(gap, way[0].value_needed / way[0].value_now) if way else None
            if ask is None:
                return
            asks.append(ask)
        given = settle(self.room, asks, _EVERYTHING)
        if given is not None:
            for item in (*promises, *self._told(given, None)):
                yield replace(item, workload=None, way=0)

    def _told(self, given: dict[Give, float], workload: WorkloadId | None) -> Iterator[Relaxation]:
        for give, amount in given.items():
            whole = give.resource in (Resource.GPU, Resource.REPLICA, Resource.GPU_TYPE)
            needed = give.now + (math.ceil(amount - FULLY) if whole else amount)
            needed = needed if whole else math.ceil(needed * 1e4 - FULLY) / 1e4
            yield _relaxation(give.resource, give.subject, workload, round(give.now, 6), needed)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def _ask(self, gap: Unplaced, looser: float) -> Ask | None:
        """What is still short at a promise so many times as long; None when it could not be served by anything."""
        need, problem = self.needs[gap.workload], self.room.elastic.problem
        number = next((n for n, work in enumerate(problem.workloads) if work.id == gap.workload), None)
        if number is None:
            return None
        limit_ms = math.inf if need.limit_ms is None else need.limit_ms * looser
        judge = Judge(_promised(problem, number, limit_ms))
        held = self.room.held.get(gap.workload, [])
        missing = max(0, need.replicas_floor - len(held))
        served = sum(item.capacity_rps for item in held)
        spent = self.room.spent_usd_per_h.get(gap.workload, 0.0)
        gained = 0.0 if looser == 1.0 else self._gained_rps(need, number, limit_ms)
        return Ask(
            need=need,
            rate_rps=max(0.0, need.rate_rps_least - served - gained),
            replicas=missing,
            configs=configs_of(judge, number),
            budget_left=math.inf if need.budget_usd_per_h is None else need.budget_usd_per_h - spent,
            replicas_left=float(need.replicas_max - len(held)),
        )

    def _gained_rps(self, need: Need, number: int, limit_ms: float) -> float:
        """What the replicas that are there could serve more with a longer promise, their shares unchanged."""
        problem, pool_of = self.room.elastic.problem, self.room.elastic.pool_of
        variants = {problem.variants[v].model: int(v) for v in np.flatnonzero(problem.variant_workload == number)}
        mine = (item for item in self.room.held.get(need.workload, []) if item.capacity_rps > 0)
        held = [item for item in mine if item.device in pool_of and item.model in variants]
        if not held or need.limit_ms is None:
            return 0.0
        clocks = {item.device: item.clock_mhz_sm for item in self.room.plan.settings}
        kinds = []
        for item in held:
            here = np.flatnonzero(problem.kind_pool == pool_of[item.device])
            at = problem.like(pool_of[item.device], clocks.get(item.device) or 0)
            kinds.append(at[-1] if at else int(here[-1]))
        rows = Patterns.listed(kinds, [[(variants[item.model], item.share_pct_sm)] for item in held], 1)
        promised = (Judge(_promised(problem, number, limit)) for limit in (need.limit_ms, limit_ms))
        before, after = (judge.judge(rows).capacity_rps[:, 0] for judge in promised)
        factor = np.where(before > 0, after / np.maximum(before, 1e-12), 1.0)
        return float(sum(item.capacity_rps * max(0.0, more - 1) for item, more in zip(held, factor, strict=True)))

    # -- what the programme cannot be asked ---------------------------------------------------------------------------

    def _looser(self, gap: Unplaced, need: Need, may_give: frozenset[Resource]) -> list[Relaxation]:
        """The shortest promise that lets it be served with what there is, or, where others may give as well, with no
        more things giving than at any promise.
        """
        given = self._given(gap, LOOSER_MAX, may_give)
        if need.limit_ms is None or given is None:
            return []
        most, low, high = sum(given.values()), 0.0, math.log(LOOSER_MAX)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            given = self._given(gap, math.exp(middle), may_give)
            low, high = (low, middle) if given is not None and sum(given.values()) <= most else (middle, high)
        limit_ms = need.limit_ms * math.exp(high)
        # To three digits, never shorter.
        unit, own = 10.0 ** (math.floor(math.log10(limit_ms)) - 2), need.workload
        needed = round(math.ceil(limit_ms / unit - FULLY) * unit, 9)
        return [_relaxation(Resource.LATENCY_MS, own, own, need.limit_ms, needed)]

    def _looser_and_more(self, gap: Unplaced, need: Need) -> Iterator[Relaxation]:
        """A longer promise and what else has to give with it."""
        for promise in self._looser(gap, need, _EVERYTHING):
            given = self._given(gap, promise.value_needed / promise.value_now, _EVERYTHING)
            if given is not None:
                yield promise
                yield from self._told(given, gap.workload)

    def _given(self, gap: Unplaced, looser: float, may_give: frozenset[Resource]) -> dict[Give, float] | None:
        """What would have to give at a longer promise; None where it is not served."""
        ask = self._ask(gap, looser)
        return None if ask is None else settle(self.room, [ask], may_give)

    def _more_memory(self, need: Need) -> list[Relaxation]:
        """Where memory alone rules a type out: what a device of it would have to have."""
        lacking = [
            (facts["memory_mib_needed"], gpu_type, facts["memory_mib_device"], reason)
            for (workload, gpu_type), reason in sorted(self.room.reading.refusals.items())
            if workload == need.workload and reason.code is ReasonCode.NO_MEMORY_LEFT
            for facts in [{fact.name: float(fact.value) for fact in reason.facts}]
        ]
        if not lacking:
            return []
        needed, gpu_type, has, reason = min(lacking, key=lambda item: item[:2])
        now_gib, needed_gib = round(has / MIB_PER_GIB, 3), math.ceil(needed / MIB_PER_GIB * 1000) / 1000
        told = _relaxation(Resource.MEMORY_GIB, gpu_type, need.workload, now_gib, needed_gib)
        return [replace(told, reason=reason)]

    def _yielding(self, need: Need, ask: Ask) -> list[Relaxation]:
        """The workload of lowest priority below it that could leave it devices of its own, and what it would lose."""
        others = [item for item in self.needs.values() if item.priority < need.priority]
        on = grouped(self.room.plan.assignments, lambda item: item.device)
        asked = [other for other in others if other.workload in self.room.held]
        for other in sorted(asked, key=lambda item: (item.priority, item.workload))[:YIELD_MAX]:
            mine = self.room.held[other.workload]
            own = [item for item in mine if all(at.workload == other.workload for at in on[item.device])]
            own.sort(key=lambda item: (item.capacity_rps, item.replica))
            for count in sorted({1, len(own) // 2, len(own)} - {0}):
                cells = self.room.cells_of(item.device for item in own[:count])
                if cells and settle(self.room, [ask], frozenset(), cells) is not None:
                    served, lost = (sum(item.capacity_rps for item in some) for some in (mine, own[:count]))
                    now, then = other.rate_rps_least, max(0.0, min(other.rate_rps_least, served - lost))
                    at = Resource.RATE_RPS, other.workload, need.workload
                    return [_relaxation(*at, round(now, 4), round(then, 4))]
        return []


def _relaxation(of: Resource, subject: str, workload: WorkloadId | None, now: float, needed: float) -> Relaxation:
    return Relaxation(resource=of, subject=subject, workload=workload, value_now=now, value_needed=needed)


def _promised(problem: JointProblem, number: int, limit_ms: float) -> JointProblem:
    """The problem with one workload's promise set."""
    works = list(problem.workloads)
    works[number] = replace(works[number], limit_ms=limit_ms)
    return replace(problem, workloads=tuple(works))
