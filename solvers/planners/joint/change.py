"""Layouts for one reading: everything anew, or only what has a reason to change.

From the snapshot and the moment of the last full solve, so that a repeated cycle decides alike at whatever moments
cycles run: a workload has a reason to change when what stands of it is short, breaks a rule or a promise, or could do
with notably less (but for services that can always use more). A full solve is due when nothing stands, when many have
reasons, or when the last one is long past or unknown.

A narrowed solve proves nothing of the whole, but prices of an earlier one do (`certificate`). Devices that host a
workload that is to change, devices that host nothing, and some of the worst filled ones are open; all others stay, and
what they serve, draw, spend and hold is taken off what is asked and allowed. What can be reached at once from what
stands is offered beside it (`solve.reach`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.planners.base import PlanRequest
from solvers.planners.joint.attempt import NOTHING, Kept, recall
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.reach import ReachTerms, reached
from solvers.planners.joint.solve.solve import PROOF_PART, SolveOrder, charge, portion
from solvers.problems.joint import Cap, JointProblem, Workload
from solvers.problems.patterns import Layout, Pattern, Standing

FULL_EVERY_S = 300.0
"""So long after the last full solve the next cycle is one again."""
OPEN_PART_MAX = 0.3
"""With more workloads open than this, all are."""
SURPLUS = 1.5
"""What serves so many times what it is sized for could be smaller."""
DUST = 1e-6
LOOSE_DEVICES_MAX = 150
"""Devices that are opened beside those that must be, the worst filled first."""
LOOSE_PART = 1.0
"""But no more than so many for each device that must be."""
RESIDUE = 1e-6
"""Part of a rate that is no reason for a replica."""
SHORT_LEAST = 50.0
"""However little is left of a rate: leaving it unserved counts so many of the dearest devices at least."""
REACH_PART = 0.2
"""Of the deadline, where something stands."""
FRESH_MAX = 600
"""Contents that the solve found, for what stands to change to."""
Solve = Callable[[JointProblem, SolveOrder, Deadline], Layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What came out, and what to begin with next time, the most useful first."""

    found: Layout
    """The solve's."""
    reached: Layout | None
    """What stands, changed as far as that goes at once; which of both is better shows when they are seated."""
    kept: Kept
    """For the next one: this solve's prices, or an earlier one's in today's numbers, if this was of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSearch:
    """A solve with what it may take, and who is told of better layouts on the way."""

    solve: Solve
    deadline: Deadline
    better: Callable[[Layout], None] | None = None


def solved(search: JointSearch, request: PlanRequest, reading: Reading, state: bytes) -> Solved:
    """Raises EngineError as `solve` does."""
    solve, deadline = search.solve, search.deadline
    policy, problem, standing = request.snapshot.policy, reading.problem, reading.standing_patterns
    kept = recall(state, problem) if state else NOTHING
    order = SolveOrder(
        standing=standing,
        warm=kept.patterns,
        gap=policy.gap_pct_target / 100,
        seed=request.seed,
        launch_usd_per_s=policy.launch_usd_per_s,
        better=search.better,
    )
    restless = restless_of(reading)
    opened = scope_of(reading, restless, kept.full_at_s)
    within = portion(deadline, 1 - REACH_PART) if standing else deadline
    found = solve(problem, order, within) if opened is None else _narrowly(solve, problem, order, opened, within)
    if standing:
        charge(deadline, within)
    count = len(problem.workloads) if opened is None else len(opened)
    found = replace(found, facts=found.facts | {"workloads_open": float(count)})
    patterns = (*found.patterns, *found.columns, *order.warm)
    terms = ReachTerms(
        launch_usd_per_s=policy.launch_usd_per_s,
        restart_part=policy.gain_pct_min / 100,
        period_s=policy.interruption_over_s,
    )
    fresh = patterns[:FRESH_MAX]
    return Solved(
        found=found,
        reached=reached(problem, standing, fresh, terms, portion(deadline, REACH_PART)) if standing else None,
        kept=Kept(
            patterns=patterns,
            prices=kept.prices if found.prices is None else found.prices,
            full_at_s=request.snapshot.taken_at_s if opened is None else kept.full_at_s,
        ),
    )


def _narrowly(
    solve: Solve, problem: JointProblem, order: SolveOrder, opened: frozenset[int], deadline: Deadline
) -> Layout:
    part = narrow(problem, order.standing, opened)
    layout = Layout(patterns=(), counts=())
    if part.problem.workloads and part.problem.kinds:
        warm = part.inside(order.warm)
        inner = replace(order, standing=part.open_standing(order.standing), warm=warm, proof=False, better=None)
        within = portion(deadline, 1 - PROOF_PART)
        layout = solve(part.problem, inner, within)
        charge(deadline, within)
    found = part.widened(layout)
    missing_usd = _missing_usd(problem, found)
    if missing_usd <= 0.0 or len(opened) == len(problem.workloads):
        return found
    # What is missing may be held by workloads that were not opened: a device, a quota, a cap.
    whole = solve(problem, replace(order, proof=False), deadline)
    return whole if _missing_usd(problem, whole) < missing_usd else found


def _missing_usd(problem: JointProblem, layout: Layout) -> float:
    """What the demand counts, $/h, that must be served and is not; headroom and dust are nothing."""
    least = np.array([work.rate_least_rps for work in problem.workloads])
    short = least - layout.served_rps(problem)
    return float(np.where(short > DUST * least, problem.unserved_usd * short / problem.rate_rps, 0.0).sum())


def scope_of(reading: Reading, restless: frozenset[int], full_at_s: float | None) -> frozenset[int] | None:
    """Workloads that may change, by number; None for all. `full_at_s`: when the last full solve was, as snapshots
    count; None: that is not known.
    """
    if not reading.standing_patterns or full_at_s is None:
        return None
    if not 0.0 <= reading.snapshot.taken_at_s - full_at_s < FULL_EVERY_S:
        return None  # also where the clock was put back: the last one would be ahead for ever
    if len(restless) > max(1.0, OPEN_PART_MAX * len(reading.problem.workloads)):
        return None
    return restless


def restless_of(reading: Reading) -> frozenset[int]:
    """Workloads that have a reason to change, by number."""
    problem, works, rows = (
        reading.problem,
        reading.problem.workloads,
        _Rows.of(reading.problem, reading.standing_patterns),
    )
    served, replicas = rows.served_rps(), rows.replicas()
    smallest_rps, widest_pct = np.full(len(works), np.inf), np.zeros(len(works))
    np.minimum.at(smallest_rps, rows.workload, rows.capacity_rps)
    np.maximum.at(widest_pct, rows.workload, rows.share_pct)
    least = np.array([work.rate_least_rps for work in works])
    fewest, most = (np.array([getattr(work, name) for work in works]) for name in ("replicas_min", "replicas_max"))
    # Short, or more replicas than it may have.
    needs = (served < least * (1 - DUST)) | (replicas < fewest) | (replicas > most)
    # It could do with notably less.
    fewer = (replicas > np.maximum(1, fewest)) & (served - smallest_rps >= problem.rate_rps)
    smaller = (replicas > 0) & (served > SURPLUS * problem.rate_rps) & (widest_pct > problem.shares_pct[:1])
    # Unlawful, or of a network that may not serve any more.
    each = [item for stands in reading.standing.values() for item in stands]
    known = problem.variant_workload[[item.variant for item in each if item.variant is not None]]
    lost = {item.assignment.workload for item in each if item.variant is None}
    broken = (np.bincount(known, minlength=len(works)) != replicas) | [work.id in lost for work in works]
    more = reading.open_ended
    plenty = (fewer | smaller) & [work.id not in more for work in works]
    return frozenset(np.flatnonzero(broken | needs | plenty).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What stands, member by member of its patterns."""

    problem: JointProblem
    devices: Whole
    """So many have it."""
    pool: Whole
    workload: Whole
    share_pct: Whole
    capacity_rps: Floats

    @staticmethod
    def of(problem: JointProblem, standing: Iterable[Standing]) -> _Rows:
        """In the order of the patterns."""
        found = [(item, place) for item in standing for place in range(len(item.pattern.variants))]
        kinds = np.array([item.pattern.kind for item, _ in found], dtype=np.int64)
        variants = np.array([item.pattern.variants[place] for item, place in found], dtype=np.int64)
        return _Rows(
            problem=problem,
            devices=np.array([item.devices for item, _ in found], dtype=np.int64),
            pool=problem.kind_pool[kinds],
            workload=problem.variant_workload[variants],
            share_pct=np.array([item.pattern.shares_pct[place] for item, place in found], dtype=np.int64),
            capacity_rps=np.array([item.pattern.capacity_rps[place] for item, place in found], dtype=np.float64),
        )

    def served_rps(self) -> Floats:
        return self._sum(self.devices * self.capacity_rps)

    def replicas(self) -> Whole:
        return self._sum(self.devices).astype(np.int64)

    def usd_per_h(self) -> Floats:
        """By workload, by share, as budgets count."""
        return self._sum(self.devices * self.problem.pool_usd[self.pool] * self.share_pct / 100)

    def domains(self, workload: int) -> frozenset[int]:
        """Failure domains where some of a workload stands."""
        pools = np.unique(self.pool[self.workload == workload]).tolist()
        return frozenset(self.problem.pools[pool].failure_domain for pool in pools)

    def gpus(self) -> dict[str, float]:
        """By project, as quotas count."""
        part = np.array([item.gpu_part for item in self.problem.pools])
        total: dict[str, float] = defaultdict(float)
        for workload, gpus in enumerate(self._sum(self.devices * part[self.pool] * self.share_pct / 100).tolist()):
            total[self.problem.workloads[workload].project] += gpus
        return total

    def _sum(self, each: Floats | Whole) -> Floats:
        works = len(self.problem.workloads)
        return np.bincount(self.workload, weights=each, minlength=works).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """The smaller problem with its way back."""

    problem: JointProblem
    fixed: tuple[Standing, ...]
    """What stays; numbers of the whole problem."""
    kinds: Whole
    variants: Whole
    """Numbers of the smaller problem's kinds and variants in the whole one."""

    def inside(self, patterns: Iterable[Pattern]) -> tuple[Pattern, ...]:
        """Those patterns of the whole problem that the smaller one knows, in its numbers."""
        kind_of = {int(number): place for place, number in enumerate(self.kinds)}
        variant_of = {int(number): place for place, number in enumerate(self.variants)}
        return tuple(
            replace(item, kind=kind_of[item.kind], variants=tuple(variant_of[member] for member in item.variants))
            for item in patterns
            if item.kind in kind_of and all(member in variant_of for member in item.variants)
        )

    def open_standing(self, standing: Iterable[Standing]) -> tuple[Standing, ...]:
        """What stands on open devices, in the smaller problem's numbers."""
        stays = {item.pattern.key: item.devices for item in self.fixed}
        found = []
        for item in standing:
            left = item.devices - stays.get(item.pattern.key, 0)
            for pattern in self.inside((item.pattern,)) if left > 0 else ():
                found.append(Standing(pattern=pattern, devices=left))
        return tuple(found)

    def widened(self, layout: Layout) -> Layout:
        """A layout of the smaller problem, and all that stays, as one of the whole. Nothing is proven of it."""
        counts: Counter[Pattern] = Counter({item.pattern: item.devices for item in self.fixed})
        for pattern, count in zip(self._outside(layout.patterns), layout.counts, strict=True):
            counts[pattern] += count
        return Layout(
            patterns=tuple(counts),
            counts=tuple(counts.values()),
            columns=self._outside(layout.columns),
            facts=layout.facts,
        )

    def _outside(self, patterns: Iterable[Pattern]) -> tuple[Pattern, ...]:
        return tuple(
            replace(
                item,
                kind=int(self.kinds[item.kind]),
                variants=tuple(int(self.variants[member]) for member in item.variants),
            )
            for item in patterns
        )


