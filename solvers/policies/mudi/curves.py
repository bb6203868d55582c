"""How Mudi is tuned, its latency curves of a service beside training jobs, and the least share that they ask for.

The parameters are the paper's values, and defaults of our reading where it states none.

There is one piecewise-linear curve per model, class of devices and batch, fitted as it is judged, and company steepens
it. Where the profile has points measured beside exactly these jobs, the curve is fitted to them; else, beside networks
whose pressure was measured, the curve alone is steepened by that; beside one that nobody measured its slopes follow
from the layers of the company, by the regression that is judged on measured pairs, learned from what profiles tell.

The least share: how fast a batch has to be for its window (T = window / batches of it, with the limit and stability as
its ceilings), and the smallest share at which it is, by the closed form or by the convex programme. What the programme
cannot solve (a curve that is not convex, a solver that gives up) goes to the closed form. Tails and queues are not
known here: the promise of the profile is the referee after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, ProfilePoint
from solvers.domain.value import value
from solvers.domain.workload import ModelVariant
from solvers.engines.least_share import LeastShare, least_shares
from solvers.errors import EngineError
from solvers.models.base import Facts, Groups, Queries
from solvers.models.believed import PAIR_BATCHES
from solvers.models.options import Beliefs
from solvers.models.parts.curves import Fits, Rows
from solvers.models.parts.seen import NO_SAMPLES
from solvers.models.table import Grid
from solvers.models.told import RunsTold, company_told
from solvers.planners.tuning import Tune, TunedRecord
from solvers.policies.mudi.models import BatchCurves, MudiSlopes, Piecewise, fitted, learn_alone, learn_slopes
from solvers.problems.fleet import DeviceClass
from solvers.problems.needs import Need


class Selector(StrEnum):
    """Which device a training job goes to, of those with room."""

    SLOPE = "slope"
    """Where taking share away costs the service least, as printed."""
    SPREAD = "spread"
    """The same among devices with the fewest training jobs: the paper minimises iteration times, and two jobs on a
    device take twice as long.
    """
    OPTIMAL = "optimal"
    """Where the iteration times of all jobs together become least, by looking at every way to spread up to six waiting
    jobs: the paper's reference, for small fleets.
    """
    RANDOM = "random"
    """Anywhere, all alike: the paper's reference for what choosing is worth."""


class Rounding(StrEnum):
    """How many batches the requests of a window make."""

    CEIL = "ceil"
    RATIO = "ratio"
    """As printed: parts of a batch count as parts."""


class ShareEngine(StrEnum):
    """Who solves for the least share."""

    CLOSED = "closed"
    CONVEX = "convex"


@value
class MudiParameters(TunedRecord):
    selector: Annotated[Selector, Tune("which device a training job goes to")] = Selector.SPREAD
    jobs_per_device: Annotated[int, Tune("training jobs on one device at most", 1, 16)] = 3
    iterations: Annotated[int, Tune("batches that the tuner tries at most", 1, 200)] = 25
    gain_least: Annotated[float, Tune("tuning ends when the bound promises less than this part", 0, 1)] = 0.01
    delta: Annotated[float, Tune("how likely the bound may be wrong; wide bounds explore", 0.000001, 0.999999)] = 0.1
    window_part: Annotated[float, Tune("control window in parts of the latency limit", 0.01, 100)] = 1.0
    rounding: Annotated[Rounding, Tune("how many batches a window's requests make")] = Rounding.CEIL
    share_engine: Annotated[ShareEngine, Tune("who solves for the least share; both give the same")] = (
        ShareEngine.CLOSED
    )
    share_pct_least: Annotated[float, Tune("least share of inference: one pair of SMs", 0.1, 100)] = 1.0
    keep_pct: Annotated[float, Tune("a standing share that is larger by less than this stays", 0, 100)] = 10.0
    job_step_pct: Annotated[float, Tune("a job's share is not raised by less than this", 0, 100)] = 10.0
    penalty: Annotated[float, Tune("what a batch counts at which all requests were late, in iteration times", 0)] = 10.0
    host_mib_per_device: Annotated[
        float, Tune("memory of jobs that can do without, of one device, that may stand on its host", 0)
    ] = 65536.0
    heed: Annotated[float, Tune("weight of the newest reading among those remembered of a batch", 0.01, 1)] = 0.3


