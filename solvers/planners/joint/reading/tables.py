"""Profiles as the joint problem's arrays: what every network does on every table, at every share and batch of a common
grid, and how it presses on others.

Read carefully, for solvers that choose shares and clocks. Only measured cells count; between two measured shares of one
batch and clock, values lie on the chord, above the highest they stay, below the lowest there is nothing. A clock is
read from the highest measured one not above it. A share of a MIG slice is a smaller share of the GPU that was measured.
The grid of shares has the multiples of the policy's step next to every measured share, so nothing that may be handed
out is read from farther than its own neighbours. Power that was not read is guessed as `options` does.

Beside a network whose pressure was never measured, a training job too, everything bears the policy's margin; beside
others only what is known. A problem's table is one or the other, so a GPU type with both sorts of networks has two: one
for those that are known, without the margin, and one for all, with it. What joins those who stay is slowed by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.device import GpuType
from solvers.domain.grouping import grouped
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.options import MEMORY_FACTOR, MEMORY_STEP_MIB
from solvers.models.table import Grid, grids_of, stacks
from solvers.planners.joint.reading.pools import Rest
from solvers.problems.joint import Variant
from solvers.problems.needs import Need
from solvers.problems.patterns import between

DUST = 1e-9
CELLS = ("mean_ms", "tail_ms", "power_w", "memory_mib")
"""Of a problem's arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A GPU type, or slice of it, at one clock; `exclusive` when it hosts one replica at a time, whole; `known` when it
    is for those alone of whom it is known how they press on each other.
    """

    gpu_type: GpuType
    sm_part: float
    gpu_part: float
    exclusive: bool
    clock_mhz: int
    known: bool = False
    rest: Rest | None = None
    """What others leave of its devices, where it is for rests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Profiles of equal axes at one clock."""

    gpu_type: GpuTypeName
    models: tuple[ModelName, ...]
    grid: Grid
    """Model x share x batch, memory is model x batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    tables: tuple[Table, ...]
    shares_pct: Whole
    batches: Whole
    mean_ms: Floats
    tail_ms: Floats
    power_w: Floats
    memory_mib: Floats
    used_mib: Floats
    """Likewise: without what a limit has above it."""

    def of(self, rows: Sequence[int] | Whole) -> Arrays:
        """Of these models or variants."""
        chosen = np.asarray(rows, dtype=np.int64)
        return replace(self, **{name: getattr(self, name).take(chosen, axis=1) for name in (*CELLS, "used_mib")})


def axes_of(
    layers: Iterable[Layer], sm_parts: Iterable[float], step_pct: int, shares: Iterable[int], batches: Iterable[int]
) -> tuple[Whole, Whole]:
    """The common grid: the steps next to every measured share on a device with such a part of the SMs, and every
    measured batch; `shares` and `batches` are wanted besides.
    """
    exact = np.unique(np.concatenate([np.array([100.0]), *(layer.grid.shares_pct for layer in layers)]))
    steps: set[int] = {100, *shares}
    for part in set(sm_parts):
        on_device = exact / part / step_pct
        for rounded in (np.floor(on_device + DUST), np.ceil(on_device - DUST)):
            steps |= {int(item) * step_pct for item in rounded}
    wanted = {1, *batches, *(int(batch) for layer in layers for batch in layer.grid.batches)}
    shares_pct = np.array(sorted(step for step in steps if 1 <= step <= 100), dtype=np.int64)
    return shares_pct, np.array(sorted(wanted), dtype=np.int64)


def layers_of(profiles: Sequence[Profile]) -> Iterator[Layer]:
    """Everything measured alone, by GPU type and clock."""
    for stack in stacks(profiles):
        types = [gpu_type for _, gpu_type in stack.keys]
        for gpu_type, rows in grouped(range(len(types)), types.__getitem__).items():
            for place in np.flatnonzero(stack.measured[rows].any(axis=(0, 2, 3))).tolist():
                models = tuple(stack.keys[row][0] for row in rows)
                yield Layer(gpu_type=gpu_type, models=models, grid=stack.at(rows, place))
    cells = ("latency_ms_mean", "latency_ms_tail", "power_w", "memory_mib", "measured")
    for profile in profiles:
        for grid in grids_of(profile) if profile.grid is None else ():
            one = replace(grid, **{name: getattr(grid, name)[None] for name in cells})
            yield Layer(gpu_type=profile.gpu_type, models=(profile.model,), grid=one)


def clocks_of(layers: Iterable[Layer], gpu_type: GpuType) -> tuple[int, ...]:
    """Clocks of a type worth running: the lowest one that each measured clock is good for, and the highest."""
    measured = {layer.grid.clock_mhz_sm for layer in layers if layer.gpu_type == gpu_type.name}
    listed = [next((item for item in gpu_type.clocks_mhz_sm if item >= clock), None) for clock in measured]
    return tuple(sorted({gpu_type.clock_mhz_sm_max, *(item for item in listed if item is not None)}))


