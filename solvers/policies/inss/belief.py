"""What InSS believes of a case: running time by its regression over sixteen runs alone, slowed by neighbours' L2 use.

Owns the choice of the sixteen runs (four shares by four batches, spread over what was measured), the sensitivity of a
model to its neighbours, fitted to how it was measured to suffer, and Eq. 2 for a task that finds its queue empty. With
`interference` off, neighbours do nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.models.parts.curves import Rows, not_negative
from solvers.models.parts.disturbed import L2_PER_SHARE
from solvers.planners.case import Case
from solvers.planners.traits import Traits, limit_ms
from solvers.policies.inss.models import CACHE, LocalPlane, learn_alone
from solvers.problems.choice import Option
from solvers.problems.needs import Need

RUNS_PER_AXIS = 4
COMPANY_SHARES_PCT = (10.0, 20.0, 30.0, 40.0, 60.0)
"""Shares of the neighbour in the five runs in company."""

CURVE_BATCH_MAX = 32
"""Batches up to this one are computed together, once for every share of a model."""
CURVE_BATCHES = np.arange(1.0, CURVE_BATCH_MAX + 1.0)

Member = tuple[Need, Option]
Runs = tuple[bytes, bytes, bytes]
"""Batches, shares and latencies of a profile's runs, as bytes so that they can be looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InssBelief:
    """Readings of one case; curves are fitted when first asked for."""

    case: Case
    traits: Traits
    interference: bool = True
    _planes: dict[tuple[str, int], LocalPlane | None] = field(default_factory=dict)
    _curves: dict[tuple[str, int, int], Floats] = field(default_factory=dict)
    _runs: dict[tuple[str, int], Runs] = field(default_factory=dict)
    _caches: dict[tuple[str, str], float] = field(default_factory=dict)

    @staticmethod
    def of(case: Case, *, interference: bool) -> InssBelief:
        return InssBelief(case=case, traits=Traits(case=case), interference=interference)

    def alone_ms(self, need: Need, option: Option, batch: int | None = None) -> float:
        """A batch alone at the option's share; another batch than its own where one is given."""
        kind = self.case.beliefs.classes[option.device_class]
        plane = self._plane(need, option.device_class)
        size = option.batch if batch is None else batch
        if plane is None:
            return self.traits.execution_ms(need, option) * size / option.batch
        share_pct = option.share_pct * kind.sm_part
        if size > CURVE_BATCH_MAX:
            return float(plane(np.full(1, float(size)), np.full(1, share_pct), np.ones(1))[0])
        key = (need.model, option.device_class, option.share_pct)
        if key not in self._curves:
            self._curves[key] = _curve_through(self._runs[need.model, option.device_class], share_pct)
        return float(self._curves[key][size - 1])

    def throughput_rps(self, need: Need, option: Option, slowdown: float) -> float:
        """What a replica carries when batch follows batch."""
        return 1000.0 * option.batch / (slowdown * self.alone_ms(need, option))

    def slowdown(self, at: int, together: list[Member]) -> float:
        """Of one member beside the others of its device."""
        if not self.interference or len(together) < 2:
            return 1.0
        others = sum(self.traits.use(*each).l2 for number, each in enumerate(together) if number != at)
        need, option = together[at]
        return 1.0 + self.cache(need.model, option.gpu_type) * others

    def slowdown_borne(self, need: Need, option: Option) -> float:
        """Beside neighbours that fill the rest of the GPU, of usual L2 use: what columns are listed with."""
        if not self.interference:
            return 1.0
        return 1.0 + self.cache(need.model, option.gpu_type) * L2_PER_SHARE * (1.0 - option.share_pct / 100.0)

    def cache(self, model: ModelName, gpu_type: GpuTypeName) -> float:
        """alpha_cache: least squares over how the model was seen to suffer beside each other one."""
        key = (model, gpu_type)
        if key not in self._caches:
            self._caches[key] = self._fitted(model, gpu_type)
        return self._caches[key]

    def _fitted(self, model: ModelName, gpu_type: GpuTypeName) -> float:
        profiles = self.case.beliefs.profiles
        mine = profiles.get((model, gpu_type))
        if mine is None or mine.interference is None:
            return CACHE
        kin = [item.interference for key, item in sorted(profiles.items()) if key[1] == gpu_type]
        pairs = [
            (L2_PER_SHARE * share / 100.0, mine.interference.sensitivity * other.pressure_at(share))
            for other in kin
            if other is not None
            for share in COMPANY_SHARES_PCT
        ]
        design, excess = np.array([[pair[0]] for pair in pairs]), np.array([pair[1] for pair in pairs])
        return float(not_negative(design, excess)[0])

    def in_time(self, need: Need, option: Option, slowdown: float, rate_rps: float) -> bool:
        """(1c) for a task that arrives alone while a batch has just begun."""
        return self.latency_ms(need, option, option.batch, (slowdown, rate_rps)) <= limit_ms(need)

    def latency_ms(self, need: Need, option: Option, batch: int, beside: tuple[float, float]) -> float:
        """Eq. 2 at the worst moment. `beside`: slowdown by neighbours, and the rate that fills batches."""
        slowdown, rate_rps = beside
        took = slowdown * self.alone_ms(need, option, batch)
        return task_latency_ms(batch, 1, took, rate_rps, took)

    def _plane(self, need: Need, device_class: int) -> LocalPlane | None:
        key = (need.model, device_class)
        if key not in self._planes:
            self._planes[key] = None if need.tokens is not None else self._learned(need.model, device_class)
        return self._planes[key]

    def _learned(self, model: ModelName, device_class: int) -> LocalPlane | None:
        grid = self.case.beliefs.grid(model, self.case.beliefs.classes[device_class])
        if grid is None:
            return None
        wanted = np.zeros(grid.measured.shape, dtype=np.bool_)
        wanted[np.ix_(_spread(len(grid.shares_pct)), _spread(len(grid.batches)))] = True
        known = wanted & grid.measured
        rows, columns = np.nonzero(known if known.any() else grid.measured)
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


@lru_cache(maxsize=1024)
def _plane_through(runs: Runs) -> LocalPlane:
    """The regression over these runs; the same profile is planned with cycle after cycle."""
    batches, shares, latencies = (np.frombuffer(each) for each in runs)
    return learn_alone(Rows(batch=batches, share_pct=shares, cycle=np.ones(len(batches)), value=latencies))


@lru_cache(maxsize=4096)
def _curve_through(runs: Runs, share_pct: float) -> Floats:
    """All batches at one share: a search asks for several, and all of them cost hardly more than one."""
    return _plane_through(runs)(CURVE_BATCHES, np.full(CURVE_BATCH_MAX, share_pct), np.ones(CURVE_BATCH_MAX))


def _spread(length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Four places over an axis, or all."""
    return np.unique(np.rint(np.linspace(0, length - 1, RUNS_PER_AXIS)).astype(np.int64))


def _floats(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | Floats) -> Floats:
    return np.asarray(numbers, dtype=np.float64)
