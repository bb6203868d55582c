"""The true optimum of tiny joint problems, by trying everything: what clever solvers are held against.

Enumerates every pattern that `judge` allows and every multiset of patterns on the devices there are, with plain sums
and no search, so that there is nothing in it to get wrong. Or, with `any_batch`, every pattern that a plan may have:
the planner's patterns have the batches that serve most, and others draw less or fit where those do not. Caps must cover
whole pools, since counts of patterns say no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats, Whole
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern
from tests.judgement import choices as choices_of
from tests.judgement import judge

COMBINATIONS_MAX = 2_000_000
SLACK = 1e-9
_SUMS = ("usd", "served", "replicas", "domains", "bills", "quotas", "watts")


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best there is: $/h with unserved demand priced in, and a layout that reaches it."""

    usd_per_h: float
    layout: Layout


@dataclass(frozen=True, slots=True)
class _Choices:
    """Sums over the devices of some pools, one row per choice."""

    picked: Whole
    """Choice x device: a pattern's number, or how many there are for an empty device."""
    usd: Floats
    served: Floats
    replicas: Floats
    domains: Floats
    """Choice x (workload, failure domain): replicas there."""
    bills: Floats
    quotas: Floats
    watts: Floats

    def __len__(self) -> int:
        return len(self.usd)


def patterns(problem: JointProblem, *, any_batch: bool = False) -> list[Pattern]:
    """All of them."""
    return [pattern for kind in range(problem.kinds) for pattern in _of_kind(problem, kind, any_batch=any_batch)]


def worth(problem: JointProblem, layout: Layout) -> float:
    """What layouts are compared by: cost, and for each workload its price for the part of its rate and of its least
    replicas that is missing, and for every failure domain without which it would have none.
    """
    held = zip(layout.patterns, layout.counts, strict=True)
    sums = [tuple(count * part for part in _sums(problem, item)) for item, count in held]
    usd, served, replicas, domains, *_ = (sum(part) for part in zip(_sums(problem, None), *sums, strict=True))
    return float(usd) + float(_missing_usd(problem, served[None, :], replicas[None, :], domains[None, :])[0])


def optimum(problem: JointProblem, *, any_batch: bool = False) -> Optimum:
    """Try everything. The empty layout is always one of the choices."""
    pools = [pool.devices for pool in problem.pools]
    assert all(inside in (0, pools[at]) for cap in problem.caps for at, inside in enumerate(cap.devices))
    every = patterns(problem, any_batch=any_batch)
    choices = _of_devices(problem, every, 0)
    for pool in range(1, len(pools)):
        choices = _crossed(choices, _of_devices(problem, every, pool))
    objective = choices.usd + _missing_usd(problem, choices.served, choices.replicas, choices.domains)
    objective[~_kept(problem, choices)] = np.inf
    best = int(np.argmin(objective))
    chosen = [int(number) for number in choices.picked[best] if number < len(every)]
    different = sorted(set(chosen))
    return Optimum(
        usd_per_h=float(objective[best]),
        layout=Layout(
            patterns=tuple(every[number] for number in different),
            counts=tuple(chosen.count(number) for number in different),
        ),
    )


def _of_kind(problem: JointProblem, kind: int, *, any_batch: bool) -> Iterator[Pattern]:
    pool = problem.pools[int(problem.kind_pool[kind])]
    members = list(itertools.product(range(len(problem.variants)), problem.lone_pct.tolist()))
    for count in range(1, pool.clients + 1):
        for chosen in itertools.combinations_with_replacement(members, count):
            if sum(share for _, share in chosen) <= 100:
                variants, shares = [variant for variant, _ in chosen], [share for _, share in chosen]
                judged = judge(problem, kind, variants, shares)
                yield from choices_of(problem, kind, variants, shares) if any_batch else [judged] * (judged is not None)


def _of_devices(problem: JointProblem, every: list[Pattern], pool: int) -> _Choices:
    """Every multiset of patterns, or none, on the devices of one pool."""
    mine = [number for number, item in enumerate(every) if problem.kind_pool[item.kind] == pool]
    devices = problem.pools[pool].devices
    chosen = list(itertools.combinations_with_replacement([*mine, len(every)], devices))
    picked = np.array(chosen, dtype=np.int64).reshape(len(chosen), devices)
    sums = [_sums(problem, item) for item in every]
    sums.append(tuple(np.zeros_like(part) for part in _sums(problem, None)))
    parts = [np.array([item[column] for item in sums])[picked].sum(axis=1) for column in range(len(_SUMS))]
    choices = _Choices(picked, *parts)
    # Nothing another pool adds makes room again.
    return _taken(choices, np.flatnonzero(_kept(problem, choices)))