def fill(
    tables: tuple[Table, ...], models: tuple[ModelName, ...], layers: tuple[Layer, ...], axes: tuple[Whole, Whole]
) -> Arrays:
    """Arrays of all tables, with one row for every model where the problem has one for every variant. No layer is of
    other models.
    """
    shares_pct, batches = axes
    shape = (len(tables), len(models), len(shares_pct), len(batches))
    mean, tail, power = (np.full(shape, np.inf) for _ in range(3))
    memory, used = (np.full((shape[0], shape[1], shape[3]), np.inf) for _ in range(2))
    place = {model: index for index, model in enumerate(models)}
    by_type = grouped(sorted(layers, key=lambda item: item.grid.clock_mhz_sm), lambda layer: layer.gpu_type)
    for index, table in enumerate(tables):
        for layer in by_type[table.gpu_type.name]:
            grid = layer.grid
            if grid.clock_mhz_sm > table.clock_mhz:
                break
            known: Flags = np.asarray(grid.measured.any(axis=(1, 2)))
            rows = np.array([place[item] for item, wanted in zip(layer.models, known, strict=True) if wanted])
            columns = np.searchsorted(batches, grid.batches)
            chords = _Chords(grid, known, shares_pct.astype(np.float64) * table.sm_part)
            power_w, gpu_type = grid.power_w[known], table.gpu_type
            guess = (gpu_type.power_limit_w_max - gpu_type.idle_w) * grid.shares_pct / 100
            watts = np.where(np.isnan(power_w), guess[None, :, None], power_w)
            at = np.ix_(rows, np.arange(shape[2]), columns)
            # A higher clock replaces all that a lower one said of its models.
            drawn = np.maximum(chords.watts(watts), watts[:, chords.step])
            for into, cells in (
                (mean, chords.latency(grid.latency_ms_mean[known])),
                (tail, chords.latency(grid.latency_ms_tail[known])),
                (power, drawn),
            ):
                into[index, rows] = np.inf
                into[index][at] = cells
            limits = np.ceil(grid.memory_mib[known] * MEMORY_FACTOR / MEMORY_STEP_MIB) * MEMORY_STEP_MIB
            memory[index, rows] = used[index, rows] = np.inf
            memory[index][np.ix_(rows, columns)] = np.where(np.isfinite(limits), limits, np.inf)
            used[index][np.ix_(rows, columns)] = grid.memory_mib[known]
        if table.exclusive:
            for into in (mean, tail, power):
                into[index, :, :-1] = np.inf
    return Arrays(
        tables=tables,
        shares_pct=shares_pct,
        batches=batches,
        mean_ms=mean,
        tail_ms=tail,
        power_w=power,
        memory_mib=memory,
        used_mib=used,
    )


