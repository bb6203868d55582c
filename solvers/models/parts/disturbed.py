"""The one model of interference that every published formula is plugged into.

Decided here: when a formula is learned again, the uncertainty (residuals where the same company was measured; error on
company left out of learning where it was not) and the answer's origin. A formula is only how to learn from company and
how to compute a slowdown. Slowdowns are never below 1, and exactly 1 without neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Answer, Facts, Groups, GroupSamples, ModelSpec, Origin, Samples, SoloModel
from solvers.models.parts.company import Company, composition, latency_alone_ms
from solvers.models.parts.seen import NO_SAMPLES

SPREAD_UNLEARNED = 0.1
"""Spread of slowdowns where nothing was learned: that of pairs of networks on data-centre GPUs, doubled."""
_FOLDS_MAX = 6
_ROWS_MIN = 4


class Formula(Protocol):
    """A formula with its coefficients."""

    def slowdown(self, groups: Groups, alone_ms: Floats) -> Floats:
        """Slowdown of every member; NaN where the formula cannot know. `alone_ms`: latency of every member alone."""
        ...


Learn = Callable[[Company | None, Facts], Formula]
"""Coefficients from company; the published ones without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A formula, what it was learned from and how well it does."""

    spec: ModelSpec
    facts: Facts
    learn: Learn
    formula: Formula
    company: Company | None = None
    spread_inside: float = SPREAD_UNLEARNED
    spread_outside: float = SPREAD_UNLEARNED

    @staticmethod
    def unlearned(spec: ModelSpec, learn: Learn, facts: Facts) -> Disturbed:
        """The formula with published coefficients."""
        return Disturbed(spec=spec, facts=facts, learn=learn, formula=learn(None, facts))

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> Disturbed:
        """Learn from these groups."""
        return self.learned(Company.of(self.facts, samples, solo, alone))

    def update(self, samples: GroupSamples, solo: SoloModel) -> Disturbed:
        """Learn again with more groups."""
        if self.company is None:
            return self.fit(samples, solo, NO_SAMPLES)
        return self.learned(self.company.joined(samples, solo))

    def learned(self, company: Company) -> Disturbed:
        """The formula of this company."""
        if not company.known().any():
            fresh = Disturbed.unlearned(self.spec, self.learn, self.facts)
            return replace(fresh, company=company)
        formula = self.learn(company, self.facts)
        inside = _error(formula, company)
        return replace(
            self,
            company=company,
            formula=formula,
            spread_inside=inside,
            spread_outside=max(inside, self._strange(company, 2.0 * inside)),
        )

    def _strange(self, company: Company, otherwise: float) -> float:
        """Error on groups whose company was left out of learning."""
        codes = composition(company.groups)
        names = np.unique(codes)
        if len(names) < 2:
            return otherwise
        squares, count = 0.0, 0
        for fold in range(min(len(names), _FOLDS_MAX)):
            out = np.isin(codes, names[fold::_FOLDS_MAX])
            held = company.take_groups(np.unique(company.groups.group[out]))
            rest = company.take_groups(np.unique(company.groups.group[~out]))
            if held.known().any() and rest.known().any():
                rows = int(held.known().sum())
                squares += _error(self.learn(rest, self.facts), held) ** 2 * rows
                count += rows
        return float(np.sqrt(squares / count)) if count else otherwise

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:
        """Slowdown of every member."""
        length = len(groups)
        single = groups.count_of_others() == 0
        table = self.company.table if self.company else None
        alone_ms = latency_alone_ms(groups.members, solo, table)
        mean = np.where(single, 1.0, np.maximum(self.formula.slowdown(groups, alone_ms), 1.0))
        if self.company is None:
            distance, support = np.full(length, np.inf), np.zeros(length, dtype=np.bool_)
            origins = np.full(length, int(Origin.SCALED))
        else:
            distance, support, origins = self.company.nearness(groups)
        spread = np.where(np.isfinite(distance) & (origins == Origin.MEASURED), self.spread_inside, self.spread_outside)
        unknown = np.isnan(mean)
        return Answer(
            mean=mean,
            std=np.where(unknown, np.nan, np.where(single, 0.0, spread)),
            support=(support | single) & ~unknown,
            distance=np.where(unknown, np.inf, np.where(single, 0.0, distance)),
            origin=np.where(single, int(Origin.MEASURED), origins).astype(np.int8),
        )

    def dump(self) -> Plain:
        """What was measured in company; the coefficients follow from it."""
        return None if self.company is None else self.company.to_plain()

    def loaded(self, plain: Plain) -> Disturbed:
        """What was dumped."""
        return self if plain is None else self.learned(Company.from_plain(plain, self.facts))


def _error(formula: Formula, company: Company) -> float:
    """Root mean square of the error on slowdowns."""
    rows = company.known()
    believed = np.maximum(formula.slowdown(company.groups, company.alone_ms), 1.0)
    wrong = (believed - company.slowdown)[rows]
    wrong = wrong[np.isfinite(wrong)]
    if len(wrong) < _ROWS_MIN:
        return SPREAD_UNLEARNED
    return float(max(np.sqrt(np.mean(wrong**2)), 1e-3))
