"""Who chooses the columns of problem (1): an integer engine, exactly, or a plain rule.

Owns the linear form of the knapsack, the plain rule (models by their rate over their limit, the best share for its
throughput, first fit) and the table of placers. A learned actor is one more placer: it is asked with the same columns
and answers with the same flags.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solvers.domain.arrays import Flags
from solvers.engines.base import Engine, Limits, Program, ProgrammeRows
from solvers.problems.knapsack import DUST, Knapsack

Placer = Callable[[Knapsack, "Flags"], "Flags | None"]
"""Which columns to take, out of those that may be; None: no answer."""


def program_of(problem: Knapsack, allowed: Flags) -> Program:
    """One whole number from 0 to 1 for every column."""
    rows = ProgrammeRows()
    columns = rows.add_columns(-problem.worth, allowed.astype(np.float64))
    gpus = len(problem.share_room_pct)
    share = rows.add_rows(np.full(gpus, -np.inf), problem.share_room_pct)
    memory = rows.add_rows(np.full(gpus, -np.inf), problem.memory_room_mib)
    wanted = rows.add_rows(np.full(len(problem.wanted), -np.inf), problem.wanted.astype(np.float64))
    rows.enter(share[problem.gpu], columns, problem.share_pct)
    rows.enter(memory[problem.gpu], columns, problem.memory_mib)
    rows.enter(wanted[problem.model], columns, 1.0)
    places, place = np.unique(problem.model * gpus + problem.gpu, return_inverse=True)
    once = rows.add_rows(np.full(len(places), -np.inf), np.ones(len(places)))
    rows.enter(once[place], columns, 1.0)
    return rows.program()


def exact(problem: Knapsack, allowed: Flags, engine: Engine, limits: Limits) -> Flags | None:
    """The best choice an engine finds within its limits; never worse than the plain rule's."""
    plain = greedy(problem, allowed)
    if not allowed.any():
        return plain
    answer = engine.solve(program_of(problem, allowed), limits, plain.astype(np.float64))
    if answer.values is None:
        return None
    chosen = np.rint(answer.values).astype(np.bool_)
    return chosen if problem.feasible(chosen) else None


def greedy(problem: Knapsack, allowed: Flags) -> Flags:
    """Models in their order; for each the column that serves most, then has the best throughput for its share."""
    chosen = np.zeros(len(problem), dtype=np.bool_)
    share, memory = problem.share_room_pct.copy(), problem.memory_room_mib.copy()
    value = (problem.throughput_rps + problem.staying_rps) / problem.share_pct
    for model, wanted in enumerate(problem.wanted):
        mine = np.flatnonzero(allowed & (problem.model == model))
        order = mine[np.lexsort((problem.gpu[mine], -value[mine], -problem.served[mine]))]
        used: set[int] = set()
        for column in order:
            gpu = int(problem.gpu[column])
            if len(used) == wanted:
                break
            fits = problem.share_pct[column] <= share[gpu] + DUST and problem.memory_mib[column] <= memory[gpu] + DUST
            if gpu in used or not fits:
                continue
            chosen[column] = True
            used.add(gpu)
            share[gpu] -= problem.share_pct[column]
            memory[gpu] -= problem.memory_mib[column]
    return chosen
