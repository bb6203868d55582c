"""Grids side by side are read as each alone, and as the same points listed one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileGrid
from solvers.models.believed import is_measured
from solvers.models.table import ProfileTable, Tables, stacks
from tests import builders

TOP = builders.gpu_type("v100").clock_mhz_sm_max
SHARES, BATCHES = (20, 50, 100), (1, 4, 16)


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


def test_a_grid_and_its_points_make_the_same_table() -> None:
    listed = ProfileTable.of(builders.profile("m", "v100", shares=SHARES, batches=BATCHES))
    table = ProfileTable.of(compact("m"))
    assert listed is not None
    assert table is not None
    for one, other in zip(listed.grids, table.grids, strict=True):
        assert one.clock_mhz_sm == other.clock_mhz_sm
        for name in ("batches", "shares_pct", "latency_ms_mean", "latency_ms_tail", "memory_mib", "measured"):
            assert getattr(one, name) == pytest.approx(getattr(other, name))
        assert one.power_w == pytest.approx(other.power_w, abs=1e-3)
    wanted = ([1, 8, 16], [30, 75, 100], TOP)
    assert listed.predict(*wanted).latency_ms_mean == pytest.approx(table.predict(*wanted).latency_ms_mean)


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
        alone = ProfileTable.of(profile)
        assert alone is not None
        grid, own = tables.grid_at(profile.model, profile.gpu_type, TOP), alone.grid_at(TOP)
        assert grid is not None
        assert own is not None
        assert np.array_equal(grid.latency_ms_mean, own.latency_ms_mean)
        assert tables.grid_at(profile.model, profile.gpu_type, TOP - 1) is None
    assert tables.grid_at(ModelName("nobody"), GpuTypeName("v100"), TOP) is None


def test_cells_that_cannot_run_are_no_cells_and_the_careful_value_wins() -> None:
    # More share must not be slower, a larger batch not faster; 0 cannot run.
    rows = (9.0, 0.0, 40.0, 5.0, 4.0, 20.0, 6.0, 8.0, 0.0)
    table = ProfileTable.of(compact("m", latency_ms=rows, power_w=(), latency_ms_p99=()))
    assert table is not None
    (grid,) = table.grids
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
    table = ProfileTable.of(profile)
    assert table is not None
    assert [item.clock_mhz_sm for item in table.grids] == [TOP - 300]
    found = Tables({(profile.model, profile.gpu_type): profile}).grid_at(profile.model, profile.gpu_type, TOP)
    assert found is not None
    assert found.clock_mhz_sm == TOP - 300


def test_a_grid_needs_no_belief() -> None:
    assert is_measured(compact("m"))
