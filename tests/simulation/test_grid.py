"""A part of the grid of `benchmarks.fluid`: both levels within five points of what was asked, whatever the world."""

from __future__ import annotations

import pytest

from benchmarks.fluid import MOST, Case, cases, compared

GRID = [case for case in cases() if case.batch > 2]
"""With batches of two some worlds are beyond: docs/lab/simulator.md says which."""
SOME = GRID[::37]


def test_the_part_has_some_of_everything() -> None:
    for name, least in {"load": 8, "replicas": 3, "beside": 2, "bursts": 2, "batch": 2, "limit": 3}.items():
        assert len({getattr(case, name) for case in SOME}) >= least, name


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.told)
def test_violations_and_completions_are_within_five_points(case: Case) -> None:
    off = compared(case, 1)
    assert max(off.violations, off.completions) <= MOST


def test_loads_of_the_grid_are_what_they_say() -> None:
    calm, drowned = (
        compared(Case(load=load, replicas=1, beside=True, bursts=False, batch=16, limit=2.5), 1) for load in (0.4, 1.3)
    )
    assert max(calm.violated) < 0.01
    assert min(calm.completed) > 0.99
    # Three tenths more than fits: of what is asked a quarter cannot be done.
    assert drowned.completed == pytest.approx((1 / 1.3, 1 / 1.3), abs=0.05)
