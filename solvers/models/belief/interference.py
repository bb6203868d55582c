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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Answer, Facts, Groups, GroupSamples, ModelSpec, Origin, Samples, SoloModel
from solvers.models.belief.pressure import PRIOR_MEAN, PRIOR_STD, WIDTHS, Encounters, Kind, Loads, Scene, measured_ms
from solvers.models.parts.disturbed import composition, table_of
from solvers.models.parts.lattice import Lattice
from solvers.models.parts.seen import NO_SAMPLES, floats_of, names_of, part, read, samples_from_plain, samples_to_plain

# --- A Gaussian belief about weights that lie in named blocks: those all rows share and those of single names
#
# Mean and covariance are joint; blocks are added when a name is first met. Rows are learned exactly, all at once with
# the noise estimated, or a few on top. Blocks never met have their prior.


Prior = Callable[[str], tuple[Floats, Floats]]
"""Mean and standard deviation of the weights of a block, by its name."""

_NOISE_PASSES = 10
_NOISE_ROWS = 10.0
"""The first guess of the noise counts like so many rows."""
_FAR = 4.0
"""Rows further off than so many standard deviations of the noise count for less, so that a few bad ones do not bend
everything.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Linear equations: `weights of blocks · features = target`, with known variance beside the noise. `parts` gives
    the rows and features of every block concerned; several parts may concern one row. `scale` multiplies the noise.
    """

    target: Floats
    scale: Floats
    variance: Floats
    parts: Sequence[tuple[str, np.ndarray[tuple[int], np.dtype[np.intp]], Floats]]

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The belief. `start` holds the first index of every block that was met."""

    prior: Prior
    noise: float
    start: Mapping[str, int]
    mean: Floats
    covariance: Floats

    @staticmethod
    def fresh(prior: Prior, noise: float) -> Blocks:
        """Nothing met. `noise` is the first guess of its standard deviation."""
        return Blocks(prior=prior, noise=noise, start={}, mean=np.zeros(0), covariance=np.zeros((0, 0)))

    def meeting(self, names: Sequence[str]) -> Blocks:
        """With these blocks, too."""
        new = [name for name in dict.fromkeys(names) if name not in self.start]
        if not new:
            return self
        start, priors = dict(self.start), [self.prior(name) for name in new]
        size = len(self.mean)
        for name, (mean, _) in zip(new, priors, strict=True):
            start[name] = size
            size += len(mean)
        covariance = np.zeros((size, size))
        known = len(self.mean)
        covariance[:known, :known] = self.covariance
        deviations = np.concatenate([deviation for _, deviation in priors])
        covariance[range(known, size), range(known, size)] = deviations**2
        mean = np.concatenate([self.mean, *(mean for mean, _ in priors)])
        return replace(self, start=start, mean=mean, covariance=covariance)

    def local(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Mean and covariance of these blocks' weights, one after another."""
        priors = [self.prior(name) for name in names]
        mean = np.concatenate([mean for mean, _ in priors])
        covariance = np.diag(np.concatenate([deviation for _, deviation in priors]) ** 2)
        here: list[int] = []
        there: list[int] = []
        offset = 0
        for name, (means, _) in zip(names, priors, strict=True):
            if name in self.start:
                here.extend(range(offset, offset + len(means)))
                there.extend(range(self.start[name], self.start[name] + len(means)))
            offset += len(means)
        if here:
            mean[here] = self.mean[there]
            covariance[np.ix_(here, here)] = self.covariance[np.ix_(there, there)]
        return mean, covariance

    def learned(self, rows: Rows, passes: int = _NOISE_PASSES) -> Blocks:
        """All rows at once on top of what is believed, the noise estimated from them in so many passes."""
        known = self.meeting([name for name, _, _ in rows.parts])
        design = known._design(rows)
        precision = np.linalg.inv(known.covariance)
        pull = precision @ known.mean
        noise, trust = known.noise, np.ones(len(rows))
        mean, covariance = known.mean, known.covariance
        for _ in range(passes):
            own = (noise * rows.scale) ** 2
            weight = trust / (own + rows.variance)
            gram = (design.T * weight) @ design
            covariance = np.asarray(np.linalg.inv(precision + gram), dtype=np.float64)
            mean = covariance @ (pull + design.T @ (weight * rows.target))
            off = rows.target - design @ mean
            # Where latency alone was only believed, part of what is off is that belief's. Rows far off count as far as
            # they are let, so that they do not hide behind the noise that they make.
            part = own / (own + rows.variance)
            near = np.minimum(np.abs(off), _FAR * np.sqrt(own + rows.variance))
            squares = float(((part * near / rows.scale) ** 2 + noise**2 * (1.0 - part)).sum())
            used = float((covariance * gram).sum())
            noise = float(
                np.sqrt((known.noise**2 * _NOISE_ROWS + squares) / (_NOISE_ROWS + max(float(len(rows)) - used, 0.0)))
            )
            away = np.abs(off) / np.sqrt((noise * rows.scale) ** 2 + rows.variance)
            trust = np.minimum(1.0, _FAR / np.maximum(away, 1e-9))
        return replace(known, noise=noise, mean=mean, covariance=(covariance + covariance.T) / 2.0)

    def updated(self, rows: Rows) -> Blocks:
        """A few rows on top, the noise as it is. Costs the square of the number of weights met."""
        known = self.meeting([name for name, _, _ in rows.parts])
        design = known._design(rows)
        spread = known.covariance @ design.T
        off = rows.target - design @ known.mean
        variance = (known.noise * rows.scale) ** 2 + rows.variance
        inside = np.einsum("ij,ji->i", design, spread)
        away = np.abs(off) / np.sqrt(inside + variance)
        variance = variance * np.maximum(1.0, away / _FAR) ** 2
        gain = np.linalg.solve(design @ spread + np.diag(variance), spread.T)
        covariance = known.covariance - spread @ gain
        return replace(known, mean=known.mean + off @ gain, covariance=(covariance + covariance.T) / 2.0)

    def _design(self, rows: Rows) -> Floats:
        design = np.zeros((len(rows), len(self.mean)))
        for name, where, features in rows.parts:
            start = self.start[name]
            np.add.at(design[:, start : start + features.shape[1]], where, features)
        return design

    def packed(self) -> list[float]:
        """The covariance's lower half, row by row."""
        return [float(value) for value in self.covariance[np.tril_indices(len(self.mean))]]

    @staticmethod
    def unpacked(prior: Prior, noise: float, names: Sequence[str], mean: Floats, packed: Floats) -> Blocks:
        """From the names in the order they were met, the mean and what `packed` gave. Raises InputError where they do
        not belong together.
        """
        try:
            sizes = [len(prior(name)[0]) for name in names]
        except (KeyError, ValueError) as error:
            raise InputError("this fitted model has weights of a kind that is not known here") from error
        size = sum(sizes)
        if len(mean) != size or len(packed) != size * (size + 1) // 2:
            raise InputError("the weights of this fitted model do not match its names")
        start = {name: sum(sizes[:index]) for index, name in enumerate(names)}
        covariance = np.zeros((size, size))
        covariance[np.tril_indices(size)] = packed
        covariance = covariance + np.tril(covariance, -1).T
        return Blocks(prior=prior, noise=noise, start=start, mean=mean, covariance=covariance)


