"""The one contract of every performance model: what is asked, what was seen, what is answered.

Questions and observations are arrays over rows, with names stored once and referred to by index, so that an optimiser
can ask millions of configurations at once. Rows that share a device at the same time form groups: pairs are groups of
two, and nothing limits a group to two. Every answer carries its uncertainty, its origin and how far the question lies
from anything that was seen.

Units: batch in inputs, share in percent of the device's SMs, clock in MHz of the SMs, latency in ms of executing one
batch (no queueing), throughput in inputs per second while batches run back to back, power in W above the device's idle
power, memory in MiB of the replica. NaN stands for "not given" (a clock: the highest) and "not measured".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.domain.codec import Plain
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.errors import InputError
from solvers.models.library import Library


class Quantity(StrEnum):
    """What can be asked of one replica alone."""

    LATENCY_MS = "latency_ms"
    LATENCY_MS_P99 = "latency_ms_p99"
    THROUGHPUT_RPS = "throughput_rps"
    POWER_W = "power_w"
    MEMORY_MIB = "memory_mib"


class Origin(IntEnum):
    """Where an answer comes from, best first: fitted to measurements of this model on this GPU type; to the built-in
    library's; scaled from another GPU type, the model's family or its size.
    """

    MEASURED = 0
    LIBRARY = 1
    SCALED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries(Parallel):
    """Configurations, one per row. `model` and `gpu_type` index into the name tables."""

    models: tuple[str, ...]
    gpu_types: tuple[str, ...]
    model: Whole
    gpu_type: Whole
    batch: Floats
    share_pct: Floats
    clock_mhz: Floats
    """NaN: the highest clock of the GPU type."""

    @staticmethod
    def of(
        model: Sequence[str] | str,
        gpu_type: Sequence[str] | str,
        batch: ArrayLike,
        share_pct: ArrayLike,
        clock_mhz: ArrayLike = np.nan,
    ) -> Queries:
        """Rows from columns; scalars and single names are repeated."""
        numbers = [np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in (batch, share_pct, clock_mhz)]
        names = [[column] if isinstance(column, str) else list(column) for column in (model, gpu_type)]
        lengths = [*(len(column) for column in numbers), *(len(column) for column in names)]
        length = max(lengths) if all(lengths) else 0
        models, model_index = _indexed(names[0], length)
        gpu_types, gpu_index = _indexed(names[1], length)
        columns = [np.broadcast_to(column, (length,)).copy() for column in numbers]
        return Queries(
            models=models,
            gpu_types=gpu_types,
            model=model_index,
            gpu_type=gpu_index,
            batch=columns[0],
            share_pct=columns[1],
            clock_mhz=columns[2],
        )

    def __len__(self) -> int:
        return len(self.batch)

    @classmethod
    def chained(cls, parts: Sequence[Self]) -> Self:
        """One after the other, in names that are known to all."""
        models = tuple(dict.fromkeys(name for part in parts for name in part.models))
        gpu_types = tuple(dict.fromkeys(name for part in parts for name in part.gpu_types))
        renamed = [
            replace(
                part,
                models=models,
                gpu_types=gpu_types,
                model=_renamed(part.model, part.models, models),
                gpu_type=_renamed(part.gpu_type, part.gpu_types, gpu_types),
            )
            for part in parts
        ]
        return super(Queries, cls).chained(renamed)

    def keys(self) -> dict[tuple[str, str], NDArray[np.intp]]:
        """Rows of every (model, GPU type) that occurs, in rising order of the names."""
        code = self.model * max(1, len(self.gpu_types)) + self.gpu_type
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        parts = np.split(order, starts[1:])
        found = {
            (self.models[int(self.model[part[0]])], self.gpu_types[int(self.gpu_type[part[0]])]): part
            for part in parts
            if len(part)
        }
        return {key: found[key] for key in sorted(found)}


def _indexed(names: list[str], length: int) -> tuple[tuple[str, ...], Whole]:
    table: dict[str, int] = {}
    index = np.array([table.setdefault(name, len(table)) for name in names], dtype=np.int64)
    return tuple(table), np.broadcast_to(index, (length,)).copy()


def _renamed(index: Whole, names: tuple[str, ...], table: tuple[str, ...]) -> Whole:
    return np.array([table.index(name) for name in names], dtype=np.int64)[index]


MEASURED = (
    "latency_ms", "latency_ms_p99", "throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples(Parallel):
    """What was measured of replicas that had the rest of the device for themselves. NaN: not measured."""

    queries: Queries
    latency_ms: Floats
    latency_ms_p99: Floats
    throughput_rps: Floats
    power_w: Floats
    memory_mib: Floats
    l2_util_pct: Floats
    dram_util_pct: Floats

    @staticmethod
    def of(queries: Queries, latency_ms: ArrayLike, **others: ArrayLike) -> Samples:
        """Samples of latency and whatever else was measured (by field name)."""
        columns = {name: np.asarray(column, dtype=np.float64) for name, column in others.items()}
        for name in MEASURED[1:]:
            columns.setdefault(name, np.full(len(queries), np.nan))
        return Samples(queries=queries, latency_ms=np.asarray(latency_ms, dtype=np.float64), **columns)

    def __len__(self) -> int:
        return len(self.queries)

    def column(self, quantity: Quantity) -> Floats:
        """The measured values of a quantity; throughput follows from latency where it was not measured."""
        if quantity is Quantity.THROUGHPUT_RPS:
            return np.where(
                np.isnan(self.throughput_rps), 1000.0 * self.queries.batch / self.latency_ms, self.throughput_rps
            )
        found: Floats = getattr(self, quantity.value)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Replicas that run on one device at the same time: `group` gives each row of `members` its device, not falling."""

    members: Queries
    group: Whole

    @staticmethod
    def pairs(first: Queries, second: Queries) -> Groups:
        """Row i of both share a device: members 2i and 2i + 1."""
        if len(first) != len(second):
            raise InputError("pairs need as many second members as first ones")
        order = np.arange(2 * len(first)).reshape(2, -1).T.ravel()
        group = np.repeat(np.arange(len(first), dtype=np.int64), 2)
        return Groups(members=first.joined(second).take(order), group=group)

    def __len__(self) -> int:
        return len(self.members)

    def joined(self, other: Groups) -> Groups:
        after = int(self.group.max(initial=-1)) + 1
        return Groups(
            members=self.members.joined(other.members), group=np.concatenate([self.group, other.group + after])
        )

    def take_groups(self, wanted: Iterable[int] | Whole) -> tuple[Groups, NDArray[np.intp]]:
        """Some groups whole, renumbered by their order here, and the rows of `members` they were."""
        rows = np.flatnonzero(np.isin(self.group, np.fromiter(wanted, dtype=np.int64)))
        numbers = np.unique(self.group[rows], return_inverse=True)[1]
        return Groups(members=self.members.take(rows), group=numbers.astype(np.int64)), rows

    def sum_of_others(self, values: Floats) -> Floats:
        """For each member, the sum of `values` over the others of its group."""
        if not len(self):
            return np.zeros(0)
        totals = np.bincount(self.group, weights=values)
        return np.asarray(totals[self.group] - values)

    def count_of_others(self) -> Floats:
        return self.sum_of_others(np.ones(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSamples:
    """Measured latency of every member of every group (NaN: not measured)."""

    groups: Groups
    latency_ms: Floats

    def joined(self, other: GroupSamples) -> GroupSamples:
        latency_ms = np.concatenate([self.latency_ms, other.latency_ms])
        return GroupSamples(groups=self.groups.joined(other.groups), latency_ms=latency_ms)

    def take_groups(self, wanted: Iterable[int] | Whole) -> GroupSamples:
        groups, rows = self.groups.take_groups(wanted)
        return GroupSamples(groups=groups, latency_ms=self.latency_ms[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Values with uncertainty, element-wise.

    `std` is such that mean plus or minus 1.96 std should hold the next measurement 95 times in a hundred. `distance` is
    0 at a measured configuration, about 1 one usual grid step away, infinite where nothing of the kind was seen.
    `support` is True inside what was measured. `origin` holds values of `Origin`.
    """

    mean: Floats
    std: Floats
    support: Flags
    distance: Floats
    origin: NDArray[np.int8]

    @staticmethod
    def unknown(length: int) -> Answer:
        """Nothing is known: NaN with infinite distance."""
        return Answer(
            mean=np.full(length, np.nan),
            std=np.full(length, np.nan),
            support=np.zeros(length, dtype=np.bool_),
            distance=np.full(length, np.inf),
            origin=np.full(length, Origin.SCALED, dtype=np.int8),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known without measuring: specifications of GPU types, descriptions of models, the built-in library."""

    gpu_types: Mapping[str, GpuType] = field(default_factory=dict)
    models: Mapping[str, ModelVariant] = field(default_factory=dict)
    library: Library | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Who a performance model is. `online` models learn single samples by `update`; others fit again.

    `formula` names the paper or the method in a few words.
    """

    name: str
    version: str
    formula: str
    quantities: tuple[Quantity, ...] = (Quantity.LATENCY_MS,)
    online: bool = False


class SoloModel(Protocol):
    """Belief about replicas alone. A value: `fit` and `update` give a new one."""

    @property
    def spec(self) -> ModelSpec:
        """Name, version, what it answers."""
        ...

    def fit(self, samples: Samples) -> Self:
        """Learn from these samples alone (and from what the model was made with). Deterministic."""
        ...

    def update(self, samples: Samples) -> Self:
        """Learn more samples on top of what is known."""
        ...

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        """Answer every row; NaN where the model cannot know. A quantity that is not in `spec` raises InputError."""
        ...

    def dump(self) -> Plain:
        """Everything needed to answer again, as JSON data."""
        ...


class InterferenceModel(Protocol):
    """Belief about how much slower each member of a group runs than alone. A value like `SoloModel`."""

    @property
    def spec(self) -> ModelSpec:
        """Name, version."""
        ...

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> Self:
        """Learn slowdowns: measured latency over what `solo` says of the member alone. `alone` are the solo samples
        with their utilisations.
        """
        ...

    def update(self, samples: GroupSamples, solo: SoloModel) -> Self:
        """Learn more groups on top of what is known."""
        ...

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:
        """Slowdown of every member (1 = as fast as alone)."""
        ...

    def dump(self) -> Plain:
        """Everything needed to answer again, as JSON data."""
        ...


@runtime_checkable
class KnowsAlone(Protocol):
    """An interference model that keeps what was measured of members alone, which tells more of them than a belief."""

    def latency_alone(self, groups: Groups, solo: SoloModel) -> Answer:
        """Latency alone that this model's slowdowns are over: of members with neighbours, what was measured of exactly
        them, its noise being part of the slowdown's; else what `solo` says.
        """
        ...


def refuse_quantity(spec: ModelSpec, quantity: Quantity) -> None:
    """Raise InputError for a quantity the model does not answer."""
    if quantity not in spec.quantities:
        raise InputError(f"{spec.name} does not predict {quantity.value}", model=spec.name)


def slowdowns(samples: GroupSamples, solo: SoloModel) -> Floats:
    """Measured slowdown of every member: its latency over what `solo` says it takes alone."""
    alone = solo.predict(samples.groups.members)
    return np.asarray(samples.latency_ms / alone.mean)