def narrow(problem: JointProblem, standing: tuple[Standing, ...], open_workloads: frozenset[int]) -> Narrowed:
    """Cut out what may change."""
    fixed = _fixed(problem, standing, open_workloads)
    rows = _Rows.of(problem, fixed)
    works = _residual(problem, rows)
    closed = np.array([int(problem.kind_pool[item.pattern.kind]) for item in fixed], dtype=np.int64)
    count = np.array([item.devices for item in fixed], dtype=np.int64)
    drawn = count * np.array([item.pattern.draw_w for item in fixed], dtype=np.float64)
    draw_w = np.bincount(closed, weights=drawn, minlength=len(problem.pools)).astype(np.float64)
    left = problem.pool_devices - np.bincount(closed, weights=count, minlength=len(problem.pools)).astype(np.int64)
    pools = np.flatnonzero(left > 0)
    kinds = np.flatnonzero(np.isin(problem.kind_pool, pools))
    wanted = np.array([work is not None for work in works], dtype=bool)
    variants = np.flatnonzero(wanted[problem.variant_workload])
    place = np.cumsum(wanted) - 1
    own, gpus = problem.of_variants(variants), rows.gpus()
    small = replace(
        own,
        pools=tuple(replace(problem.pools[pool], devices=int(left[pool])) for pool in pools),
        kind_pool=np.searchsorted(pools, problem.kind_pool[kinds]),
        kind_clock_mhz=problem.kind_clock_mhz[kinds],
        kind_table=problem.kind_table[kinds],
        workloads=tuple(
            replace(work, avoids=tuple(int(place[other]) for other in work.avoids if wanted[other]))
            for work in works
            if work is not None
        ),
        variants=tuple(replace(item, workload=int(place[item.workload])) for item in own.variants),
        allowed=own.allowed[pools],
        caps=tuple(_cap(cap, draw_w, left, pools) for cap in problem.caps),
        quotas=tuple((name, max(0.0, most - gpus.get(name, 0.0))) for name, most in problem.quotas),
    )
    return Narrowed(problem=small, fixed=fixed, kinds=kinds, variants=variants)