SPEC = ModelSpec(name="headroom", version="1", formula="pressures with departures of models and pairs", online=True)

_NOISE_FIRST = 0.01
_STRAY = 0.8
"""Away from measured places the form itself errs: by so much of the noise per step, as far as `_STRAY_STEPS_MAX`."""
_STRAY_STEPS_MAX = 6.0
_COMPANIES_MIN, _FOLDS_MAX = 3, 8
_STRANGENESS = (0.5, 3.0)
_DOUBT = 0.5
"""What was expected before counts like so many companies left out."""
_CHUNK_GROUPS = 64
_KINDS = ("everybody", "suffers", "presses", "together", "mutual")
_ENDS = np.cumsum(WIDTHS)
_PARTS = tuple(slice(int(end) - width, int(end)) for end, width in zip(_ENDS, WIDTHS, strict=True))
# How far beyond what was learned the straight lines go on before they stay level: one step.
_MARGIN = 0.2
_REACH_ANY = (0.0, 2.0, 0.0, 1.0)
_REACH_NONE = (np.inf, -np.inf, np.inf, -np.inf)


def _prior(name: str) -> tuple[Floats, Floats]:
    columns = _PARTS[_KINDS.index(name.partition(":")[0])]
    return PRIOR_MEAN[columns], PRIOR_STD[columns]