# --- The least share


def targets_ms(limit_ms: ArrayLike, rate_rps: ArrayLike, batch: ArrayLike, parameters: MudiParameters) -> Floats:
    """Longest execution of one batch with which a replica at this rate finishes a window's requests within it, for all
    together that these columns say.
    """
    limit, rate, inputs = (np.asarray(each, dtype=np.float64) for each in (limit_ms, rate_rps, batch))
    with np.errstate(divide="ignore", invalid="ignore"):
        stable_ms = 1000.0 * inputs / rate
        window_ms = limit * parameters.window_part
        batches = window_target_batches(rate * window_ms / 1000.0, inputs, parameters.rounding)
        each_ms = np.where(batches > 0, window_ms / batches, math.inf)
    return np.where(np.isinf(limit), stable_ms, np.minimum(np.minimum(limit, stable_ms), each_ms))


def window_target_batches(requests: Floats, batch: Floats, rounding: Rounding) -> Floats:
    parts = requests / batch
    return parts if rounding is Rounding.RATIO else np.ceil(parts - 1e-9)


def least_share(curve: Piecewise, target: float, parameters: MudiParameters) -> float | None:
    """The smallest share within the target; None where even the whole device is too slow."""
    return least_shares_of([curve], [target], parameters)[0]


def least_shares_of(
    curves: Sequence[Piecewise], targets: Sequence[float], parameters: MudiParameters
) -> list[float | None]:
    """The same for many at once."""
    floor = parameters.share_pct_least / 100.0
    finite = all(math.isfinite(target) and target > 0 for target in targets)
    if parameters.share_engine is ShareEngine.CONVEX and finite and curves:
        try:
            found = least_shares(programme(curves, targets, floor))
        except EngineError:
            pass
        else:
            return [float(share) if np.isfinite(share) else None for share in found]
    return [curve.minimal_share(target, floor) for curve, target in zip(curves, targets, strict=True)]


def programme(curves: Sequence[Piecewise], targets: Sequence[float], floor: float) -> LeastShare:
    return LeastShare(
        steep=np.array([curve.k1 for curve in curves]),
        flat=np.array([curve.k2 for curve in curves]),
        knee=np.array([curve.knee for curve in curves]),
        at_knee_ms=np.array([curve.l0 for curve in curves]),
        target_ms=np.array(targets, dtype=np.float64),
        floor=floor,
    )


# --- Curves of services


PAIRS_MIN = 3
"""Shares that a curve beside measured company needs."""
RUNS = RunsTold((10.0, 30.0, 50.0, 70.0, 90.0), PAIR_BATCHES)
"""What slopes are learned from: inference here has as little share as it needs."""
LOW_PART, WHOLE = 0.5, 0.99
"""Parts of the knee and of the device at which a predicted curve is held, beside the knee itself."""

Company = tuple[ModelName, ...]
"""Models of the jobs on a device, sorted."""