def _sums(problem: JointProblem, pattern: Pattern | None) -> tuple[Floats, ...]:
    """What one device with a pattern costs, serves, holds, is billed for, counts for quotas and draws above idle."""
    works = len(problem.workloads)
    served, replicas, bills = np.zeros(works), np.zeros(works), np.zeros(works)
    quotas, watts = np.zeros(len(problem.quotas)), np.zeros(len(problem.caps))
    domains = np.zeros((works, 1 + max(pool.failure_domain for pool in problem.pools)))
    if pattern is None:
        return np.zeros(()), served, replicas, domains.ravel(), bills, quotas, watts
    number = int(problem.kind_pool[pattern.kind])
    pool = problem.pools[number]
    for variant, share, rate in zip(pattern.variants, pattern.shares_pct, pattern.capacity_rps, strict=True):
        work = problem.variants[variant].workload
        served[work] += rate
        replicas[work] += 1
        domains[work, pool.failure_domain] += 1
        bills[work] += share / 100 * pool.usd_per_h
        for place, (project, _) in enumerate(problem.quotas):
            quotas[place] += share / 100 * pool.gpu_part * (project == problem.workloads[work].project)
    for place, cap in enumerate(problem.caps):
        watts[place] += (pattern.draw_w - pool.idle_w) * (cap.devices[number] > 0)
    return np.array(pattern.usd_per_h), served, replicas, domains.ravel(), bills, quotas, watts


def _crossed(one: _Choices, other: _Choices) -> _Choices:
    """Every choice of one with every choice of the other."""
    assert len(one) * len(other) <= COMBINATIONS_MAX, "not tiny"
    left, right = np.repeat(np.arange(len(one)), len(other)), np.tile(np.arange(len(other)), len(one))
    one, other = _taken(one, left), _taken(other, right)
    sums = (getattr(one, name) + getattr(other, name) for name in _SUMS)
    return _Choices(np.hstack([one.picked, other.picked]), *sums)


def _taken(choices: _Choices, rows: Whole) -> _Choices:
    return _Choices(choices.picked[rows], *(getattr(choices, name)[rows] for name in _SUMS))


def _missing_usd(problem: JointProblem, served: Floats, replicas: Floats, domains: Floats) -> Floats:
    rate = problem.rate_rps
    part = np.where(rate > 0, np.maximum(0.0, 1 - served / np.where(rate > 0, rate, 1.0)), 0.0)
    part = np.where(part > SLACK, part, 0.0)
    several = np.array([work.domains_min > 1 for work in problem.workloads])
    assert all(work.domains_min <= 2 for work in problem.workloads), "not tiny"
    floor = np.array([work.replicas_min for work in problem.workloads], dtype=np.float64)
    floor = np.where(several, np.maximum(floor, 2), floor)
    part = part + np.maximum(0.0, floor - replicas) / np.maximum(floor, 1.0)
    there = domains.reshape(len(domains), len(floor), -1)
    without = there.sum(axis=2, keepdims=True) - there
    # A domain too few counts three devices, or the whole rate.
    few = np.minimum(1.0, 3 * problem.dearest_usd / np.maximum(problem.unserved_usd, 1e-9))
    part = part + np.where(several[None, :], (without <= 0).sum(axis=2) * few, 0)
    return np.asarray(part @ problem.unserved_usd)


def _kept(problem: JointProblem, choices: _Choices) -> NDArray[np.bool_]:
    most = np.array([work.replicas_max for work in problem.workloads], dtype=np.float64)
    money = np.array([work.budget_usd_per_h for work in problem.workloads], dtype=np.float64)
    idle = np.array([pool.idle_w for pool in problem.pools], dtype=np.float64)
    kept = (choices.replicas <= most).all(axis=1) & (choices.bills <= money + SLACK).all(axis=1)
    for place, (_, gpus) in enumerate(problem.quotas):
        kept &= choices.quotas[:, place] <= gpus + SLACK
    for place, cap in enumerate(problem.caps):
        kept &= choices.watts[:, place] + float(np.array(cap.devices) @ idle) <= cap.limit_w + SLACK
    return np.asarray(kept)
