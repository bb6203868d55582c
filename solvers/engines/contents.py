"""What stands on devices: judged by the thousand, and what is worth most at given prices. The binding of `contents.c`.

`Contents.judge` says of rows of members what `patterns.judge` says of one. `Contents.price` answers for one pool: a
ceiling that nothing on any of its devices is worth more than, and the best contents that were seen on the way. Records
have the order of the C ones; arrays live as long as the record that points to them.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.engines.compiled import CompilerError, loaded
from solvers.errors import EngineError
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Judged, Patterns

BATCHES_MAX = 256
FOUND_MAX = 64
"""Contents that one question returns at most."""
UNIT_STEPS = 700_000
"""Elementary steps in about a millisecond."""
PROCESSORS = min(8, len(os.sched_getaffinity(0)))
"""Pools searched at a time; the answers are the same with any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPrices:
    """What one replica is worth, $/h: pi[workload] x (part of the rate it serves) + replica[pool, workload] -
    watt[pool] x power - share[pool, workload] x share_pct - what its memory is billed, where it is; contents are worth
    more than they cost when that exceeds fixed[pool].
    """

    pi: Floats
    replica: Floats
    rate_rps: Floats
    watt: Floats
    share: Floats
    fixed: Floats
    cut_steps: Floats
    """Numbers k, and by workload what each started part of 1/k is worth beside that."""
    cut_usd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    floor: float = 0.0
    """$/h that ceilings need not come below."""
    tolerance: float = 0.0
    """$/h that they may stay above what was found."""
    least: float = 0.0
    """$/h that contents must be worth to be returned."""
    step_pct: int = 1
    """Shares are multiples of this; ceilings are those of such contents."""
    units: float = 1e6
    until_s: float = math.inf
    """Of the monotonic clock: then it ends, whatever work is left."""
    repeats: int = 0
    """Further contents without a workload in common, whenever something better is found, unless it settles."""
    settles: float = 0.0
    """What is worth more than floor and tolerance lowers `pi` until it is worth so much of the tolerance less, and so
    on until nothing is: less is nearer, and takes longer; 0: nothing is lowered.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Best contents of one pool's devices, in no order; nothing is worth more than the ceiling at this `pi`."""

    ceiling: float
    pi: Floats
    rows: Patterns
    units: int


class Record:
    """A C record of 8-byte fields: numbers, and pointers to arrays, which are kept."""

    def __init__(self, *fields: NDArray[Any] | int | float | None) -> None:
        self._kept: list[NDArray[Any]] = []
        self._words = np.zeros(len(fields), dtype=np.int64)
        for at, item in enumerate(fields):
            if isinstance(item, int):
                self._words[at] = item
            elif isinstance(item, float):
                self._words[at : at + 1].view(np.float64)[0] = item
            elif item is not None:
                self._kept.append(np.ascontiguousarray(item))
                self._words[at] = self._kept[-1].ctypes.data

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._words.ctypes.data)

    def whole(self, at: int) -> int:
        return int(self._words[at])

    def real(self, at: int) -> float:
        return float(self._words[at : at + 1].view(np.float64)[0])


def threads() -> ThreadPoolExecutor:
    """Of this process: a forked one has none of its parent's."""
    return _threads(os.getpid())


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(PROCESSORS, thread_name_prefix=f"contents-{process}")


@cache
def _library() -> ctypes.CDLL:
    try:
        return loaded("contents")
    except CompilerError as error:
        raise EngineError(str(error), engine="contents") from error


