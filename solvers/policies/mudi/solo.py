"""Mudi alone: latency over share as two lines with a knee, one such curve for every measured batch.

Owns what happens around that form: batches with too few shares take their shape from one joint fit (every part affine
in batch, one knee) and their level from their own samples; between batches latency is interpolated, beyond them the
joint fit tells how it grows. Time follows the clock. It refuses neighbours; those change the parts, and
`mudi_interference` says how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec, Quantity
from solvers.models.parts import piecewise
from solvers.models.parts.curves import Curves, Rows
from solvers.models.parts.piecewise import Piecewise, best_knee, of_parts, parts_at
from solvers.models.parts.regression import not_negative

SPEC = ModelSpec(
    name="mudi",
    version="1",
    formula="piecewise linear latency over share, per batch (Mudi)",
    quantities=tuple(Quantity),
)
ASSUMED_WEIGHT = 0.2
"""Of a share that a batch was not measured at, when its own curve is fitted."""
SHARES_MIN = 4
"""Distinct shares that a batch needs for a curve of its own."""
_FEW = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCurve:
    """One curve for all batches: parts that grow with batch (constant, then per input), and a knee."""

    constant: Floats
    per_input: Floats
    knee: float

    def parts(self, batch: Floats) -> Floats:
        """The three parts of every row."""
        return self.constant + batch[:, None] * self.per_input

    def __call__(self, batch: Floats, share: Floats) -> Floats:
        """Latency in ms."""
        return np.asarray(np.sum(self.parts(batch) * parts_at(share, self.knee), axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurves:
    """Curves of the measured batches."""

    joint: JointCurve
    batches: Floats
    curves: tuple[Piecewise, ...]

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        """Latency in ms of every row."""
        share = share_pct / 100.0
        held = np.clip(batch, self.batches[0], self.batches[-1])
        base = self.joint(held, share)
        # Where the joint fit leaves nothing at all, it cannot tell how anything grows.
        grown = np.divide(self.joint(batch, share), base, out=np.ones(len(batch)), where=(batch != held) & (base > 0))
        return self.mixed(held, lambda curve: curve(share)) * grown * cycle

    def parts(self, batch: Floats) -> tuple[Floats, Floats]:
        """Parts (by row) and knee of the curve at every batch."""
        held = np.clip(batch, self.batches[0], self.batches[-1])

        def part(value: Callable[[Piecewise], float]) -> Floats:
            return self.mixed(held, lambda curve: np.full(len(held), value(curve)))

        whole = part(lambda curve: curve.l0 + curve.k2 * (1.0 - curve.knee))
        steep = part(lambda curve: curve.k2 - curve.k1)
        return np.stack([whole, part(lambda curve: -curve.k2), steep], axis=1), part(lambda curve: curve.knee)

    def mixed(self, batch: Floats, value: Callable[[Piecewise], Floats]) -> Floats:
        """What the curves of the two neighbouring batches say, mixed by where the batch lies between them."""
        place = np.interp(batch, self.batches, np.arange(len(self.batches), dtype=np.float64))
        total = np.zeros(len(batch))
        for index, curve in enumerate(self.curves):
            weight = np.maximum(1.0 - np.abs(place - index), 0.0)
            if weight.any():
                total += weight * value(curve)
        return total


def learn(rows: Rows) -> BatchCurves:
    """Curves of all batches."""
    share, latency = rows.share_pct / 100.0, rows.value / rows.cycle
    joint = _joint(rows.batch, share, latency)
    batches = np.unique(rows.batch)
    usual = np.unique(share)
    curves = []
    for batch in batches:
        here = rows.batch == batch
        level = float(np.exp(np.mean(np.log(latency[here] / joint(rows.batch[here], share[here])))))
        # Where a batch lacks a share that others know, the joint curve speaks for it, with little weight.
        assumed = level * joint(np.full(len(usual), batch), usual)
        weights = np.concatenate([np.ones(int(here.sum())), np.full(len(usual), ASSUMED_WEIGHT)])
        own = np.concatenate([share[here], usual]), np.concatenate([latency[here], assumed])
        enough = len(np.unique(share[here])) >= SHARES_MIN
        parts = level * joint.parts(np.array([batch]))[0]
        curves.append(piecewise.fitted(*own, weights) if enough else of_parts(parts, joint.knee))
    return BatchCurves(joint=joint, batches=batches, curves=tuple(curves))


def _joint(batch: Floats, share: Floats, latency: Floats) -> JointCurve:
    # With a row or two, latency is taken for work over share: what two lines make of 1/D between 0.1 and 1.
    work = float(np.median(latency * share / batch))
    usual = work * np.array([0.0, 0.0, 0.0, 1.0, 2.5, 22.0])

    def fit(knee: float) -> tuple[float, JointCurve]:
        parts = parts_at(share, knee)
        design = np.concatenate([parts, parts * batch[:, None]], axis=1) / latency[:, None]
        found = not_negative(design, np.ones(len(batch)), usual, _FEW / len(batch))
        wrong = float(np.sum((design @ found - 1.0) ** 2))
        return wrong, JointCurve(constant=found[:3], per_input=found[3:], knee=knee)

    return best_knee(share, fit)


def make(facts: Facts, _seed: int = 0) -> Curves:
    """The unfitted model."""
    return Curves.unlearned(SPEC, facts, learn)


def load(plain: Plain, facts: Facts) -> Curves:
    """The model that was dumped."""
    return make(facts).loaded(plain)
