"""InSS beside neighbours: kernels launch later, and run slower by the L2 use of the others.

Owns the fit from few runs in company: per model and GPU type a launch term (n int, in ms) and a sensitivity
alpha_cache, both at least 0, leaning on what is usual where runs are few. L2 use is a line over the member's share
(alpha_u rho + beta_u), fitted to the runs alone. Kernel counts are taken from the layers of a network where they are
known; else n int is fitted as one number. With groups of one size only, int is taken to grow in proportion to the
number of models (beta_s = 0). It refuses to be told bytes: transfers are part of the latency alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Groups, ModelSpec, Queries, Samples
from solvers.models.parts.curves import not_negative
from solvers.models.parts.disturbed import L2_PER_SHARE, Company, DisturbedModel

SPEC = ModelSpec(name="inss", version="1", formula="launch delay and L2 pressure of neighbours (InSS)")
CACHE = 0.3
"""alpha_cache of models whose sensitivity was never measured."""
PRIOR_ROWS = 5.0
"""How many rows the usual coefficients weigh: as many as the paper measures in company."""

Key = tuple[str, str]


def run_ms(alone_ms: Floats, cache: Floats, others_l2: Floats) -> Floats:
    """t_r = o_r (1 + alpha_cache times the sum of the others' L2 use, as fractions)."""
    return alone_ms * (1.0 + cache * others_l2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Of one model on one GPU type. `launch_ms` is n int with two models on the device."""

    launch_ms: float
    cache: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InssTerms:
    """All coefficients. `kernels` are those known, by model; models without fall back on `usual`."""

    usual: Coefficients
    usual_kernel_ms: float = 0.0
    by_key: Mapping[Key, Coefficients] = field(default_factory=dict)
    lines: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    growth: float = 0.5
    """What every model beyond the second adds to int, relative to int with two."""

    def slowdown(self, groups: Groups, alone_ms: Floats) -> Floats:
        """Launching later and running slower, over running alone."""
        members = groups.members
        cache, launch = np.zeros(len(groups)), np.zeros(len(groups))
        for key, rows in members.keys().items():
            found = self.coefficients(key)
            cache[rows], launch[rows] = found.cache, found.launch_ms
        others = groups.sum_of_others(l2_use(members, self.lines))
        delay = launch * (1.0 + self.growth * (groups.count_of_others() - 1.0))
        return np.asarray((delay + run_ms(alone_ms, cache, others)) / alone_ms)

    def coefficients(self, key: Key) -> Coefficients:
        """Of a model: its own, else the usual ones with its kernel count."""
        if key in self.by_key:
            return self.by_key[key]
        kernels = self.kernels.get(key[0])
        launch = self.usual.launch_ms if kernels is None else self.usual_kernel_ms * kernels
        return Coefficients(launch_ms=launch, cache=self.usual.cache)


def l2_use(members: Queries, lines: Mapping[Key, tuple[float, float]]) -> Floats:
    """l = alpha_u rho + beta_u of every member, as a fraction."""
    use = np.zeros(len(members))
    for key, rows in members.keys().items():
        slope, offset = lines.get(key, (L2_PER_SHARE, 0.0))
        use[rows] = slope * members.share_pct[rows] / 100.0 + offset
    return use


def l2_lines(alone: Samples) -> dict[Key, tuple[float, float]]:
    """alpha_u and beta_u of every key with measured L2 use: least squares, neither below 0."""
    found: dict[Key, tuple[float, float]] = {}
    for key, rows in alone.queries.keys().items():
        wanted = rows[np.isfinite(alone.l2_util_pct[rows])]
        if len(wanted):
            share = alone.queries.share_pct[wanted] / 100.0
            design = np.stack([share, np.ones(len(wanted))], axis=1)
            slope, offset = not_negative(design, alone.l2_util_pct[wanted] / 100.0)
            found[key] = float(slope), float(offset)
    return found


def learn(company: Company | None, facts: Facts) -> InssTerms:
    """Coefficients of company."""
    kernels = {name: total for name, variant in facts.models.items() if (total := sum(a.count for a in variant.layers))}
    if company is None:
        return InssTerms(usual=Coefficients(launch_ms=0.0, cache=CACHE), kernels=kernels)
    rows, groups = company.known(), company.groups
    lines = l2_lines(company.alone)
    others = groups.sum_of_others(l2_use(groups.members, lines))
    count = groups.count_of_others() + 1.0
    growth = _growth(company, others, count)
    delay = (1.0 + growth * (count - 2.0)) / company.alone_ms
    design, excess = np.stack([delay, others], axis=1), company.slowdown - 1.0
    usual = not_negative(design[rows], excess[rows], np.array([0.0, CACHE]), PRIOR_ROWS)
    by_key: dict[Key, Coefficients] = {}
    for key, part in groups.members.keys().items():
        mine = part[rows[part]]
        if len(mine):
            launch, cache = not_negative(design[mine], excess[mine], usual, PRIOR_ROWS)
            by_key[key] = Coefficients(launch_ms=float(launch), cache=float(cache))
    known = [(found.launch_ms, kernels[key[0]]) for key, found in by_key.items() if key[0] in kernels]
    return InssTerms(
        usual=Coefficients(launch_ms=float(usual[0]), cache=float(usual[1])),
        usual_kernel_ms=sum(item[0] for item in known) / sum(item[1] for item in known) if known else 0.0,
        by_key=by_key,
        lines=lines,
        kernels=kernels if known else {},
        growth=growth,
    )


def _growth(company: Company, others: Floats, count: Floats) -> float:
    """alpha_s / (2 alpha_s + beta_s): how int grows beyond two models, where groups of several sizes were measured."""
    rows = company.known()
    if len(np.unique(count[rows])) < 2:
        return 0.5
    excess, per_ms = (company.slowdown - 1.0)[rows], 1.0 / company.alone_ms[rows]
    design = np.stack([per_ms, per_ms * (count[rows] - 2.0), others[rows]], axis=1)
    first, more, _ = not_negative(design, excess)
    return float(min(more / first, 2.0)) if first > 0 else 0.5


MODEL = DisturbedModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
