"""A joint problem narrowed to what may change, and the way back.

Devices that host a workload that is to change, devices that host nothing, and some of the worst filled ones are open;
all others stay as they are, and what they serve, draw, spend and hold is taken off what is asked and allowed. The
narrowed problem has only the pools with open devices and the workloads that still want something. Its answers prove
nothing about the whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.problems.joint import Cap, JointProblem, Workload
from solvers.problems.patterns import Layout, Pattern, Standing

LOOSE_DEVICES_MAX = 150
"""Devices that are opened beside those that must be, the worst filled first."""
LOOSE_PART = 1.0
"""But no more than so many for each device that must be."""
RESIDUE = 1e-6
"""Part of a rate that is no reason for a replica."""
UNSERVED_LEAST = 50.0
"""However little is left of a rate: leaving it unserved counts so many of the dearest devices at least."""


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """The smaller problem with its way back."""

    whole: JointProblem
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
    held = _Held.of(problem, fixed)
    works = _residual(problem, held)
    open_devices = problem.pool_devices - held.devices
    pools = np.flatnonzero(open_devices > 0)
    kinds = np.flatnonzero(np.isin(problem.kind_pool, pools))
    wanted = np.array([work is not None for work in works], dtype=bool)
    variants = np.flatnonzero(wanted[problem.variant_workload])
    place = np.cumsum(wanted) - 1
    own = problem.of_variants(variants)
    small = replace(
        own,
        pools=tuple(replace(problem.pools[pool], devices=int(open_devices[pool])) for pool in pools),
        kind_pool=np.searchsorted(pools, problem.kind_pool[kinds]),
        kind_clock_mhz=problem.kind_clock_mhz[kinds],
        kind_table=problem.kind_table[kinds],
        workloads=tuple(_renumbered(work, wanted, place) for work in works if work is not None),
        variants=tuple(replace(item, workload=int(place[item.workload])) for item in own.variants),
        allowed=own.allowed[pools],
        caps=tuple(_cap(problem, cap, held, pools) for cap in problem.caps),
        quotas=tuple((name, max(0.0, gpus - held.gpus.get(name, 0.0))) for name, gpus in problem.quotas),
    )
    return Narrowed(whole=problem, problem=small, fixed=fixed, kinds=kinds, variants=variants)


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


@dataclass(frozen=True, slots=True)
class _Held:
    """What stays, summed: by workload, by pool, by quota."""

    served_rps: Floats
    replicas: Whole
    usd_per_h: Floats
    """By share, for budgets."""
    devices: Whole
    draw_w: Floats
    gpus: dict[str, float]

    @staticmethod
    def of(problem: JointProblem, fixed: Iterable[Standing]) -> _Held:
        """Sums over what stays."""
        works, pools = len(problem.workloads), len(problem.pools)
        served, usd, draw = np.zeros(works), np.zeros(works), np.zeros(pools)
        replicas, devices = np.zeros(works, dtype=np.int64), np.zeros(pools, dtype=np.int64)
        gpus: dict[str, float] = defaultdict(float)
        for item in fixed:
            number = int(problem.kind_pool[item.pattern.kind])
            pool = problem.pools[number]
            devices[number] += item.devices
            draw[number] += item.devices * item.pattern.draw_w
            members = zip(item.pattern.variants, item.pattern.shares_pct, item.pattern.capacity_rps, strict=True)
            for variant, share, capacity in members:
                workload = problem.variants[variant].workload
                served[workload] += item.devices * capacity
                replicas[workload] += item.devices
                usd[workload] += item.devices * pool.usd_per_h * share / 100
                gpus[problem.workloads[workload].project] += item.devices * pool.gpu_part * share / 100
        return _Held(served, replicas, usd, devices, draw, dict(gpus))


def _residual(problem: JointProblem, held: _Held) -> list[Workload | None]:
    """What every workload still wants; None where nothing."""
    dearest = max((pool.usd_per_h for pool in problem.pools), default=0.0)
    found: list[Workload | None] = []
    for number, work in enumerate(problem.workloads):
        rate = work.rate_rps - float(held.served_rps[number])
        fewest = max(0, work.replicas_min - int(held.replicas[number]))
        most = work.replicas_max - int(held.replicas[number])
        if most <= 0 or (rate <= RESIDUE * work.rate_rps and not fewest):
            found.append(None)
            continue
        rate = max(rate, RESIDUE * work.rate_rps)
        unserved = max(work.unserved_usd * rate / work.rate_rps, min(work.unserved_usd, UNSERVED_LEAST * dearest))
        found.append(
            replace(
                work,
                rate_rps=rate,
                rate_least_rps=max(0.0, work.rate_least_rps - float(held.served_rps[number])),
                unserved_usd=unserved,
                replicas_min=fewest,
                replicas_max=most,
                budget_usd_per_h=max(0.0, work.budget_usd_per_h - float(held.usd_per_h[number])),
            )
        )
    return found


def _renumbered(work: Workload, wanted: Flags, place: Whole) -> Workload:
    return replace(work, avoids=tuple(int(place[other]) for other in work.avoids if wanted[other]))


def _cap(problem: JointProblem, cap: Cap, held: _Held, pools: Whole) -> Cap:
    """What a power domain leaves to the open devices in it."""
    inside = np.array(cap.devices, dtype=np.int64) > 0
    left = problem.pool_devices - held.devices
    return Cap(
        name=cap.name,
        limit_w=max(0.0, cap.limit_w - float(held.draw_w[inside].sum())),
        devices=tuple(int(left[pool]) if inside[pool] else 0 for pool in pools),
    )
