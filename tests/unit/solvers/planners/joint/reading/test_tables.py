"""Tables of the joint problem: nothing better than what was measured, on every share, clock and slice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, Profile, ProfileGrid
from solvers.models.options import memory_limit_mib
from solvers.planners.joint.reading.tables import Arrays, Colocation, Table, axes_of, clocks_of, fill, layers_of
from solvers.problems.joint import Variant
from solvers.problems.needs import needs_of
from solvers.verify.proof import ColumnProof
from tests import builders

MODEL, V100 = ModelName("resnet50"), GpuTypeName("v100")
TOP = builders.gpu_type("v100").clock_mhz_sm_max
CLOCKS, SHARES, BATCHES = (TOP - 300, TOP), (10, 30, 60, 100), (1, 4, 8)
CELLS = len(CLOCKS) * len(SHARES) * len(BATCHES)


def grid(latency_ms: list[float], power_w: list[float] | None = None) -> Profile:
    made = ProfileGrid(
        clocks_mhz_sm=CLOCKS,
        shares_pct_sm=SHARES,
        batches=BATCHES,
        latency_ms=tuple(latency_ms),
        latency_ms_p99=tuple(1.5 * item for item in latency_ms),
        power_w=tuple(power_w or ()),
        memory_mib=(900.0, 1000.0, 1300.0),
    )
    return Profile(model=MODEL, gpu_type=V100, grid=made)


def table(clock_mhz: int = TOP, sm_part: float = 1.0, *, exclusive: bool = False) -> Table:
    of = builders.gpu_type("v100")
    return Table(gpu_type=of, sm_part=sm_part, gpu_part=sm_part, exclusive=exclusive, clock_mhz=clock_mhz)


def filled(profile: Profile, *tables: Table, step_pct: int = 1) -> Arrays:
    layers = tuple(layers_of([profile]))
    axes = axes_of(layers, (item.sm_part for item in tables), step_pct, (), ())
    return fill(tables, (MODEL,), layers, axes)


def by_law(share: float, batch: int, clock: int) -> float:
    return (2.0 + 3.0 * batch / share * 10) * TOP / clock


LAW = [by_law(share, batch, clock) for clock in CLOCKS for share in SHARES for batch in BATCHES]


def test_measured_cells_stand_as_they_are() -> None:
    arrays = filled(grid(LAW), *(table(clock) for clock in CLOCKS))
    assert arrays.shares_pct.tolist() == list(SHARES)
    assert arrays.batches.tolist() == list(BATCHES)
    assert arrays.mean_ms.ravel() == pytest.approx(LAW)
    assert arrays.tail_ms == pytest.approx(1.5 * arrays.mean_ms)
    assert arrays.memory_mib[0, 0].tolist() == [memory_limit_mib(item) for item in (900.0, 1000.0, 1300.0)]


def test_points_and_grid_of_the_same_measurements_are_read_alike() -> None:
    listed = builders.profile(type_name="v100", shares=SHARES, batches=BATCHES)
    compact = ProfileGrid(
        clocks_mhz_sm=(TOP,),
        shares_pct_sm=SHARES,
        batches=BATCHES,
        latency_ms=tuple(point.latency_ms_mean for point in listed.points),
        power_w=tuple(point.power_w or 0.0 for point in listed.points),
        memory_mib=tuple(builders.memory_mib(batch) for batch in BATCHES),
    )
    one = filled(listed, table(sm_part=0.5))
    other = filled(Profile(model=MODEL, gpu_type=V100, grid=compact), table(sm_part=0.5))
    for name in ("mean_ms", "tail_ms", "power_w", "memory_mib"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-9)
    assert np.isfinite(one.mean_ms).any()


def test_nothing_is_said_below_the_lowest_share_or_clock() -> None:
    arrays = filled(grid(LAW), table(CLOCKS[0] - 1), table(sm_part=0.5))
    assert not np.isfinite(arrays.mean_ms[0]).any()
    # 10 % of the GPU is 20 % of half of it.
    known = np.isfinite(arrays.mean_ms[1, 0, :, 0])
    assert arrays.shares_pct[known].min() == 20
    assert not known[arrays.shares_pct < 20].any()


def test_a_slice_reads_its_share_of_the_gpu_between_the_measured_ones() -> None:
    arrays = filled(grid(LAW), table(sm_part=0.5))
    at = arrays.shares_pct.tolist().index(100)
    expected = 1 / np.interp(50, (30, 60), [1 / by_law(share, 4, TOP) for share in (30, 60)])
    assert arrays.mean_ms[0, 0, at, 1] == pytest.approx(expected)


def test_shares_handed_out_are_steps_next_to_the_measured_ones() -> None:
    arrays = filled(grid(LAW), table(sm_part=3 / 7), step_pct=5)
    assert all(share % 5 == 0 for share in arrays.shares_pct.tolist())
    # 10 % of the GPU is 23.3 % of the slice.
    assert {20, 25} <= set(arrays.shares_pct.tolist())


def test_a_device_for_one_replica_is_taken_whole() -> None:
    arrays = filled(grid(LAW), table(exclusive=True))
    assert np.isfinite(arrays.mean_ms[0, 0, -1]).all()
    assert not np.isfinite(arrays.mean_ms[0, 0, :-1]).any()


def test_unread_power_is_guessed_by_share() -> None:
    gpu_type = builders.gpu_type("v100")
    arrays = filled(grid(LAW), table())
    span_w = gpu_type.power_limit_w_max - gpu_type.idle_w
    assert arrays.power_w[0, 0, :, 0] == pytest.approx(span_w * np.array(SHARES) / 100)


def test_clocks_are_those_measured_rounded_up_to_ones_there_are() -> None:
    layers = tuple(layers_of([grid(LAW)]))
    assert clocks_of(layers, builders.gpu_type("v100")) == CLOCKS
    odd = builders.gpu_type("v100", clocks_mhz_sm=(TOP - 250, TOP))
    assert clocks_of(layers, odd) == (TOP - 250, TOP)
    assert clocks_of((), odd) == (TOP,)


def test_pressure_of_a_slice_is_that_of_its_part_of_the_gpu() -> None:
    known = Interference(pressure=0.4, exponent=0.5, sensitivity=0.3)
    told = Profile(model=MODEL, gpu_type=V100, interference=known)
    tables = (table(), table(sm_part=0.25))
    policy = builders.policy(interference_margin=1.25)
    picture = replace(builders.lab([builders.service("a"), builders.service("b")], policy=policy), profiles=(told,))
    variants = (Variant(workload=0, model=MODEL), Variant(workload=1, model=ModelName("other")))
    pressing = Colocation(picture, needs_of(picture, builders.everything_movable(picture)), variants)
    nothing = filled(grid(LAW), *tables)
    nothing.mean_ms[:] = np.inf
    both = replace(nothing, mean_ms=nothing.mean_ms.repeat(2, axis=1))
    pressure, exponent, sensitivity, crowd = pressing.pressures(np.arange(2), both)
    assert pressure[:, 0].tolist() == pytest.approx([0.4, 0.2])
    assert (exponent[0, 0], sensitivity[0, 0], crowd[0, 0]) == (0.5, 0.3, 1.0)
    assert (pressure[0, 1], sensitivity[0, 1], crowd[0, 1]) == (0.0, 0.0, 1.25)


@given(
    latency=st.lists(st.sampled_from([0.0, 3.0, 5.0, 8.0, 20.0, 50.0]), min_size=CELLS, max_size=CELLS),
    power=st.lists(st.sampled_from([0.0, 10.0, 40.0, 90.0]), min_size=CELLS, max_size=CELLS),
    sm_part=st.sampled_from([1.0, 0.5, 3 / 7]),
)
@settings(max_examples=15, deadline=None)
def test_nothing_read_is_better_than_what_is_proven(latency: list[float], power: list[float], sm_part: float) -> None:
    profile = grid(latency, power)
    proof = ColumnProof.of(profile)
    arrays = filled(profile, *(table(clock, sm_part) for clock in CLOCKS))
    for row, clock in enumerate(CLOCKS):
        for at, share in enumerate(arrays.shares_pct.tolist()):
            for column, batch in enumerate(arrays.batches.tolist()):
                mean = arrays.mean_ms[row, 0, at, column]
                if not np.isfinite(mean):
                    continue
                proven = proof.execution_ms(share * sm_part, clock, batch)
                assert proven is not None
                assert (mean, arrays.tail_ms[row, 0, at, column]) >= (proven[0] - 1e-9, proven[1] - 1e-9)
                least_w, _ = proof.power_w(share * sm_part, clock, batch)
                assert least_w is None or arrays.power_w[row, 0, at, column] >= least_w - 1e-9
                needed = proof.memory_needed_mib(clock, batch)
                assert needed is None or arrays.memory_mib[row, 0, column] >= needed
