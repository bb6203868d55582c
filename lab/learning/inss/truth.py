"""How the networks of a setting run on its GPUs, by the simulated world's own functions, remembered.

Owns times of batches alone, what each neighbour adds to them (neighbours count as always busy, clocks as the highest),
memory, and what becomes of a second's requests. The last is read on a grid of slowdowns and queues, so that a training
asks the simulator each question once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lab.learning.inss.settings import TrainingSetting
from solvers.policies.inss.actor import Shape
from solvers.sim.truth.truth import GpuTruth, Resident, execution_curve_ms, gpu_truth, memory_mib, serve, slowdown

BATCH_MAX = 32
FACTOR_GRID = 50.0
"""Slowdowns are told apart by one in so many parts of the time alone."""
REMEMBERED_MAX = 1_000_000


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
    _memory_mib: dict[tuple[int, int], float] = field(default_factory=dict)
    _seconds: dict[tuple[int, int, int, int, int, int, float, int], Second] = field(default_factory=dict)

    @staticmethod
    def of(setting: TrainingSetting) -> Truth:
        """Nothing asked yet. Raises ValueError for GPU types that the simulated world does not know."""
        names = sorted({gpu.gpu_type for gpu in setting.gpus})
        kinds = [gpu_truth(name) for name in names]
        known = tuple(kind for kind in kinds if kind is not None)
        if len(known) < len(kinds):
            raise ValueError(f"the simulated world does not know all of {', '.join(names)}")
        return Truth(setting, known, tuple(names.index(gpu.gpu_type) for gpu in setting.gpus))

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
            self._alone[key] = execution_curve_ms(gpu, resident, gpu.clock_mhz_sm_max)
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
        """Of a process that runs batches of this size."""
        if (model, batch) not in self._memory_mib:
            self._memory_mib[model, batch] = memory_mib(self.setting.served[model].model, batch)
        return self._memory_mib[model, batch]

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