def _fixed(
    problem: JointProblem, standing: tuple[Standing, ...], open_workloads: frozenset[int]
) -> tuple[Standing, ...]:
    """What stays: patterns without a workload that is to change, but for the worst filled devices."""
    of = problem.variant_workload
    resting = [item for item in standing if open_workloads.isdisjoint(of[list(item.pattern.variants)].tolist())]
    must = sum(item.devices for item in standing) - sum(item.devices for item in resting)
    loose = min(LOOSE_DEVICES_MAX, int(np.ceil(LOOSE_PART * must)))
    kept: list[Standing] = []
    for item in sorted(resting, key=lambda item: (-_waste_usd(problem, item.pattern), item.pattern.key)):
        opened = min(loose, item.devices)
        loose -= opened
        if item.devices > opened:
            kept.append(replace(item, devices=item.devices - opened))
    return tuple(sorted(kept, key=lambda item: item.pattern.key))


def _waste_usd(problem: JointProblem, pattern: Pattern) -> float:
    """Price of the share, or of the memory, that is not planned."""
    pool = problem.pools[int(problem.kind_pool[pattern.kind])]
    if problem.by_memory:
        return pool.usd_per_h - pattern.usd_per_h
    return pool.usd_per_h * (1 - sum(pattern.shares_pct) / 100)


