"""Networks once for each of their batches, where memory is what is paid.

Owns that split: a larger batch serves more and uses more memory, and which is cheaper depends on what one replica more
costs, so every batch that may be worth it is a choice of its own. Limits of memory cost nothing, and a batch is changed
in place while the limit bears it, so all have the limit of the largest, as far as a device full of replicas would bear
it. Where shares or whole devices are paid the batch that serves most is right, and nothing is split. It refuses to know
prices.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import ModelName, WorkloadId
from solvers.problems.joint import JointProblem

GAIN_PART_MIN = 0.01
"""A batch that serves hardly more than a smaller one is no choice."""
VARIANTS_MAX = 2000


def split(problem: JointProblem, used_mib: Floats) -> JointProblem:
    """The same problem with a variant for every batch worth choosing: batches up to that one. `used_mib`: table x
    variant x batch, what is used with it.
    """
    if not problem.by_memory or not len(problem.variants):
        return problem
    most = max(1, VARIANTS_MAX // len(problem.variants))
    ceilings = [_ceilings(problem, number, used_mib[:, number], most) for number in range(len(problem.variants))]
    chosen = np.array([number for number, found in enumerate(ceilings) for _ in found], dtype=np.int64)
    columns = np.array([column for found in ceilings for column in found], dtype=np.int64)
    largest = np.array([found[-1] for found in ceilings for _ in found], dtype=np.int64)
    wide, every = problem.of_variants(chosen), np.arange(len(chosen))
    beyond = np.arange(len(problem.batches))[None, :] > columns[:, None]

    def below(cells: Floats) -> Floats:
        return np.where(beyond[None, :, None, :], np.inf, cells)

    mean_ms = below(wide.mean_ms)
    billed = used_mib[:, chosen][:, every, columns]
    ample = np.minimum(wide.memory_mib[:, every, largest], _full_mib(problem)[:, None])
    return replace(
        wide,
        variants=tuple(
            replace(item, batch_max=int(problem.batches[column]))
            for item, column in zip(wide.variants, columns.tolist(), strict=True)
        ),
        mean_ms=mean_ms,
        tail_ms=mean_ms if wide.tail_ms is wide.mean_ms else below(wide.tail_ms),
        power_w=below(wide.power_w),
        memory_mib=np.maximum(wide.memory_mib, ample[:, :, None]),
        billed_mib=np.where(np.isfinite(billed), billed, 0.0),
    )


def _full_mib(problem: JointProblem) -> Floats:
    """By table: what each has of a device that carries as many replicas as it may."""
    found = np.full(len(problem.mean_ms), np.inf)
    pools = problem.kind_pool
    even = np.array([item.memory_mib / max(1, item.clients) for item in problem.pools])
    np.minimum.at(found, problem.kind_table, even[pools])
    return found


def _ceilings(problem: JointProblem, number: int, used_mib: Floats, most: int) -> list[int]:
    """Columns of batches, rising: each serves more than the one before; the largest, and of the others those that
    serve most for their memory, if there are too many.
    """
    with np.errstate(divide="ignore"):
        rate: Floats = np.max(problem.batches / problem.mean_ms[:, number].min(axis=1), axis=0)
    used: Floats = used_mib.min(axis=0)
    found: list[int] = []
    for column in range(len(rate)):
        if rate[column] > (1 + GAIN_PART_MIN) * max((rate[item] for item in found), default=0.0):
            found.append(column)
    if problem.workloads[problem.variants[number].workload].limit_fixed or not found:
        return found[-1:] or [len(rate) - 1]
    worth: Floats = rate / np.maximum(used, 1.0)
    best = sorted(found[:-1], key=lambda column: -float(worth[column]))[: most - 1]
    return sorted([*best, found[-1]])


class Names:
    """Which variant a replica is, by its workload, network and batch."""

    def __init__(self, problem: JointProblem) -> None:
        self._variants: dict[tuple[WorkloadId, ModelName], list[tuple[int, int]]] = defaultdict(list)
        for number, item in enumerate(problem.variants):
            self._variants[problem.workloads[item.workload].id, item.model].append((item.batch_max, number))

    def variant(self, name: tuple[WorkloadId, ModelName], batch: int) -> int | None:
        """The one of the smallest batches that has this one; None for a network that may not serve."""
        listed = self._variants.get(name, [])
        return next((number for most, number in listed if batch <= most), listed[-1][1] if listed else None)
