"""The one model of interference that every published formula is plugged into, and the company it learns from.

Company is what was measured of groups, beside what their members do alone: slowdowns, utilisations of members alone,
and how near a question's group is to groups that were measured (same members first, then batch and share of the one
asked for, and the batches of the others).

Decided here: when a formula is learned again, the uncertainty (residuals where the same company was measured; error on
company left out of learning where it was not) and the answer's origin. A formula is only how to learn from company and
how to compute a slowdown. Slowdowns are never below 1, and exactly 1 without neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.codec import Plain
from solvers.models.base import Answer, Facts, Groups, GroupSamples, ModelSpec, Origin, Queries, Samples, SoloModel
from solvers.models.parts.lattice import CLOCK_STEP, FREE, Lattice, highest_clocks
from solvers.models.parts.seen import (
    NO_SAMPLES,
    floats_of,
    floats_to_plain,
    ints_of,
    part,
    queries_from_plain,
    queries_to_plain,
    read,
    samples_from_plain,
    samples_to_plain,
)

STRANGERS_STEPS = 2.0
STRANGER_STEPS = 4.0
"""Distance of a group that was never measured: its member was, beside others; it never was beside any other."""
L2_PER_SHARE = 0.3
DRAM_PER_SHARE = 0.35
"""Utilisation as a fraction, per fraction of SMs, of a model whose utilisation was not measured: the middle of what
convolutional networks show on a V100.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Measured groups. `alone_ms` and `slowdown` are of every member; NaN: not measured."""

    facts: Facts
    groups: Groups
    alone_ms: Floats
    slowdown: Floats
    alone: Samples
    table: Lattice | None
    """Of the members alone: latency, l2, dram (fractions) and power."""
    reach: Lattice | None
    """Where groups of each composition were measured; no columns."""

    @staticmethod
    def made(facts: Facts, groups: Groups, measured: tuple[Floats, Floats], alone: Samples) -> Company:
        """Company of groups with their members' latency alone and slowdown."""
        blank = Company(
            facts=facts,
            groups=groups,
            alone_ms=measured[0],
            slowdown=measured[1],
            alone=alone,
            table=table_of(alone, facts),
            reach=None,
        )
        return blank.with_groups(groups, measured)

    @staticmethod
    def of(facts: Facts, samples: GroupSamples, solo: SoloModel, alone: Samples) -> Company:
        """What these groups tell, given what is known of their members alone."""
        alone_ms = latency_alone_ms(samples.groups.members, solo, table_of(alone, facts))
        return Company.made(facts, samples.groups, (alone_ms, samples.latency_ms / alone_ms), alone)

    def with_groups(self, groups: Groups, measured: tuple[Floats, Floats]) -> Company:
        """Other groups, the same members alone."""
        members = _members(groups, np.flatnonzero(np.isfinite(measured[1])))
        reach = Lattice.of(members, {}, dict.fromkeys(members.gpu_types, 1.0))
        return replace(self, groups=groups, alone_ms=measured[0], slowdown=measured[1], reach=reach)

    def joined(self, samples: GroupSamples, solo: SoloModel) -> Company:
        alone_ms = latency_alone_ms(samples.groups.members, solo, self.table)
        groups = self.groups.joined(samples.groups)
        slowdown = np.concatenate([self.slowdown, samples.latency_ms / alone_ms])
        return self.with_groups(groups, (np.concatenate([self.alone_ms, alone_ms]), slowdown))

    def take_groups(self, wanted: Iterable[int] | Whole) -> Company:
        groups, rows = self.groups.take_groups(wanted)
        return self.with_groups(groups, (self.alone_ms[rows], self.slowdown[rows]))

    def known(self) -> Flags:
        return np.isfinite(self.slowdown) & (self.groups.count_of_others() > 0)

    def nearness(self, groups: Groups) -> tuple[Floats, Flags, Whole]:
        """Distance, support and origin of every member of other groups."""
        rows = np.arange(len(groups))
        if self.reach is None:
            return np.full(len(groups), np.inf), np.zeros(len(groups), dtype=np.bool_), np.full(len(groups), 2)
        places = self.reach.places(_members(groups, rows))
        seen = set(self.groups.members.keys())
        met = np.zeros(len(groups), dtype=np.bool_)
        for key, part_rows in groups.members.keys().items():
            met[part_rows] = key in seen
        far = np.where(met, STRANGERS_STEPS, STRANGER_STEPS)
        origin = np.where(places.known, int(Origin.MEASURED), int(Origin.SCALED))
        return np.where(places.known, places.distance, far), places.inside, origin

    def to_plain(self) -> Plain:
        return {
            "members": queries_to_plain(self.groups.members),
            "group": self.groups.group.tolist(),
            "alone_ms": floats_to_plain(self.alone_ms),
            "slowdown": floats_to_plain(self.slowdown),
            "alone": samples_to_plain(self.alone),
        }

    @staticmethod
    def from_plain(plain: Plain, facts: Facts) -> Company:
        members = queries_from_plain(part(plain, "members"))
        groups = Groups(members=members, group=read(plain, "group", ints_of))
        measured = (read(plain, "alone_ms", floats_of), read(plain, "slowdown", floats_of))
        return Company.made(facts, groups, measured, samples_from_plain(part(plain, "alone")))


