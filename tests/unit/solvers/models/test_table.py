"""Profile tables: exact at measured points, monotone, side by side as each alone, and as their points listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileGrid
from solvers.models.believed import is_measured
from solvers.models.table import Grid, Tables, grids_of, stacks
from tests import builders

CLOCK = 1590
TOP = builders.gpu_type("v100").clock_mhz_sm_max
SHARES, BATCHES = (20, 50, 100), (1, 4, 16)


def cell(profile: Profile, batch: int, share_pct: int) -> tuple[Grid, tuple[int, int]]:
    grid = grids_of(profile)[-1]
    return grid, (grid.shares_pct.tolist().index(share_pct), grid.batches.tolist().index(batch))


def test_measured_points_come_back_as_they_are() -> None:
    profile = builders.profile()
    for point in profile.points:
        grid, at = cell(profile, point.batch, point.share_pct_sm)
        assert grid.measured[at]
        assert grid.latency_ms_mean[at] == pytest.approx(point.latency_ms_mean)
        assert grid.memory_mib[at[1]] == pytest.approx(point.memory_mib)
        assert grid.power_w[at] == pytest.approx(point.power_w)


def test_the_tail_is_the_p99_where_measured() -> None:
    points = tuple(replace(point, latency_ms_p99=point.latency_ms_mean * 1.5) for point in builders.profile().points)
    (tailed,) = grids_of(replace(builders.profile(), points=points))
    assert tailed.latency_ms_tail == pytest.approx(1.5 * tailed.latency_ms_mean)
    (plain,) = grids_of(builders.profile())
    assert np.array_equal(plain.latency_ms_tail, plain.latency_ms_mean)


def test_points_beside_neighbours_are_left_out() -> None:
    crowded = tuple(replace(point, neighbours=(ModelName("bert"),)) for point in builders.profile().points)
    assert grids_of(replace(builders.profile(), points=crowded)) == ()
    slow = tuple(replace(point, latency_ms_mean=point.latency_ms_mean * 3) for point in crowded)
    (mixed,) = grids_of(replace(builders.profile(), points=(*builders.profile().points, *slow)))
    (alone,) = grids_of(builders.profile())
    assert np.array_equal(mixed.latency_ms_mean, alone.latency_ms_mean)


def test_of_two_measurements_of_one_point_the_careful_one_counts() -> None:
    profile = builders.profile(batches=(8,), shares=(50,))
    slower = replace(profile.points[0], latency_ms_mean=profile.points[0].latency_ms_mean * 2)
    grid, at = cell(replace(profile, points=(slower, *profile.points)), 8, 50)
    assert grid.latency_ms_mean[at] == slower.latency_ms_mean


def test_a_hole_between_measured_batches_lies_between_them() -> None:
    profile = builders.profile(batches=(1, 4, 16), shares=(20, 50))
    holed = tuple(point for point in profile.points if (point.share_pct_sm, point.batch) != (20, 4))
    grid, at = cell(replace(profile, points=holed), 4, 20)
    assert not grid.measured[at]
    before, after = grid.latency_ms_mean[at[0], [0, 2]]
    assert grid.latency_ms_mean[at] == pytest.approx(before + (after - before) * 3 / 15)


def test_without_a_power_reading_power_is_unknown() -> None:
    points = tuple(replace(point, power_w=None) for point in builders.profile().points)
    (grid,) = grids_of(replace(builders.profile(), points=points))
    assert np.isnan(grid.power_w).all()


def test_a_clock_uses_the_grid_that_is_not_faster() -> None:
    profile = builders.profile(clocks=(990, 1290))
    tables = Tables({(profile.model, profile.gpu_type): profile})
    found = [tables.grid_at(profile.model, profile.gpu_type, clock) for clock in (989, 990, 1289, 1290, 2000)]
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
    for grid in grids_of(replace(profile, points=tuple(kept))):
        assert (np.diff(grid.latency_ms_mean, axis=1) >= -1e-9).all(), "latency falls with batch"
        assert (np.diff(grid.latency_ms_mean, axis=0) <= 1e-9).all(), "latency rises with share"
        assert (np.diff(grid.memory_mib) >= -1e-9).all(), "memory falls with batch"


def compact(model: str, work: float = 1.0, **changes: Any) -> Profile:
    listed = builders.profile(model, "v100", work=work, shares=SHARES, batches=BATCHES)
    made = ProfileGrid(
        clocks_mhz_sm=(TOP,),
        shares_pct_sm=SHARES,
        batches=BATCHES,
        latency_ms=tuple(point.latency_ms_mean for point in listed.points),
        power_w=tuple(point.power_w or 0.0 for point in listed.points),
        memory_mib=tuple(builders.memory_mib(batch, work) for batch in BATCHES),
    )
    return replace(listed, points=(), grid=replace(made, **changes))


def in_stack(profile: Profile, clock_mhz: int = TOP) -> Grid:
    found = Tables({(profile.model, profile.gpu_type): profile}).grid_at(profile.model, profile.gpu_type, clock_mhz)
    assert found is not None
    return found


def test_a_grid_and_its_points_make_the_same_table() -> None:
    (one,) = grids_of(builders.profile("m", "v100", shares=SHARES, batches=BATCHES))
    other = in_stack(compact("m"))
    assert one.clock_mhz_sm == other.clock_mhz_sm
    for name in ("batches", "shares_pct", "latency_ms_mean", "latency_ms_tail", "memory_mib", "measured"):
        assert getattr(one, name) == pytest.approx(getattr(other, name))
    assert one.power_w == pytest.approx(other.power_w, abs=1e-3)


def test_profiles_of_equal_axes_share_a_stack_in_any_company() -> None:
    profiles = [
        compact("m"),
        compact("n", 3.0),
        compact("o", shares_pct_sm=(10, 50, 100)),
        builders.profile("p", "v100"),
    ]
    found = stacks(profiles)
    assert sorted(tuple(key[0] for key in stack.keys) for stack in found) == [("m", "n"), ("o",)]
    tables = Tables({(item.model, item.gpu_type): item for item in profiles})
    for profile in profiles:
        grid = tables.grid_at(profile.model, profile.gpu_type, TOP)
        assert grid is not None
        assert np.array_equal(grid.latency_ms_mean, in_stack(profile).latency_ms_mean)
        assert tables.grid_at(profile.model, profile.gpu_type, TOP - 1) is None
    assert tables.grid_at(ModelName("nobody"), GpuTypeName("v100"), TOP) is None


def test_cells_that_cannot_run_are_no_cells_and_the_careful_value_wins() -> None:
    # More share must not be slower, a larger batch not faster; 0 cannot run.
    rows = (9.0, 0.0, 40.0, 5.0, 4.0, 20.0, 6.0, 8.0, 0.0)
    grid = in_stack(compact("m", latency_ms=rows, power_w=(), latency_ms_p99=()))
    assert grid.measured.tolist() == [[True, False, True], [True, True, True], [True, True, False]]
    assert np.where(grid.measured, grid.latency_ms_mean, 0).tolist() == [
        [9.0, 0.0, 40.0],
        [6.0, 8.0, 20.0],
        [6.0, 8.0, 0.0],
    ]
    assert np.isnan(grid.power_w).all()


def test_a_clock_where_nothing_runs_is_passed_over() -> None:
    lower = tuple(compact("m").grid.latency_ms)
    grid = replace(
        compact("m").grid,
        clocks_mhz_sm=(TOP - 300, TOP),
        latency_ms=lower + (0.0,) * len(lower),
        power_w=(),
    )
    profile = Profile(model=ModelName("m"), gpu_type=GpuTypeName("v100"), grid=grid)
    assert in_stack(profile).clock_mhz_sm == TOP - 300


def test_a_grid_needs_no_belief() -> None:
    assert is_measured(compact("m"), builders.gpu_type("v100"))


def test_the_very_same_profiles_are_read_once_and_others_anew() -> None:
    """Also where pictures take turns: what is kept of one says nothing of another."""
    slow, fast = ((builders.profile(type_name="v100", work=work),) for work in (2.0, 1.0))
    key = slow[0].model, slow[0].gpu_type
    alone = {work: Tables({key: profile[0]}).reading(*key, TOP, 50.0) for work, profile in ((2, slow), (1, fast))}
    assert Tables.of(slow) is Tables.of(slow)
    for _ in range(2):
        assert Tables.of(slow).reading(*key, TOP, 50.0) == alone[2]
        assert Tables.of(fast).reading(*key, TOP, 50.0) == alone[1]
    assert alone[1] != alone[2]