def _names(kind: Kind) -> tuple[str, str, str, str, str]:
    gpu_type, own, other = kind
    first, second = sorted((own, other))
    return (
        "everybody",
        f"suffers:{gpu_type}|{own}",
        f"presses:{gpu_type}|{other}",
        f"together:{gpu_type}|{own}|{other}",
        f"mutual:{gpu_type}|{first}|{second}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureBelief:
    """The model. `reach`: lowest and highest batch and share (as in `Loads`) that were learned from. `strangeness`: how
    much wider than the weights say answers on pairs are that never met; learned by leaving pairs out.
    """

    facts: Facts
    blocks: Blocks
    encounters: Encounters
    alone: Samples
    table: Lattice | None
    reach: tuple[float, float, float, float]
    strangeness: float = 1.0
    spec: ModelSpec = SPEC

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> PressureBelief:
        fresh = replace(make(self.facts, 0), alone=alone, table=table_of(alone, self.facts))
        scene, known = fresh._told(samples, solo)
        if not known.any():
            return fresh
        prior = fresh._widened(scene, known)
        learned = replace(prior, blocks=prior.blocks.learned(prior._equations(scene, known, samples.latency_ms)))
        return replace(learned, strangeness=learned._judged(prior, scene, known, samples.latency_ms))

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
        added, spread, distance = np.zeros(count), np.zeros(count), np.zeros(count)
        inside, met = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        for kind, rows in scene.kinds():
            mean, covariance = self.blocks.local(_names(kind))
            features = scene.features(rows, self._reach())
            added[rows] = np.maximum(features @ mean, 0.0)
            spread[rows] = self._width(kind) * np.sqrt(
                np.maximum(((features @ covariance) * features).sum(axis=1), 0.0)
            )
            distance[rows], inside[rows] = self.encounters.nearness(kind, scene.places(rows))
            met[rows] = self.encounters.knows(kind)
        own = scene.edges.own
        furthest = np.zeros(len(groups))
        np.maximum.at(furthest, own, distance)
        stray = _STRAY * np.minimum(furthest, _STRAY_STEPS_MAX)
        noise = self.blocks.noise * scene.scale() * np.hypot(1.0, stray)
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
            "noise": self.blocks.noise,
            "strangeness": self.strangeness,
            "names": list(self.blocks.start),
            "mean": self.blocks.mean.tolist(),
            "covariance": list(self.blocks.packed()),
            "encounters": self.encounters.to_plain(),
            "alone": samples_to_plain(self.alone),
            "reach": list(self.reach) if self.encounters.met else None,
        }

    def _told(self, samples: GroupSamples, solo: SoloModel) -> tuple[Scene, Flags]:
        """The scene, and the members of which a slowdown is known."""
        scene = Scene.of(samples.groups, Loads.of(samples.groups.members, solo, self.table, self.facts))
        ratio = samples.latency_ms / scene.loads.alone_ms
        return scene, np.isfinite(ratio) & (ratio > 0.0) & (samples.groups.count_of_others() > 0)

    def _widened(self, scene: Scene, known: Flags) -> PressureBelief:
        group = scene.groups.group
        present = np.isin(group, group[known])
        batch, share = scene.loads.batch[present], scene.loads.share[present]
        reach = (float(batch.min()), float(batch.max()), float(share.min()), float(share.max()))
        return replace(self, encounters=_encountered(self.encounters, scene, known), reach=reach)

    def _judged(self, prior: PressureBelief, scene: Scene, known: Flags, latency_ms: Floats) -> float:
        """Error on companies left out of learning, in what 95 in a hundred should stay within; a little doubted."""
        codes = composition(scene.groups)
        names = np.unique(codes[known])
        if len(names) < _COMPANIES_MIN:
            return 1.0
        folds = min(len(names), _FOLDS_MAX)
        off = []
        for fold in range(folds):
            out = np.isin(codes, names[fold::folds])
            rest, held = known & ~out, known & out
            blocks = replace(prior.blocks, noise=self.blocks.noise)
            trial = replace(
                prior,
                blocks=blocks.learned(prior._equations(scene, rest, latency_ms), passes=1),
                encounters=_encountered(Encounters(), scene, rest),
            )
            believed = trial._answer(scene)
            slowdown = latency_ms / scene.loads.alone_ms
            off.append((np.abs(slowdown - believed.mean) / believed.std)[held])
        seen = float(np.quantile(np.concatenate(off), 0.95)) / 1.96
        return (folds * float(np.clip(seen, *_STRANGENESS)) + _DOUBT) / (folds + _DOUBT)

    def _width(self, kind: Kind) -> float:
        """Of the answer, beside what the weights say. What was learned about unmet pairs of models that were met
        elsewhere makes nothing surer of models that never were.
        """
        if kind in self.encounters.measured:
            return 1.0
        return self.strangeness if self.encounters.knows(kind) else max(1.0, self.strangeness)

    def _reach(self) -> tuple[float, float, float, float]:
        if not self.encounters.met:
            return _REACH_ANY
        low_batch, high_batch, low_share, high_share = self.reach
        return low_batch - _MARGIN, high_batch + _MARGIN, low_share - _MARGIN, high_share + _MARGIN

    def _equations(self, scene: Scene, known: Flags, latency_ms: Floats) -> Rows:
        row = np.cumsum(known) - 1
        parts = []
        for kind, rows in scene.kinds(known):
            features = scene.features(rows, self._reach())
            where = row[scene.edges.own[rows]]
            parts += [(name, where, features[:, part]) for name, part in zip(_names(kind), _PARTS, strict=True)]
        slowdown = latency_ms[known] / scene.loads.alone_ms[known]
        return Rows(
            target=slowdown - 1.0,
            scale=scene.scale()[known],
            variance=(slowdown * scene.loads.doubt[known]) ** 2,
            parts=parts,
        )