def table_of(alone: Samples, facts: Facts) -> Lattice | None:
    """Look-up of what was measured of members alone."""
    columns = {
        "latency": (alone.latency_ms, FREE),
        "l2": (alone.l2_util_pct / 100.0, FREE),
        "dram": (alone.dram_util_pct / 100.0, FREE),
        "power": (alone.power_w, FREE),
    }
    return Lattice.of(alone.queries, columns, highest_clocks(alone.queries, facts))


def latency_alone_ms(members: Queries, solo: SoloModel, table: Lattice | None) -> Floats:
    """Latency of every member alone: what was measured of exactly this configuration, else what `solo` believes."""
    believed = solo.predict(members).mean
    if table is None:
        return believed
    places = table.places(members)
    measured = table.column(places, "latency")
    return np.where((places.distance == 0.0) & np.isfinite(measured), measured, believed)


def composition(groups: Groups) -> Whole:
    """A number for who is in every member's group, whatever the order; the same in every run."""
    digests = [hashlib.sha256(name.encode()).digest() for name in groups.members.models]
    # 48 bits each: sums of many stay whole in a float.
    numbers = np.array([int.from_bytes(digest[:6], "big") for digest in digests], dtype=np.float64)
    own = numbers[groups.members.model]
    return (groups.sum_of_others(own) + own).astype(np.int64)


def _members(groups: Groups, rows: Whole) -> Queries:
    """Members as questions of their own: the model is named by itself and the group it is in, and the clock's place is
    taken by the mean batch of the others, such that its doubling is one step.
    """
    members = groups.members
    others = groups.sum_of_others(members.batch) / np.maximum(groups.count_of_others(), 1.0)
    codes = np.stack([members.model, composition(groups)])[:, rows]
    unique, index = np.unique(codes, axis=1, return_inverse=True)
    return Queries(
        models=tuple(f"{members.models[int(model)]}|{code}" for model, code in unique.T),
        gpu_types=members.gpu_types,
        model=index.ravel().astype(np.int64),
        gpu_type=members.gpu_type[rows],
        batch=members.batch[rows],
        share_pct=members.share_pct[rows],
        clock_mhz=(1.0 + CLOCK_STEP) ** np.log2(np.maximum(others[rows], 1.0)),
    )


# --- Formulas


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
class DisturbedModel:
    """A published formula as a model that is found by name."""

    spec: ModelSpec
    learn: Learn

    def make(self, facts: Facts, _seed: int = 0) -> Disturbed:
        return Disturbed(model=self, facts=facts, formula=self.learn(None, facts))

    def load(self, plain: Plain, facts: Facts) -> Disturbed:
        made = self.make(facts)
        return made if plain is None else made.learned(Company.from_plain(plain, facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A formula, what it was learned from and how well it does."""

    model: DisturbedModel
    facts: Facts
    formula: Formula
    company: Company | None = None
    spread_inside: float = SPREAD_UNLEARNED
    spread_outside: float = SPREAD_UNLEARNED

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> Disturbed:
        return self.learned(Company.of(self.facts, samples, solo, alone))

    def update(self, samples: GroupSamples, solo: SoloModel) -> Disturbed:
        """Learn again with more groups."""
        if self.company is None:
            return self.fit(samples, solo, NO_SAMPLES)
        return self.learned(self.company.joined(samples, solo))

    def learned(self, company: Company) -> Disturbed:
        if not company.known().any():
            return replace(self.model.make(self.facts), company=company)
        formula = self.model.learn(company, self.facts)
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
                squares += _error(self.model.learn(rest, self.facts), held) ** 2 * rows
                count += rows
        return float(np.sqrt(squares / count)) if count else otherwise

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:
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


def _error(formula: Formula, company: Company) -> float:
    """Root mean square of the error on slowdowns."""
    rows = company.known()
    believed = np.maximum(formula.slowdown(company.groups, company.alone_ms), 1.0)
    wrong = (believed - company.slowdown)[rows]
    wrong = wrong[np.isfinite(wrong)]
    if len(wrong) < _ROWS_MIN:
        return SPREAD_UNLEARNED
    return float(max(np.sqrt(np.mean(wrong**2)), 1e-3))


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """Always 1."""
        return np.ones(len(groups))


NONE = DisturbedModel(
    spec=ModelSpec(name="none", version="1", formula="no interference: slowdown 1"),
    learn=lambda _company, _facts: _One(),
)
"""Whatever stands together is as fast as alone: what planners assume that only look at profiles, and the `-ni` variant
of InSS. It learns how wrong that is (the spread is the distance of measured slowdowns from 1).
"""
