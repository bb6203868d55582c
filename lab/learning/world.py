"""The world InSS' actor is trained in: second after second, rates that walk, and the reward (3) of a placement.

Networks run by the simulated world's own functions, remembered: times of batches alone, what each neighbour adds to
them (neighbours count as always busy, clocks as the highest), memory, and what becomes of a second's requests, read on
a grid of slowdowns and queues, so that a training asks the simulator each question once. A placement is made real in
InSS' order after the actor: memory first (who does not fit is not placed), batches by bisection in rising order of
limits with two passes at most, default batches for whom none serves; it is there at once. The reward is throughput over
that of the whole GPU, less the penalty of what is late or lost. Transitions to learn from stand in a ring that forgets
the oldest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lab.learning.settings import TrainingSetting
from lab.world.profiling import known_truth
from solvers.domain.ids import GpuTypeName
from solvers.policies.inss.actor import NOWHERE, Doubles, Shape, Vector, Whole
from solvers.policies.inss.batching import BatchQuestion, bisect_batch, in_passes
from solvers.policies.inss.belief import task_latency_ms
from solvers.sim.truth.truth import GpuTruth, Resident, execution_curve_ms, memory_mib, serve, slowdown

BATCH_MAX = 32
FACTOR_GRID = 50.0
"""Slowdowns are told apart by one in so many parts of the time alone."""
REMEMBERED_MAX = 1_000_000
_process_mib = cache(memory_mib)


@dataclass(frozen=True, slots=True)
class Second:
    """What became of a model's requests within a second: the part late or lost, and who waits at its end."""

    violated: float
    queue: float


@dataclass(frozen=True, slots=True)
class Runs:
    """One model on a GPU: its units and batch, and what neighbours do to its times."""

    model: int
    kind: int
    units: int
    batch: int
    factor: float
    neighbours: int