def _encountered(encounters: Encounters, scene: Scene, known: Flags) -> Encounters:
    return encounters.joined((kind, scene.places(rows)) for kind, rows in scene.kinds(known))


def make(facts: Facts, seed: int) -> PressureBelief:  # noqa: ARG001 - the contract's
    """What is believed before anything was measured. Nothing is drawn, so the seed changes nothing."""
    return PressureBelief(
        facts=facts,
        blocks=Blocks.fresh(_prior, _NOISE_FIRST),
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
    names, mean, packed = (
        read(plain, "names", names_of),
        read(plain, "mean", floats_of),
        read(plain, "covariance", floats_of),
    )
    bounds = _REACH_NONE
    if reach is not None:
        found = read(plain, "reach", floats_of)
        if len(found) != len(bounds):
            raise InputError("the reach of this fitted model has no two bounds for batch and share")
        bounds = (float(found[0]), float(found[1]), float(found[2]), float(found[3]))
    return PressureBelief(
        facts=facts,
        blocks=Blocks.unpacked(_prior, noise, names, mean, packed),
        encounters=Encounters.from_plain(part(plain, "encounters")),
        alone=alone,
        table=table_of(alone, facts),
        reach=bounds,
        strangeness=strangeness,
    )


def _positive(plain: Plain, name: str) -> float:
    number = part(plain, name)
    if not isinstance(number, int | float) or isinstance(number, bool) or not number > 0:
        raise InputError(f"{name!r} of this fitted model is no positive number")
    return float(number)
