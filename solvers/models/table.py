"""Profile tables: what was measured of one model on one GPU type, as monotone grids over batch x SM share, by clock.

At one clock latency never falls when share falls or batch rises, memory never falls when batch rises, power never falls
when batch or share rises: where a measurement disagrees, the careful value wins. Points taken beside neighbours are
left to interference models; a point without memory takes the most that was measured at its batch. Without one solo
point of known memory there is no table. Profiles of equal axes are read side by side, as stacks, so
that thousands of tables are had at the price of one; in them nothing is interpolated, and a cell that was not measured
is marked, whatever stands in it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileGrid, ProfilePoint
from solvers.problems.patterns import between
from solvers.problems.promise import PromiseOutcome

Key = tuple[ModelName, GpuTypeName]
SHARE_DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Everything known at one clock; matrices are share x batch. `measured` marks cells with a point of their own."""

    clock_mhz_sm: int
    batches: Whole
    shares_pct: Whole
    latency_ms_mean: Floats
    latency_ms_tail: Floats
    """The p99 where it was measured, else the mean."""
    memory_mib: Floats
    """By batch."""
    power_w: Floats
    """NaN where no point at or below this share and batch has a power reading."""
    measured: Flags


def grids_of(profile: Profile) -> tuple[Grid, ...]:
    """Of solo points listed one by one, by rising clock."""
    solo = _with_memory([point for point in profile.points if not point.neighbours])
    clocks = sorted({point.clock_mhz_sm for point in solo})
    return tuple(_grid(clock, [point for point in solo if point.clock_mhz_sm == clock]) for clock in clocks)


def grid_of(stack: Stack, row: int, layer: int) -> Grid | None:
    """One profile of a stack at one of its clocks; None where nothing was measured."""
    grid = stack.at(row, layer)
    memory = grid.memory_mib[np.isfinite(grid.memory_mib)]
    if not grid.measured.any():
        return None
    return replace(
        grid,
        latency_ms_mean=_filled(grid.latency_ms_mean, grid.measured),
        latency_ms_tail=_filled(grid.latency_ms_tail, grid.measured),
        memory_mib=np.where(np.isfinite(grid.memory_mib), grid.memory_mib, memory.min()),
    )


def _filled(cells: Floats, measured: Flags) -> Floats:
    return cells if measured.all() else _monotone(cells, measured)


def _with_memory(points: list[ProfilePoint]) -> list[ProfilePoint]:
    """Points whose memory is known or follows from others of their batch; what cannot be placed is no choice."""
    most: dict[int, float] = {}
    for point in points:
        if point.memory_mib is not None:
            most[point.batch] = max(most.get(point.batch, 0.0), point.memory_mib)
    return [
        point if point.memory_mib is not None else replace(point, memory_mib=most[point.batch])
        for point in points
        if point.batch in most
    ]


def _grid(clock_mhz_sm: int, points: list[ProfilePoint]) -> Grid:
    batches = np.array(sorted({point.batch for point in points}), dtype=np.int64)
    shares = np.array(sorted({point.share_pct_sm for point in points}), dtype=np.int64)
    column = {int(batch): index for index, batch in enumerate(batches)}
    row = {int(share): index for index, share in enumerate(shares)}
    mean = np.full((len(shares), len(batches)), -math.inf)
    tail, power = mean.copy(), mean.copy()
    memory = np.full(len(batches), -math.inf)
    for point in points:
        cell = row[point.share_pct_sm], column[point.batch]
        mean[cell] = max(mean[cell], point.latency_ms_mean)
        tail[cell] = max(tail[cell], point.latency_ms_p99 or point.latency_ms_mean)
        power[cell] = max(power[cell], -math.inf if point.power_w is None else point.power_w)
        memory[cell[1]] = max(memory[cell[1]], point.memory_mib or 0.0)
    measured = np.isfinite(mean)
    supported = _bracketed(measured)
    power = np.maximum.accumulate(np.maximum.accumulate(power, axis=0), axis=1)
    return Grid(
        clock_mhz_sm=clock_mhz_sm,
        batches=batches,
        shares_pct=shares,
        latency_ms_mean=_monotone(_fill_rows(batches, mean, measured), supported),
        latency_ms_tail=_monotone(_fill_rows(batches, tail, measured), supported),
        memory_mib=np.maximum.accumulate(memory),
        power_w=np.where(np.isfinite(power), power, np.nan),
        measured=measured,
    )


def _bracketed(measured: Flags) -> Flags:
    from_left = np.logical_or.accumulate(measured, axis=1)
    from_right = np.logical_or.accumulate(measured[:, ::-1], axis=1)[:, ::-1]
    return from_left & from_right


def _fill_rows(batches: Whole, cells: Floats, measured: Flags) -> Floats:
    if measured.all():
        return cells
    rows = [np.interp(batches, batches[known], row[known]) for row, known in zip(cells, measured, strict=True)]
    return np.stack(rows)


