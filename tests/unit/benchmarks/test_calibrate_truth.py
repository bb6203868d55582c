"""Our own H100 in the simulated world: what is committed is what the fits say, and what is left out never saw it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibrate_truth import own, table
from benchmarks.calibrate_truth.fitting import errors
from benchmarks.calibrate_truth.studies import headroom, rows_of
from solvers.sim.truth.catalogue import GPUS, MODELS, model_on
from solvers.sim.truth.truth import Resident, clock_reached_mhz, execution_ms

ROWS = rows_of(Path("nowhere"))
NETWORKS = ("resnet50", "resnet50-trt", "mobilenet", "bert-base")


def off_by_law(gpu_name: str) -> table.MeanErrors:
    gpu = {"seen": own.GPU, "unseen": own.UNSEEN}[gpu_name]
    return table.off(headroom(ROWS), table.by_law(gpu, lambda network: model_on(gpu, network)))


def test_laws_tell_level_and_shape_of_what_was_measured() -> None:
    found = off_by_law("seen")
    assert found.cells == 84
    assert found.time < 0.05
    assert found.slowdown < 0.05


@pytest.mark.parametrize("name", NETWORKS)
def test_each_network_is_told_at_every_batch_and_share(name: str) -> None:
    found = errors(model_on(own.GPU, name), own.cells_of(ROWS)[name])
    assert found.mean() < 0.07
    assert found.max() < 0.2


def test_what_is_left_out_never_saw_the_recordings() -> None:
    v100 = GPUS["v100"]
    assert [model_on(own.UNSEEN, name) for name in NETWORKS] == [MODELS[name] for name in NETWORKS]
    assert own.UNSEEN.bandwidth_part == v100.bandwidth_part != own.GPU.bandwidth_part
    assert own.UNSEEN.slowdown_per_neighbour == v100.slowdown_per_neighbour != own.GPU.slowdown_per_neighbour
    assert off_by_law("unseen").time > 3.0


def test_a_neighbour_costs_what_the_pairs_say_and_no_fit_beats_it() -> None:
    pairs = own.pairs_of(ROWS)
    assert len(pairs) == 24
    assert own.GPU.slowdown_per_neighbour == pytest.approx(own.per_neighbour(pairs), abs=0.005)
    assert np.mean(own.pairs_left_out(pairs)) < 0.05
    training = [each for each in own.slowdowns(ROWS) if each.serving and each.beside_training]
    assert np.mean([each.modelled for each in training]) == pytest.approx(
        np.mean([each.published for each in training]), abs=0.02
    )


def test_power_is_what_was_read_from_the_board() -> None:
    for name, fitted in own.intensities(ROWS).items():
        assert model_on(own.GPU, name).power_intensity == pytest.approx(fitted, rel=0.01)
    assert np.mean([abs(each.modelled_w / each.published_w - 1.0) for each in own.power(ROWS)]) < 0.1


def test_a_full_board_is_held_at_the_clock_that_was_seen() -> None:
    """The transformer at a batch of 64 on all SMs; that cell's time is in no fit."""
    one = Resident(model="bert-base", share_pct_sm=100, batch=64)
    clock = clock_reached_mhz(own.GPU, [one], own.GPU.clock_mhz_sm_max, own.GPU.tdp_w)
    assert clock == pytest.approx(1830, abs=30)
    assert execution_ms(own.GPU, one, clock) == pytest.approx(3.37, rel=0.1)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_is_faster_than_the_tensor_cores(name: str) -> None:
    work = model_on(own.GPU, name).work_ms_sm_per_input
    tflops_per_sm = own.GFLOP[name] * own.GPU.sm_speed / work
    assert tflops_per_sm <= own.TENSOR_TFLOPS / own.GPU.sm_count * 1.001


@pytest.mark.parametrize(("name", "work", "host"), [("resnet50", 0.39, 0.53), ("resnet50-trt", 0.51, 0.50)])
def test_factors_of_software_that_was_measured_are_those_of_its_network(name: str, work: float, host: float) -> None:
    assert own.factors_of(MODELS[name], own.cells_of(ROWS)[name]) == pytest.approx([work, host], rel=0.02)


def test_a_fit_made_again_gives_what_is_committed() -> None:
    cells = own.cells_of(ROWS)["resnet50"]
    again, committed = own.told_by(cells, "resnet50"), model_on(own.GPU, "resnet50")
    assert errors(again, cells).mean() == pytest.approx(errors(committed, cells).mean(), abs=0.002)
