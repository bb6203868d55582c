"""The solve: first answer, better answers, a bound; never worse than the first answer.

Problems of some hundred workloads are solved whole. Larger ones are dealt out to groups, with devices and limits in
proportion: every kind of device has enough partners in each, so little is lost, and time grows as the number of
groups. Their layouts add up, and what stays short is made up on the whole problem. Devices are named by seating.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.bound import proven, proven_at, without_cuts
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.planners.joint.solve.phases import Phases, SolveOrder, charge, kept_usd, portion
from solvers.planners.joint.solve.repair import repair
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern, Prices, Standing

WORKLOADS_MAX = 700
WORKLOADS_EACH = 500
PROOF_PART = 0.25
"""Of the deadline, kept for the bound: to serve every rate comes before proving anything."""
END = 0.02
"""Of the deadline, kept for putting the answer together."""
GROUPS_UNTIL = 0.15
MEND_PART = 0.4


@dataclass(frozen=True, kw_only=True)
class Group:
    """One part of a problem, with its numbers in the whole one."""

    problem: JointProblem
    variants: Whole

    def inside(self, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        """Those patterns that are all of this group, in its numbers."""
        place = {int(number): index for index, number in enumerate(self.variants)}
        return tuple(
            replace(item, variants=tuple(place[member] for member in item.variants))
            for item in patterns
            if all(member in place for member in item.variants)
        )

    def standing(self, standing: tuple[Standing, ...]) -> tuple[Standing, ...]:
        """What stands of this group."""
        kept = ((self.inside((item.pattern,)), item.devices) for item in standing)
        return tuple(Standing(pattern=found[0], devices=devices) for found, devices in kept if found)

    def outside(self, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        """Patterns of this group in the whole problem's numbers."""
        return tuple(
            replace(item, variants=tuple(int(self.variants[member]) for member in item.variants)) for item in patterns
        )


def groups_of(problem: JointProblem, weight: Floats) -> tuple[Group, ...]:
    """Groups of workloads of like weight together; one group when the problem is small enough."""
    works = len(problem.workloads)
    count = 1 if works <= WORKLOADS_MAX else -(-works // WORKLOADS_EACH)
    if count == 1:
        return (Group(problem=problem, variants=np.arange(len(problem.variants))),)
    of = np.zeros(works, dtype=np.int64)
    load = np.zeros(count)
    for work in np.argsort(-weight, kind="stable").tolist():
        of[work] = int(np.argmin(load))
        load[of[work]] += weight[work]
    ends = np.concatenate([[0.0], np.cumsum(load) / load.sum()])
    return tuple(
        _group(problem, of, number, low=float(ends[number]), high=float(ends[number + 1])) for number in range(count)
    )


def _group(problem: JointProblem, of: Whole, number: int, *, low: float, high: float) -> Group:
    """Devices from one part of every pool to the next, so that all groups together have all of them."""
    mine = of == number
    place = np.cumsum(mine) - 1
    variants = np.flatnonzero(mine[problem.variant_workload])
    # Pools do not all round at the same group: each begins elsewhere.
    shift = np.arange(len(problem.pools)) / max(1, len(problem.pools))
    devices = (np.floor(high * problem.pool_devices + shift) - np.floor(low * problem.pool_devices + shift)).astype(
        np.int64
    )
    part = high - low
    works = tuple(
        replace(item, avoids=tuple(int(place[other]) for other in item.avoids if mine[other]))
        for item, chosen in zip(problem.workloads, mine.tolist(), strict=True)
        if chosen
    )
    own = problem.of_variants(variants)
    small = replace(
        own,
        pools=tuple(replace(pool, devices=int(n)) for pool, n in zip(problem.pools, devices, strict=True)),
        workloads=works,
        variants=tuple(replace(item, workload=int(place[item.workload])) for item in own.variants),
        caps=tuple(replace(cap, limit_w=cap.limit_w * part, devices=_parts(cap.devices, part)) for cap in problem.caps),
        quotas=tuple((name, gpus * _owned(problem, mine, name)) for name, gpus in problem.quotas),
    )
    return Group(problem=small, variants=variants)


def _parts(devices: tuple[int, ...], part: float) -> tuple[int, ...]:
    """Rounded up, so that idle power is not forgotten."""
    return tuple(int(np.ceil(count * part - 1e-9)) for count in devices)


def _owned(problem: JointProblem, mine: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], project: str) -> float:
    """Part of a project's unserved value that is in the group."""
    values = np.array([work.unserved_usd if work.project == project else 0.0 for work in problem.workloads])
    return float(values[mine].sum() / values.sum()) if values.sum() > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """A group and its layout, in the group's numbers."""

    group: Group
    layout: Layout


