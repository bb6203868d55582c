"""What measurements prove of a replica alone: monotony, rates between shares, grids and points alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileGrid
from solvers.verify.proof import ColumnProof
from tests import builders

CLOCK = 1590
CLOCKS = (990, 1590)
PROFILE = builders.profile(clocks=CLOCKS)
PROOF = ColumnProof.of(PROFILE)
HOLES = {(1590, 100, 32), (990, 10, 1), (1590, 10, 1), (990, 20, 1)}
"""Clock, share and batch of configurations that cannot run."""


def as_grid(profile: Profile) -> Profile:
    """The same measurements in compact form, but for the holes."""
    cells = {(each.clock_mhz_sm, each.share_pct_sm, each.batch): each for each in profile.points}
    order = [cells[key] for key in product(CLOCKS, builders.SHARES, builders.BATCHES)]
    able = [(each.clock_mhz_sm, each.share_pct_sm, each.batch) not in HOLES for each in order]
    grid = ProfileGrid(
        clocks_mhz_sm=CLOCKS,
        shares_pct_sm=builders.SHARES,
        batches=builders.BATCHES,
        latency_ms=tuple(each.latency_ms_mean if fine else 0.0 for each, fine in zip(order, able, strict=True)),
        latency_ms_p99=tuple(2 * each.latency_ms_mean if fine else 0.0 for each, fine in zip(order, able, strict=True)),
        power_w=tuple(each.power_w or 0.0 for each in order),
        memory_mib=tuple(builders.memory_mib(batch) for batch in builders.BATCHES),
    )
    return Profile(model=profile.model, gpu_type=profile.gpu_type, grid=grid)


def without_holes(profile: Profile) -> Profile:
    """The same points with the grid's tails, but for the holes."""
    points = (
        replace(each, latency_ms_p99=2 * each.latency_ms_mean)
        for each in profile.points
        if (each.clock_mhz_sm, each.share_pct_sm, each.batch) not in HOLES
    )
    return replace(profile, points=tuple(points))


def test_a_measured_configuration_is_its_own_proof() -> None:
    for point in PROFILE.points:
        found = PROOF.execution_ms(point.share_pct_sm, point.clock_mhz_sm, point.batch)
        assert found == pytest.approx((point.latency_ms_mean, point.latency_ms_mean))


def test_between_two_shares_the_mean_of_the_rates_proves_more_than_the_lower_share() -> None:
    low, high = builders.latency_ms("t4", 8, 40), builders.latency_ms("t4", 8, 50)
    found = PROOF.execution_ms(43, CLOCK, 8)
    assert found is not None
    assert found[0] == pytest.approx(1 / (0.7 / low + 0.3 / high))
    assert builders.latency_ms("t4", 8, 43) < found[0] < low


def test_no_chord_reaches_above_the_highest_share_or_below_the_lowest() -> None:
    proof = ColumnProof.of(builders.profile(shares=(20, 50)))
    assert proof.execution_ms(19.9, CLOCK, 1) is None
    assert proof.execution_ms(90, CLOCK, 1) == proof.execution_ms(50, CLOCK, 1)


def test_a_slower_reading_at_more_share_does_not_count_against_less() -> None:
    points = tuple(
        replace(point, latency_ms_mean=99.0) if (point.share_pct_sm, point.batch) == (50, 8) else point
        for point in builders.profile().points
    )
    proof = ColumnProof.of(replace(PROFILE, points=points))
    least = builders.latency_ms("t4", 8, 40)
    for share in (40, 45, 50, 55):
        found = proof.execution_ms(share, CLOCK, 8)
        assert found is not None
        assert found[0] <= least


def test_a_larger_batch_and_a_lower_clock_prove_too() -> None:
    assert PROOF.execution_ms(50, CLOCK, 5) == PROOF.execution_ms(50, CLOCK, 8)
    assert PROOF.execution_ms(50, 1290, 8) == PROOF.execution_ms(50, 990, 8)


@pytest.mark.parametrize("asked", [(50, CLOCK, 64), (5, CLOCK, 1), (50, 500, 1)])
def test_nothing_is_extrapolated(asked: tuple[float, int, int]) -> None:
    assert PROOF.execution_ms(*asked) is None


def test_a_configuration_measured_twice_counts_as_the_slower_and_the_hungrier() -> None:
    first = PROFILE.points[0]
    again = replace(first, latency_ms_mean=2 * first.latency_ms_mean, power_w=300.0)
    for points in ((first, again), (again, first)):
        proof = ColumnProof.of(Profile(model=first.model, gpu_type=first.gpu_type, points=points))
        asked = (first.share_pct_sm, first.clock_mhz_sm, first.batch)
        assert proof.execution_ms(*asked) == pytest.approx((2 * first.latency_ms_mean, 2 * first.latency_ms_mean))
        assert proof.power_w(*asked)[0] == 300.0


def test_points_beside_neighbours_prove_nothing() -> None:
    point = replace(PROFILE.points[0], neighbours=(ModelName("other"),))
    profile = Profile(model=point.model, gpu_type=GpuTypeName("t4"), points=(point,))
    assert ColumnProof.of(profile).execution_ms(100, CLOCK, 1) is None


def test_power_is_what_less_of_everything_draws() -> None:
    proof = ColumnProof.of(builders.profile(batches=(4, 8), shares=(20, 40)))
    power = {(each.share_pct_sm, each.batch): each.power_w for each in builders.profile().points}
    assert proof.power_w(39, CLOCK, 8) == (power[20, 8], 20)
    assert proof.power_w(100, CLOCK, 5) == (power[40, 4], 40)
    # Below the smallest measured batch the smallest is the nearest that is known.
    assert proof.power_w(40, CLOCK, 1) == (power[40, 4], 40)
    assert proof.power_w(10, CLOCK, 8) == (None, 0)


def test_memory_is_the_most_of_no_larger_a_batch() -> None:
    assert PROOF.memory_needed_mib(CLOCK, 9) == builders.memory_mib(8)
    assert PROOF.memory_needed_mib(500, 9) is None


def test_a_grid_proves_what_its_points_do() -> None:
    grid, points = ColumnProof.of(as_grid(PROFILE)), ColumnProof.of(without_holes(PROFILE))
    asked = list(product((5, 10, 13.5, 20, 25, 99, 100), (900, 990, 1300, 1590), (1, 3, 8, 31, 32, 33)))
    assert [grid.execution_ms(*each) for each in asked] == [points.execution_ms(*each) for each in asked]
    assert [grid.power_w(*each) for each in asked] == [points.power_w(*each) for each in asked]
    assert {grid.execution_ms(*each) for each in asked} > {None}
    assert grid.memory_needed_mib(CLOCK, 32) == points.memory_needed_mib(CLOCK, 32) == builders.memory_mib(32)
