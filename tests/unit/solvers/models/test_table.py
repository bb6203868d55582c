"""The profile table: exact at measured points, monotone between them, honest about where it only clamps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.domain.ids import ModelName
from solvers.domain.profile import Profile
from solvers.models.table import ProfileTable
from tests import builders

CLOCK = 1590


def table(profile: Profile | None = None) -> ProfileTable:
    made = ProfileTable.of(profile or builders.profile())
    assert made is not None
    return made


def test_measured_points_come_back_as_they_are() -> None:
    profile = builders.profile()
    for point in profile.points:
        found = table(profile).predict(point.batch, point.share_pct_sm, point.clock_mhz_sm)
        assert float(found.latency_ms_mean) == pytest.approx(point.latency_ms_mean)
        assert float(found.memory_mib) == pytest.approx(point.memory_mib)
        assert float(found.power_w) == pytest.approx(point.power_w)
        assert bool(found.support)


def test_between_batches_the_way_is_straight() -> None:
    found = table().predict([4, 6, 8], 50, CLOCK).latency_ms_mean
    assert found[1] == pytest.approx((found[0] + found[2]) / 2)


def test_between_shares_the_way_is_straight_in_the_logarithm() -> None:
    found = table().predict(8, [20, np.sqrt(20 * 30), 30], CLOCK).latency_ms_mean
    assert found[1] == pytest.approx((found[0] + found[2]) / 2)


def test_between_clocks_the_way_is_straight() -> None:
    found = table(builders.profile(clocks=(990, 1590))).predict(8, 50, [990, 1290, 1590]).latency_ms_mean
    assert found[1] == pytest.approx((found[0] + found[2]) / 2)


@pytest.mark.parametrize(("batch", "share", "clock"), [(64, 50, CLOCK), (8, 5, CLOCK), (8, 50, 1000), (8, 50, 2000)])
def test_outside_the_table_clamps_and_says_so(batch: int, share: int, clock: int) -> None:
    found = table().predict(batch, share, clock)
    edge = table().predict(min(batch, 32), max(share, 10), CLOCK)
    assert not bool(found.support)
    assert float(found.latency_ms_mean) == pytest.approx(float(edge.latency_ms_mean))


def test_the_tail_is_the_p99_where_measured() -> None:
    points = tuple(replace(point, latency_ms_p99=point.latency_ms_mean * 1.5) for point in builders.profile().points)
    found = table(replace(builders.profile(), points=points)).predict(8, 50, CLOCK)
    assert float(found.latency_ms_tail) == pytest.approx(1.5 * float(found.latency_ms_mean))
    untailed = table().predict(8, 50, CLOCK)
    assert float(untailed.latency_ms_tail) == float(untailed.latency_ms_mean)


def test_points_beside_neighbours_are_left_out() -> None:
    crowded = tuple(replace(point, neighbours=(ModelName("bert"),)) for point in builders.profile().points)
    assert ProfileTable.of(replace(builders.profile(), points=crowded)) is None
    mixed = replace(builders.profile(), points=(*builders.profile().points, *crowded))
    assert float(table(mixed).predict(8, 50, CLOCK).latency_ms_mean) == float(
        table().predict(8, 50, CLOCK).latency_ms_mean
    )


def test_of_two_measurements_of_one_point_the_careful_one_counts() -> None:
    profile = builders.profile(batches=(8,), shares=(50,))
    slower = replace(profile.points[0], latency_ms_mean=profile.points[0].latency_ms_mean * 2)
    found = table(replace(profile, points=(slower, *profile.points))).predict(8, 50, CLOCK)
    assert float(found.latency_ms_mean) == slower.latency_ms_mean


def test_a_hole_between_measured_batches_is_supported_one_beyond_is_not() -> None:
    profile = builders.profile(batches=(1, 4, 16), shares=(20, 50))
    holed = replace(
        profile,
        points=tuple(point for point in profile.points if (point.share_pct_sm, point.batch) not in {(20, 4), (50, 16)}),
    )
    found = table(holed).predict([4, 16], [20, 50], CLOCK)
    assert found.support.tolist() == [True, False]


def test_without_a_power_reading_power_is_unknown() -> None:
    points = tuple(replace(point, power_w=None) for point in builders.profile().points)
    assert np.isnan(table(replace(builders.profile(), points=points)).predict(8, 50, CLOCK).power_w)


def test_a_clock_uses_the_grid_that_is_not_faster() -> None:
    made = table(builders.profile(clocks=(990, 1290)))
    found = [made.grid_at(clock) for clock in (989, 990, 1289, 1290, 2000)]
    assert [grid.clock_mhz_sm if grid is not None else None for grid in found] == [None, 990, 990, 1290, 1290]


@given(st.data())
def test_monotone_however_noisy_the_measurements(data: st.DataObject) -> None:
    profile = builders.profile(batches=(1, 4, 16), shares=(10, 40, 100), clocks=(990, 1590))
    noise = data.draw(st.lists(st.floats(0.2, 5), min_size=18, max_size=18))
    points = [
        replace(point, latency_ms_mean=point.latency_ms_mean * factor, memory_mib=point.memory_mib * factor)
        for point, factor in zip(profile.points, noise, strict=True)
    ]
    kept = data.draw(st.lists(st.sampled_from(points), min_size=2, unique=True))
    made = table(replace(profile, points=tuple(kept)))
    batches, shares, clocks = np.meshgrid([1, 2, 4, 9, 16, 20], [5, 10, 22, 40, 77, 100], [900, 990, 1300, 1590])
    found = made.predict(batches, shares, clocks)
    assert (np.diff(found.latency_ms_mean, axis=1) >= -1e-9).all(), "latency falls with batch"
    assert (np.diff(found.latency_ms_mean, axis=0) <= 1e-9).all(), "latency rises with share"
    assert (np.diff(found.latency_ms_mean, axis=2) <= 1e-9).all(), "latency rises with clock"
    assert (np.diff(found.memory_mib, axis=1) >= -1e-9).all(), "memory falls with batch"