@dataclass(slots=True, kw_only=True)
class MudiCurves:
    """Curves of one request, made when first asked for."""

    beliefs: Beliefs
    models: Mapping[ModelName, ModelVariant]
    _alone: dict[tuple[ModelName, int], BatchCurves | None] = field(default_factory=dict)
    _beside: dict[tuple[ModelName, int, Company], dict[int, Piecewise]] = field(default_factory=dict)
    _slopes: dict[int, MudiSlopes] = field(default_factory=dict)

    def beside(self, need: Need, number: int, company: Company) -> dict[int, Piecewise]:
        """Curve by batch on devices of a class beside these jobs."""
        self.know([(need, number, company)])
        return self._beside[need.model, number, company]

    def know(self, asked: Iterable[tuple[Need, int, Company]]) -> None:
        """Make curves of all of these: those that layers tell in one go, which takes little longer than one of them."""
        layered: dict[int, dict[tuple[ModelName, int, Company], tuple[Need, dict[int, Piecewise]]]] = {}
        for need, number, company in asked:
            key = (need.model, number, company)
            if key in self._beside:
                continue
            alone = None if need.tokens is not None else self._curves(need.model, number)
            batches = [] if alone is None else [int(batch) for batch in alone.batches]
            curves = dict(zip(batches, () if alone is None else alone.curves, strict=True))
            factor = self._factor(need, number, company)
            if factor is None:
                layered.setdefault(number, {})[key] = need, curves
            else:
                slowed = {
                    batch: replace(each, k1=each.k1 * factor, k2=each.k2 * factor, l0=each.l0 * factor)
                    for batch, each in curves.items()
                }
                self._beside[key] = {**slowed, **self._measured(need, number, company, curves)}
        for number, some in layered.items():
            steep = _steepened(
                self.slopes(number),
                self.beliefs.classes[number],
                [(model, company, curves) for (model, _, company), (_, curves) in some.items()],
            )
            for (key, (need, curves)), slowed in zip(some.items(), steep, strict=True):
                self._beside[key] = {**slowed, **self._measured(need, number, key[2], curves)}

    def _factor(self, need: Need, number: int, company: Company) -> float | None:
        """How many times longer everything takes beside jobs of known pressure; None where layers have to say."""
        kind = self.beliefs.classes[number]
        slowing = self.slowing(need, kind, company)
        if slowing is None:
            slopes, told = self.slopes(number), all(name in self.models for name in company)
            if told and slopes.ridge is not None and (need.model, kind.gpu_type) in slopes.services:
                return None
            slowing = (self.beliefs.policy.interference_margin - 1.0) * len(company)
        return 1.0 + slowing

    def slowing(self, need: Need, kind: DeviceClass, company: Company) -> float | None:
        """By how much of its latency alone a service is slowed beside these jobs, they on a half of the device; None
        where nobody measured one of them.
        """
        if not company:
            return 0.0
        profiles = self.beliefs.profiles
        told = [profiles.get((name, kind.gpu_type)) for name in (need.model, *company)]
        known = [None if profile is None else profile.interference for profile in told]
        suffers, presses = known[0], [each.pressure for each in known[1:] if each is not None]
        if suffers is None or len(presses) < len(company):
            return None
        return suffers.sensitivity * sum(presses) * math.sqrt(0.5 / len(company))

    def slopes(self, number: int) -> MudiSlopes:
        """What layers do to curves on a class of devices."""
        if number not in self._slopes:
            kind, told = self.beliefs.classes[number], list[ToldNetwork]()
            for (model, where), profile in sorted(self.beliefs.profiles.items()):
                grid = self.beliefs.grid(model, kind) if where == kind.gpu_type else None
                runs = None if grid is None else _runs(grid, kind)
                if profile.interference is not None and runs is not None:
                    told.append(ToldNetwork(model, profile.interference, runs))
            self._slopes[number] = _slopes_through(kind.gpu_type, tuple(told), tuple(self.models.values()))
        return self._slopes[number]

    def _curves(self, model: ModelName, number: int) -> BatchCurves | None:
        key = (model, number)
        if key not in self._alone:
            kind = self.beliefs.classes[number]
            grid = self.beliefs.grid(model, kind)
            runs = None if grid is None else _runs(grid, kind)
            self._alone[key] = None if runs is None else _curve_through(runs)
        return self._alone[key]

    def _measured(
        self, need: Need, number: int, company: Company, curves: Mapping[int, Piecewise]
    ) -> dict[int, Piecewise]:
        """Curves fitted to points beside exactly these jobs, of the batches that there are."""
        kind = self.beliefs.classes[number]
        profile = self.beliefs.profiles.get((need.model, kind.gpu_type)) if company else None
        wanted = Counter(company)
        points: dict[int, list[ProfilePoint]] = {}
        for point in () if profile is None else profile.points:
            if point.neighbours and Counter(point.neighbours) == wanted and point.clock_mhz_sm == kind.clock_mhz_sm:
                points.setdefault(point.batch, []).append(point)
        found = {}
        for batch, rows in points.items():
            share = np.array([row.share_pct_sm for row in rows]) / 100.0 / kind.sm_part
            if batch in curves and len(np.unique(share)) >= PAIRS_MIN:
                latency = np.array([row.latency_ms_p99 or row.latency_ms_mean for row in rows])
                found[batch] = fitted(share, latency)
        return found


Runs = tuple[bytes, bytes, bytes]
"""Batches, shares and latencies of a profile, as bytes so that they can be looked up."""


