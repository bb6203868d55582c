"""What planners may know: the truth over a grid with the noise asked for, the same for everybody."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lab.world.profiling import known_truth, profiles_of
from lab.world.scenario import JobEntry, Profiling
from solvers.domain.profile import ProfileOrigin
from solvers.errors import InputError
from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import Resident, execution_ms
from tests import builders
from tests.simulation.small_world import model, scenario

PROFILING = Profiling(batches=(1, 8), shares_pct_sm=(50, 100), clocks=3, noise=0.0)


def test_without_noise_a_profile_is_the_truth() -> None:
    made = scenario(profiling=PROFILING)
    found = {(each.model, each.gpu_type): each for each in profiles_of(made, 1)}
    assert list(found) == [(m, g) for m in ("resnet50-trt", "vgg19-trt") for g in ("t4", "v100")]
    grid = found["resnet50-trt", "v100"].grid
    assert grid is not None
    assert (grid.origin, grid.batches, grid.shares_pct_sm) == (ProfileOrigin.SIMULATED, (1, 8), (50, 100))
    assert len(grid.clocks_mhz_sm) == 3
    assert grid.clocks_mhz_sm[-1] == GPUS["v100"].clock_mhz_sm_max > grid.clocks_mhz_sm[0] > 300
    load = Resident(model="resnet50-trt", share_pct_sm=100, batch=8)
    wanted = execution_ms(GPUS["v100"], load, grid.clocks_mhz_sm[-1])
    assert grid.latency_ms[-1] == pytest.approx(wanted, rel=1e-5)
    assert grid.latency_ms_p99[-1] == pytest.approx(wanted * np.exp(2.326 * made.latency_noise), rel=1e-5)


def test_noise_is_as_large_as_asked_and_the_same_for_everybody() -> None:
    wide = Profiling(batches=tuple(range(1, 17)), noise=0.05)
    noisy, again, other = (profiles_of(scenario(profiling=wide), seed) for seed in (1, 1, 2))
    exact = profiles_of(scenario(profiling=replace(wide, noise=0.0)), 1)
    assert noisy == again != other
    off = [
        a / b
        for one, two in zip(noisy, exact, strict=True)
        for a, b in zip(one.grid.latency_ms if one.grid else (), two.grid.latency_ms if two.grid else (), strict=True)
    ]
    assert len(off) == 4 * 160
    assert float(np.std(np.log(off))) == pytest.approx(0.05, rel=0.15)


def test_what_does_not_fit_was_not_measured() -> None:
    large = replace(PROFILING, batches=(1, 4096))
    grid = profiles_of(scenario(profiling=large, models=(model("resnet50-trt"), model("vgg19-trt"))), 1)[0].grid
    assert grid is not None
    assert all((latency == 0.0) == (index % 2 == 1) for index, latency in enumerate(grid.latency_ms))


def test_pairs_are_measured_only_where_asked() -> None:
    measured = profiles_of(scenario(profiling=PROFILING), 1)
    assert all(each.interference is not None and each.interference.sensitivity > 0.0 for each in measured)
    bare = profiles_of(scenario(profiling=replace(PROFILING, interference=False)), 1)
    assert all(each.interference is None for each in bare)


def test_believed_slowdowns_are_near_the_true_ones_and_not_below() -> None:
    found = {each.model: each.interference for each in profiles_of(scenario(profiling=PROFILING), 1)}
    gpu, clock = GPUS["t4"], GPUS["t4"].clock_mhz_sm_max
    for mine, theirs in (("resnet50-trt", "vgg19-trt"), ("vgg19-trt", "resnet50-trt")):
        suffers, presses = found[mine], found[theirs]
        assert suffers is not None
        assert presses is not None
        for share in (20, 40, 60):
            alone = Resident(model=mine, share_pct_sm=100 - share, batch=8)
            beside = Resident(model=theirs, share_pct_sm=share, batch=8)
            true = execution_ms(gpu, alone, clock, (beside,)) / execution_ms(gpu, alone, clock)
            # Batches that were not measured may suffer a little more.
            assert true - 0.01 <= 1.0 + suffers.sensitivity * presses.pressure_at(share) <= true + 0.15


def test_unknown_hardware_is_refused() -> None:
    with pytest.raises(InputError, match="no simulated world"):
        known_truth(replace(scenario().fleet.gpu_types[0], name="abacus").name)


def test_groups_without_limits_are_measured_apart_and_never_told_better_than_they_are() -> None:
    measured = {each.model: each for each in profiles_of(scenario(profiling=PROFILING), 1) if each.gpu_type == "v100"}
    truth, clock = GPUS["v100"], GPUS["v100"].clock_mhz_sm_max
    for mine, other, many, batch in product(measured, measured, (1, 2, 3), PROFILING.batches):
        known, theirs = measured[mine].unlimited, measured[other].unlimited
        assert known is not None
        assert theirs is not None
        one, beside = (Resident(model=name, share_pct_sm=100, batch=batch) for name in (mine, other))
        really = execution_ms(truth, one, clock, [beside] * many) / execution_ms(truth, one, clock)
        told = 1 + known.sensitivity * many * theirs.pressure_at(100)
        assert really <= told * (1 + 1e-6) <= 2.5 * really
    bare = profiles_of(scenario(profiling=replace(PROFILING, interference=False)), 1)
    assert all(each.unlimited is None for each in bare)


def test_nothing_is_measured_where_all_that_runs_is_training() -> None:
    job = JobEntry(job=builders.job("train"), at_s=0.0)
    assert profiles_of(scenario(profiling=PROFILING, traffic=(), jobs=(job,)), 1) == ()


def test_power_and_memory_are_measured_with_noise_and_the_same_for_everybody() -> None:
    clean, noisy, again = (
        profiles_of(scenario(profiling=replace(PROFILING, noise_power=part, noise_memory=part / 2)), 1)[0].grid
        for part in (0.0, 0.04, 0.04)
    )
    assert clean is not None
    assert noisy is not None
    assert again == noisy
    off = np.array(noisy.power_w) / np.array(clean.power_w) - 1.0
    assert 0.005 < float(np.std(off)) < 0.1
    assert noisy.memory_mib != clean.memory_mib
    assert noisy.latency_ms == clean.latency_ms
