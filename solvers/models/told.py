"""Company as a picture's profiles tell it, for the published formulas that learn from measured groups.

A profile says in three numbers how its model presses and suffers. Spelled out as groups (a model beside one and beside
two of others, at a few shares) they are what `parts.disturbed` learns from, so that a plan goes by the very
formula that is judged on public measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, ProfilePoint
from solvers.models.base import Facts, Groups, Queries, Samples
from solvers.models.parts.disturbed import Company
from solvers.models.parts.seen import NO_SAMPLES

BATCH = 8.0
"""Of everybody, where it tells nothing."""


@dataclass(frozen=True, slots=True)
class RunsTold:
    """Runs in company: shares of all neighbours together (who suffers has the rest), and batches of everybody."""

    shares_pct: tuple[float, ...]
    batches: tuple[float, ...]


FIVE = RunsTold((10.0, 20.0, 30.0, 40.0, 60.0), (BATCH,))
NEIGHBOURS = (1, 2)
PARTNERS_MAX = 8
"""So many models each meets, itself and the next in order of name."""

AloneMs = Callable[[ModelName, Floats], Floats]
"""Latency alone of a model's batch at shares of the whole GPU; NaN where unknown."""


def company_told(
    gpu_type: GpuTypeName,
    known: Mapping[ModelName, Interference],
    alone_ms: AloneMs,
    facts: Facts,
    alone: Samples,
    runs: RunsTold = FIVE,
) -> Company | None:
    """What profiles of these models on a GPU type tell of company; None where they tell nothing. `alone`: what else was
    measured of them.
    """
    if not known:
        return None
    models, shares, sizes, took_ms = list[ModelName](), list[float](), list[float](), list[float]()
    slowdown, group, names = list[float](), list[int](), list(known)
    rest_pct = 100.0 - np.array(runs.shares_pct)
    for place, one in enumerate(names):
        partners = [names[(place + step) % len(names)] for step in range(min(len(names), PARTNERS_MAX))]
        alone_at = dict(zip(runs.shares_pct, alone_ms(one, rest_pct).tolist(), strict=True))
        for other, share, count, batch in product(partners, runs.shares_pct, NEIGHBOURS, runs.batches):
            added = known[one].sensitivity * count * known[other].pressure_at(share / count)
            models += [one, *[other] * count]
            shares += [100.0 - share, *[share / count] * count]
            sizes += [batch] * (1 + count)
            took_ms += [alone_at[share], *[np.nan] * count]
            slowdown += [1.0 + added, *[np.nan] * count]
            group += [(group[-1] + 1) if group else 0] * (1 + count)
    return Company(
        facts=facts,
        groups=Groups(members=Queries.of(models, gpu_type, sizes, shares), group=np.array(group, dtype=np.int64)),
        alone_ms=np.array(took_ms),
        slowdown=np.where(np.isfinite(took_ms), slowdown, np.nan),
        alone=alone,
        table=None,
        reach=None,
    )


def samples_of(points: Sequence[ProfilePoint]) -> Samples:
    """Points measured alone, with their use of L2."""
    if not points:
        return NO_SAMPLES

    def column(name: str) -> Floats:
        return np.array([getattr(point, name) for point in points], dtype=np.float64)

    queries = Queries.of(
        [point.model for point in points],
        [point.gpu_type for point in points],
        column("batch"),
        column("share_pct_sm"),
        column("clock_mhz_sm"),
    )
    return Samples.of(queries, column("latency_ms_mean"), l2_util_pct=column("l2_util_pct"))
