"""iGniter beside neighbours: kernels wait longer for the scheduler, L2 is shared, and power beyond the cap costs clock.

Owns the three terms and their fit: idle time per kernel (of the GPU type: one step with the second model, one slope
from the third on), sensitivity k_L2 (of every model), both at least 0 and leaning on published values where rows are
few. L2 use and power of a member alone are those that were measured. Kernels are counted as layers where a network is
known, else assumed. Clock falls by a published slope once members together ask for more power than the GPU type may
draw; without measured power nothing is said about clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lab.beliefs.gpulet import utilisation
from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.models.base import Facts, Groups, ModelSpec, Queries
from solvers.models.parts.curves import not_negative
from solvers.models.parts.disturbed import Company, DisturbedModel
from solvers.models.parts.lattice import Lattice

SPEC = ModelSpec(name="igniter", version="1", formula="scheduling delay, L2 pressure and power capping (iGniter)")
KERNELS = 50
"""Kernels of a network of unknown layers."""
DELAY_MS_SECOND = 0.0003
DELAY_MS_FURTHER = 0.0051
"""Idle time per kernel that the second model adds, and every further one: published for a V100."""
CACHE = 0.3
"""k_L2 of models whose sensitivity was never measured: slowdown per whole use of L2 by others."""
CLOCK_MHZ_PER_W = 1.025
"""Clock lost per watt beyond the cap: published for a V100."""
CLOCK_RATIO_MIN = 0.5
PRIOR_ROWS = 1.0

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class IgniterTerms:
    """Coefficients. `delay_ms` per kernel: of the second model, and of every further one, by GPU type."""

    table: Lattice | None
    gpu_types: Mapping[str, GpuType]
    kernels: Mapping[str, int]
    delay_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    cache: Mapping[Key, float] = field(default_factory=dict)
    usual_cache: float = CACHE

    def slowdown(self, groups: Groups, alone_ms: Floats) -> Floats:
        delays, others = features(groups, alone_ms, self.table, self.kernels)
        total = np.ones(len(groups))
        for key, rows in groups.members.keys().items():
            delay = self.delay_ms.get(key[1], (DELAY_MS_SECOND, DELAY_MS_FURTHER))
            cache = self.cache.get(key, self.usual_cache)
            total[rows] += delays[rows] @ np.array(delay) + cache * others[rows]
        return total / self.clock_ratio(groups)

    def clock_ratio(self, groups: Groups) -> Floats:
        """Clock beside the others, over the highest; 1 where power was not measured."""
        members = groups.members
        ratio = np.ones(len(groups))
        if self.table is None:
            return ratio
        power = self.table.column(self.table.places(members), "power")
        together = groups.sum_of_others(power) + power
        for index, name in enumerate(members.gpu_types):
            known = self.gpu_types.get(name)
            if known is not None:
                beyond = np.maximum(together + known.idle_w - known.power_limit_w_max, 0.0)
                lost = CLOCK_MHZ_PER_W * np.nan_to_num(beyond) / known.clock_mhz_sm_max
                ratio = np.where(members.gpu_type == index, np.maximum(1.0 - lost, CLOCK_RATIO_MIN), ratio)
        return ratio


def features(
    groups: Groups, alone_ms: Floats, table: Lattice | None, kernels: Mapping[str, int]
) -> tuple[Floats, Floats]:
    """Kernels over latency alone (for the second model, and times every further one), and the others' use of L2."""
    members = groups.members
    count = np.array([kernels.get(name, KERNELS) for name in members.models], dtype=np.float64)[members.model]
    per_ms = count / alone_ms
    others = groups.count_of_others()
    delays = np.stack([per_ms * (others > 0), per_ms * np.maximum(others - 1.0, 0.0)], axis=1)
    return delays, groups.sum_of_others(utilisation(members, table)[0])


def learn(company: Company | None, facts: Facts) -> IgniterTerms:
    layers = {name: sum(layer.count for layer in variant.layers) for name, variant in facts.models.items()}
    kernels = {name: count for name, count in layers.items() if count}
    terms = IgniterTerms(table=company.table if company else None, gpu_types=facts.gpu_types, kernels=kernels)
    if company is None:
        return terms
    rows, groups = np.flatnonzero(company.known()), company.groups
    delays, others = features(groups, company.alone_ms, company.table, kernels)
    excess = company.slowdown * terms.clock_ratio(groups) - 1.0
    members = groups.members.take(rows)
    usual = _fitted(members, delays[rows], others[rows, None], excess[rows])
    keys = members.keys()
    own = np.zeros((len(rows), len(keys)))
    for column, part in enumerate(keys.values()):
        own[part, column] = others[rows][part]
    found = _fitted(members, delays[rows], own, excess[rows], float(usual[-1]))
    types = len(members.gpu_types)
    return IgniterTerms(
        table=company.table,
        gpu_types=facts.gpu_types,
        kernels=kernels,
        delay_ms={
            name: (float(found[2 * index]), float(found[2 * index + 1])) for index, name in enumerate(members.gpu_types)
        },
        cache={key: float(found[2 * types + column]) for column, key in enumerate(keys)},
        usual_cache=float(usual[-1]),
    )


def _fitted(members: Queries, delays: Floats, pressure: Floats, excess: Floats, cache: float = CACHE) -> Floats:
    """Delays by GPU type (two each), then one coefficient per column of pressure."""
    types = len(members.gpu_types)
    design = np.zeros((len(members), 2 * types + pressure.shape[1]))
    for index in range(types):
        here = members.gpu_type == index
        design[here, 2 * index : 2 * index + 2] = delays[here]
    design[:, 2 * types :] = pressure
    usual = np.array([DELAY_MS_SECOND, DELAY_MS_FURTHER] * types + [cache] * pressure.shape[1])
    return not_negative(design, excess, usual, PRIOR_ROWS)


MODEL = DisturbedModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