@dataclass(slots=True)
class Truth:
    """Of one setting. GPU types are numbered in the order of `kinds`."""

    setting: TrainingSetting
    kinds: tuple[GpuTruth, ...]
    kind_of: tuple[int, ...]
    """By GPU."""
    _alone: dict[tuple[int, int, int], tuple[float, ...]] = field(default_factory=dict)
    _added: dict[tuple[int, int, int, int, int], float] = field(default_factory=dict)
    _launching_ms: dict[tuple[int, int], float] = field(default_factory=dict)
    _seconds: dict[tuple[int, int, int, int, int, int, float, int], Second] = field(default_factory=dict)

    @staticmethod
    def of(setting: TrainingSetting) -> Truth:
        """Nothing asked yet."""
        names = sorted({GpuTypeName(gpu.gpu_type) for gpu in setting.gpus})
        kinds = tuple(known_truth(name) for name in names)
        return Truth(setting, kinds, tuple(names.index(GpuTypeName(gpu.gpu_type)) for gpu in setting.gpus))

    @property
    def shape(self) -> Shape:
        """What an actor for this setting sees and chooses from: units of two SMs, as MPS gives them."""
        kinds = [self.kinds[kind] for kind in self.kind_of]
        return Shape(
            models=tuple(one.model for one in self.setting.served),
            rate_rps_max=tuple(one.high_rps for one in self.setting.served),
            gpu_types=tuple(gpu.gpu_type for gpu in self.setting.gpus),
            units=tuple(kind.sm_count // kind.sm_granularity for kind in kinds),
            memory_mib=tuple(gpu.memory_mib for gpu in self.setting.gpus),
        )

    def highest_rps(self) -> tuple[float, ...]:
        """H of every model: throughput alone on the whole of the first GPU with batches of one."""
        kind = self.kind_of[0]
        units = self.shape.units[0]
        return tuple(1000.0 / self.alone_ms(model, kind, units)[0] for model in range(len(self.setting.served)))

    def alone_ms(self, model: int, kind: int, units: int) -> tuple[float, ...]:
        """Times of batches of 1 to 32 without neighbours."""
        key = (model, kind, units)
        if key not in self._alone:
            gpu = self.kinds[kind]
            resident = self._resident(model, kind, units, BATCH_MAX)
            self._alone[key] = tuple(execution_curve_ms(gpu, resident, gpu.clock_mhz_sm_max))
        return self._alone[key]

    def added(self, model: int, kind: int, neighbour: tuple[int, int, int]) -> float:
        """What a neighbour (model, units, batch) adds to the factor on a model's times."""
        key = (model, kind, *neighbour)
        if key not in self._added:
            gpu, (other, units, batch) = self.kinds[kind], neighbour
            # Disjoint shares never crowd each other, so the victim's own share does not matter.
            all_but_one = min(units, gpu.sm_count // gpu.sm_granularity - 1)
            beside = self._resident(other, kind, all_but_one, batch)
            mine = Resident(model=self.setting.served[model].model, share_pct_sm=1)
            self._added[key] = slowdown(gpu, mine, gpu.clock_mhz_sm_max, (beside,))[0] - 1.0
        return self._added[key]

    def launching_ms(self, model: int, kind: int) -> float:
        """What every neighbour adds to a batch by launching kernels of its own."""
        if (model, kind) not in self._launching_ms:
            gpu, one = self.kinds[kind], Resident(model=self.setting.served[model].model, share_pct_sm=1)
            self._launching_ms[model, kind] = slowdown(gpu, one, gpu.clock_mhz_sm_max, (one,))[1]
        return self._launching_ms[model, kind]

    def memory_mib(self, model: int, batch: int) -> float:
        return _process_mib(self.setting.served[model].model, batch)

    def second(self, runs: Runs, extra_ms: float, rate_rps: float, queue: float) -> Second:
        """A second of a model's requests, Poisson around their rate. `extra_ms` comes on top of every batch."""
        near, waiting = round(runs.factor * FACTOR_GRID), _rung(queue)
        key = (runs.model, runs.kind, runs.units, runs.batch, near, runs.neighbours, rate_rps, waiting)
        if key not in self._seconds:
            if len(self._seconds) >= REMEMBERED_MAX:
                self._seconds.clear()
            alone = self.alone_ms(runs.model, runs.kind, runs.units)[: runs.batch]
            times = [each * near / FACTOR_GRID + extra_ms for each in alone]
            served = serve(_waiting(waiting), rate_rps, 1.0, times, self.setting.served[runs.model].limit_ms)
            lost, done = served.violated + served.dropped, served.completed + served.dropped
            self._seconds[key] = Second(lost / done if done > 0.0 else 0.0, served.queue)
        return self._seconds[key]

    def _resident(self, model: int, kind: int, units: int, batch: int) -> Resident:
        gpu = self.kinds[kind]
        share = -(-100 * units * gpu.sm_granularity // gpu.sm_count)
        return Resident(model=self.setting.served[model].model, share_pct_sm=share, batch=batch)


def _rung(queue: float) -> int:
    """0 for an empty queue, then half powers of two."""
    return 0 if queue < 1.0 else 1 + round(2.0 * math.log2(queue))


def _waiting(rung: int) -> float:
    return 0.0 if rung == 0 else 2.0 ** ((rung - 1) / 2.0)


BATCH_DEFAULT = 4
"""What a replica gets for which no size works."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """By model: its GPU (NOWHERE without memory), units, batch, whether bisection found it, and its throughput."""

    places: tuple[int, ...]
    units: tuple[int, ...]
    batches: tuple[int, ...]
    served: tuple[bool, ...]
    throughput_rps: tuple[float, ...]
    runs: tuple[Runs | None, ...]
    used_mib: tuple[float, ...]
    """By GPU."""


@dataclass(slots=True)
class Deployment:
    """Works one placement out. Lists are by model."""

    truth: Truth
    places: list[int]
    units: Sequence[int]
    rates_rps: Sequence[float]
    batches: list[int]
    served: list[bool]

    @staticmethod
    def of(truth: Truth, places: Sequence[int], units: Sequence[int], rates_rps: Sequence[float]) -> Deployed:
        """The whole of it, for the places and units of every model."""
        count = len(places)
        work = Deployment(truth, list(places), units, rates_rps, [BATCH_DEFAULT] * count, [False] * count)
        for gpu in range(len(truth.kind_of)):
            work.settle(gpu)
        return work.outcome()

    def settle(self, gpu: int) -> None:
        limits = self.truth.setting.served
        members = sorted(
            (model for model, place in enumerate(self.places) if place == gpu),
            key=lambda model: (limits[model].limit_ms, model),
        )
        room = self.truth.setting.gpus[gpu].memory_mib
        kept: list[int] = []
        for model in members:
            need = self.truth.memory_mib(model, BATCH_DEFAULT)
            if need > room:
                self.places[model] = NOWHERE
                continue
            room -= need
            kept.append(model)
        in_passes(kept, lambda model: self._size(model, kept), lambda: [self.batches[model] for model in kept])

    def _size(self, model: int, kept: list[int]) -> None:
        gpu = self.places[model]
        others = sum(self.truth.memory_mib(each, self.batches[each]) for each in kept if each != model)
        room_mib = self.truth.setting.gpus[gpu].memory_mib - others
        alone = self.truth.alone_ms(model, self.truth.kind_of[gpu], self.units[model])
        factor, extra = self._beside(model, kept)
        rate = self.rates_rps[model]

        def took(batch: int) -> float:
            return alone[batch - 1] * factor + extra

        answer = bisect_batch(
            BatchQuestion(
                execution_ms=took,
                latency_ms=lambda batch: task_latency_ms(batch, 1, took(batch), rate, took(batch)),
                fits=lambda batch: self.truth.memory_mib(model, batch) <= room_mib,
                latency_ms_limit=self.truth.setting.served[model].limit_ms,
                rate_rps=rate,
                batch_max=BATCH_MAX,
            )
        )
        self.served[model] = answer.batch is not None
        self.batches[model] = answer.batch or BATCH_DEFAULT

    def _beside(self, model: int, kept: list[int]) -> tuple[float, float]:
        kind = self.truth.kind_of[self.places[model]]
        others = [(other, self.units[other], self.batches[other]) for other in kept if other != model]
        factor = 1.0 + sum(self.truth.added(model, kind, other) for other in others)
        return factor, len(others) * self.truth.launching_ms(model, kind) if others else 0.0

    def outcome(self) -> Deployed:
        truth, throughput, runs = self.truth, list[float](), list[Runs | None]()
        used = [0.0] * len(truth.kind_of)
        for model, gpu in enumerate(self.places):
            if gpu == NOWHERE:
                throughput.append(0.0)
                runs.append(None)
                continue
            kept = [other for other, place in enumerate(self.places) if place == gpu]
            factor, extra = self._beside(model, kept)
            kind, batch, units = truth.kind_of[gpu], self.batches[model], self.units[model]
            took = truth.alone_ms(model, kind, units)[batch - 1] * factor + extra
            throughput.append(1000.0 * batch / took)
            runs.append(Runs(model, kind, units, batch, factor, len(kept) - 1))
            used[gpu] += truth.memory_mib(model, batch)
        return Deployed(
            places=tuple(self.places),
            units=tuple(self.units),
            batches=tuple(self.batches),
            served=tuple(self.served),
            throughput_rps=tuple(throughput),
            runs=tuple(runs),
            used_mib=tuple(used),
        )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Of one second."""

    reward: float
    normalised: float
    """Sum of throughputs over H."""
    throughput_rps: float
    violated: float
    """Mean over models of the part late or lost."""
    deployed: Deployed


@dataclass(slots=True)
class Environment:
    """One episode at a time; `begin` starts a new one."""

    truth: Truth
    penalty: float
    shape: Shape
    highest_rps: tuple[float, ...]
    random: np.random.Generator
    second: int = 0
    rates_rps: list[float] = field(default_factory=list)
    queues: list[float] = field(default_factory=list)
    used_mib: Sequence[float] = ()
    places: Sequence[int] = ()

    @staticmethod
    def of(truth: Truth, penalty: float, random: np.random.Generator) -> Environment:
        made = Environment(truth, penalty, truth.shape, truth.highest_rps(), random)
        made.begin(random)
        return made

    def begin(self, random: np.random.Generator) -> Vector:
        """A new episode on empty GPUs: every rate somewhere on its walk."""
        self.random, self.second, served = random, 0, self.truth.setting.served
        step = self.truth.setting.step_rps
        rungs = [int((one.high_rps - one.low_rps) / step) + 1 for one in served]
        self.rates_rps = [
            min(one.high_rps, one.low_rps + step * int(random.integers(0, count)))
            for one, count in zip(served, rungs, strict=True)
        ]
        self.queues = [0.0] * len(served)
        self.used_mib, self.places = [0.0] * len(self.shape.units), [NOWHERE] * len(served)
        return self.state()

    def state(self) -> Vector:
        rates: Doubles = np.array(self.rates_rps)
        places: Whole = np.array(self.places, dtype=np.int64)
        return self.shape.state(np.array(self.used_mib), rates, np.array(self.queues), places)

    def step(self, places: Sequence[int], levels: Sequence[int]) -> StepOutcome:
        """One second under a placement; then rates may move."""
        return self.live(Deployment.of(self.truth, places, self.shape.granted(places, levels), self.rates_rps))

    def live(self, deployed: Deployed) -> StepOutcome:
        violated, truth = list[float](), self.truth
        for model, runs in enumerate(deployed.runs):
            if runs is None:
                violated.append(1.0)
                self.queues[model] = 0.0
                continue
            extra = runs.neighbours * truth.launching_ms(model, runs.kind) if runs.neighbours else 0.0
            seen = truth.second(runs, extra, self.rates_rps[model], self.queues[model])
            violated.append(seen.violated)
            self.queues[model] = seen.queue
        self.used_mib, self.places = deployed.used_mib, deployed.places
        normalised = sum(rps / high for rps, high in zip(deployed.throughput_rps, self.highest_rps, strict=True))
        self.second += 1
        if self.second % truth.setting.hold_s == 0:
            self._walk()
        return StepOutcome(
            reward=normalised - self.penalty * sum(violated),
            normalised=normalised,
            throughput_rps=sum(deployed.throughput_rps),
            violated=sum(violated) / len(violated),
            deployed=deployed,
        )

    def _walk(self) -> None:
        step = self.truth.setting.step_rps
        for model, one in enumerate(self.truth.setting.served):
            way = step if self.random.random() < 0.5 else -step
            moved = self.rates_rps[model] + way
            if not one.low_rps <= moved <= one.high_rps:
                moved = self.rates_rps[model] - way
            self.rates_rps[model] = min(one.high_rps, max(one.low_rps, moved))


Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Batch(NamedTuple):
    """A transition a row; actions have a column for every head."""

    states: Vector
    actions: Whole
    rewards: Vector
    following: Vector


@dataclass(slots=True)
class ReplayBuffer:
    """`count` of all that were ever put; the ring holds the last ones."""

    ring: Batch
    count: int = 0

    @staticmethod
    def empty(capacity: int, state_size: int, heads: int) -> ReplayBuffer:
        """Room for so many transitions."""
        states, following = (np.zeros((capacity, state_size), dtype=np.float32) for _ in range(2))
        actions, rewards = np.zeros((capacity, heads), dtype=np.int64), np.zeros(capacity, dtype=np.float32)
        return ReplayBuffer(Batch(states, actions, rewards, following))

    def __len__(self) -> int:
        return min(self.count, len(self.ring.rewards))

    def put(self, batch: Batch) -> None:
        places = (self.count + np.arange(len(batch.rewards))) % len(self.ring.rewards)
        for name, column in self.ring._asdict().items():
            column[places] = getattr(batch, name)
        self.count += len(batch.rewards)

    def draw(self, size: int, random: np.random.Generator) -> Batch:
        """So many at random, each as likely; one may come twice. Raises ValueError while there is nothing."""
        if not len(self):
            raise ValueError("nothing was remembered yet")
        rows = random.integers(0, len(self), size)
        return Batch._make(column[rows] for column in self.ring)

    def arrays(self) -> dict[str, Array]:
        """What is held, by name."""
        return {name: column[: len(self)] for name, column in self.ring._asdict().items()}

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        for name, column in self.ring._asdict().items():
            column[: len(arrays[name])] = arrays[name]
        self.count = count
