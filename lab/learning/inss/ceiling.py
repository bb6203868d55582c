"""The most that any placement can earn at given rates: the best partition of the models into fillings of whole GPUs.

Owns the fillings (who is on a GPU, with how many units each: all of them, neighbours and all, up to three models; for
more, what they would earn undisturbed, which is never less), what of the penalty is sure (rate beyond capacity), and
the programme over them, solved exactly over sets of models. So nothing that an actor can do earns more than this. It
refuses to place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from lab.learning.inss.deploying import Deployment
from lab.learning.inss.truth import Truth
from solvers.policies.inss.actor import NOWHERE

MODELS_EXACT = 3
Sets = list[float]
"""A number for every set of models, by its bits."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Of one setting at given rates: what each set of models earns at most, by kind of GPU."""

    kind_of: tuple[int, ...]
    earned: Mapping[int, Sets]

    @staticmethod
    def of(truth: Truth, rates_rps: Sequence[float], penalty: float) -> Ceiling:
        """Look at every filling."""
        fillings = _Fillings(truth, tuple(rates_rps), penalty, truth.highest_rps())
        kinds = sorted(set(truth.kind_of))
        return Ceiling(truth.kind_of, {kind: fillings.earned(truth.kind_of.index(kind)) for kind in kinds})

    def most(self) -> float:
        """What a second can earn."""
        sets = len(self.earned[self.kind_of[0]])
        best = [0.0] + [-math.inf] * (sets - 1)
        for kind in self.kind_of:
            of_kind = self.earned[kind]
            best = [max(best[mask ^ part] + of_kind[part] for part in _parts(mask)) for mask in range(sets)]
        return best[-1]

    def with_places(self, places: Sequence[int]) -> float:
        """What a second can earn where everybody is placed, with the best division of units. Places are all known."""
        masks = [
            sum(1 << model for model, place in enumerate(places) if place == gpu) for gpu in range(len(self.kind_of))
        ]
        return sum(self.earned[kind][mask] for kind, mask in zip(self.kind_of, masks, strict=True))


@dataclass(frozen=True, slots=True)
class _Fillings:
    """Looks at all fillings of a GPU."""

    truth: Truth
    rates_rps: tuple[float, ...]
    penalty: float
    highest_rps: tuple[float, ...]

    def earned(self, gpu: int) -> Sets:
        """What each set of models earns at most on a GPU of this one's kind."""
        units, count = self.truth.shape.units[gpu], len(self.rates_rps)
        found = self._undisturbed(gpu, units)
        for size in range(1, MODELS_EXACT + 1):
            for members in combinations(range(count), size):
                mask = sum(1 << model for model in members)
                found[mask] = max(self._earned(gpu, members, split) for split in _splits(units, size))
        return found

    def _earned(self, gpu: int, members: tuple[int, ...], split: tuple[int, ...]) -> float:
        places, units = [NOWHERE] * len(self.rates_rps), [0] * len(self.rates_rps)
        for model, each in zip(members, split, strict=True):
            places[model], units[model] = gpu, each
        deployed = Deployment.of(self.truth, places, units, self.rates_rps)
        return sum(self._worth(model, deployed.throughput_rps[model]) for model in members)

    def _worth(self, model: int, rps: float) -> float:
        """Throughput over H, less the penalty of what no server of this speed can serve."""
        rate = self.rates_rps[model]
        lost = max(0.0, 1.0 - rps / rate) if rate > 0 else 0.0
        return rps / self.highest_rps[model] - self.penalty * lost

    def _undisturbed(self, gpu: int, units: int) -> Sets:
        """Everybody as if alone, units divided as well as can be."""
        count = len(self.rates_rps)
        alone = [[self._earned(gpu, (model,), (each,)) for each in range(1, units + 1)] for model in range(count)]
        # By set: the most with up to so many units.
        most: list[list[float]] = [[0.0] * (units + 1)]
        for mask in range(1, 1 << count):
            model = mask.bit_length() - 1
            rest = most[mask ^ (1 << model)]
            most.append(
                [
                    max((rest[held - each] + alone[model][each - 1] for each in range(1, held + 1)), default=-math.inf)
                    for held in range(units + 1)
                ]
            )
        return [each[units] for each in most]


def _splits(units: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to give all units away, at least one to each."""
    for cuts in combinations(range(1, units), count - 1):
        edges = (0, *cuts, units)
        yield tuple(edges[at + 1] - edges[at] for at in range(count))


def _parts(mask: int) -> Iterator[int]:
    """Every subset, the empty one included."""
    part = mask
    while part:
        yield part
        part = (part - 1) & mask
    yield 0