def together(done: list[GroupLayout]) -> Layout:
    """The layouts of all groups as one of the whole problem; bounds and duals are the groups' own and stay behind."""
    counts: Counter[Pattern] = Counter()
    for item in done:
        for pattern, count in zip(item.group.outside(item.layout.patterns), item.layout.counts, strict=True):
            counts[pattern] += count
    columns = tuple(pattern for item in done for pattern in item.group.outside(item.layout.columns))
    facts: Counter[str] = Counter()
    for item in done:
        facts.update(item.layout.facts)
    return Layout(patterns=tuple(counts), counts=tuple(counts.values()), columns=columns, facts=dict(facts))


def solve(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    """The best layout found before the deadline, with a proven bound where there was time for one. Facts: columns,
    rounds, the relaxed optimum (over the patterns found, so no bound), seconds by phase, and whether the first answer
    was the best. Raises EngineError when an engine breaks.
    """
    first = first_layout(problem)
    facts = {"first_s": deadline.elapsed_s, "first_usd_per_h": first.value(problem)}
    if not problem.workloads or not problem.kinds or deadline.over:
        return replace(first, facts=facts | {"first_won": 1.0})
    groups = groups_of(problem, whole_rate_usd(problem))
    if len(groups) == 1:
        found = _whole(problem, order, first, deadline)
    else:
        found = _grouped(problem, order, first, groups, deadline)
    best = min(found, first, key=lambda item: item.judged_usd(problem) - kept_usd(problem, order, item))
    return Layout(
        patterns=best.patterns,
        counts=best.counts,
        bound_usd_per_h=found.bound_usd_per_h,
        prices=found.prices,
        columns=found.columns,
        facts=facts | found.facts | {"first_won": float(best is first), "groups": float(len(groups))},
    )


def _whole(problem: JointProblem, order: SolveOrder, first: Layout, deadline: Deadline) -> Layout:
    within = portion(deadline, 1 - PROOF_PART * order.proof)
    phases = Phases(problem=problem, order=order, deadline=within, first=first)
    layout = phases.run()
    charge(deadline, within)
    bound: float | None = None
    prices: Prices | None = None
    if phases.search is not None:
        search, begun_s = phases.search, deadline.elapsed_s
        uncut = replace(search, master=without_cuts(search.master))
        proof = proven(uncut, deadline, END) if order.proof else None
        prices = search.master.prices(search.relaxed.row_duals if proof is None else proof.duals)
        phases.facts["bound_s"] = deadline.elapsed_s - begun_s
        if proof is not None:
            bound = proof.usd_per_h
            phases.facts["relaxed_usd_per_h"] = proof.relaxed.value
    return replace(layout, bound_usd_per_h=bound, prices=prices, columns=phases.columns, facts=phases.facts)


def _grouped(
    problem: JointProblem, order: SolveOrder, first: Layout, groups: tuple[Group, ...], deadline: Deadline
) -> Layout:
    done: list[GroupLayout] = []
    priced: list[PartDuals] = []
    for place, group in enumerate(groups):
        part = (1 - GROUPS_UNTIL / max(deadline.left_part, GROUPS_UNTIL)) / (len(groups) - place)
        inside = replace(order, standing=group.standing(order.standing), warm=group.inside(order.warm))
        own = Layout(patterns=(), counts=())
        within = portion(deadline, part)
        phases = Phases(problem=group.problem, order=inside, deadline=within, first=own)
        layout = phases.run()
        charge(deadline, within)
        layout = replace(layout, columns=phases.columns, facts=phases.facts)
        done.append(GroupLayout(group=group, layout=layout))
        if phases.search is not None:
            workloads = np.unique(problem.variant_workload[group.variants])
            rows, duals = phases.search.master.rows, phases.search.relaxed.row_duals
            priced.append(PartDuals(rows=rows, duals=duals, workloads=workloads))
    merged = together(done)
    if merged.missing(problem).any() and not deadline.over:
        rng = np.random.default_rng(order.seed)
        within = portion(deadline, MEND_PART)
        fixed = repair(problem, merged, first.prices, within, rng)
        if fixed.judged_usd(problem) < merged.judged_usd(problem):
            merged = replace(merged, patterns=fixed.patterns, counts=fixed.counts)
        charge(deadline, within)
    if order.proof and len(priced) == len(groups):
        rows = Rows(problem)
        merged = replace(merged, bound_usd_per_h=proven_at(rows, Judge(problem), gathered(rows, priced), deadline, END))
    return merged


def whole_rate_usd(problem: JointProblem) -> Floats:
    """What each workload's rate would cost alone on whole devices of its best kind, roughly: for dealing loads out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = (1000 * problem.batches / problem.mean_ms[:, :, -1, :]).max(axis=2)
    usd = np.array([max(problem.pools[pool].usd_per_h, 1e-6) for pool in problem.kind_pool.tolist()])
    per_rps = usd[:, None] / np.maximum(rate[problem.kind_table], 1e-9)
    cheapest = np.full(len(problem.workloads), np.inf)
    np.minimum.at(cheapest, problem.variant_workload, per_rps.min(axis=0))
    return np.where(np.isfinite(cheapest), cheapest, 0.0) * problem.rate_rps


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDuals:
    """Rows of a part of a problem with their duals, and which workloads they are about."""

    rows: Rows
    duals: Floats
    workloads: Whole


def gathered(rows: Rows, parts: list[PartDuals]) -> Floats:
    """Duals for a whole problem from those of its parts: a workload's own as they are, those of what all share as the
    mean by devices.
    """
    duals = np.zeros(rows.count)
    devices = np.zeros(len(rows.problem.pools))
    cap_usd = np.zeros(len(rows.problem.caps))
    quotas = slice(rows.quota_at, rows.quota_at + len(rows.problem.quotas))
    total = max(float(sum(item.rows.problem.pool_devices.sum() for item in parts)), 1.0)
    for item in parts:
        part, own, workloads = item.rows, item.duals, item.workloads
        duals[workloads] = own[: part.pool_at]
        for name in ("fewest", "most", "money"):
            there, here = getattr(part, name), getattr(rows, name)[workloads]
            both = (there >= 0) & (here >= 0)
            duals[here[both]] = own[there[both]]
        devices += part.problem.pool_devices
        duals[rows.pool_at : rows.cap_at] += part.problem.pool_devices * own[part.pool_at : part.cap_at]
        weight = float(part.problem.pool_devices.sum()) / total
        cap_usd[part.cap_number] += weight * own[part.cap_at : part.quota_at] / part.cap_unit
        duals[quotas] += weight * own[part.quota_at : part.quota_at + len(rows.problem.quotas)]
    duals[rows.pool_at : rows.cap_at] /= np.maximum(devices, 1.0)
    duals[rows.cap_at : rows.quota_at] = cap_usd[rows.cap_number] * rows.cap_unit
    return duals
