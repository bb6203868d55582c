"""Local search over whole devices: the binding of `exchange.c`, see there.

Two walks with different chance begin at the same devices; the better one is where the next two begin. That they run
side by side where there are two processors changes nothing in the answer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.compiled import CompilerError, loaded
from solvers.engines.contents import Contents, Record, at_of, threads
from solvers.errors import EngineError
from solvers.problems.patterns import Patterns

STEPS_PER_UNIT = 1_000_000
"""Elementary steps in about a millisecond."""
WALKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What limits all devices together: cap x pool and watts above idle, quotas of workloads (-1: none) and in GPUs, of
    pools the part of a whole GPU; by workload what it counts to be short at all, and what the whole rate is worth.
    """

    cap_pools: Floats
    cap_watt: Floats
    quota: Whole
    quota_gpus: Floats
    pool_part: Floats
    missed_usd: Floats
    price_usd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How to search: $/h that a move may lose at first and at last; milliseconds of work of each walk, and of an
    attempt at first; how many attempts in vain end it; whether it begins by closing a device, and whether it ends when
    everybody who must be is served.
    """

    heat_usd: float
    cold_usd: float
    units: float
    attempt_units: float
    patience: int
    seed: int
    closes: bool
    serves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The best that was found, with what is short counted as in `Rooms`; work of both walks, and what an attempt takes
    by now.
    """

    rows: Patterns
    """Devices one by one."""
    usd_per_h: float
    units: float
    attempt_units: float
    served: bool
    """Whether it ended because everybody is."""


@cache
def _library() -> ctypes.CDLL:
    try:
        library = loaded("exchange")
    except CompilerError as error:
        raise EngineError(str(error), engine="exchange") from error
    library.exchange.restype = ctypes.c_int64
    return library


class Exchange:
    """A problem's numbers laid out for C; build once, ask often."""

    def __init__(self, contents: Contents, rooms: Rooms) -> None:
        problem, floors = contents.problem, contents.problem.floors
        works = problem.workloads
        self._contents = contents
        self._limits = Record(
            problem.share_step_pct, len(rooms.cap_watt), len(rooms.quota_gpus), int(problem.by_replica),
            float(problem.usd_per_wh), problem.pool_usd, problem.budget_usd, rooms.pool_part, problem.pool_devices,
            problem.kind_usd if problem.by_memory else None, rooms.cap_pools, rooms.cap_watt, rooms.quota,
            rooms.quota_gpus, np.array([item.replicas_max for item in works], dtype=np.float64),
            np.array([item.budget_usd_per_h for item in works]), floors.start.astype(np.int64),
            floors.pools.astype(np.float64), floors.least,
            problem.unserved_usd[floors.workload] * floors.weight, problem.rate_rps, problem.unserved_usd,
            rooms.price_usd, rooms.missed_usd, *contents.speeds,
        )  # fmt: skip

    def run(self, rows: Patterns, walk: Walk) -> Exchanged:
        """The best devices that the walks found; those given at worst."""
        found = list(threads().map(lambda number: self._run(rows, walk, number), range(WALKS)))
        best = min(found, key=lambda item: item.usd_per_h)
        return replace(best, units=sum(item.units for item in found))

    def _run(self, rows: Patterns, walk: Walk, number: int) -> Exchanged:
        count, width = rows.variants.shape
        room = min(int(self._contents.problem.pool_devices.sum()), count + count // 4 + 16)
        kind = np.zeros(room, dtype=np.int64)
        variants, shares = np.full((room, width), -1, dtype=np.int64), np.zeros((room, width), dtype=np.int64)
        kind[:count], variants[:count], shares[:count] = rows.kind, rows.variants, rows.shares_pct
        told = np.zeros(5)
        plan = Record(
            float(walk.heat_usd), float(walk.cold_usd), int(walk.units * STEPS_PER_UNIT),
            max(1, int(walk.attempt_units * STEPS_PER_UNIT)), walk.patience,
            ctypes.c_int64(1 + WALKS * walk.seed + number).value, int(walk.closes), int(walk.serves),
        )  # fmt: skip
        best = _library().exchange(
            self._contents.record.pointer, self._limits.pointer, plan.pointer, ctypes.c_int64(count),
            ctypes.c_int64(room), at_of(kind), at_of(variants), at_of(shares), at_of(told),
        )  # fmt: skip
        return Exchanged(
            rows=Patterns(kind=kind[:best], variants=variants[:best], shares_pct=shares[:best]),
            usd_per_h=float(told[0]),
            units=float(told[1]) / STEPS_PER_UNIT,
            attempt_units=float(told[3]) / STEPS_PER_UNIT,
            served=bool(told[4]),
        )