@dataclass(frozen=True, slots=True)
class ToldNetwork:
    """What a profile says of a network in company, and its runs alone."""

    model: ModelName
    interference: Interference
    runs: Runs


def _runs(grid: Grid, kind: DeviceClass) -> Runs | None:
    share_pct = grid.shares_pct / kind.sm_part
    rows, columns = np.nonzero(grid.measured & (share_pct <= 100.0 + 1e-7)[:, None])
    parts = grid.batches[columns], share_pct[rows], grid.latency_ms_tail[rows, columns]
    batch, share, latency = (np.ascontiguousarray(part, dtype=np.float64).tobytes() for part in parts)
    return (batch, share, latency) if len(rows) else None


@lru_cache(maxsize=1024)
def _curve_through(runs: Runs) -> BatchCurves:
    """The same profile is planned with cycle after cycle."""
    batch, share_pct, latency = (np.frombuffer(each) for each in runs)
    return learn_alone(Rows(batch=batch, share_pct=share_pct, cycle=np.ones(len(batch)), value=latency))


@lru_cache(maxsize=64)
def _slopes_through(
    gpu_type: GpuTypeName, told: tuple[ToldNetwork, ...], models: tuple[ModelVariant, ...]
) -> MudiSlopes:
    """The regression of claims, learned from company as profiles tell it."""
    # Networks are told apart by what is known of all of them.
    layered = all(each.layers for each in models)
    facts = Facts(models={each.name: each if layered else replace(each, layers=()) for each in models})
    known = {each.model: each.interference for each in told}
    curves: Fits = {(each.model, gpu_type): _curve_through(each.runs) for each in told}
    company = company_told(gpu_type, known, lambda _, rest: np.ones(len(rest)), facts, NO_SAMPLES, RUNS)
    return learn_slopes(company, facts, curves)


def _steepened(
    slopes: MudiSlopes, kind: DeviceClass, asked: Sequence[tuple[ModelName, Company, Mapping[int, Piecewise]]]
) -> list[dict[int, Piecewise]]:
    """Curves through what the slopes say at the knee, below it and on all of the device, the jobs dividing the rest;
    never faster than alone, nor flat before the knee and steep after it.
    """
    parts = [(each.k1, each.k2, each.knee, each.l0) for *_, curves in asked for each in curves.values()]
    k1, k2, knee, l0 = np.array(parts, dtype=np.float64).reshape(-1, 4).T
    shares = np.stack([LOW_PART * knee, knee, np.full(len(knee), WHOLE)], axis=1)
    others = np.repeat([len(company) for _, company, _ in asked], [len(curves) for *_, curves in asked]).repeat(3)
    batch = np.repeat(np.array([size for *_, curves in asked for size in curves], dtype=np.float64), 3)
    # The service first, then its company: of each group the first is asked about.
    group = np.repeat(np.arange(shares.size, dtype=np.int64), 1 + others)
    first = np.cumsum(1 + others) - (1 + others)
    part_pct = np.repeat(100.0 * (1.0 - shares.reshape(-1)) / others, 1 + others)
    part_pct[first] = 100.0 * shares.reshape(-1)
    names = [name for model, company, curves in asked for _ in range(3 * len(curves)) for name in (model, *company)]
    queries = Queries.of(names, kind.gpu_type, batch[group], part_pct)
    factors = slopes.slowed(Groups(members=queries, group=group), first)
    alone = l0[:, None] + np.where(shares <= knee[:, None], k1[:, None], k2[:, None]) * (shares - knee[:, None])
    low, middle, whole = (alone * np.clip(factors, 1.0, slopes.worst).reshape(-1, 3)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        flat = np.where(knee < WHOLE, np.minimum(0.0, (whole - middle) / (WHOLE - knee)), 0.0)
        steep = np.fmin(flat, (middle - low) / (knee * (1.0 - LOW_PART)))
    bent = zip(steep.tolist(), flat.tolist(), knee.tolist(), middle.tolist(), strict=True)
    lines = (Piecewise(k1=one, k2=two, knee=at, l0=level) for one, two, at, level in bent)
    return [{size: next(lines) for size in curves} for *_, curves in asked]
