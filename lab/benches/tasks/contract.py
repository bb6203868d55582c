"""What task schedulers are told and what they answer: tasks, seats, launches, endings, and the contract itself.

A scheduler has no clock and no ears: time comes as `now_s` (seconds from any fixed moment), news by `arrive` and
`ended`, and it acts in `tick` alone. Who runs it calls `tick` when `wake_s` says so; an earlier call does no harm. What
becomes of a launch is told by `ended`, task by task where it worked, group by group where it did not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.value import check_name, check_not_negative, check_positive, check_range, check_text, value
from solvers.errors import FieldError
from solvers.policies.oltunes.scores import is_latency_critical


@value
class InferenceTask:
    """One piece of inference work: so many inputs of one model. `latency_weight` is lambda: above 0.5 the task is
    latency-critical. The deadline counts from arrival. `batch_declared` is its owner's own batch, for schedulers that
    do not tune; so is `heavy`, whether its owner asks for a large GPU.
    """

    id: str
    model: ModelName
    latency_weight: float
    deadline_s: float
    inputs: int
    batch_declared: int = 8
    heavy: bool = False
    gpu_types_allowed: tuple[GpuTypeName, ...] = ()
    """None: any."""

    def __post_init__(self) -> None:
        check_text("id", self.id, 128)
        check_name("model", self.model)
        is_latency_critical(self.latency_weight)
        check_positive("deadline_s", self.deadline_s)
        check_positive("inputs", self.inputs)
        check_positive("batch_declared", self.batch_declared)

    @property
    def latency_critical(self) -> bool:
        """LC rather than TO."""
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

    batch: int
    share_pct: int
    memory_mib: float
    latency_ms: float
    """Believed time of one batch."""
    throughput_rps: float
    """Believed inputs per second."""

    def __post_init__(self) -> None:
        check_positive("batch", self.batch)
        check_range("share_pct", self.share_pct, 1, 100)
        for name in ("memory_mib", "latency_ms", "throughput_rps"):
            check_positive(name, getattr(self, name))

    def run_s(self, inputs: float) -> float:
        """Believed time of so many inputs in batches one after the other; the last one may not be full."""
        return max(1.0, -(-inputs // self.batch)) * self.latency_ms / 1000.0


@value
class PlacedTask:
    """A task with the configuration it gets."""

    task: InferenceTask
    config: Config


@value
class Running:
    """A task on a seat and the part of its inputs that is done, 0…1."""

    task: InferenceTask
    config: Config
    progress: float = 0.0

    def __post_init__(self) -> None:
        check_range("progress", self.progress, 0.0, 1.0)

    @property
    def left_s(self) -> float:
        """Believed time until it ends."""
        return self.config.run_s(self.task.inputs) * (1.0 - self.progress)


@value
class TaskSeat:
    """A GPU, or a MIG slice of one, as a scheduler sees it."""

    id: DeviceId
    gpu_type: GpuTypeName
    memory_mib_total: float
    memory_mib_free: float
    utilisation_pct: float = 0.0
    """Of the SMs, as last measured."""
    running: tuple[Running, ...] = ()
    sm_part: float = 1.0
    """Of the whole GPU's SMs: below 1 for a slice."""

    def __post_init__(self) -> None:
        check_text("id", self.id, 128)
        check_positive("memory_mib_total", self.memory_mib_total)
        check_not_negative("memory_mib_free", self.memory_mib_free)
        check_range("utilisation_pct", self.utilisation_pct, 0.0, 100.0)
        check_range("sm_part", self.sm_part, 0.01, 1.0)
        if self.memory_mib_free > self.memory_mib_total:
            raise FieldError("memory_mib_free", "memory_mib_free is more than there is")

    @property
    def share_pct_total(self) -> float:
        """In percent of the whole GPU."""
        return 100.0 * self.sm_part

    @property
    def share_pct_free(self) -> float:
        """What running tasks leave, in percent of the whole GPU; shares may overlap, so it is not below 0."""
        return max(0.0, self.share_pct_total - sum(each.config.share_pct for each in self.running))


@value
class SliceWish:
    """A MIG partition asked for: what the group keeps; the rest of the GPU is to become a seat of its own."""

    share_pct: int
    memory_mib: float


@value
class Launch:
    """A group of tasks for a seat, to be deployed at once or not at all. `wish` may be ignored."""

    seat: DeviceId
    group: tuple[PlacedTask, ...]
    wish: SliceWish | None = None

    def __post_init__(self) -> None:
        if not self.group:
            raise FieldError("group", "a launch needs tasks")

    @property
    def memory_mib(self) -> float:
        """Of all its tasks."""
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
    batch_ms: float | None = None
    """Mean time of one batch as measured, neighbours included."""

    def __post_init__(self) -> None:
        check_positive("batch_ms", self.batch_ms)
        if not self.tasks:
            raise FieldError("tasks", "somebody must have ended")


class TaskScheduler(Protocol):
    """Puts tasks on seats. Deterministic: the same calls give the same answers."""

    @property
    def name(self) -> str:
        """Who it is."""
        ...

    @property
    def wake_s(self) -> float | None:
        """When `tick` is due, as far as is known by now; None: not before news come."""
        ...

    @property
    def waiting(self) -> int:
        """How many tasks have no seat."""
        ...

    def arrive(self, task: InferenceTask, now_s: float) -> None:
        """A task is there. Raises InputError when one of its name is known already, or when nobody knows its model."""
        ...

    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:
        """Decide on launches. Seats are all there are, as they are now: whoever runs the scheduler lets what one tick
        launched stand in the seats of the next, deployed or on its way.
        """
        ...

    def ended(self, outcome: Ended, now_s: float) -> None:
        """Hear of an ending. Tasks that nobody launched are passed over."""
        ...
