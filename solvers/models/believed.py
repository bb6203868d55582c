"""Profiles where nothing was measured: what a belief fills in, so that planning needs no measurements to start.

Points of a coarse grid: values are careful (the expected value plus the policy's share of its uncertainty) and stay
between what was measured: a believed point is never faster than a measured one with less to do, and never makes a
measured one look slower. Measured points stay as they are; where only their memory is missing, it is filled in. A pair
of model and GPU type whose grid was measured gets nothing added.

How models press on each other, in the three numbers that plans reckon with: a belief about interference answers any
question about any pair; planning needs a form that adds up over neighbours and that a verifier can repeat:
`profile.Interference`. So the belief is asked about pairs at a few shares and batches, as many standard deviations on
the careful side as the policy wants, and the form is fitted to the answers: who suffers times who presses times a power
of the presser's share. Then every sensitivity is raised until no answer asked for is above the form. Only models that
were measured beside another on this GPU type get numbers; for the others the policy's margin stands. Each model meets
its next few neighbours in order of name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.policy import Policy
from solvers.domain.profile import (
    LATENCY_MS_MAX,
    LATENCY_MS_MIN,
    MEMORY_MIB_MAX,
    MEMORY_MIB_MIN,
    POWER_W_MAX,
    Interference,
    Profile,
    ProfileOrigin,
    ProfilePoint,
)
from solvers.models.base import Answer, Groups, Origin, Quantity, Queries, SoloModel
from solvers.models.suite import Suite

BATCHES = (1, 2, 4, 8, 16, 32)
BATCHES_SUPPORTED = (64, 128)
"""Only where the belief rests on measurements of this kind."""
SHARE_STEP_MIN_PCT = 10
MEASURED_SIDE = 3
"""A grid of fewer batches or shares than this is not a measured one."""
MEASURED_PART = 0.5
"""Nor is one of which less than this part was measured."""
SOURCE_LENGTH_MAX = 256

_ORIGINS = {
    Origin.MEASURED: ProfileOrigin.FITTED,
    Origin.LIBRARY: ProfileOrigin.PUBLIC,
    Origin.SCALED: ProfileOrigin.SCALED,
}
Tell = Callable[[str, str, Origin], str]
"""Where what is believed of a model on a GPU type comes from, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One model on one GPU type, with what was measured of it (None: nothing)."""

    model: ModelName
    gpu_type: GpuType
    profile: Profile | None
    policy: Policy


@dataclass(frozen=True, slots=True)
class _Columns:
    """Careful values of every cell; `usable` where all that planning needs is known."""

    latency_ms: Floats
    tail_ms: Floats
    memory_mib: Floats
    power_w: Floats
    origin: np.ndarray[tuple[int], np.dtype[np.int8]]
    usable: Flags


def is_measured(profile: Profile | None, gpu_type: GpuType) -> bool:
    """Whether a grid was measured, or is given as a whole, so that nothing need be believed."""
    if profile is not None and profile.grid is not None:
        return True
    solo = _at_clocks_of(gpu_type, [] if profile is None else profile.points)
    if not solo:
        return False
    clock = max(point.clock_mhz_sm for point in solo)
    cells = {(point.batch, point.share_pct_sm) for point in solo if point.clock_mhz_sm == clock}
    batches, shares = ({cell[side] for cell in cells} for side in (0, 1))
    return (
        min(len(batches), len(shares)) >= MEASURED_SIDE
        and len(cells) >= MEASURED_PART * len(batches) * len(shares)
        and all(point.memory_mib is not None for point in solo)
    )


def completed(asked: Asked, belief: SoloModel, tell: Tell) -> Profile | None:
    """The profile with believed points beside the measured ones; None when nothing is known at all."""
    if is_measured(asked.profile, asked.gpu_type):
        return asked.profile
    points = asked.profile.points if asked.profile is not None else ()
    solo, usable = [point for point in points if not point.neighbours], _at_clocks_of(asked.gpu_type, points)
    clock = max((point.clock_mhz_sm for point in usable), default=asked.gpu_type.clock_mhz_sm_max)
    kept = [*_with_memory(asked, belief, solo), *(point for point in points if point.neighbours)]
    measured = [point for point in usable if point.clock_mhz_sm == clock]
    known = {(point.batch, point.share_pct_sm) for point in measured}
    cells = [cell for cell in _grid(asked.policy) if cell not in known]
    made = _believed(asked, belief, tell, cells, measured, clock)
    if not kept and not made:
        return None
    ordered = sorted([*kept, *made], key=attrgetter("neighbours", "clock_mhz_sm", "share_pct_sm", "batch"))
    felt = None if asked.profile is None else asked.profile.interference
    return Profile(model=asked.model, gpu_type=asked.gpu_type.name, points=tuple(ordered), interference=felt)


def _at_clocks_of(gpu_type: GpuType, points: Iterable[ProfilePoint]) -> list[ProfilePoint]:
    """Points alone that planning goes by: what was faster than the type's highest clock promises nothing at it."""
    return [point for point in points if not point.neighbours and point.clock_mhz_sm <= gpu_type.clock_mhz_sm_max]


