"""Melange's form: slices by counts beside a binary for every slice, on our own draws of the published sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.instances.melange import melange_slices
from benchmarks.peers.record import Record, timed
from solvers.engines.base import Limits
from solvers.engines.deadline import Deadline
from solvers.engines.registry import create
from solvers.planners.counting.rows import Rows
from solvers.planners.counting.slices import Sliced, slice_up
from solvers.problems.counts import Slices

SECONDS = 5.0
BINARY_SECONDS = 20.0
CASES = ((36, 6, 8, 100.0, 142.408), (225, 10, 8, 1000.0, 947.453), (400, 12, 4, 1000.0, 1099.695))
"""Buckets, types, slices, requests per second, what was reached on others' draws."""


def records(*, long: bool) -> Iterator[Record]:
    """One per case; with `long` the form with binaries is tried beside it."""
    for buckets, types, slices, rate, peer in CASES:
        problem = melange_slices(buckets, types, slices, rate, seed=1)
        found, seconds = timed(partial(_solve, problem))
        yield Record(
            case=f"Melange's form, {buckets} buckets x {types} types x {slices} slices",
            unit="$/h",
            peer=peer,
            same_inputs=False,
            yardstick=one_by_one(problem) if long else None,
            yardstick_is=f"binaries, CBC, {BINARY_SECONDS:g} s",
            ours=found.objective,
            bound=found.bound,
            unserved=0,
            seconds=seconds,
        )


def _solve(problem: Slices) -> Sliced:
    return slice_up(problem, create("highs"), Deadline(seconds=SECONDS))


def one_by_one(problem: Slices) -> float:
    """A binary for every slice on every type, by the engine that was used there."""
    rows = Rows()
    types = len(problem.usd)
    gpus = rows.add_columns(problem.usd, np.full(types, np.inf))
    room = rows.add_rows(np.full(types, -np.inf), np.zeros(types))
    rows.enter(room, gpus, -1.0)
    for load, slices in zip(problem.load, problem.slices, strict=True):
        able = np.nonzero(np.isfinite(load))[0]
        for _ in range(int(slices)):
            where = rows.add_columns(np.zeros(len(able)), np.ones(len(able)))
            placed = rows.add_rows(np.ones(1), np.ones(1))
            rows.enter(placed, where, 1.0)
            rows.enter(room[able], where, load[able])
    return create("cbc").solve(rows.program(), Limits(time_s=BINARY_SECONDS)).objective
