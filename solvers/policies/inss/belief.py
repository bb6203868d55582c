"""What InSS believes of a case: running time by its regression over sixteen runs alone, and what neighbours add, by how
many they are (launching) and by their L2 use.

Owns the launch term and sensitivity of every model, learned from what profiles tell of company by the formula that is
judged on measured pairs, and Eq. 2. With `interference` off, neighbours do nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName, ReplicaId
from solvers.domain.profile import Interference, ProfilePoint
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts
from solvers.models.parts.curves import Rows
from solvers.models.parts.disturbed import L2_PER_SHARE
from solvers.models.told import BATCH, company_told, samples_of
from solvers.planners.case import Case
from solvers.planners.traits import Traits, limit_ms
from solvers.policies.inss.models import (
    InssTerms,
    LocalPlane,
    l2_at,
    launch_delay_ms,
    learn_alone,
    learn_beside,
    profiling_plan,
    run_ms,
)
from solvers.problems.choice import Option
from solvers.problems.needs import Need

CURVE_BATCH_MAX = 32
"""Batches up to this one are computed together, once for every share of a model."""
CURVE_BATCHES = np.arange(1.0, CURVE_BATCH_MAX + 1.0)

Member = tuple[Need, Option]
Runs = tuple[bytes, bytes, bytes]
"""Batches, shares and latencies of a profile's runs, as bytes so that they can be looked up."""


@dataclass(frozen=True, slots=True)
class ToldModel:
    """What a profile says of a model in company, and its runs alone."""

    model: ModelName
    interference: Interference
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyEffect:
    """What neighbours make of every batch's time: so many times as long, and so much more for launching."""

    factor: float = 1.0
    launch_ms: float = 0.0

    def took_ms(self, alone_ms: float) -> float:
        return self.launch_ms + self.factor * alone_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class InssBelief:
    """Readings of one case; curves are fitted when first asked for."""

    case: Case
    interference: bool = True
    _planes: dict[tuple[str, int], LocalPlane | None] = field(default_factory=dict)
    _curves: dict[tuple[str, int, int], Floats] = field(default_factory=dict)
    _runs: dict[tuple[str, int], Runs] = field(default_factory=dict)
    _terms: dict[GpuTypeName, InssTerms] = field(default_factory=dict)

    def waiting(self, need: Need, replica: ReplicaId | None = None) -> float:
        """Requests that wait at a standing replica of the need, or at all of them, as nodes report."""
        mine = {item.replica for item in self.case.standing.get(need.workload, [])}
        wanted = mine if replica is None else mine & {replica}
        return sum(item.queue_length for item in self.case.snapshot.replica_telemetry if item.replica in wanted)

    def alone_ms(self, need: Need, option: Option, batch: int | None = None) -> float:
        """A batch alone at the option's share; another batch than its own where one is given."""
        kind = self.case.beliefs.classes[option.device_class]
        plane = None if need.tokens is not None else self._plane(need.model, option.device_class)
        size = option.batch if batch is None else batch
        if plane is None:
            return Traits(case=self.case).execution_ms(need, option) * size / option.batch
        share_pct = option.share_pct * kind.sm_part
        if size > CURVE_BATCH_MAX:
            return float(plane(np.full(1, float(size)), np.full(1, share_pct), np.ones(1))[0])
        key = (need.model, option.device_class, option.share_pct)
        if key not in self._curves:
            self._curves[key] = _curve_through(self._runs[need.model, option.device_class], share_pct)
        return float(self._curves[key][size - 1])

    def throughput_rps(self, need: Need, option: Option, beside: CompanyEffect) -> float:
        """What a replica carries when batch follows batch."""
        return 1000.0 * option.batch / beside.took_ms(self.alone_ms(need, option))

    def beside(self, at: int, together: list[Member]) -> CompanyEffect:
        """What the others of a device do to one of its members."""
        others = [each for number, each in enumerate(together) if number != at]
        need, option = together[at]
        return self._beside(need, option, len(others), sum(self._l2(*each) for each in others))

    def beside_usual(self, need: Need, option: Option) -> CompanyEffect:
        """One neighbour that fills the rest of the device, of usual L2 use, where there is a rest: what columns are
        listed with.
        """
        kind = self.case.beliefs.classes[option.device_class]
        rest = 1.0 - option.share_pct / 100.0
        return self._beside(need, option, int(rest > 0.0), L2_PER_SHARE * rest * kind.sm_part)

    def _beside(self, need: Need, option: Option, others: int, others_l2: float) -> CompanyEffect:
        if not self.interference or not others:
            return CompanyEffect()
        terms = self.terms(option.gpu_type)
        found = terms.coefficients((need.model, option.gpu_type))
        return CompanyEffect(
            factor=run_ms(1.0, found.cache, others_l2),
            launch_ms=launch_delay_ms(found.launch_ms, terms.growth, float(others)),
        )

    def _l2(self, need: Need, option: Option) -> float:
        kind = self.case.beliefs.classes[option.device_class]
        lines = self.terms(option.gpu_type).lines
        return l2_at(lines, (need.model, option.gpu_type), option.share_pct * kind.sm_part)

    def terms(self, gpu_type: GpuTypeName) -> InssTerms:
        """Launch terms and sensitivities on a GPU type, learned from what profiles tell of the case's models."""
        if gpu_type not in self._terms:
            case = self.case
            number = next(at for at, kind in enumerate(case.beliefs.classes) if kind.gpu_type == gpu_type)
            names = {need.model for need in case.needs} | {item.model for item in case.snapshot.target.assignments}
            told, points = list[ToldModel](), list[ProfilePoint]()
            for name in sorted(names):
                profile = case.beliefs.profiles.get((name, gpu_type))
                if profile is not None and profile.interference is not None and self._plane(name, number) is not None:
                    told.append(ToldModel(name, profile.interference, self._runs[name, number]))
                    points += (each for each in profile.points if not each.neighbours and each.l2_util_pct is not None)
            self._terms[gpu_type] = _terms_through(gpu_type, tuple(told), tuple(points), case.snapshot.models)
        return self._terms[gpu_type]

    def in_time(self, need: Need, option: Option, beside: CompanyEffect, rate_rps: float, waiting: float = 0.0) -> bool:
        """(1c) for every task, with so many waiting already."""
        return self.latency_ms(need, option, option.batch, beside, rate_rps, waiting) <= limit_ms(need)

    def latency_ms(
        self, need: Need, option: Option, batch: int, beside: CompanyEffect, rate_rps: float, waiting: float = 0.0
    ) -> float:
        """Eq. 2 for the worst task while a batch has just begun: one that comes alone, or the next in the queue."""
        took = beside.took_ms(self.alone_ms(need, option, batch))
        queues = {1, 1 + math.ceil(waiting)}
        return max(task_latency_ms(batch, queue, took, rate_rps, took) for queue in queues)

    def _plane(self, model: ModelName, device_class: int) -> LocalPlane | None:
        key = (model, device_class)
        if key not in self._planes:
            self._planes[key] = self._learned(model, device_class)
        return self._planes[key]

    def _learned(self, model: ModelName, device_class: int) -> LocalPlane | None:
        grid = self.case.beliefs.grid(model, self.case.beliefs.classes[device_class])
        if grid is None:
            return None
        plan = profiling_plan(grid.measured, _floats(grid.shares_pct), _floats(grid.batches))
        rows, columns = np.nonzero(plan if plan.any() else grid.measured)
        batch, share = _floats(grid.batches[columns]), _floats(grid.shares_pct[rows])
        latency = _floats(grid.latency_ms_mean[rows, columns])
        runs = batch.tobytes(), share.tobytes(), latency.tobytes()
        self._runs[model, device_class] = runs
        return _plane_through(runs)


