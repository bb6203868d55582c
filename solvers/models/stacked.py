"""Profiles of equal axes side by side, so that thousands of tables are read at the price of one.

Measured cells are read carefully, as `table` does it, for whole arrays: latency never falls when share falls or batch
rises, power never falls when share or batch rises, memory never falls when batch rises. Nothing is interpolated: a cell
that was not measured is marked, whatever stands in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileGrid

Key = tuple[ModelName, GpuTypeName]


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
