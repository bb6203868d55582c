"""Headroom's own model of interference: what neighbours' pressures do to a replica, and how sure that is.

The slowdown of a member is 1 plus what each of its neighbours adds. What a neighbour adds is linear in features of both
loads (`pressure`): weights that all share come first and answer for models never met; weights of the one that suffers,
of the one that presses and of both together are departures from them that only measurements make, each believed as far
as the data tell it apart from noise (`blocks`). So an unmet pair of models that were met beside others is answered from
their own weights, with the spread of pairs added, and an unmet model from pressures alone, with the spread of models
added.

A slowdown is never below 1; another neighbour never helps. Groups are expected to run back to back, without queueing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Answer, Facts, Groups, GroupSamples, ModelSpec, Origin, Samples, SoloModel
from solvers.models.belief.blocks import Blocks, Rows
from solvers.models.belief.pressure import (
    HOST_MAX,
    PARTS,
    REACHED,
    USUAL,
    Departures,
    Encounters,
    Kind,
    Loads,
    Reach,
    Scene,
    measured_ms,
    names_of_weights,
    weights,
)
from solvers.models.parts.disturbed import composition, table_of
from solvers.models.parts.lattice import Lattice
from solvers.models.parts.seen import NO_SAMPLES, floats_of, part, read, samples_from_plain, samples_to_plain

SPEC = ModelSpec(name="headroom", version="2", formula="pressures with departures of models and pairs", online=True)

_NOISE_FIRST = 0.01
_STRAY = 0.8
"""Away from measured places the form itself errs: by so much of the noise per step, as far as `_STRAY_STEPS_MAX`."""
_STRAY_STEPS_MAX = 6.0
_COMPANIES_MIN, _FOLDS_MAX = 3, 8
_STRANGENESS = (0.3, 3.0)
_DOUBT = 0.5
"""What was expected before counts like so many companies left out."""
_CHUNK_GROUPS = 64
# How far beyond what was learned the straight lines go on before they stay level: one step.
_MARGIN = 0.2
_REACH_ANY: Reach = ((0.0, 2.0), (0.0, 1.0), (0.0, HOST_MAX))
_REACH_NONE: Reach = ((np.inf, -np.inf),) * len(REACHED)
_TRIED: tuple[Departures, ...] = (
    *((one, two, 0.0) for one in (1.0, 0.3, 3.0) for two in (1.0, 0.5, 2.0)),
    (1.0, 1.0, 1.0),
    (1.0, 0.5, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Out:
    """Rows left out of learning, and by how much of the noise the form itself errs there."""

    rows: Flags
    stray: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    strangeness: float
    probable: Floats


def _strayed(distance: Floats) -> Floats:
    return np.asarray(_STRAY * np.minimum(distance, _STRAY_STEPS_MAX))


def _lead(ahead: Floats) -> float:
    """What is left of a lead when two standard errors are taken off, and more of few parts, which must agree."""
    return float(ahead.mean() - (2.0 + 4.0 / len(ahead)) * ahead.std(ddof=1) / np.sqrt(len(ahead)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureBelief:
    """The model. `reach`: lowest and highest of loads that were learned from. `strangeness`: how
    much wider than the weights say answers on pairs are that never met; learned by leaving pairs out.
    """

    facts: Facts
    blocks: Blocks
    encounters: Encounters
    alone: Samples
    table: Lattice | None
    reach: Reach
    strangeness: float = 1.0
    departures: Departures = USUAL
    spec: ModelSpec = SPEC

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> PressureBelief:
        fresh = replace(make(self.facts, 0), alone=alone, table=table_of(alone, self.facts))
        scene, known = fresh._told(samples, solo)
        if not known.any():
            return fresh
        found = fresh._widened(scene, known)
        rows = found._equations(scene, known, samples.latency_ms)
        learned = found.blocks.learned(rows)
        outs = list(found._left_out(scene, known))
        if outs:
            tried = {each: found._trial(_tried(each, rows, learned), rows, outs) for each in _TRIED}
            departures = max(_TRIED, key=lambda each: _lead(tried[each].probable - tried[USUAL].probable))
            found = replace(found, strangeness=tried[departures].strangeness, departures=departures)
            if departures != USUAL:
                learned = weights(departures, _NOISE_FIRST).learned(rows)
        return replace(found, blocks=learned)

    def update(self, samples: GroupSamples, solo: SoloModel) -> PressureBelief:
        """Learn more groups on top."""
        numbers = np.unique(samples.groups.group)
        if len(numbers) > _CHUNK_GROUPS:
            found = self
            for first in range(0, len(numbers), _CHUNK_GROUPS):
                found = found.update(samples.take_groups(numbers[first : first + _CHUNK_GROUPS]), solo)
            return found
        scene, known = self._told(samples, solo)
        if not known.any():
            return self
        # Features keep meaning what they meant when the weights were learned: the reach grows only with a new fit.
        found = self if self.encounters.met else self._widened(scene, known)
        found = replace(found, encounters=_encountered(found.encounters, scene, known))
        return replace(found, blocks=found.blocks.updated(found._equations(scene, known, samples.latency_ms)))

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:
        """Slowdown of every member, over what `latency_alone` says."""
        return self._answer(Scene.of(groups, Loads.of(groups.members, solo, self.table, self.facts)))

    def latency_alone(self, groups: Groups, solo: SoloModel) -> Answer:
        believed = solo.predict(groups.members)
        if self.table is None:
            return believed
        exact_ms = measured_ms(self.table, self.table.places(groups.members))
        exact = np.isfinite(exact_ms) & (groups.count_of_others() > 0)
        return Answer(
            mean=np.where(exact, exact_ms, believed.mean),
            std=np.where(exact, 0.0, believed.std),
            support=believed.support | exact,
            distance=np.where(exact, 0.0, believed.distance),
            origin=np.where(exact, Origin.MEASURED, believed.origin).astype(np.int8),
        )

    def _answer(self, scene: Scene) -> Answer:
        groups, count = scene.groups, len(scene.edges.own)
        added, spread, distance, stray = (np.zeros(count) for _ in range(4))
        inside, met = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        for kind, rows in scene.kinds():
            mean, covariance = self.blocks.local(names_of_weights(kind))
            features = scene.features(rows, self._reach())
            added[rows] = np.maximum(features @ mean, 0.0)
            doubt = np.sqrt(np.maximum(((features @ covariance) * features).sum(axis=1), 0.0))
            distance[rows], inside[rows] = self.encounters.nearness(kind, scene.places(rows))
            spread[rows], stray[rows] = self._width(kind) * np.stack([doubt, _strayed(distance[rows])])
            met[rows] = self.encounters.knows(kind)
        own = scene.edges.own
        furthest, astray = np.zeros(len(groups)), np.zeros(len(groups))
        np.maximum.at(furthest, own, distance)
        np.maximum.at(astray, own, stray)
        noise = self.blocks.noise * scene.scale() * np.hypot(1.0, astray)
        single = groups.count_of_others() == 0
        strange = scene.over_edges(np.where(met, 0.0, 1.0)) > 0
        return Answer(
            mean=1.0 + scene.over_edges(added),
            # Neighbours share weights, so their errors are taken to go the same way.
            std=np.where(single, 0.0, np.hypot(scene.over_edges(spread), noise)),
            support=scene.over_edges(np.where(inside, 0.0, 1.0)) == 0,
            distance=furthest,
            origin=np.where(strange, Origin.SCALED, Origin.MEASURED).astype(np.int8),
        )

    def dump(self) -> Plain:
        """Weights, encounters and what was measured alone."""
        return {
            **self.blocks.to_plain(),
            "strangeness": self.strangeness,
            "departures": list(self.departures),
            "encounters": self.encounters.to_plain(),
            "alone": samples_to_plain(self.alone),
            "reach": [bound for bounds in self.reach for bound in bounds] if self.encounters.met else None,
        }

    def _told(self, samples: GroupSamples, solo: SoloModel) -> tuple[Scene, Flags]:
        """The scene, and the members of which a slowdown is known."""
        scene = Scene.of(samples.groups, Loads.of(samples.groups.members, solo, self.table, self.facts))
        ratio = samples.latency_ms / scene.loads.alone_ms
        return scene, np.isfinite(ratio) & (ratio > 0.0) & (samples.groups.count_of_others() > 0)

    def _widened(self, scene: Scene, known: Flags) -> PressureBelief:
        group = scene.groups.group
        present = np.isin(group, group[known])
        learned: list[Floats] = [getattr(scene.loads, name)[present] for name in REACHED]
        reach = tuple((float(column.min()), float(column.max())) for column in learned)
        return replace(self, encounters=_encountered(self.encounters, scene, known), reach=reach)

    def _left_out(self, scene: Scene, known: Flags) -> Iterator[_Out]:
        """Companies to leave out of learning, some at a time; none where there are too few."""
        codes = composition(scene.groups)
        names = np.unique(codes[known])
        folds = min(len(names), _FOLDS_MAX) if len(names) >= _COMPANIES_MIN else 0
        for fold in range(folds):
            out = known & np.isin(codes, names[fold::folds])
            seen = _encountered(Encounters(), scene, known & ~out)
            furthest = np.zeros(len(known))
            for kind, rows in scene.kinds(out):
                np.maximum.at(furthest, scene.edges.own[rows], seen.nearness(kind, scene.places(rows))[0])
            yield _Out(rows=out[known], stray=_strayed(furthest[out]))

    def _trial(self, blocks: Blocks, rows: Rows, outs: list[_Out]) -> _Trial:
        """How weights of such a prior foretell what is left out: how much wider than their spread holds 95 in a
        hundred, a little doubted, and how probable each company was.
        """
        wider, probable = [], []
        for out, (mean, spread) in zip(outs, blocks.without(rows, [out.rows for out in outs]), strict=True):
            noise, off = blocks.noise * rows.scale[out.rows], rows.target[out.rows] - np.maximum(mean, 0.0)
            doubt = spread**2 + (noise * out.stray) ** 2
            wider.append(np.sqrt(np.maximum((off / 1.96) ** 2 - noise**2, 0.0) / doubt))
            probable.append(float(np.mean(-np.log(doubt + noise**2) - off**2 / (doubt + noise**2))) / 2.0)
        needed = float(np.clip(np.quantile(np.concatenate(wider), 0.95), *_STRANGENESS))
        strangeness = (len(outs) * needed + _DOUBT) / (len(outs) + _DOUBT)
        return _Trial(strangeness=strangeness, probable=np.array(probable))

    def _width(self, kind: Kind) -> float:
        """Of the answer, beside what the weights say. What was learned about unmet pairs of models that were met
        elsewhere makes nothing surer of models that never were.
        """
        if kind in self.encounters.measured:
            return 1.0
        return self.strangeness if self.encounters.knows(kind) else max(1.0, self.strangeness)

    def _reach(self) -> Reach:
        if not self.encounters.met:
            return _REACH_ANY
        return tuple((low - _MARGIN, high + _MARGIN) for low, high in self.reach)

    def _equations(self, scene: Scene, known: Flags, latency_ms: Floats) -> Rows:
        row = np.cumsum(known) - 1
        parts = []
        for kind, rows in scene.kinds(known):
            features = scene.features(rows, self._reach())
            where = row[scene.edges.own[rows]]
            names = zip(names_of_weights(kind), PARTS, strict=True)
            parts += [(name, where, features[:, part]) for name, part in names]
        slowdown = latency_ms[known] / scene.loads.alone_ms[known]
        return Rows(
            target=slowdown - 1.0,
            scale=scene.scale()[known],
            variance=(slowdown * scene.loads.doubt[known]) ** 2,
            parts=parts,
        )


def _encountered(encounters: Encounters, scene: Scene, known: Flags) -> Encounters:
    return encounters.joined((kind, scene.places(rows)) for kind, rows in scene.kinds(known))


def _tried(departures: Departures, rows: Rows, usual: Blocks) -> Blocks:
    """Weights of such a prior, nothing learned, at the noise that they leave: what usual ones take for noise may be
    what each model has of its own.
    """
    fresh = weights(departures, _NOISE_FIRST)
    return weights(departures, fresh.learned(rows).noise if departures[2] > USUAL[2] else usual.noise)


def make(facts: Facts, seed: int) -> PressureBelief:  # noqa: ARG001 - the contract's
    """What is believed before anything was measured. Nothing is drawn, so the seed changes nothing."""
    return PressureBelief(
        facts=facts,
        blocks=weights(USUAL, _NOISE_FIRST),
        encounters=Encounters(),
        alone=NO_SAMPLES,
        table=None,
        reach=_REACH_NONE,
    )


def load(plain: Plain, facts: Facts) -> PressureBelief:
    """What `dump` wrote. Raises InputError for anything else."""
    noise, strangeness = (_positive(plain, name) for name in ("noise", "strangeness"))
    reach = part(plain, "reach")
    alone = samples_from_plain(part(plain, "alone"))
    departures = read(plain, "departures", floats_of)
    # Models fitted before there was a choice of the last know two.
    one, two, own = (float(number) for number in (*departures, *USUAL[len(departures) :])[: len(USUAL)])
    if len(departures) not in (2, 3) or not (min(one, two) > 0.0 and 0.0 <= own <= 1.0):
        raise InputError("the departures of this fitted model are no two positive numbers and a part of 1")
    bounds = _REACH_NONE
    if reach is not None:
        found = read(plain, "reach", floats_of)
        # Models fitted before host work had bounds know those of batch and share.
        bounds = (*zip(found[::2].tolist(), found[1::2].tolist(), strict=False), *_REACH_ANY[len(found) // 2 :])
        if len(found) not in (4, 6):
            raise InputError("the reach of this fitted model has no two bounds for batch, share and host work")
    return PressureBelief(
        facts=facts,
        blocks=weights((one, two, own), noise).with_plain(plain),
        encounters=Encounters.from_plain(part(plain, "encounters")),
        alone=alone,
        table=table_of(alone, facts),
        reach=bounds,
        strangeness=strangeness,
        departures=(one, two, own),
    )


def _positive(plain: Plain, name: str) -> float:
    number = part(plain, name)
    if not isinstance(number, int | float) or isinstance(number, bool) or not number > 0:
        raise InputError(f"{name!r} of this fitted model is no positive number")
    return float(number)