def _monotone(cells: Floats, supported: Flags) -> Floats:
    """Supported cells raised until they are monotone; the others between their supported neighbours, the higher bound
    first. A cell with a supported one below it (no more share, no smaller batch) never exceeds that one.
    """
    settled = rise(np.where(supported, cells, -math.inf))
    above = np.where(supported, settled, math.inf)
    above = np.minimum.accumulate(above[:, ::-1], axis=1)[:, ::-1]
    above = np.minimum.accumulate(above, axis=0)
    filled = np.where(np.isfinite(above), above, settled)
    return rise(np.where(supported, settled, filled))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGrid:
    """A grid seen from one workload on one class of devices."""

    grid: Grid
    outcome: PromiseOutcome
    limits_mib: Whole
    """Memory limit by batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Arrays are profile x clock x share x batch."""

    keys: tuple[Key, ...]
    clocks_mhz: Whole
    shares_pct: Whole
    batches: Whole
    mean_ms: Floats
    """-inf where not measured."""
    tail_ms: Floats
    power_w: Floats
    """NaN where nothing at or below this share and batch has a reading."""
    memory_mib: Floats
    """profile x clock x batch; -inf where nothing was measured up to this batch."""
    measured: Flags

    def at(self, rows: int | list[int], layer: int) -> Grid:
        """One profile at a clock, or several: then the first axis of all its arrays is theirs."""
        return Grid(
            clock_mhz_sm=int(self.clocks_mhz[layer]),
            batches=self.batches,
            shares_pct=self.shares_pct,
            latency_ms_mean=self.mean_ms[rows, layer],
            latency_ms_tail=self.tail_ms[rows, layer],
            memory_mib=self.memory_mib[rows, layer],
            power_w=self.power_w[rows, layer],
            measured=self.measured[rows, layer],
        )


def stacks(profiles: Iterable[Profile]) -> tuple[Stack, ...]:
    """All grids among the profiles; profiles listed point by point are left out."""
    alike: dict[tuple[object, ...], list[tuple[Key, ProfileGrid]]] = defaultdict(list)
    for profile in profiles:
        grid = profile.grid
        if grid is not None:
            shape = (
                grid.clocks_mhz_sm,
                grid.shares_pct_sm,
                grid.batches,
                bool(grid.latency_ms_p99),
                bool(grid.power_w),
            )
            alike[shape].append(((profile.model, profile.gpu_type), grid))
    return tuple(_stack(members) for members in alike.values())


def rise(cells: Floats) -> Floats:
    """Running maximum along rising batch (last axis) and falling share (the one before)."""
    along_batch = np.maximum.accumulate(cells, axis=-1)
    return np.asarray(np.maximum.accumulate(along_batch[..., ::-1, :], axis=-2)[..., ::-1, :])


def _stack(members: list[tuple[Key, ProfileGrid]]) -> Stack:
    first = members[0][1]
    shape = (len(members), len(first.clocks_mhz_sm), len(first.shares_pct_sm), len(first.batches))
    mean = np.array([grid.latency_ms for _, grid in members]).reshape(shape)
    measured = mean > 0
    tail = np.array([grid.latency_ms_p99 for _, grid in members]).reshape(shape) if first.latency_ms_p99 else mean
    if first.power_w:
        power = np.array([grid.power_w for _, grid in members]).reshape(shape)
        power = np.where(measured, power, -np.inf)
        power = np.maximum.accumulate(np.maximum.accumulate(power, axis=-2), axis=-1)
        power[np.isinf(power)] = np.nan
    else:
        power = np.full(shape, np.nan)
    memory = np.array([grid.memory_mib for _, grid in members])[:, None, :]
    return Stack(
        keys=tuple(key for key, _ in members),
        clocks_mhz=np.array(first.clocks_mhz_sm, dtype=np.int64),
        shares_pct=np.array(first.shares_pct_sm, dtype=np.int64),
        batches=np.array(first.batches, dtype=np.int64),
        mean_ms=_careful(mean, measured),
        tail_ms=_careful(tail, measured),
        power_w=power,
        memory_mib=np.maximum.accumulate(np.where(measured.any(axis=2), memory, -np.inf), axis=-1),
        measured=measured,
    )


def _careful(cells: Floats, measured: Flags) -> Floats:
    return np.where(measured, rise(np.where(measured, cells, -np.inf)), -np.inf)


@dataclass(frozen=True, slots=True)
class ShareReading:
    """One model on one kind of device at one clock and share, by the batches that were measured."""

    batches: list[int]
    mean_ms: list[float]
    tail_ms: list[float]
    memory_mib: list[float]

    def column(self, batch: int) -> int | None:
        """The first measured batch not below this one."""
        at = bisect_left(self.batches, batch)
        return at if at < len(self.batches) else None


