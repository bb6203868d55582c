"""How models press on each other, in the three numbers that plans reckon with, read off what is believed of pairs.

A belief about interference answers any question about any pair; planning needs a form that adds up over neighbours and
that a verifier can repeat: `profile.Interference`. So the belief is asked about pairs at a few shares and batches, as
many standard deviations on the careful side as the policy wants, and the form is fitted to the answers: who suffers
times who presses times a power of the presser's share. Then every sensitivity is raised until no answer asked for is
above the form. Only models that were measured beside another on this GPU type get numbers; for the others the policy's
margin stands. Each model meets its next few neighbours in order of name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, ProfileOrigin
from solvers.models.base import Groups, Origin, Queries
from solvers.models.suite import Suite

PARTNERS = 4
"""Models ahead in the ring that each is asked about; as many behind ask about it."""
SHARES_PCT = (20.0, 40.0, 60.0)
"""Of who presses; who suffers has the largest that is left of these."""
BATCHES = (1.0, 8.0, 32.0)
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
    count = len(met)
    ahead = sorted({step % count for step in range(1, PARTNERS + 1)})
    pairs = sorted({tuple(sorted((first, (first + step) % count))) for first in range(count) for step in ahead})
    sides = [[pair[side] for pair in pairs for _ in SHARES_PCT for _ in BATCHES] for side in (0, 1)]
    share = np.tile(np.repeat(SHARES_PCT, len(BATCHES)), len(pairs))
    batch = np.tile(BATCHES, len(SHARES_PCT) * len(pairs))
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
