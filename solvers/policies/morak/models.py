"""Morak's models: latency and power over batch, clock and share, and a slowdown by how many models run together.

The forms are those of what the paper measured: latency linear in batch, falling with share up to a knee and little
beyond, falling with the clock all the more the larger the batch; power rising with batch, share and clock. Beside
neighbours only the number counts: L_int(n), the slowdown of each of n models, is straight in n, with a slope that can
only grow from n = 2 on, and fitted for every GPU type; P_int(n), a factor on the GPU's power, is straight in n through
the one pair of states that the paper prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Groups, ModelSpec, Quantity
from solvers.models.parts.curves import CurveModel, Rows, not_negative
from solvers.models.parts.disturbed import Company, DisturbedModel

SPEC_ALONE = ModelSpec(
    name="morak",
    version="1",
    formula="latency and power over batch, clock and share with a knee (Morak)",
    quantities=tuple(Quantity),
)
KNEES_PCT = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)
_FEW = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A part that nothing changes; work up to the knee and work that more share always helps, each constant and per
    input.
    """

    factors: Floats
    knee_pct: float

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        return np.asarray(_design(batch, share_pct, cycle, self.knee_pct) @ self.factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Logarithm of power: constant, and exponents of batch, share and clock, none below 0."""

    factors: Floats

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        return np.exp(_logs(batch, share_pct, cycle) @ self.factors)


def _design(batch: Floats, share_pct: Floats, cycle: Floats, knee_pct: float) -> Floats:
    kneed, always = 100.0 * cycle / np.minimum(share_pct, knee_pct), 100.0 * cycle / share_pct
    return np.stack([np.ones(len(batch)), kneed, kneed * batch, always, always * batch], axis=1)


def _logs(batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
    one = np.ones(len(batch))
    return np.stack([one, -one, np.log(batch), np.log(share_pct / 100.0), -np.log(cycle)], axis=1)


def learn_alone(rows: Rows) -> Latency:
    """Least squares of relative errors; the knee that does best."""
    work = float(np.median(rows.value / rows.cycle * rows.share_pct / 100.0 / rows.batch))
    usual = work * np.array([0.0, 0.0, 0.4, 0.0, 0.6])
    best: tuple[float, Latency] | None = None
    for knee in KNEES_PCT:
        design = _design(rows.batch, rows.share_pct, rows.cycle, knee) / rows.value[:, None]
        factors = not_negative(design, np.ones(len(rows.value)), usual, _FEW / len(rows.value))
        wrong = float(np.sum((design @ factors - 1.0) ** 2))
        if best is None or wrong < best[0] - 1e-12:
            best = wrong, Latency(factors=factors, knee_pct=knee)
    assert best is not None
    return best[1]


def learn_power(rows: Rows) -> Power:
    """Least squares of logarithms."""
    design = _logs(rows.batch, rows.share_pct, rows.cycle)
    return Power(factors=not_negative(design, np.log(rows.value)))


ALONE = CurveModel(spec=SPEC_ALONE, learn=learn_alone, learn_power=learn_power)


# --- Beside neighbours


SPEC_BESIDE = ModelSpec(name="morak", version="1", formula="slowdown by the number of models (Morak)")
USUAL = (0.1, 0.0)
"""What a second model costs, and what every further one costs beyond that, where nothing was measured."""


def company_factor(count: Floats, slope: float, extra: float) -> Floats:
    """L_int(n): 1 alone, `slope` more with every model, `extra` more with every one from the third on."""
    return 1.0 + slope * np.maximum(count - 1.0, 0.0) + extra * np.maximum(count - 2.0, 0.0)


P_INT_SLOPE = (156.0 / 152.0 - 1.0) / 3.0
"""One GoogLeNet with a batch of 64 draws 152 W, four with 16 each 156 W."""


def power_factor(count: Floats) -> Floats:
    """P_int(n): 1 alone."""
    return np.asarray(1.0 + P_INT_SLOPE * np.maximum(count - 1.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOnly:
    """Slope and extra slope, by GPU type and of all."""

    overall: tuple[float, float] = USUAL
    by_gpu_type: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        members, total = groups.members, np.ones(len(groups))
        count = groups.count_of_others() + 1.0
        for index, name in enumerate(members.gpu_types):
            here = members.gpu_type == index
            total[here] = self.factor(name, count[here])
        return total

    def factor(self, gpu_type: str, count: Floats) -> Floats:
        return company_factor(count, *self.by_gpu_type.get(gpu_type, self.overall))


def learn_beside(company: Company | None, _facts: Facts) -> CountOnly:
    if company is None:
        return CountOnly()
    rows, members = company.known(), company.groups.members
    others = company.groups.count_of_others()
    design = np.stack([others, np.maximum(others - 1.0, 0.0)], axis=1)
    found: dict[str, tuple[float, float]] = {}
    for index, name in enumerate(members.gpu_types):
        here = rows & (members.gpu_type == index)
        if here.any():
            slope, extra = not_negative(design[here], company.slowdown[here] - 1.0)
            found[name] = float(slope), float(extra)
    slope, extra = not_negative(design[rows], company.slowdown[rows] - 1.0)
    return CountOnly(overall=(float(slope), float(extra)), by_gpu_type=found)


BESIDE = DisturbedModel(spec=SPEC_BESIDE, learn=learn_beside)
