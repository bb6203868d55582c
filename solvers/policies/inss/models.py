"""InSS' models: running time alone by locally weighted regression, and what neighbours do to launching and L2.

Alone: a plane in the logarithms of batch, share and latency around every question; tricube kernel on log batch and
share; bandwidth by leaving out one sample at a time. Profiles give the whole latency of a batch and neither bytes nor
kernel counts, so transfer (t_d, t_f) and launching (t_s alone) are part of what the regression learns (o_r absorbs
them).

Beside neighbours kernels launch later, and run slower by the L2 use of the others. From few runs in company are fitted,
per model and GPU type, a launch term (n int, in ms) and a sensitivity alpha_cache, both at least 0, leaning on what is
usual where runs are few. L2 use is a line over the member's share (alpha_u rho + beta_u), fitted to the runs alone.
Kernel counts are taken from the layers of a network where they are known; else n int is fitted as one number. With
groups of one size only, int is taken to grow in proportion to the number of models (beta_s = 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.models.base import Facts, Groups, ModelSpec, Quantity, Queries, Samples
from solvers.models.parts.curves import CurveModel, Rows, not_negative
from solvers.models.parts.disturbed import L2_PER_SHARE, Company, DisturbedModel

SPEC_ALONE = ModelSpec(
    name="inss",
    version="1",
    formula="locally weighted regression of running time over batch and share (InSS)",
    quantities=tuple(Quantity),
)
BANDWIDTHS = (0.12, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 3.0)
"""Reach of the kernel, in spans of the measured box."""
TREND = np.array([0.8, -0.7])
"""Exponents of batch and share that a plane leans on where its neighbours lie too close together to show any."""
_RIDGE = 1e-3
_CHUNK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlane:
    """The samples and the reach of the kernel. Kernel coordinates are scaled to the measured box."""

    points: Floats
    regressors: Floats
    target: Floats
    low: Floats
    span: Floats
    reach: float

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        places = (_kernel_coordinates(batch, share_pct) - self.low) / self.span
        regressors = _regressors(batch, share_pct)
        parts = [
            self.near(places[start : start + _CHUNK], regressors[start : start + _CHUNK])
            for start in range(0, len(batch), _CHUNK)
        ]
        return np.exp(np.concatenate(parts) + regressors @ TREND) * cycle if parts else np.zeros(0)

    def near(self, places: Floats, regressors: Floats, leave_out: bool = False) -> Floats:
        """Log latency beyond the trend. `leave_out`: the places are the points, and none may see itself."""
        away = np.linalg.norm(places[:, None, :] - self.points[None, :, :], axis=2)
        if leave_out:
            np.fill_diagonal(away, np.inf)
        # The kernel reaches at least the four nearest, so that a plane is defined everywhere.
        count = min(4, self.points.shape[0]) - 1
        least = np.partition(away, count, axis=1)[:, count]
        reach = np.maximum(self.reach, np.where(np.isfinite(least), 1.2 * least, self.reach))
        weights = (1.0 - np.minimum(away / reach[:, None], 1.0) ** 3) ** 3
        shifted = self.regressors[None, :, :] - regressors[:, None, :]
        design = np.concatenate([np.ones((*away.shape, 1)), shifted], axis=2)
        weighted = design * weights[:, :, None]
        normal = np.einsum("qpi,qpj->qij", weighted, design)
        centre = np.sum(weights * self.target, axis=1) / np.maximum(weights.sum(axis=1), 1e-12)
        right = np.einsum("qpi,qp->qi", weighted, self.target[None, :] - centre[:, None])
        normal = normal + np.diag([1e-9, _RIDGE, _RIDGE]) * np.maximum(normal[:, :1, :1], 1e-6)
        return np.asarray(centre + np.linalg.solve(normal, right[:, :, None])[:, 0, 0])


def _kernel_coordinates(batch: Floats, share_pct: Floats) -> Floats:
    return np.stack([np.log(batch), share_pct / 100.0], axis=1)


def _regressors(batch: Floats, share_pct: Floats) -> Floats:
    return np.log(np.stack([batch, share_pct], axis=1))


def learn_alone(rows: Rows) -> LocalPlane:
    """The samples, with the reach that does best on samples left out."""
    coordinates = _kernel_coordinates(rows.batch, rows.share_pct)
    low = coordinates.min(axis=0)
    span = np.maximum(coordinates.max(axis=0) - low, 1e-6)
    regressors = _regressors(rows.batch, rows.share_pct)
    target = np.log(rows.value / rows.cycle) - regressors @ TREND
    places = (coordinates - low) / span
    planes = [
        LocalPlane(points=places, regressors=regressors, target=target, low=low, span=span, reach=reach)
        for reach in BANDWIDTHS
    ]
    if len(target) < 5:
        return planes[-1]
    wrong = [np.mean((plane.near(places, regressors, leave_out=True) - target) ** 2) for plane in planes]
    return planes[int(np.argmin(wrong))]


ALONE = CurveModel(spec=SPEC_ALONE, learn=learn_alone)


RUNS_PER_AXIS = 4


def profiling_plan(measured: Flags, shares_pct: Floats, batches: Floats) -> Flags:
    """The runs alone that InSS makes of a network, among those that were made (share by batch): four shares by four
    batches, as evenly as there are any by the kernel's coordinates, at shares where all of these batches were tried.
    """
    tried = measured.sum(axis=1)
    rows = np.flatnonzero(tried == tried.max())
    columns = np.flatnonzero(measured[rows].all(axis=0))
    plan = np.zeros(measured.shape, dtype=np.bool_)
    plan[np.ix_(rows[_even(shares_pct[rows])], columns[_even(np.log(batches[columns]))])] = True
    return plan


def _even(places: Floats) -> Whole:
    """Four of these places nearest to even steps from the first to the last, or all."""
    if len(places) <= RUNS_PER_AXIS:
        return np.arange(len(places))
    steps = np.linspace(places[0], places[-1], RUNS_PER_AXIS)
    return np.unique(np.abs(places[:, None] - steps).argmin(axis=0))


# --- Beside neighbours


SPEC_BESIDE = ModelSpec(name="inss", version="1", formula="launch delay and L2 pressure of neighbours (InSS)")
CACHE = 0.3
"""alpha_cache of models whose sensitivity was never measured."""
PRIOR_ROWS = 5.0
"""How many rows the usual coefficients weigh: as many as the paper measures in company."""

Key = tuple[str, str]


Number = TypeVar("Number", float, Floats)


def run_ms(alone_ms: Number, cache: Number, others_l2: Number) -> Number:
    """t_r = o_r (1 + alpha_cache times the sum of the others' L2 use, as fractions)."""
    return alone_ms * (1.0 + cache * others_l2)


def launch_delay_ms(launch_ms: Number, growth: float, others: Number) -> Number:
    """n int: `launch_ms` with one other model on the device, `growth` of it more with each further one."""
    return launch_ms * (1.0 + growth * (others - 1.0))


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
        delay = launch_delay_ms(launch, self.growth, groups.count_of_others())
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
        use[rows] = l2_at(lines, key, members.share_pct[rows])
    return use


def l2_at(lines: Mapping[Key, tuple[float, float]], key: Key, share_pct: Number) -> Number:
    """Of a model at shares of a whole GPU; the usual where nobody measured it."""
    slope, offset = lines.get(key, (L2_PER_SHARE, 0.0))
    return slope * share_pct / 100.0 + offset


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


def learn_beside(company: Company | None, facts: Facts) -> InssTerms:
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


BESIDE = DisturbedModel(spec=SPEC_BESIDE, learn=learn_beside)