class _Chords:
    """For every wanted share and every cell of it, the measured shares on both sides and the weight of the upper."""

    def __init__(self, grid: Grid, known: Flags, wanted_pct: Floats) -> None:
        shares = grid.shares_pct.astype(np.float64)
        measured = grid.measured[known]
        at = np.searchsorted(shares, wanted_pct + DUST, side="right") - 1
        after = np.minimum(np.searchsorted(shares, wanted_pct - DUST), len(shares))
        # All cells are measured, so that the neighbours are the same for all.
        self.whole = bool(measured.all())
        if self.whole:
            measured = measured[:1, :, :1]
        number = np.arange(len(shares))[None, :, None]
        before = np.maximum.accumulate(np.where(measured, number, -1), axis=1)
        beyond = np.minimum.accumulate(np.where(measured, number, len(shares))[:, ::-1], axis=1)[:, ::-1]
        low = np.where((at >= 0)[None, :, None], before[:, np.maximum(at, 0)], -1)
        past = np.concatenate([beyond, np.full_like(beyond[:, :1], len(shares))], axis=1)
        high = past[:, after]
        self.below = low < 0
        high = np.where(high >= len(shares), low, high)
        self.low, self.high = np.maximum(low, 0), np.maximum(high, 0)
        # Of each wanted share, the highest listed one not above it, or the lowest.
        self.step = np.maximum(at, 0)
        span = shares[self.high] - shares[self.low]
        part = (wanted_pct[None, :, None] - shares[self.low]) / np.where(span > 0, span, 1.0)
        self.weight = np.clip(np.where(span > 0, part, 0.0), 0.0, 1.0)

    def latency(self, cells: Floats) -> Floats:
        """Latencies at the wanted shares: model x share x batch."""
        low, high = self._ends(cells)
        return np.asarray(np.where(self.below, np.inf, between(low, high, self.weight)))

    def watts(self, cells: Floats) -> Floats:
        """Powers at the wanted shares, likewise."""
        low, high = (np.where(np.isfinite(item), item, 0.0) for item in self._ends(cells))
        return np.asarray(np.where(self.below, np.inf, (1 - self.weight) * low + self.weight * high))

    def _ends(self, cells: Floats) -> tuple[Floats, Floats]:
        if self.whole:
            return cells[:, self.low[0, :, 0]], cells[:, self.high[0, :, 0]]
        return np.take_along_axis(cells, self.low, axis=1), np.take_along_axis(cells, self.high, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pressing:
    """How variants press on a type; 0, 1 and 0 where nobody knows."""

    runs: Flags
    known: Flags
    pressure: Floats
    exponent: Floats
    sensitivity: Floats


class Colocation:
    """What is known of every variant of these needs as a neighbour."""

    def __init__(self, picture: Snapshot, needs: tuple[Need, ...], variants: tuple[Variant, ...]) -> None:
        self.margin, self.profiles = picture.policy.interference_margin, picture.profiles_by_key()
        self.variants, own = variants, [needs[item.workload] for item in variants]
        self.is_job: Flags = np.array([need.kind is WorkloadKind.JOB for need in own], dtype=bool)
        # Who has every device to itself neither presses nor is pressed.
        self.alone: Flags = np.array([need.tokens is not None for need in own], dtype=bool)

    def unknown(self, gpu_type: GpuTypeName) -> Flags:
        """Variants that run on a type and whose pressure nobody measured."""
        own = self._own(gpu_type)
        return np.asarray((own.runs & ~own.known) | self.is_job) & ~self.alone

    def mixed(self, gpu_type: GpuTypeName) -> bool:
        """Whether it is known of some and of others not, and that makes a difference."""
        known = self._own(gpu_type).known & ~self.is_job & ~self.alone
        return self.margin > 1 and bool(known.any()) and bool(self.unknown(gpu_type).any())

    def _own(self, gpu_type: GpuTypeName) -> _Pressing:
        profiles = [self.profiles.get((item.model, gpu_type)) for item in self.variants]
        told = [None if item is None else item.interference for item in profiles]
        laws = [(0.0, 1.0, 0.0) if item is None else (item.pressure, item.exponent, item.sensitivity) for item in told]
        pressure, exponent, sensitivity = np.array(laws, dtype=np.float64).reshape(-1, 3).T
        runs, known = (np.array([item is not None for item in some], dtype=bool) for some in (profiles, told))
        return _Pressing(runs=runs, known=known, pressure=pressure, exponent=exponent, sensitivity=sensitivity)

    def apply(self, arrays: Arrays) -> None:
        """Keep those whose pressure is unknown out of the tables for the others; what stays on a device slows what
        joins it, and bears it or not; in place.
        """
        shares = arrays.shares_pct
        for row, table in enumerate(arrays.tables):
            if not (table.known or table.rest):
                continue
            unknown, own, rest = self.unknown(table.gpu_type.name), self._own(table.gpu_type.name), table.rest
            slow = np.where(unknown, np.inf, 1.0)[:, None]
            if rest is not None:
                presses = own.pressure[:, None] * (shares * table.sm_part / 100)[None, :] ** own.exponent[:, None]
                bears = np.where(unknown[:, None], rest.bears_unknown, presses <= rest.pressure_max + DUST)
                margin = np.where(unknown | rest.unknown, self.margin, 1.0)
                beside = np.where(unknown, self.margin, margin * (1 + own.sensitivity * rest.pressure))
                slow = np.where(bears & (shares <= rest.share_pct)[None, :], beside[:, None], np.inf)
            for cells in (arrays.mean_ms, arrays.tail_ms):
                cells[row] *= slow[:, :, None]

    def pressures(self, columns: Whole, arrays: Arrays) -> tuple[Floats, Floats, Floats, Floats]:
        """Pressure, exponent, sensitivity and crowd by table and chosen variant. Pressure is that of the whole device,
        which may be a slice; where neighbours are not known of, the margin stands for them.
        """
        tables = arrays.tables
        by_type = {name: self._own(name) for name in {table.gpu_type.name for table in tables}}
        own = [by_type[table.gpu_type.name] for table in tables]
        known, pressure, exponent, sensitivity = (
            np.array([getattr(item, name)[columns] for item in own]).reshape(len(tables), len(columns))
            for name in ("known", "pressure", "exponent", "sensitivity")
        )
        pressure = pressure * np.array([table.sm_part for table in tables]).reshape(-1, 1) ** exponent
        crowd = np.where(known.astype(bool), 1.0, self.margin)
        is_job, alone = self.is_job[columns], self.alone[columns]
        pressure[:, is_job], sensitivity[:, is_job], crowd[:, is_job] = 0.0, 0.0, self.margin
        # Whoever has the whole device has no neighbours, known or not.
        pressure[:, alone], sensitivity[:, alone], crowd[:, alone] = 0.0, 0.0, 1.0
        runs = np.isfinite(arrays.mean_ms).any(axis=(2, 3))
        crowd[((crowd > 1) & runs).any(axis=1)] = self.margin
        return pressure, exponent, sensitivity, crowd