@dataclass(slots=True)
class Tables:
    """Tables of a snapshot's profiles, made when first asked for: grids through stacks, listed profiles one by one."""

    profiles: Mapping[Key, Profile]
    readings: dict[tuple[Key, int, float], ShareReading | None] = field(default_factory=dict)
    _listed: dict[Key, tuple[Grid, ...]] = field(default_factory=dict)
    _stacked: dict[Key, tuple[Stack, int]] | None = None
    _grids: dict[tuple[Key, int], Grid | None] = field(default_factory=dict)

    @staticmethod
    def of(profiles: tuple[Profile, ...]) -> Tables:
        """The same as long as the very same profiles are asked about: a cycle judges many plans by one picture."""
        return _latest(profiles)

    def reading(self, model: ModelName, gpu_type: GpuTypeName, clock_mhz: int, share_pct: float) -> ShareReading | None:
        """At a clock and a share of the whole GPU; None where nothing is known."""
        asked = (model, gpu_type), clock_mhz, share_pct
        if asked not in self.readings:
            grid = self.grid_at(model, gpu_type, clock_mhz)
            self.readings[asked] = None if grid is None else _read(grid, share_pct)
        return self.readings[asked]

    def grid_at(self, model: ModelName, gpu_type: GpuTypeName, clock_mhz: int) -> Grid | None:
        """What is known of a model on a GPU type at the highest measured clock that is not above this one: never faster
        than the truth at that clock.
        """
        asked = ((model, gpu_type), clock_mhz)
        if asked not in self._grids:
            profile = self.profiles.get(asked[0])
            found = self._from_points if profile is None or profile.grid is None else self._from_stack
            self._grids[asked] = None if profile is None else found(profile, clock_mhz)
        return self._grids[asked]

    def _from_points(self, profile: Profile, clock_mhz: int) -> Grid | None:
        key = profile.model, profile.gpu_type
        if key not in self._listed:
            self._listed[key] = grids_of(profile)
        usable = [grid for grid in self._listed[key] if grid.clock_mhz_sm <= clock_mhz]
        return usable[-1] if usable else None

    def _from_stack(self, profile: Profile, clock_mhz: int) -> Grid | None:
        if self._stacked is None:
            found = stacks(self.profiles.values())
            self._stacked = {name: (stack, row) for stack in found for row, name in enumerate(stack.keys)}
        stack, row = self._stacked[profile.model, profile.gpu_type]
        layers = np.flatnonzero((stack.clocks_mhz <= clock_mhz) & stack.measured[row].any(axis=(1, 2)))
        return grid_of(stack, row, int(layers[-1])) if len(layers) else None


def _read(grid: Grid, share_pct: float) -> ShareReading | None:
    if grid.measured.all():
        high = int(np.searchsorted(grid.shares_pct, share_pct - SHARE_DUST))
        at = min(high, len(grid.shares_pct) - 1)
        if high == 0 and grid.shares_pct[0] > share_pct + SHARE_DUST:
            return None
        low = max(0, at - 1)
        span = float(grid.shares_pct[at] - grid.shares_pct[low])
        weight = min(1.0, (share_pct - float(grid.shares_pct[low])) / span) if span > 0 else 1.0
        mean, tail = (between(cells[low], cells[at], weight) for cells in (grid.latency_ms_mean, grid.latency_ms_tail))
        columns = np.arange(len(grid.batches))
    else:
        mean, tail = (_by_batch(grid, cells, share_pct) for cells in (grid.latency_ms_mean, grid.latency_ms_tail))
        columns = np.flatnonzero(np.isfinite(mean))
        if not len(columns):
            return None
    return ShareReading(
        batches=grid.batches[columns].tolist(),
        mean_ms=mean[columns].tolist(),
        tail_ms=tail[columns].tolist(),
        memory_mib=grid.memory_mib[columns].tolist(),
    )


def _by_batch(grid: Grid, cells: Floats, share_pct: float) -> Floats:
    """Each batch by its own measured shares; infinite where none is low enough."""
    found = np.full(len(grid.batches), np.inf)
    for column in range(len(grid.batches)):
        rows = np.flatnonzero(grid.measured[:, column])
        if len(rows) and grid.shares_pct[rows[0]] <= share_pct + SHARE_DUST:
            # The rate is read between the shares: see `patterns.between`.
            found[column] = 1 / np.interp(share_pct, grid.shares_pct[rows], 1 / cells[rows, column])
    return found


class _Latest:
    """Values are immutable, so the very same profiles have the same tables."""

    def __init__(self) -> None:
        self._found: tuple[tuple[Profile, ...], Tables] = (), Tables({})

    def __call__(self, profiles: tuple[Profile, ...]) -> Tables:
        found = self._found
        if found[0] is not profiles:
            found = self._found = profiles, Tables({(item.model, item.gpu_type): item for item in profiles})
        return found[1]


_latest = _Latest()
