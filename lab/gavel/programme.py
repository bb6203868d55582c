"""The linear programmes of Gavel's max-min fairness, alone and packed, and of POP's parts.

Owns the columns: what each class holds of each type alone, what each pair holds together, and the least normalised
progress. A second stage may then give what is left where it makes most progress, nobody falling below the least. It
refuses other notions of fairness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.gavel.problem import Allocation, ThroughputTable, part_of, progress
from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import EngineAnswer, Limits, Program
from solvers.engines.registry import create
from solvers.errors import EngineError
from solvers.planners.counting.rows import ProgrammeRows

SLACK = 1e-7
"""Part of the least progress that the second stage may give up, for an engine's tolerance."""
SIMPLEX_STEPS = 200_000.0
"""Work is counted, so that equal tables end alike on every machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """An allocation, the least normalised progress that it gives, and the most that any could. Classes and pairs are
    the asked table's; of a part, only its own hold anything.
    """

    allocation: Allocation
    least: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgrammeColumns:
    least: Whole
    single: Whole
    """Class x type; -1 where it cannot run."""
    paired: Whole


def share(table: ThroughputTable, *, spread: bool = False, steps: float = SIMPLEX_STEPS) -> Shared:
    """The allocation of the best least progress; with `spread` also of the most progress altogether among these. Raises
    EngineError where the engine gives up.
    """
    useful = table.useful()
    first = _solve(_programme(useful)[0], steps)
    bound = -first.bound
    answer = first
    if spread:
        answer = _solve(_programme(useful, bound * (1.0 - SLACK))[0], steps)
    found = _read(table, useful, answer)
    return Shared(allocation=found, least=float(progress(table, found).min(initial=np.inf)), bound=bound)


def share_part(table: ThroughputTable, classes: Whole, number: int, *, spread: bool = False) -> Shared:
    """POP: one of so many equal parts of the cluster, shared among a job of each of these classes."""
    part, mine = part_of(table, classes, number)
    shared = share(part, spread=spread)
    pair_at = {(int(left), int(right)): index for index, (left, right) in enumerate(table.pairs)}
    single = np.zeros_like(table.speed)
    single[mine] = shared.allocation.single
    paired = np.zeros((len(table.pairs), len(table.devices)))
    for index, ends in enumerate(mine[part.pairs]):
        paired[pair_at[int(ends[0]), int(ends[1])]] = shared.allocation.paired[index]
    allocation = Allocation(single=single, paired=paired)
    return Shared(allocation=allocation, least=shared.least, bound=shared.bound)


def _programme(table: ThroughputTable, floor: float | None = None) -> tuple[Program, _ProgrammeColumns]:
    """min -least; or with a floor under everybody's progress, the most progress of all."""
    rows, scale = ProgrammeRows(), table.scale / table.count
    able, together = table.speed > 0, (table.pair_speed > 0).any(axis=2)
    classes, types = np.nonzero(able)
    couples, on = np.nonzero(together)
    worth = table.speed[classes, types] * scale[classes]
    ends = table.pairs[couples]
    worths = table.pair_speed[couples, on] * scale[ends]
    free: Floats = np.array([np.inf])
    least = rows.add_columns(np.array([-1.0 if floor is None else 0.0]), free, integer=False)
    # What the second stage counts is progress by job, so that large classes do not count as one.
    total = 0.0 if floor is None else 1.0
    single = rows.add_columns(-total * worth * table.count[classes], free, integer=False)
    paired = rows.add_columns(-total * (worths * table.count[ends]).sum(axis=1), free, integer=False)
    room = rows.add_rows(np.full(len(table.devices), -np.inf), table.devices)
    rows.enter(room[types], single, table.gpus[classes].astype(np.float64))
    rows.enter(room[on], paired, table.gpus[ends].max(axis=1, initial=0).astype(np.float64))
    time = rows.add_rows(np.full(len(table.count), -np.inf), table.count.astype(np.float64))
    rows.enter(time[classes], single, 1.0)
    same = ends[:, 0] == ends[:, 1]
    rows.enter(time[ends[:, 0]], paired, np.where(same, 2.0, 1.0))
    rows.enter(time[ends[~same, 1]], paired[~same], 1.0)
    low = np.full(len(table.count), 0.0 if floor is None else floor)
    gain = rows.add_rows(low, np.full(len(table.count), np.inf))
    rows.enter(gain[classes], single, worth)
    rows.enter(gain[ends[:, 0]], paired, np.where(same, worths.sum(axis=1), worths[:, 0]))
    rows.enter(gain[ends[~same, 1]], paired[~same], worths[~same, 1])
    if floor is None:
        rows.enter(gain, np.broadcast_to(least, gain.shape), -1.0)
    return rows.program(), _ProgrammeColumns(least=least, single=single, paired=paired)


def _solve(program: Program, steps: float) -> EngineAnswer:
    answer = create("highs").solve(program, Limits(work=steps))
    if answer.values is None:
        raise EngineError(f"no allocation of GPU types: {answer.status.value} {answer.note}", engine="highs")
    return answer


def _read(table: ThroughputTable, useful: ThroughputTable, answer: EngineAnswer) -> Allocation:
    """Values of the useful columns at their places in the whole table."""
    assert answer.values is not None
    values = np.maximum(answer.values[1:], 0.0)
    able = useful.speed > 0
    single = np.zeros_like(table.speed)
    single[able] = values[: int(able.sum())]
    together = (useful.pair_speed > 0).any(axis=2)
    held: Floats = np.zeros(together.shape)
    held[together] = values[int(able.sum()) :]
    pair_at = {(int(left), int(right)): index for index, (left, right) in enumerate(table.pairs)}
    paired = np.zeros((len(table.pairs), len(table.devices)))
    for index, (left, right) in enumerate(useful.pairs):
        paired[pair_at[int(left), int(right)]] = held[index]
    return Allocation(single=single, paired=paired)
