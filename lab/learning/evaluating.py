"""How good an actor is: its placements beside the integer programme's and the most there is, on the same rates.

Owns the comparison over fresh episodes. It refuses the policy that explores: the likeliest choice of every head counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from lab.learning.world import BATCH_MAX, Deployment, Environment, StepOutcome, Truth
from solvers.domain.arrays import Streams
from solvers.engines.base import Limits, create
from solvers.policies.inss.actor import NOWHERE, InssActor
from solvers.policies.inss.belief import task_latency_ms
from solvers.policies.inss.placing import exact
from solvers.problems.knapsack import Knapsack

CAUTIONS = (1.0, 1.2, 1.4, 1.6, 2.0)
"""Factors on everybody's times."""
GAP = 1e-4
NODES_MAX = 5000.0


@dataclass(frozen=True, slots=True)
class Placement:
    """By model; NOWHERE and no units for whom there is no column left."""

    places: tuple[int, ...]
    units: tuple[int, ...]


def optimum(truth: Truth, rates_rps: Sequence[float], caution: float) -> Placement:
    """The best placement while everybody takes `caution` times as long as alone."""
    problem, units = _columns(truth, rates_rps, caution)
    allowed = np.ones(len(problem), dtype=np.bool_)
    chosen = exact(problem, allowed, create("highs"), Limits(work=NODES_MAX, gap=GAP))
    places, given = [NOWHERE] * len(rates_rps), [0] * len(rates_rps)
    for column in np.flatnonzero(allowed if chosen is None else chosen):
        model = int(problem.model[column])
        places[model], given[model] = int(problem.gpu[column]), units[column]
    return Placement(tuple(places), tuple(given))


def _columns(truth: Truth, rates_rps: Sequence[float], caution: float) -> tuple[Knapsack, list[int]]:
    shape, highest = truth.shape, truth.highest_rps()
    rows: list[tuple[int, int, float, float, float]] = []
    units: list[int] = []
    every = product(range(len(rates_rps)), range(len(shape.units)), range(1, shape.levels + 1))
    for model, gpu, size in every:
        runs = (model, truth.kind_of[gpu], size)
        batch = _batch(truth, runs, rates_rps[model], caution) if size <= shape.units[gpu] else None
        if batch is None:
            continue
        worth = 1000.0 * batch / (truth.alone_ms(*runs)[batch - 1] * caution) / highest[model]
        rows.append((model, gpu, float(size) / shape.units[gpu], truth.memory_mib(model, batch), worth))
        units.append(size)
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    problem = Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=table[:, 1].astype(np.int64),
        share_pct=table[:, 2],
        memory_mib=table[:, 3],
        throughput_rps=table[:, 4],
        served=np.ones(len(table)),
        wanted=np.ones(len(rates_rps), dtype=np.int64),
        share_room_pct=np.ones(len(shape.units)),
        memory_room_mib=np.array(shape.memory_mib),
    )
    return problem, units


def _batch(truth: Truth, runs: tuple[int, int, int], rate_rps: float, caution: float) -> int | None:
    """The largest batch that keeps limit and rate; throughput rises with the batch."""
    alone, limit = truth.alone_ms(*runs), truth.setting.served[runs[0]].limit_ms
    for batch in range(BATCH_MAX, 0, -1):
        took = alone[batch - 1] * caution
        timely = task_latency_ms(batch, 1, took, rate_rps, took) <= limit
        if timely and 1000.0 * batch / took >= rate_rps:
            return batch
    return None


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
        fillings = _Fillings(truth, tuple(rates_rps), penalty, truth.highest_rps())
        kinds = sorted(set(truth.kind_of))
        return Ceiling(truth.kind_of, {kind: fillings.earned(truth.kind_of.index(kind)) for kind in kinds})

    def most(self) -> float:
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


@dataclass(frozen=True, slots=True)
class Score:
    """Means over seconds: of the actor, of the most that its places can earn with other units, of the best that the
    programme's placements do, and of the most there is.
    """

    actor: float
    actor_places: float
    programme: float
    bound: float
    actor_violated: float


def evaluate(truth: Truth, actor: InssActor, penalty: float, span: tuple[int, int], seed: int) -> Score:
    """Over `span` = (episodes, seconds of each)."""
    episodes, seconds = span
    streams, rows = Streams(seed), list[tuple[StepOutcome, StepOutcome, float, float]]()
    mine, other = (Environment.of(truth, penalty, streams.stream("inss-unused")) for _ in range(2))
    for episode in range(episodes):
        purpose = f"inss-evaluate-{episode}"
        state = mine.begin(streams.stream(purpose))
        other.begin(streams.stream(purpose))
        ceiling, settled = Ceiling.of(truth, mine.rates_rps, penalty), _settled(other, penalty)
        bound = ceiling.most()
        for second in range(seconds):
            if second and second % truth.setting.hold_s == 0:
                ceiling, settled = Ceiling.of(truth, mine.rates_rps, penalty), _settled(other, penalty)
                bound = ceiling.most()
            places, levels = actor.choice(mine.shape, state)
            possible = ceiling.with_places(places)
            here = mine.step(places, levels)
            there = other.live(Deployment.of(truth, settled[0], settled[1], other.rates_rps))
            rows.append((here, there, bound, possible))
            state = mine.state()
    return Score(
        actor=_mean([here.reward for here, *_ in rows]),
        actor_places=_mean([possible for *_, possible in rows]),
        programme=_mean([there.reward for _, there, *_ in rows]),
        bound=_mean([bound for *_, bound, _ in rows]),
        actor_violated=_mean([here.violated for here, *_ in rows]),
    )


def _settled(world: Environment, penalty: float) -> tuple[tuple[int, ...], list[int]]:
    """Of the programme's placements under several cautions the one that earns most at these rates, neighbours and all;
    spare units given away.
    """
    found: list[tuple[float, tuple[int, ...], list[int]]] = []
    for caution in CAUTIONS:
        placed = optimum(world.truth, world.rates_rps, caution)
        asked = [max(0, units - 1) for units in placed.units]
        units = world.shape.granted(placed.places, asked)
        trial = Environment(world.truth, penalty, world.shape, world.highest_rps, world.random)
        trial.rates_rps, trial.queues = list(world.rates_rps), [0.0] * len(world.queues)
        trial.second = 1 - world.truth.setting.hold_s
        earned = trial.live(Deployment.of(world.truth, placed.places, units, world.rates_rps)).reward
        found.append((earned, placed.places, units))
    _, places, units = max(found, key=lambda each: each[0])
    return places, units


def _mean(numbers: list[float]) -> float:
    return float(np.mean(numbers))
