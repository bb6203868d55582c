"""What task schedulers are told, what they answer, and what they may believe of every configuration.

A scheduler has no clock and no ears: time comes as `now_s` (seconds from any fixed moment), news by `arrive` and
`ended`, and it acts in `tick` alone. Who runs it calls `tick` when `wake_s` says so; an earlier call does no harm. What
becomes of a launch is told by `ended`, task by task where it worked, group by group where it did not.

A task of several inputs takes as long as all its batches, so the latency that is scored, and held against the deadline,
is that of the task. Memory is no free knob here: a batch needs what it needs, rounded up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.value import NAME, NOT_NEGATIVE, POSITIVE, text, value, within
from solvers.errors import FieldError, InputError
from solvers.models.base import Facts, Queries
from solvers.planners.tuning import Tune
from solvers.policies.oltunes.learned import LearnedSolo
from solvers.policies.oltunes.parameters import Shared
from solvers.policies.oltunes.queues import LOOKED_AT_MAX
from solvers.policies.oltunes.scores import (
    Candidates,
    PowerTerms,
    TaskWish,
    epc_score,
    ever_full,
    is_latency_critical,
    run_ms,
    scored,
)


@value
class InferenceTask:
    """One piece of inference work: so many inputs of one model. `latency_weight` is lambda: above 0.5 the task is
    latency-critical. The deadline counts from arrival. `batch_declared` is its owner's own batch, for schedulers that
    do not tune; so is `heavy`, whether its owner asks for a large GPU.
    """

    id: Annotated[str, text(128)]
    model: Annotated[ModelName, NAME]
    latency_weight: float
    deadline_s: Annotated[float, POSITIVE]
    inputs: Annotated[int, POSITIVE]
    batch_declared: Annotated[int, POSITIVE] = 8
    heavy: bool = False
    gpu_types_allowed: tuple[GpuTypeName, ...] = ()
    """None: any."""

    def __post_init__(self) -> None:
        is_latency_critical(self.latency_weight)

    @property
    def latency_critical(self) -> bool:
        return is_latency_critical(self.latency_weight)


@value
class Arrival:
    """A task in the main queue. `order` counts arrivals."""

    task: InferenceTask
    at_s: float
    order: int


@value
class Config:
    """How a task is executed: batch, SM share in percent of the whole GPU, memory limit; what is believed of it."""

    batch: Annotated[int, POSITIVE]
    share_pct: Annotated[int, within(1, 100)]
    memory_mib: Annotated[float, POSITIVE]
    latency_ms: Annotated[float, POSITIVE]
    """Believed time of one batch."""
    throughput_rps: Annotated[float, POSITIVE]
    """Believed inputs per second."""

    def run_s(self, inputs: float) -> float:
        """Believed time of so many inputs in batches one after the other; the last one may not be full."""
        return max(1.0, -(-inputs // self.batch)) * self.latency_ms / 1000.0


@value
class PlacedTask:
    """A task for a seat or on it, and the part of its inputs that is done, 0…1."""

    task: InferenceTask
    config: Config
    progress: Annotated[float, within(0.0, 1.0)] = 0.0

    @property
    def left_s(self) -> float:
        return self.config.run_s(self.task.inputs) * (1.0 - self.progress)


@value
class TaskSeat:
    """A GPU as a scheduler sees it."""

    id: Annotated[DeviceId, text(128)]
    gpu_type: GpuTypeName
    memory_mib_total: Annotated[float, POSITIVE]
    memory_mib_free: Annotated[float, NOT_NEGATIVE]
    utilisation_pct: Annotated[float, within(0.0, 100.0)] = 0.0
    """Of the SMs, as last measured."""
    running: tuple[PlacedTask, ...] = ()

    def __post_init__(self) -> None:
        if self.memory_mib_free > self.memory_mib_total:
            raise FieldError("memory_mib_free", "memory_mib_free is more than there is")


@value
class Launch:
    """A group of tasks for a seat, to be deployed at once or not at all."""

    seat: DeviceId
    group: tuple[PlacedTask, ...]

    def __post_init__(self) -> None:
        if not self.group:
            raise FieldError("group", "a launch needs tasks")

    @property
    def memory_mib(self) -> float:
        return sum(each.config.memory_mib for each in self.group)


class Ending(StrEnum):
    """How a launched task ended: DONE; FAILED: its group could not be deployed or was broken off, it is to be tried
    again.
    """

    DONE = "done"
    FAILED = "failed"


@value
class Ended:
    """What became of tasks that were launched. A group that failed is told at once with all its tasks; tasks that are
    done are told each on its own, with what was measured of it.
    """

    tasks: tuple[str, ...]
    ending: Ending = Ending.DONE
    batch_ms: Annotated[float | None, POSITIVE] = None
    """Mean time of one batch as measured, neighbours included."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise FieldError("tasks", "somebody must have ended")


BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
"""Table 3."""


@value
class SchedulerParameters(Shared):
    """The two switches are for finding out what a part is worth; without steps the window stays as it is."""

    memory_margin_mib: Annotated[float, Tune("min_mem: kept free on every GPU", 0, 100_000)] = 512.0
    memory_step_mib: Annotated[float, Tune("memory limits are multiples of this", 1, 100_000)] = 2048.0
    share_step_pct: Annotated[int, Tune("SM shares looked at are multiples of this", 5, 100)] = 10
    nearly_free: Annotated[
        float, Tune("when no GPU is empty: one with more than this part free, or done, counts as available", 0, 1)
    ] = 0.8
    looked_at_max: Annotated[int, Tune("tasks of each queue that are looked at for one group", 4, 100_000)] = (
        LOOKED_AT_MAX
    )
    learned_at_once: Annotated[int, Tune("outcomes that are learned together", 1, 10_000)] = 16
    with_affinity: Annotated[bool, Tune("whether affinity decides who may share")] = True
    with_tuning: Annotated[bool, Tune("whether spare memory is used to tune one task of a group")] = True

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Shares that are looked at, the whole GPU among them."""
        return (*range(self.share_step_pct, 100, self.share_step_pct), 100)


PROCESS_MIB = 400.0
"""What a process takes before it loads a model."""
MS_PER_S = 1000.0


def memory_mib(facts: Facts, model: ModelName, batch: int, parameters: SchedulerParameters) -> float:
    """Limit that batches of this size need, in whole steps."""
    known = facts.models[model]
    needed = PROCESS_MIB + known.memory_mib_weights + known.memory_mib_per_input * batch
    return float(np.ceil(needed / parameters.memory_step_mib) * parameters.memory_step_mib)


@value
class TaskChoice:
    """One of the configurations kept for a task (Eq. 6)."""

    gpu_type: GpuTypeName
    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTable:
    """Every configuration of a model on GPU types that are there, and what is predicted of it, one per row."""

    queries: Queries
    gpu_types: tuple[GpuTypeName, ...]
    memory_mib: Floats
    memory_part: Floats
    tdp_w: Floats
    latency_ms: Floats
    throughput_rps: Floats

    def config(self, row: int) -> Config:
        return Config(
            batch=int(self.queries.batch[row]),
            share_pct=int(self.queries.share_pct[row]),
            memory_mib=float(self.memory_mib[row]),
            latency_ms=float(self.latency_ms[row]),
            throughput_rps=float(self.throughput_rps[row]),
        )


class OltunesBeliefs:
    """A predictor with its answers of the moment. Learning gives a new one."""

    def __init__(self, facts: Facts, solo: LearnedSolo, parameters: SchedulerParameters) -> None:
        self.facts = facts
        self.solo = solo
        self.parameters = parameters
        self._tables: dict[tuple[ModelName, tuple[GpuTypeName, ...]], PredictionTable] = {}

    def table(self, model: ModelName, gpu_types: tuple[GpuTypeName, ...]) -> PredictionTable:
        key = (model, gpu_types)
        if key not in self._tables:
            self._tables[key] = self._predicted(model, gpu_types)
        return self._tables[key]

    def _predicted(self, model: ModelName, gpu_types: tuple[GpuTypeName, ...]) -> PredictionTable:
        rows = [
            (gpu_type, batch, share, needed)
            for gpu_type in gpu_types
            for batch in BATCHES
            if (needed := memory_mib(self.facts, model, batch, self.parameters))
            <= self.facts.gpu_types[gpu_type].memory_mib - self.parameters.memory_margin_mib
            for share in self.parameters.shares_pct
        ]
        types = tuple(row[0] for row in rows)
        queries = Queries.of(model, types, [row[1] for row in rows], [row[2] for row in rows])
        latency, throughput = self.solo.predict_both(queries)
        needed_mib = np.array([row[3] for row in rows])
        total_mib = np.array([float(self.facts.gpu_types[name].memory_mib) for name in types])
        return PredictionTable(
            queries=queries,
            gpu_types=types,
            memory_mib=needed_mib,
            memory_part=needed_mib / total_mib,
            tdp_w=np.array([self.facts.gpu_types[name].tdp_w for name in types]),
            latency_ms=latency.mean,
            throughput_rps=throughput.mean,
        )

    def choices(
        self, task: InferenceTask, gpu_types: Sequence[GpuTypeName], cluster_utilisation: float
    ) -> tuple[tuple[TaskChoice, ...], float]:
        """D of a task (Eq. 6), best first on each type, and its mean predicted time in seconds. No choices where none
        of its configurations fits any GPU.
        """
        allowed = tuple(sorted(set(gpu_types) & set(task.gpu_types_allowed or gpu_types)))
        table = self.table(task.model, allowed)
        batch = table.queries.batch
        run_s = run_ms(task.inputs, batch, table.latency_ms) / MS_PER_S
        rated = Candidates(
            configurations=table.queries,
            latency_ms=np.where(ever_full(task.inputs, batch), run_s * MS_PER_S, np.nan),
            throughput_rps=table.throughput_rps,
            epc=epc_score(
                PowerTerms(
                    idle_w=self.parameters.idle_w,
                    tdp_w=table.tdp_w,
                    sm_utilisation=table.queries.share_pct / 100.0,
                    memory_used=table.memory_part,
                    latency_s=run_s,
                )
            ),
        )
        wish = TaskWish(
            latency_weight=task.latency_weight,
            deadline_ms=task.deadline_s * MS_PER_S,
            cluster_utilisation=min(1.0, max(0.0, cluster_utilisation)),
            slack_weight=self.parameters.alpha,
        )
        kept = [int(row) for row in scored(rated, wish).kept]
        choices = tuple(TaskChoice(gpu_type=table.gpu_types[row], config=table.config(row)) for row in kept)
        return choices, float(np.mean(run_s[kept])) if kept else 0.0


Flying = TypeVar("Flying")


class TaskScheduler(ABC, Generic[Flying]):
    """Puts tasks on seats. Deterministic: the same calls give the same answers. Keeps who waits, in order of arrival,
    and who is launched.
    """

    name: str

    def __init__(self, beliefs: OltunesBeliefs) -> None:
        self._beliefs = beliefs
        self._main: list[Arrival] = []
        self._flying: dict[str, Flying] = {}
        self._waiting: set[str] = set()
        self._arrivals = 0

    @property
    @abstractmethod
    def wake_s(self) -> float | None:
        """When `tick` is due, as far as is known by now; None: not before news come."""

    @abstractmethod
    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:
        """Decide on launches. Seats are all there are, as they are now: whoever runs the scheduler lets what one tick
        launched stand in the seats of the next, deployed or on its way.
        """

    @abstractmethod
    def ended(self, outcome: Ended, now_s: float) -> None:
        """Hear of an ending. Tasks that nobody launched are passed over."""

    @property
    def waiting(self) -> int:
        """How many tasks have no seat."""
        return len(self._waiting)

    def arrive(self, task: InferenceTask, now_s: float) -> None:
        """A task is there. Raises InputError when one of its name is known already, or when nobody knows its model."""
        if task.model not in self._beliefs.facts.models:
            # Its memory would be a guess.
            raise InputError(f"nobody has described the model {task.model} of task {task.id}", model=task.model)
        if task.id in self._flying or task.id in self._waiting:
            raise InputError(f"task {task.id} is here already", task=task.id)
        self._main.append(Arrival(task=task, at_s=now_s, order=self._arrivals))
        self._waiting.add(task.id)
        self._arrivals += 1

    def _landed(self, outcome: Ended) -> list[Flying]:
        """Those of an ending that were launched here."""
        return [self._flying.pop(name) for name in dict.fromkeys(outcome.tasks) if name in self._flying]