def _residual(problem: JointProblem, rows: _Rows) -> list[Workload | None]:
    """What every workload still wants; None where nothing."""
    dearest = max((pool.usd_per_h for pool in problem.pools), default=0.0)
    held = zip(rows.served_rps().tolist(), rows.replicas().tolist(), rows.usd_per_h().tolist(), strict=True)
    found: list[Workload | None] = []
    for number, (work, (served_rps, replicas, usd_per_h)) in enumerate(zip(problem.workloads, held, strict=True)):
        rate = work.rate_rps - served_rps
        fewest, most = max(0, work.replicas_min - replicas), work.replicas_max - replicas
        if most <= 0 or (rate <= RESIDUE * work.rate_rps and not fewest):
            found.append(None)
            continue
        rate = max(rate, RESIDUE * work.rate_rps)
        left = replace(
            work,
            rate_rps=rate,
            rate_least_rps=max(0.0, work.rate_least_rps - served_rps),
            unserved_usd=max(work.unserved_usd * rate / work.rate_rps, min(work.unserved_usd, SHORT_LEAST * dearest)),
            replicas_min=fewest,
            replicas_max=most,
            domains_held=work.domains_held | rows.domains(number),
            budget_usd_per_h=max(0.0, work.budget_usd_per_h - usd_per_h),
        )
        found.append(left)
    return found


def _cap(cap: Cap, draw_w: Floats, left: Whole, pools: Whole) -> Cap:
    """What a power domain leaves to the open devices in it. By pool, `draw_w` of what stays and devices `left`."""
    inside = np.array(cap.devices, dtype=np.int64) > 0
    return Cap(
        name=cap.name,
        limit_w=max(0.0, cap.limit_w - float(draw_w[inside].sum())),
        devices=tuple(int(left[pool]) if inside[pool] else 0 for pool in pools),
    )
