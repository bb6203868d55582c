"""Many patterns at once: what `patterns.judge` says, over arrays, so that a thousand candidates cost milliseconds.

Owns the array form of patterns (kind, members, shares; -1 and 0 fill the rest of a row) and its judgement, which agrees
with `judge` to the last batch. Final layouts are judged by `judge` itself once more. It refuses to search.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.patterns import TOLERANCE, between
from solvers.problems.promise import UTILISATION_MIN

CHUNK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Candidates: one row each; members ordered by (variant, share), -1 where there is none."""

    kind: Whole
    member: Whole
    share: Whole

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Whole | Flags) -> Sets:
        """Some of them."""
        return Sets(kind=self.kind[rows], member=self.member[rows], share=self.share[rows])

    def of_kind(self, kind: int) -> Sets:
        """The same members on devices of another kind."""
        return Sets(kind=np.full(len(self), kind, dtype=np.int64), member=self.member, share=self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the candidates are worth; rows that are not `ok` break a rule, a promise or the memory."""

    ok: Flags
    rate: Floats
    """Requests per second of each member."""
    power: Floats
    """Watts of each member."""
    batch: Whole
    """Column of `problem.batches`."""
    usd: Floats
    draw: Floats

    def take(self, rows: Whole | Flags) -> Judged:
        """Some of them."""
        return Judged(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})


def ordered(kind: Whole, member: Whole, share: Whole) -> Sets:
    """Rows with members in order and the fill at the end."""
    rank = np.where(member < 0, np.iinfo(np.int64).max // 2, member.astype(np.int64) * 101 + share)
    order = np.argsort(rank, axis=1, kind="stable")
    return Sets(
        kind=np.asarray(kind, dtype=np.int64),
        member=np.take_along_axis(member, order, axis=1).astype(np.int64),
        share=np.where(member < 0, 0, share)[np.arange(len(member))[:, None], order].astype(np.int64),
    )


def joined(parts: list[Sets], width: int) -> Sets:
    """All candidates of several, none at all included."""
    if not parts:
        empty = np.zeros((0, width), dtype=np.int64)
        return Sets(kind=np.zeros(0, dtype=np.int64), member=empty, share=empty)
    return Sets(
        kind=np.concatenate([item.kind for item in parts]),
        member=np.concatenate([item.member for item in parts]),
        share=np.concatenate([item.share for item in parts]),
    )


def stacked(parts: list[Judged]) -> Judged:
    """All judgements of several; at least one."""
    return Judged(
        **{item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(Judged)}
    )


def width_of(problem: JointProblem) -> int:
    """Most members that any pattern can have."""
    least = int(problem.shares_pct[0])
    return max(1, min(100 // max(1, least), max((pool.clients for pool in problem.pools), default=1)))


class Judge:
    """`patterns.judge` for arrays; keeps what it needs of one problem."""

    def __init__(self, problem: JointProblem) -> None:
        self.problem = problem
        works = [problem.workloads[item.workload] for item in problem.variants]
        self._limit = np.array([work.limit_ms for work in works], dtype=np.float64)
        self._burst = np.array([work.burst for work in works], dtype=np.float64)
        self._end_to_end = np.array([work.end_to_end for work in works], dtype=np.bool_)
        self._busy = np.array([work.utilisation_max for work in works], dtype=np.float64)
        self._per_device = np.array([work.per_device_max for work in works], dtype=np.int64)
        self._dedicated = np.array([work.dedicated for work in works], dtype=np.bool_)
        number = len(problem.workloads)
        self._foes = np.unique(
            [one * number + other for one, work in enumerate(problem.workloads) for other in work.avoids]
        ).astype(np.int64)
        self._same_tail = problem.mean_ms is problem.tail_ms
        pools = problem.pools
        self._pool_usd = np.array([pool.usd_per_h for pool in pools], dtype=np.float64)
        self._memory = np.array([pool.memory_mib for pool in pools], dtype=np.float64)
        self._idle = np.array([pool.idle_w for pool in pools], dtype=np.float64)
        self._draw_max = np.array([pool.limit_w for pool in pools], dtype=np.float64)
        self._planned_max = np.array([pool.limit_w if pool.capped else np.inf for pool in pools], dtype=np.float64)
        self._clients = np.array([pool.clients for pool in pools], dtype=np.int64)

    def judge(self, sets: Sets) -> Judged:
        """Judge every row."""
        parts = [self._some(sets.take(np.arange(at, min(at + CHUNK, len(sets))))) for at in range(0, len(sets), CHUNK)]
        if not parts:
            parts = [self._some(sets)]
        return stacked(parts)

    def _some(self, sets: Sets) -> Judged:
        problem = self.problem
        real = sets.member >= 0
        member = np.where(real, sets.member, 0)
        pool, table = problem.kind_pool[sets.kind], problem.kind_table[sets.kind]
        factor = self._slowdown(table, member, sets.share, real)
        rate, power = self._cells(table[:, None], member, sets.share, factor)
        rate = np.where(real[:, :, None], rate, 0.0)
        batch = np.argmax(rate, axis=2)
        best = np.take_along_axis(rate, batch[:, :, None], axis=2)[:, :, 0]
        ok = self.lawful(sets) & np.where(real, best > 0, True).all(axis=1)
        need = np.where(real[:, :, None], problem.memory_mib[table[:, None], member], 0.0)
        self._step_down(rate, need, batch, ok, self._memory[pool])
        take = batch[:, :, None]
        rate = np.where(real, np.take_along_axis(rate, take, axis=2)[:, :, 0], 0.0)
        power = np.where(real & ok[:, None], np.take_along_axis(power, take, axis=2)[:, :, 0], 0.0)
        draw = self._idle[pool] + power.sum(axis=1)
        ok &= draw <= self._planned_max[pool] + TOLERANCE
        draw = np.minimum(self._draw_max[pool], draw)
        if problem.by_replica:
            usd = problem.held_usd(sets.kind[:, None], sets.member, sets.share).sum(axis=1)
        else:
            usd = self._pool_usd[pool] + problem.usd_per_wh * draw
        return Judged(ok=ok, rate=rate, power=power, batch=batch, usd=usd, draw=draw)

    def _slowdown(self, table: Whole, member: Whole, share: Whole, real: Flags) -> Floats:
        problem, rows = self.problem, table[:, None]
        press = problem.pressure[rows, member] * (share / 100.0) ** problem.exponent[rows, member]
        press = np.where(real, press, 0.0)
        felt = problem.sensitivity[rows, member] * (press.sum(axis=1, keepdims=True) - press)
        several = real.sum(axis=1, keepdims=True) > 1
        return np.where(several, problem.crowd[rows, member] * (1 + felt), 1.0)

    def _cells(self, table: Whole, member: Whole, share: Whole, factor: Floats) -> tuple[Floats, Floats]:
        """Rate (0 where the promise cannot be kept) and power by batch."""
        problem = self.problem
        grid = problem.shares_pct
        above = np.minimum(np.searchsorted(grid, share - TOLERANCE), len(grid) - 1)
        below = np.maximum(above - 1, 0)
        on = (np.abs(grid[above] - share) <= TOLERANCE) | (share > grid[-1])
        gap = np.maximum(grid[above] - grid[below], 1)
        weight = np.where(on, 1.0, (share - grid[below]) / gap)[:, :, None]
        too_small = (~on & (above == 0))[:, :, None]

        def at_share(cells: Floats) -> Floats:
            mixed = between(cells[table, member, below], cells[table, member, above], weight)
            return np.asarray(np.where(too_small, np.inf, mixed))

        def watts(cells: Floats) -> Floats:
            upper, lower = cells[table, member, above], cells[table, member, below]
            with np.errstate(invalid="ignore"):
                mixed = np.where(weight < 1, (1 - weight) * lower + weight * upper, upper)
            return np.asarray(np.where(too_small, np.inf, mixed))

        slow = factor[:, :, None]
        mean = at_share(problem.mean_ms) * slow
        tail = mean if self._same_tail else at_share(problem.tail_ms) * slow
        return self.rates(member, mean, tail), watts(problem.power_w)

    def rates(self, member: Whole, mean: Floats, tail: Floats, batch: Floats | None = None) -> Floats:
        """`patterns.serve` for arrays that end in a batch axis; `member` has their leading axes. `batch` where these
        are not the problem's batches.
        """
        limit, burst = self._limit[member][..., None], self._burst[member][..., None]
        busy = np.broadcast_to(self._busy[member][..., None], mean.shape)
        batch = self.problem.batches.astype(np.float64) if batch is None else batch
        waits: Floats | float = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            if self._end_to_end.any():
                spare = np.where(np.isfinite(limit), np.maximum(limit / tail - 2, 0.0), np.inf)
                bearable = np.where(
                    np.isfinite(spare) & (burst > 0), 2 * batch * spare / (burst + 2 * batch * spare), busy
                )
                granted = np.where(np.isfinite(limit), np.maximum(np.minimum(busy, bearable), UTILISATION_MIN), busy)
                busy = np.where(self._end_to_end[member][..., None], granted, busy)
                queue = 1 + burst * busy / (2 * (1 - busy) * batch)
                waits = np.where(self._end_to_end[member][..., None], queue, 0.0)
            keeps = np.isfinite(mean) & (tail * (1 + waits) <= limit * (1 + TOLERANCE))
            return np.asarray(np.where(keeps, busy * 1000 * batch / mean, 0.0))

    def _step_down(self, rate: Floats, need: Floats, batch: Whole, ok: Flags, room: Floats) -> None:
        """Smaller batches while memory lacks, as `patterns.judge` chooses them; rows that cannot are no longer ok."""
        rows = np.flatnonzero(ok)
        while len(rows):
            now = batch[rows]
            held = np.take_along_axis(need[rows], now[:, :, None], axis=2)[:, :, 0]
            rows_over = held.sum(axis=1) > room[rows] + TOLERANCE
            rows, now, held = rows[rows_over], now[rows_over], held[rows_over]
            if not len(rows):
                return
            here = np.take_along_axis(rate[rows], now[:, :, None], axis=2)
            saved = held[:, :, None] - need[rows]
            lower = np.arange(rate.shape[2])[None, None, :] < now[:, :, None]
            able = lower & (rate[rows] > 0) & (saved > 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                loss = np.where(able, (1 - rate[rows] / here) / saved, np.inf).reshape(len(rows), -1)
            pick = np.argmin(loss, axis=1)
            found = np.isfinite(loss[np.arange(len(rows)), pick])
            ok[rows[~found]] = False
            rows, pick = rows[found], pick[found]
            batch[rows, pick // rate.shape[2]] = pick % rate.shape[2]

    def lawful(self, sets: Sets) -> Flags:
        """Rows that break no rule about who may stand together and where."""
        problem = self.problem
        real = sets.member >= 0
        member = np.where(real, sets.member, 0)
        pool = problem.kind_pool[sets.kind]
        held = real.sum(axis=1)
        fine = (sets.share.sum(axis=1) <= 100) & (held <= self._clients[pool]) & (held > 0)
        fine &= np.where(real, problem.allowed[pool[:, None], member], True).all(axis=1)
        work = np.where(real, problem.variant_workload[member], -1)
        twins = ((work[:, :, None] == work[:, None, :]) & real[:, :, None]).sum(axis=2)
        fine &= np.where(real, twins <= self._per_device[member], True).all(axis=1)
        fine &= ~((held > 1) & (real & self._dedicated[member]).any(axis=1))
        if len(self._foes):
            pairs = work[:, :, None] * len(problem.workloads) + work[:, None, :]
            both = real[:, :, None] & real[:, None, :]
            fine &= ~(both & np.isin(pairs, self._foes)).any(axis=(1, 2))
        return np.asarray(fine)