def task_latency_ms(batch: int, waiting: int, running_ms: float, rate_rps: float, execution_ms: float) -> float:
    """Latency of a task with `waiting` tasks before it, itself counted, while its model's running batch needs
    `running_ms` more.
    """
    if waiting >= batch:
        return running_ms + math.ceil(waiting / batch) * execution_ms
    filling_ms = 1000.0 * (batch - waiting) / rate_rps if rate_rps > 0.0 else math.inf
    return max(running_ms, filling_ms) + execution_ms


@lru_cache(maxsize=64)
def _terms_through(
    gpu_type: GpuTypeName,
    told: tuple[ToldModel, ...],
    points: tuple[ProfilePoint, ...],
    models: tuple[ModelVariant, ...],
) -> InssTerms:
    """The formula of claims, learned from company as profiles tell it, in runs of the regression over those alone."""
    known = {each.model: each.interference for each in told}
    runs = {each.model: each.runs for each in told}

    def alone_ms(model: ModelName, shares_pct: Floats) -> Floats:
        every = np.ones(len(shares_pct))
        return _plane_through(runs[model])(BATCH * every, shares_pct, every)

    facts = Facts(models={each.name: each for each in models})
    return learn_beside(company_told(gpu_type, known, alone_ms, facts, samples_of(points)), facts)


@lru_cache(maxsize=1024)
def _plane_through(runs: Runs) -> LocalPlane:
    """The regression over these runs; the same profile is planned with cycle after cycle."""
    batches, shares, latencies = (np.frombuffer(each) for each in runs)
    return learn_alone(Rows(batch=batches, share_pct=shares, cycle=np.ones(len(batches)), value=latencies))


@lru_cache(maxsize=4096)
def _curve_through(runs: Runs, share_pct: float) -> Floats:
    """All batches at one share: a search asks for several, and all of them cost hardly more than one."""
    return _plane_through(runs)(CURVE_BATCHES, np.full(CURVE_BATCH_MAX, share_pct), np.ones(CURVE_BATCH_MAX))


def _floats(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | Floats) -> Floats:
    return np.asarray(numbers, dtype=np.float64)
