"""Inferno's sample: as it is (the figures of others are on the same inputs) and repeated (they are not)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.instances.inferno import greedy, inferno
from benchmarks.peers.record import Record, timed
from lab.benches.rolling.problems import InfernoCase
from solvers.engines.base import create
from solvers.engines.deadline import Deadline
from solvers.planners.counting.covers import Covered, Covers, cover

SECONDS = 9.0
GAP = 1e-4

CASES = (
    (InfernoCase(), False, 21161.0, True),
    (InfernoCase(), True, 20653.5, True),
    (InfernoCase(capacity=0.3), False, 17567.5, True),
    (InfernoCase(capacity=0.3), True, 15834.5, True),
    (InfernoCase(copies=10, capacity=0.15), False, 87294.5, False),
    (InfernoCase(copies=10, capacity=0.15), True, 83368.0, False),
    (InfernoCase(copies=40, capacity=0.3, load=1.35), False, 536910.2, False),
    (InfernoCase(copies=40, capacity=0.3, load=1.35), True, 529011.0, False),
)
"""Case, mixed types or one type per service, the others' best (a MILP, 60 s), on the same inputs or not."""


def records(data: Path) -> Iterator[Record]:
    """One per case."""
    for case, mixed, peer, same in CASES:
        read = inferno(data, case)
        plain = greedy(read)
        problem = read.covers
        found, seconds = timed(partial(_solve, problem, mixed=mixed))
        served = problem.served(found.counts)
        unserved_usd = float(problem.unserved_usd[~served].sum())
        yield Record(
            case=f"Inferno, {len(read.services)} services, {int(problem.units.sum()):,} accelerators, "
            f"{'mixed types' if mixed else 'one type each'}",
            unit="cents/h",
            peer=peer,
            same_inputs=same,
            yardstick=problem.usd(plain),
            yardstick_is=f"its greedy, {int((~problem.served(plain)).sum())} unserved",
            ours=problem.usd(found.counts),
            bound=found.bound - unserved_usd,
            unserved=int((~served).sum()),
            seconds=seconds,
            note=f"no plan leaves fewer than {found.unserved_least} unserved",
        )


def _solve(problem: Covers, *, mixed: bool) -> Covered:
    return cover(problem, create("highs"), Deadline(seconds=SECONDS), mixed=mixed, gap=GAP)
