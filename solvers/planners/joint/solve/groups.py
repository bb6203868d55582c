"""Problems that are too large to be solved whole, dealt out to groups, with devices and limits in proportion.

Every kind of device has enough partners in each group, so little is lost, and time grows as the number of groups. Their
layouts add up; one programme over the patterns of all of them proves a bound of the whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole, least_of
from solvers.engines.deadline import Deadline
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Layout, Pattern, Patterns

WORKLOADS_EACH = 250


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

    def whole(self, rows: Patterns) -> Patterns:
        """Patterns of this group in the whole problem's numbers."""
        variants = np.where(rows.variants >= 0, self.variants[np.maximum(rows.variants, 0)], -1)
        return replace(rows, variants=variants)

    def standing(self, standing: Layout) -> Layout:
        kept = ((self.inside((pattern,)), devices) for pattern, devices in standing.pairs)
        return Layout.of({found[0]: devices for found, devices in kept if found})

    def outside(self, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        """Patterns of this group in the whole problem's numbers."""
        numbers = (self.variants[list(item.variants)].tolist() for item in patterns)
        return tuple(replace(item, variants=tuple(own)) for item, own in zip(patterns, numbers, strict=True))


def groups_of(problem: JointProblem) -> tuple[Group, ...]:
    """Groups of workloads that together cost about the same; as many as two processors do in the same time."""
    works, weight = len(problem.workloads), _whole_rate_usd(problem)
    count = 2 * -(-works // (2 * WORKLOADS_EACH))
    of = np.zeros(works, dtype=np.int64)
    load = np.zeros(count)
    for work in np.argsort(-weight, kind="stable").tolist():
        of[work] = int(np.argmin(load))
        load[of[work]] += weight[work]
    ends = np.concatenate([[0.0], np.cumsum(load) / load.sum()])
    return tuple(_group(problem, of, at, low=float(ends[at]), high=float(ends[at + 1])) for at in range(count))


def _group(problem: JointProblem, of: Whole, number: int, *, low: float, high: float) -> Group:
    """Devices from one part of every pool to the next, so that all groups together have all of them."""
    mine = of == number
    place = np.cumsum(mine) - 1
    variants = np.flatnonzero(mine[problem.variant_workload])
    # Pools do not all round at the same group: each begins elsewhere.
    shift = np.arange(len(problem.pools)) / max(1, len(problem.pools))
    ends = (np.floor(end * problem.pool_devices + shift).astype(np.int64) for end in (high, low))
    devices, part = np.subtract(*ends), high - low
    works = [problem.workloads[at] for at in np.flatnonzero(mine).tolist()]
    own = problem.of_variants(variants)
    # Rounded up, so that idle power is not forgotten.
    capped = [(cap, tuple(int(np.ceil(count * part - 1e-9)) for count in cap.devices)) for cap in problem.caps]
    small = replace(
        own,
        pools=tuple(replace(pool, devices=int(n)) for pool, n in zip(problem.pools, devices, strict=True)),
        workloads=tuple(
            replace(item, avoids=tuple(int(place[other]) for other in item.avoids if mine[other])) for item in works
        ),
        variants=tuple(replace(item, workload=int(place[item.workload])) for item in own.variants),
        caps=tuple(replace(cap, limit_w=cap.limit_w * part, devices=rounded) for cap, rounded in capped),
        quotas=tuple((name, gpus * _owned(problem, mine, name)) for name, gpus in problem.quotas),
    )
    return Group(problem=small, variants=variants)


def _owned(problem: JointProblem, mine: Flags, project: str) -> float:
    """Part of a project's unserved value that is in the group."""
    values = np.array([work.unserved_usd if work.project == project else 0.0 for work in problem.workloads])
    return float(values[mine].sum() / values.sum()) if values.sum() > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    group: Group
    layout: Layout
    patterns: Patterns | None = None
    """The best that were found, in the whole problem's numbers."""
    deadline: Deadline | None = None
    """Its own, as far as it was used."""


def together(done: list[GroupLayout]) -> Layout:
    """The layouts of all groups as one of the whole problem; bounds and duals are the groups' own and stay behind."""
    found = EMPTY
    for item in done:
        found = found.and_also(replace(item.layout, patterns=item.group.outside(item.layout.patterns)))
    columns = tuple(pattern for item in done for pattern in item.group.outside(item.layout.columns))
    facts: Counter[str] = Counter()
    for item in done:
        facts.update(item.layout.facts)
    return replace(found, columns=columns, facts=dict(facts))


def _whole_rate_usd(problem: JointProblem) -> Floats:
    """What each workload's rate would cost alone on whole devices of its best kind, roughly: for dealing loads out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = (1000 * problem.batches / problem.mean_ms[:, :, -1, :]).max(axis=2)
    usd = np.array([max(problem.pools[pool].usd_per_h, 1e-6) for pool in problem.kind_pool.tolist()])
    per_rps = usd[:, None] / np.maximum(rate[problem.kind_table], 1e-9)
    cheapest = least_of(per_rps.min(axis=0), problem.variant_workload, np.full(len(problem.workloads), np.inf))
    return np.where(np.isfinite(cheapest), cheapest, 0.0) * problem.rate_rps