def _grid(policy: Policy) -> list[tuple[int, int]]:
    step = policy.share_step_pct
    coarse = step * -(-SHARE_STEP_MIN_PCT // step)
    shares = sorted({*range(coarse, 101, coarse), 100})
    return [(batch, share) for batch in (*BATCHES, *BATCHES_SUPPORTED) for share in shares]


def _queries(asked: Asked, cells: Sequence[tuple[int, int]], clock_mhz: int) -> Queries:
    batches, shares = ([cell[side] for cell in cells] for side in (0, 1))
    return Queries.of([asked.model] * len(cells), asked.gpu_type.name, batches, shares, [clock_mhz] * len(cells))


def _believed(
    asked: Asked,
    belief: SoloModel,
    tell: Tell,
    cells: list[tuple[int, int]],
    measured: Sequence[ProfilePoint],
    clock: int,
) -> list[ProfilePoint]:
    """Points of those of these cells (batch and share) of which all is known that planning needs."""
    if not cells:
        return []
    columns, found = _careful(asked, belief, _queries(asked, cells, clock)), []
    for row in np.flatnonzero(columns.usable).tolist():
        batch, share = cells[row]
        less = [point for point in measured if point.batch <= batch and point.share_pct_sm >= share]
        more = [point for point in measured if point.batch >= batch and point.share_pct_sm <= share]
        mean = _between(columns.latency_ms[row], *_bounds(less, more, "latency_ms_mean"))
        tail = _between(columns.tail_ms[row], *_bounds(less, more, "latency_ms_p99"))
        memory = _between(columns.memory_mib[row], *_bounds(less, more, "memory_mib"))
        power, origin = float(columns.power_w[row]), Origin(int(columns.origin[row]))
        point = ProfilePoint(
            model=asked.model,
            gpu_type=GpuTypeName(asked.gpu_type.name),
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=clock,
            latency_ms_mean=round(mean, 6),
            latency_ms_p99=round(max(mean, tail), 6),
            memory_mib=round(memory, 3),
            power_w=round(power, 3) if power <= POWER_W_MAX else None,
            origin=_ORIGINS[origin],
            source=tell(asked.model, asked.gpu_type.name, origin)[:SOURCE_LENGTH_MAX],
        )
        found.append(point)
    return found


def _bounds(less: Sequence[ProfilePoint], more: Sequence[ProfilePoint], field: str) -> tuple[float, float]:
    """What measured points with less to do, and with more, leave open."""
    low = max((_measured(point, field) or 0.0 for point in less), default=0.0)
    high = min((_measured(point, field) or np.inf for point in more), default=np.inf)
    return float(low), float(high)


def _measured(point: ProfilePoint, field: str) -> float | None:
    """A point's value; a p99 that was not measured counts as the mean, as it does in planning."""
    found: float | None = getattr(point, field)
    return point.latency_ms_mean if found is None and field == "latency_ms_p99" else found


def _between(number: float, low: float, high: float) -> float:
    return float(max(low, min(number, high)))


def _careful(asked: Asked, belief: SoloModel, queries: Queries) -> _Columns:
    latency = belief.predict(queries)
    mean = _plus(latency, asked.policy)
    tail = mean
    if Quantity.LATENCY_MS_P99 in belief.spec.quantities:
        tail = np.fmax(mean, _plus(belief.predict(queries, Quantity.LATENCY_MS_P99), asked.policy))
    memory, power = (_optional(asked, belief, queries, each) for each in (Quantity.MEMORY_MIB, Quantity.POWER_W))
    # What a point cannot be is a slip in what it was believed from.
    usable = (mean >= LATENCY_MS_MIN) & (tail <= LATENCY_MS_MAX)
    usable &= (memory >= MEMORY_MIB_MIN) & (memory <= MEMORY_MIB_MAX)
    usable &= (queries.batch <= BATCHES[-1]) | latency.support
    return _Columns(mean, tail, memory, power, latency.origin, usable)


def _plus(answer: Answer, policy: Policy) -> Floats:
    return np.asarray(answer.mean + policy.caution_std * answer.std)


def _optional(asked: Asked, belief: SoloModel, queries: Queries, quantity: Quantity) -> Floats:
    if quantity not in belief.spec.quantities:
        return np.full(len(queries), np.nan)
    return np.maximum(_plus(belief.predict(queries, quantity), asked.policy), 0.0)


def _with_memory(asked: Asked, belief: SoloModel, points: Sequence[ProfilePoint]) -> list[ProfilePoint]:
    """Measured points, their memory believed where it was not measured."""
    lacking = [index for index, point in enumerate(points) if point.memory_mib is None]
    found = list(points)
    if not lacking:
        return found
    cells = [(points[index].batch, points[index].share_pct_sm) for index in lacking]
    queries = _queries(asked, cells, asked.gpu_type.clock_mhz_sm_max)
    for index, memory in zip(lacking, _optional(asked, belief, queries, Quantity.MEMORY_MIB).tolist(), strict=True):
        if MEMORY_MIB_MIN <= memory <= MEMORY_MIB_MAX:
            found[index] = replace(points[index], memory_mib=round(memory, 3))
    return found


# --- How models press on each other


PARTNERS = 4
"""Models ahead in the ring that each is asked about; as many behind ask about it."""
PAIR_SHARES_PCT = (20.0, 40.0, 60.0)
"""Of who presses; who suffers has the largest that is left of these."""
PAIR_BATCHES = (1.0, 8.0, 32.0)
ADDED_MIN = 0.02
"""No model is believed to do less than this to a neighbour; and what is nearly nothing must not bend the fit."""
PRESSURE_USUAL = 0.25
"""Pressure of an ordinary model that has the whole device: the scale that sensitivities are over."""
EXPONENT_MAX = 2.0
NUMBER_MAX = 50.0
ALIKE = 0.1
"""Numbers that differ by no more than this part are not worth a change of plans."""


@dataclass(frozen=True, slots=True)
class Disturbances:
    """What neighbours add to the latency of 1: who suffers, who presses (by number), at what share."""

    suffers: Whole
    presses: Whole
    share_pct: Floats
    added: Floats


def neighbours(count: int) -> list[tuple[int, int]]:
    """Each model with itself, for replicas of one service share devices, and with its next few in order of name."""
    ahead = sorted({step % count for step in range(PARTNERS + 1)})
    return sorted({(first, (first + step) % count) for first in range(count) for step in ahead})


def interference_of(
    suite: Suite, gpu_type: GpuTypeName, models: Sequence[ModelName], caution_std: float
) -> dict[ModelName, Interference]:
    """Numbers of those of these models that were measured beside others on this GPU type."""
    names = sorted(set(models))
    met = [name for name, known in zip(names, _met(suite, gpu_type, names), strict=True) if known]
    if not met:
        return {}
    return fit_interference(met, _asked(suite, gpu_type, met, caution_std), ProfileOrigin.FITTED)


def fit_interference(
    names: Sequence[ModelName], answers: Disturbances, origin: ProfileOrigin
) -> dict[ModelName, Interference]:
    """Numbers under which no model is disturbed less than was answered; the answers number these names."""
    suffers, presses, exponent = _fitted(answers, len(names))
    told = suffers[answers.suffers] * presses[answers.presses] * (answers.share_pct / 100) ** exponent
    raised = np.ones(len(names))
    np.maximum.at(raised, answers.suffers, answers.added / told)
    return {
        name: Interference(
            pressure=round(min(float(presses[place]), NUMBER_MAX), 6),
            exponent=round(exponent, 6),
            sensitivity=round(min(float(suffers[place] * raised[place]) * (1 + 1e-5), NUMBER_MAX), 6),
            origin=origin,
        )
        for place, name in enumerate(names)
    }


def alike(old: dict[ModelName, Interference], new: dict[ModelName, Interference]) -> bool:
    """Whether the old numbers still say about the same of the same models."""
    return old.keys() == new.keys() and all(
        abs(mine - theirs) <= ALIKE * max(mine, theirs)
        for name in old
        for share in (25.0, 100.0)
        for mine, theirs in (
            (old[name].pressure_at(share), new[name].pressure_at(share)),
            (old[name].sensitivity, new[name].sensitivity),
        )
    )


def _met(suite: Suite, gpu_type: str, names: list[ModelName]) -> list[bool]:
    """Whether the belief rests on measurements of each model beside another."""
    if not names:
        return []
    twins = Queries.of(list(names), gpu_type, 8.0, 40.0)
    answer = suite.interference.predict(Groups.pairs(twins, twins), suite.solo)
    return [bool(item) for item in answer.origin[::2] == Origin.MEASURED]


def _asked(suite: Suite, gpu_type: str, met: list[ModelName], caution_std: float) -> Disturbances:
    pairs = sorted({(min(pair), max(pair)) for pair in neighbours(len(met))})
    sides = [[pair[side] for pair in pairs for _ in PAIR_SHARES_PCT for _ in PAIR_BATCHES] for side in (0, 1)]
    share = np.tile(np.repeat(PAIR_SHARES_PCT, len(PAIR_BATCHES)), len(pairs))
    batch = np.tile(PAIR_BATCHES, len(PAIR_SHARES_PCT) * len(pairs))
    one, two = sides
    # Both sides of a pair are asked about every share of the other, so the first gets what the second leaves.
    found = []
    for mine, theirs in ((100.0 - share, share), (share, 100.0 - share)):
        groups = Groups.pairs(
            Queries.of([met[each] for each in one], gpu_type, batch, mine),
            Queries.of([met[each] for each in two], gpu_type, batch, theirs),
        )
        answer = suite.interference.predict(groups, suite.solo)
        added = np.maximum(answer.mean + caution_std * answer.std - 1.0, ADDED_MIN)
        found.append((np.array(one), np.array(two), theirs, added[::2]))
        found.append((np.array(two), np.array(one), mine, added[1::2]))
    suffers, presses, shares, added = (np.concatenate([part[side] for part in found]) for side in range(4))
    known = np.isfinite(added)
    return Disturbances(suffers[known].astype(np.int64), presses[known].astype(np.int64), shares[known], added[known])


def _fitted(answers: Disturbances, count: int) -> tuple[Floats, Floats, float]:
    """Sensitivities, pressures and the exponent: least squares of logarithms, the scale set by the usual pressure."""
    rows = np.arange(len(answers.added))
    design = np.zeros((len(rows), 2 * count + 1))
    design[rows, answers.suffers] = 1.0
    design[rows, count + answers.presses] = 1.0
    design[:, -1] = np.log(answers.share_pct / 100)
    weights = np.linalg.lstsq(design, np.log(answers.added), rcond=None)[0]
    exponent = float(np.clip(weights[-1], 0.0, EXPONENT_MAX))
    shift = float(np.median(weights[count:-1])) - np.log(PRESSURE_USUAL)
    return np.exp(weights[:count] + shift), np.exp(weights[count:-1] - shift), exponent
