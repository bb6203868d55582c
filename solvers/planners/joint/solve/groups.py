"""A large problem as several of a size that is solved well: workloads dealt out, devices and limits in proportion.

Owns the deal and the way back. Beyond some hundred workloads every kind of device has enough partners in each group, so
little is lost, and time grows as the number of groups. It refuses to solve; what a group leaves short is made up on the
whole problem afterwards.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Layout, Standing
from solvers.problems.patterns import Pattern

WORKLOADS_MAX = 700
WORKLOADS_EACH = 500


@dataclass(frozen=True, kw_only=True)
class Group:
    """One part of a problem, with its numbers in the whole one."""

    problem: JointProblem
    variants: Whole
    number: int

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
        return (Group(problem=problem, variants=np.arange(len(problem.variants)), number=0),)
    of = np.zeros(works, dtype=np.int64)
    load = np.zeros(count)
    for work in np.argsort(-weight, kind="stable").tolist():
        of[work] = int(np.argmin(load))
        load[of[work]] += weight[work]
    ends = np.concatenate([[0.0], np.cumsum(load) / load.sum()])
    return tuple(_group(problem, of, number, (float(ends[number]), float(ends[number + 1]))) for number in range(count))


def _group(problem: JointProblem, of: Whole, number: int, span: tuple[float, float]) -> Group:
    """Devices from one part of every pool to the next, so that all groups together have all of them."""
    low, high = span
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
    return Group(problem=small, variants=variants, number=number)


def _parts(devices: tuple[int, ...], part: float) -> tuple[int, ...]:
    """Rounded up, so that idle power is not forgotten."""
    return tuple(int(np.ceil(count * part - 1e-9)) for count in devices)


def _owned(problem: JointProblem, mine: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], project: str) -> float:
    """Part of a project's unserved value that is in the group."""
    values = np.array([work.unserved_usd if work.project == project else 0.0 for work in problem.workloads])
    return float(values[mine].sum() / values.sum()) if values.sum() > 0 else 1.0


def together(layouts: list[tuple[Group, Layout]]) -> Layout:
    """The layouts of all groups as one of the whole problem; bounds and duals are the groups' own and stay behind."""
    counts: Counter[Pattern] = Counter()
    for group, layout in layouts:
        for pattern, count in zip(group.outside(layout.patterns), layout.counts, strict=True):
            counts[pattern] += count
    columns = tuple(item for group, layout in layouts for item in group.outside(layout.columns))
    facts: Counter[str] = Counter()
    for _, layout in layouts:
        facts.update(layout.facts)
    return Layout(patterns=tuple(counts), counts=tuple(counts.values()), columns=columns, facts=dict(facts))
