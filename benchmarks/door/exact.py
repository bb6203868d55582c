"""The cheapest plan of a small picture, by an integer programme over every pattern there is.

Independent of the planner's search: patterns are listed one by one and judged by `problems.patterns.judge`, and an
integer number of devices of every node and pool carries each, so that caps of nodes and racks, failure domains, quotas,
budgets, floors and ceilings are rows of their own and exact. First the least unserved, as the objective weighs it, then
the least cost, what jobs that may wait do not earn counted in. Only what another pattern with the same workloads beats
in every sum that counts is left out. What it shares with the planner is the reading of the picture: which devices are
alike, and what replicas serve and draw.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from solvers.domain.arrays import Floats
from solvers.domain.device import PowerScope
from solvers.domain.ids import DeviceId, NodeId, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.problems.jobs import job_worth, must_run
from solvers.problems.joint import JointProblem
from solvers.problems.needs import Need
from solvers.problems.patterns import Pattern
from tests.judgement import judge

DUST = 1e-6
SAME = 1e-9
UNSERVED_DUST = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best there is. `bound_usd_per_h`: below it no plan with so little unserved costs."""

    unserved: float
    usd_per_h: float
    """With what jobs do not earn."""
    bound_usd_per_h: float
    proven: bool
    spread: bool
    """Whether everybody is in as many failure domains as asked."""
    chosen: tuple[tuple[NodeId, Pattern, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A pattern on devices of one node and pool."""

    node: NodeId
    pool: int
    pattern: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Coefficients by column number, and the least and the most of their sum."""

    of: Mapping[int, float]
    least: float = -np.inf
    most: float = np.inf


def optimum(snapshot: Snapshot, movable: tuple[WorkloadId, ...], seconds: float = 60.0) -> Optimum | None:
    """None where the time ended before anything was found."""
    programme = Programme(reading=read(snapshot, movable), until_s=time.process_time() + seconds)
    served = programme.solved(programme.usd, unserved_most=0.0)
    if served is not None:
        return programme.answer(served, 0.0)
    programme = replace(programme, spread=False)
    served = programme.solved(programme.usd, unserved_most=0.0)
    if served is not None:
        return programme.answer(served, 0.0)
    least = programme.solved(programme.unserved, unserved_most=np.inf)
    if least is None:
        return None
    unserved = float(programme.unserved @ least.values)
    found = programme.solved(programme.usd, unserved_most=unserved + UNSERVED_DUST * max(1.0, unserved))
    return None if found is None else programme.answer(replace(found, proven=found.proven and least.proven), unserved)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    values: Floats
    bound: float
    proven: bool


@dataclass(frozen=True, kw_only=True)
class Programme:
    """Columns: counts of patterns, then by workload what is short, what replicas are missing, whether it runs, and
    whether it runs in each failure domain.
    """

    reading: Reading
    until_s: float
    spread: bool = True
    """Whether failure domains are a rule; where nobody can be served by it, spreading is as good as it can be."""

    @property
    def problem(self) -> JointProblem:
        """As read."""
        return self.reading.problem

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """Of the workloads in the problem, in their order."""
        known = {need.workload: need for need in self.reading.needs}
        return tuple(known[work.id] for work in self.problem.workloads)

    @cached_property
    def hopeless(self) -> float:
        """Unserved of those that nothing can serve: the same in every plan."""
        inside = {work.id for work in self.problem.workloads}
        outside = (
            item for item in self.reading.needs if item.workload not in inside and item.workload not in self.worth
        )
        return sum((need.weight * (need.rate_rps_least + need.replicas_min) for need in outside), start=0.0)

    @cached_property
    def worth(self) -> dict[WorkloadId, float]:
        """What jobs that may wait are worth, $/h."""
        snapshot, fleet = self.reading.snapshot, self.reading.fleet
        jobs = {WorkloadId(job.id): job for job in snapshot.jobs if not must_run(snapshot.policy)}
        return {
            need.workload: job_worth(snapshot, fleet, need, jobs[need.workload]).usd_per_h
            for need in self.reading.needs
            if need.workload in jobs
        }

    @cached_property
    def places(self) -> dict[tuple[NodeId, int], int]:
        """How many devices each node has of each pool."""
        found: dict[tuple[NodeId, int], int] = defaultdict(int)
        devices = self.reading.snapshot.devices_by_id()
        for pool, names in enumerate(self.reading.pool_devices):
            for name in names:
                found[devices[name].node, pool] += 1
        return dict(sorted(found.items()))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every pattern worth having, on every node that has devices for it."""
        by_pool = {pool: list(worth_having(self.problem, pool)) for _, pool in self.places}
        return tuple(
            Column(node=node, pool=pool, pattern=pattern) for node, pool in self.places for pattern in by_pool[pool]
        )

    @property
    def works(self) -> int:
        """How many workloads."""
        return len(self.problem.workloads)

    @cached_property
    def domains(self) -> list[str]:
        """Failure domains by name."""
        return sorted({item.failure_domain for item in self.reading.snapshot.nodes})

    def at(self, what: str, work: int, domain: int = 0) -> int:
        """The number of a column beside the patterns'."""
        start = len(self.columns) + ("short", "missing", "runs", "spread").index(what) * self.works
        return start + (work if what != "spread" else work * len(self.domains) + domain)

    @cached_property
    def size(self) -> int:
        """Columns in all."""
        return len(self.columns) + self.works * (3 + len(self.domains))

    @cached_property
    def usd(self) -> Floats:
        """What each column costs; of a job that may wait, what it does not earn."""
        found = np.array([item.pattern.usd_per_h for item in self.columns] + [0.0] * (self.size - len(self.columns)))
        for number, work in enumerate(self.problem.workloads):
            if work.id in self.worth:
                found[self.at("short", number)] = work.unserved_usd / work.rate_rps
        return found

    @cached_property
    def unserved(self) -> Floats:
        """What each column counts as unserved."""
        weights = np.zeros(self.size)
        for number, need in enumerate(self.needs):
            if need.workload not in self.worth:
                weights[[self.at("short", number), self.at("missing", number)]] = need.weight
        return weights

    @cached_property
    def rows(self) -> tuple[_Row, ...]:
        """All of them, exact."""
        return tuple(
            row
            for part in (self._devices(), self._demands(), self._domains(), self._money(), self._watts())
            for row in part
        )

    def _devices(self) -> Iterator[_Row]:
        for place, count in self.places.items():
            mine = {number: 1.0 for number, item in enumerate(self.columns) if (item.node, item.pool) == place}
            yield _Row(of=mine, most=count)

    def _members(self, work: int) -> Iterator[tuple[int, int, float]]:
        """Column, place in its pattern and rate of each replica of a workload."""
        owner = self.problem.variant_workload
        for number, item in enumerate(self.columns):
            for place, variant in enumerate(item.pattern.variants):
                if owner[variant] == work:
                    yield number, place, item.pattern.capacity_rps[place]

    def _demands(self) -> Iterator[_Row]:
        for number, need in enumerate(self.needs):
            rates: dict[int, float] = defaultdict(float)
            counts: dict[int, float] = defaultdict(float)
            for column, _, rate_rps in self._members(number):
                rates[column] += rate_rps
                counts[column] += 1
            asked_rps = self.problem.workloads[number].rate_rps if need.workload in self.worth else need.rate_rps_least
            if need.kind is not WorkloadKind.JOB or need.workload in self.worth:
                yield _Row(of={**rates, self.at("short", number): 1.0}, least=asked_rps * (1 - DUST))
            yield _Row(of={**counts, self.at("missing", number): 1.0}, least=need.replicas_min)
            yield _Row(of=counts, most=self.problem.workloads[number].replicas_max)

    def _domains(self) -> Iterator[_Row]:
        """Who runs at all runs in as many failure domains as asked."""
        nodes = self.reading.snapshot.nodes_by_id()
        for number, work in enumerate(self.problem.workloads):
            if work.domains_min < 2 or not self.spread:
                continue
            counts: dict[int, float] = defaultdict(float)
            for column, _, _ in self._members(number):
                counts[column] += 1
            yield _Row(of={**counts, self.at("runs", number): -float(work.replicas_max)}, most=0.0)
            places = [self.at("spread", number, place) for place in range(len(self.domains))]
            yield _Row(of={**dict.fromkeys(places, 1.0), self.at("runs", number): -float(work.domains_min)}, least=0.0)
            for place, domain in enumerate(self.domains):
                inside = {
                    column: count
                    for column, count in counts.items()
                    if nodes[self.columns[column].node].failure_domain == domain
                }
                yield _Row(of={**inside, places[place]: -1.0}, least=0.0)

    def _money(self) -> Iterator[_Row]:
        """Budgets by share of price, quotas by share of GPU."""
        used: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for number, work in enumerate(self.problem.workloads):
            spent: dict[int, float] = defaultdict(float)
            for column, place, _ in self._members(number):
                pool = self.problem.pools[self.columns[column].pool]
                part = self.columns[column].pattern.shares_pct[place] / 100
                spent[column] += part * pool.usd_per_h
                used[work.project][column] += part * pool.gpu_part
            if np.isfinite(work.budget_usd_per_h):
                yield _Row(of=spent, most=work.budget_usd_per_h)
        for project, quota in self.problem.quotas:
            yield _Row(of=used[project], most=quota)

    def _watts(self) -> Iterator[_Row]:
        """Caps over several devices; a device's own is a matter of its patterns."""
        snapshot = self.reading.snapshot
        nodes, types = snapshot.nodes_by_id(), snapshot.gpu_types_by_name()
        for cap in snapshot.power_caps:
            if cap.scope is PowerScope.DEVICE:
                continue
            inside = {
                node.id
                for node in nodes.values()
                if cap.scope is PowerScope.CLUSTER or cap.subject in (node.id, node.rack)
            }
            idle_w = sum(
                types[item.gpu_type].part_of(item) * types[item.gpu_type].idle_w
                for item in snapshot.devices
                if item.node in inside and not _is_cut(snapshot, item.id)
            )
            more = {
                number: item.pattern.draw_w - self.problem.pools[item.pool].idle_w
                for number, item in enumerate(self.columns)
                if item.node in inside
            }
            yield _Row(of=more, most=cap.limit_w - idle_w)

    def solved(self, objective: Floats, unserved_most: float) -> _Found | None:
        """None where it is infeasible, or the time ended without anything."""
        rows = [*self.rows, _Row(of=dict(enumerate(self.unserved)), most=unserved_most)]
        entries = [(at, column, value) for at, row in enumerate(rows) for column, value in row.of.items() if value]
        at, column, value = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = csr_matrix((value, (at, column)), shape=(len(rows), self.size))
        whole = np.zeros(self.size)
        whole[: len(self.columns)] = 1
        whole[self.at("runs", 0) :] = 1
        most = np.full(self.size, np.inf)
        most[self.at("runs", 0) :] = 1
        answer = milp(
            objective,
            constraints=LinearConstraint(matrix, [row.least for row in rows], [row.most for row in rows]),
            integrality=whole,
            bounds=Bounds(np.zeros(self.size), most),
            options={"time_limit": max(1.0, self.until_s - time.process_time()), "mip_rel_gap": 1e-7},
        )
        if answer.x is None:
            return None
        return _Found(values=answer.x, bound=float(answer.mip_dual_bound), proven=answer.status == 0)

    def answer(self, found: _Found, unserved: float) -> Optimum:
        """In the planner's terms."""
        counts = np.round(found.values[: len(self.columns)]).astype(int)
        # What a job could earn only where it may not be planned is lost in every plan.
        planned = sum(work.unserved_usd for work in self.problem.workloads if work.id in self.worth)
        lost_usd = sum(self.worth.values()) - planned
        return Optimum(
            unserved=unserved + self.hopeless,
            usd_per_h=float(self.usd @ found.values) + lost_usd,
            bound_usd_per_h=found.bound + lost_usd,
            proven=found.proven,
            spread=self.spread,
            chosen=tuple(
                (item.node, item.pattern, int(count)) for item, count in zip(self.columns, counts, strict=True) if count
            ),
        )


def _is_cut(snapshot: Snapshot, device: DeviceId) -> bool:
    """Whether slices stand for it."""
    return any(item.mig is not None and item.mig.parent == device for item in snapshot.devices)


def worth_having(problem: JointProblem, pool: int) -> Iterator[Pattern]:
    """Patterns of a pool's devices that no other one with the same workloads beats in all that counts."""
    alike: dict[tuple[int, ...], list[Pattern]] = defaultdict(list)
    for kind in np.flatnonzero(problem.kind_pool == pool):
        for pattern in every(problem, int(kind)):
            alike[tuple(sorted(problem.variant_workload[list(pattern.variants)].tolist()))].append(pattern)
    for works, patterns in alike.items():
        sums = np.array([_sums(problem, pattern, works) for pattern in patterns])
        order = np.lexsort(sums.T[::-1])
        kept: list[int] = []
        for number in order:
            if not kept or not (sums[kept] <= sums[number] + SAME).all(axis=1).any():
                kept.append(int(number))
        yield from (patterns[number] for number in sorted(kept))


def _sums(problem: JointProblem, pattern: Pattern, works: Sequence[int]) -> list[float]:
    """What should be little: cost, draw, share of those who pay or have quotas for it, and the rate not served."""
    limited = {project for project, _ in problem.quotas}
    rate: dict[int, float] = defaultdict(float)
    share: dict[int, float] = defaultdict(float)
    for variant, capacity, part in zip(pattern.variants, pattern.capacity_rps, pattern.shares_pct, strict=True):
        rate[problem.variants[variant].workload] += capacity
        share[problem.variants[variant].workload] += part
    sums = [pattern.usd_per_h, pattern.draw_w]
    for number in sorted(set(works)):
        work = problem.workloads[number]
        sums.append(-min(rate[number], work.rate_rps))
        counts = work.project in limited or np.isfinite(work.budget_usd_per_h)
        sums.append(share[number] if counts else 0.0)
    return sums


def every(problem: JointProblem, kind: int) -> Iterator[Pattern]:
    """All patterns of a kind in steps of the share step."""
    pool = problem.pools[int(problem.kind_pool[kind])]
    step = problem.share_step_pct
    able = [number for number in range(len(problem.variants)) if problem.allowed[problem.kind_pool[kind], number]]
    for count in range(1, pool.clients + 1):
        for members in itertools.combinations_with_replacement(able, count):
            for shares in _shares(count, 100, step):
                pattern = judge(problem, kind, members, shares)
                if pattern is not None:
                    yield pattern


def _shares(count: int, most: int, step: int) -> Iterator[tuple[int, ...]]:
    if count == 0:
        yield ()
        return
    for share in range(step, most - step * (count - 1) + 1, step):
        yield from ((share, *rest) for rest in _shares(count - 1, most - share, step))