class Contents:
    """A problem's numbers laid out for C; build once, ask often."""

    def __init__(self, problem: JointProblem, lanes: int = PROCESSORS) -> None:
        if len(problem.batches) > BATCHES_MAX:
            raise EngineError(f"more than {BATCHES_MAX} batch sizes", engine="contents")
        works, pools = problem.workloads, problem.pools
        self.problem, self.lanes = problem, lanes
        self.width = max((pool.clients for pool in pools), default=1)
        mean_ms = np.ascontiguousarray(problem.mean_ms)
        start = np.cumsum([0, *(len(items) for items in problem.foes)]).astype(np.int64)
        avoids = np.array([other for items in problem.foes for other in items], dtype=np.int64)
        tail_ms = mean_ms if problem.tail_ms is problem.mean_ms else problem.tail_ms
        self.record = Record(
            len(pools), problem.kinds, len(problem.pressure), len(problem.variants), len(works),
            len(problem.shares_pct), len(problem.batches), self.width,
            mean_ms, tail_ms, problem.power_w, problem.memory_mib, problem.press, problem.sensitivity, problem.crowd,
            problem.batches.astype(np.float64), problem.shares_pct, problem.kind_pool, problem.kind_table,
            problem.variant_workload, problem.allowed,
            _reals([item.memory_mib for item in pools]), _reals([item.idle_w for item in pools]),
            _reals([item.limit_w for item in pools]), np.array([item.capped for item in pools], dtype=np.bool_),
            np.array([item.clients for item in pools], dtype=np.int64),
            _reals([item.limit_ms for item in works]), _reals([item.burst for item in works]),
            _reals([item.utilisation_max for item in works]),
            np.array([item.end_to_end for item in works], dtype=np.bool_),
            np.array([item.dedicated for item in works], dtype=np.bool_),
            np.array([item.per_device_max for item in works], dtype=np.int64), start, avoids,
        )  # fmt: skip
        self._tables: Record | None = None
        self._speeds = (np.zeros(0), np.zeros(0))

    def judge(self, rows: Patterns, factor: Floats | None, *, eager: bool) -> Judged:
        """Rows whose members stand first, in order; `factor`: the slowdown of each, where it is not to be found."""
        count, width = rows.variants.shape
        given = [np.ascontiguousarray(item) for item in (rows.kind, rows.variants, rows.shares_pct)]
        factor = None if factor is None else np.ascontiguousarray(factor, dtype=np.float64)
        lawful, draw_w = np.zeros(count, dtype=np.bool_), np.zeros(count)
        column = np.zeros((count, width), dtype=np.int64)
        latency, granted, full, power, memory = (np.zeros((count, width)) for _ in range(5))
        out = Record(lawful, column, latency, granted, full, power, memory, draw_w)
        _library().judge(
            self.record.pointer, ctypes.c_int64(count), ctypes.c_int64(width), *map(at_of, given),
            None if factor is None else at_of(factor), ctypes.c_int64(eager), out.pointer,
        )  # fmt: skip
        return Judged(
            rows=rows, lawful=lawful, column=column, latency_ms=latency, capacity_rps=granted, full_rps=full,
            power_w=power, memory_mib=memory, usd_per_h=self.usd_per_h(rows, draw_w), draw_w=draw_w,
        )  # fmt: skip

    def usd_per_h(self, rows: Patterns, draw_w: Floats) -> Floats:
        """Of devices with these contents."""
        problem = self.problem
        if problem.by_replica:
            return np.asarray(problem.held_usd(rows.kind[:, None], rows.variants, rows.shares_pct).sum(axis=1))
        return np.asarray(problem.pool_usd[problem.kind_pool[rows.kind]] + problem.usd_per_wh * draw_w)

    def price(self, prices: ItemPrices, efforts: Mapping[int, Effort]) -> list[Priced]:
        """By pool: see the module. Ends when nothing can be worth much more than what was found, or the work is done.
        As many at a time as there are processors, or one; no answer depends on another.
        """
        answer = partial(self._priced, self.prepared(), prices)
        if self.lanes == 1:
            return [*map(answer, efforts, efforts.values())]
        return list(threads().map(answer, efforts, efforts.values()))

    def _priced(self, tables: Record, prices: ItemPrices, pool: int, effort: Effort) -> Priced:
        problem = self.problem
        held = problem.kind_usd if problem.by_memory else None
        asked = Record(
            prices.pi, prices.replica[pool], prices.rate_rps, prices.watt, prices.share, prices.fixed, held,
            len(prices.cut_steps), prices.cut_steps, prices.cut_usd,
        )  # fmt: skip
        how = Record(
            float(effort.floor), float(effort.tolerance), float(effort.least), effort.step_pct,
            int(effort.units * UNIT_STEPS), effort.repeats, FOUND_MAX, float(effort.settles),
            float(effort.until_s),
        )  # fmt: skip
        kind, worth, pi = np.zeros(FOUND_MAX, dtype=np.int64), np.zeros(FOUND_MAX), prices.pi.copy()
        variants, shares = (np.zeros((FOUND_MAX, self.width), dtype=np.int64) for _ in range(2))
        out = Record(0.0, 0, 0, kind, variants, shares, worth, pi)
        _library().price(
            self.record.pointer, tables.pointer, asked.pointer, how.pointer, ctypes.c_int64(pool), out.pointer
        )
        found = out.whole(2)
        rows = Patterns(kind=kind[:found], variants=variants[:found], shares_pct=shares[:found])
        return Priced(ceiling=out.real(0), pi=pi, rows=rows, units=1 + out.whole(1) // UNIT_STEPS)

    @property
    def speeds(self) -> tuple[Floats, Floats]:
        """One by mean and by tail latencies: those are linear in the share between two of the grid."""
        self.prepared()
        return self._speeds

    def prepared(self) -> Record:
        """What no prices change, made once."""
        if self._tables is None:
            problem = self.problem
            rates = [np.zeros(problem.press.shape) for _ in range(3)]
            self._speeds = (np.zeros(problem.mean_ms.shape), np.zeros(problem.mean_ms.shape))
            order = np.argsort(problem.variant_workload, kind="stable")
            self._tables = Record(int(problem.shares_pct[0]), self._highest(), order, *rates, *self._speeds)
            _library().prepare(self.record.pointer, self._tables.pointer)
        return self._tables

    def _highest(self) -> Floats:
        """By kind: more than anything on one device can press together."""
        problem = self.problem
        if not len(problem.variants):
            return np.zeros(problem.kinds)
        most = np.zeros(len(problem.pressure))
        for count in range(2, max(3, min(self.width, WHOLE_PCT // max(1, int(problem.shares_pct[0]))) + 1)):
            even = problem.pressure * (1 / count) ** np.minimum(problem.exponent, 1.0)
            most = np.maximum(most, count * even.max(axis=1))
        if problem.exponent.max() > 1:
            most = np.maximum(most, problem.pressure.max(axis=1) * self.width)
        return np.asarray(most[problem.kind_table] * (1 + 1e-9))


def at_of(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _reals(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
