"""Our own H100 and H200 in the simulated world: what is committed is what fits say, what is left out never saw it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibrate_truth import neighbours, own, table
from benchmarks.calibrate_truth.fitting import errors
from benchmarks.calibrate_truth.studies import OURS_LATER, headroom, headroom_later, rows_of
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
    assert own.factors_of({name: own.cells_of(ROWS)[name]}) == pytest.approx([work, host], rel=0.02)


def test_a_fit_made_again_gives_what_is_committed() -> None:
    cells = own.cells_of(ROWS)["resnet50"]
    again, committed = own.told_by(cells, "resnet50"), model_on(own.GPU, "resnet50")
    assert errors(again, cells).mean() == pytest.approx(errors(committed, cells).mean(), abs=0.002)


# --- The H200

H200 = own.BOARDS[OURS_LATER]
LATER = (*NETWORKS, "vgg19-trt")


@pytest.mark.parametrize("name", LATER)
def test_each_network_is_told_on_the_later_board_too(name: str) -> None:
    """Eager batches of a few inputs that wait for their host scatter by half."""
    cells = own.cells_of(ROWS, H200, OURS_LATER)[name]
    found = errors(model_on(H200, name), cells)
    assert found.mean() < 0.08
    assert name == "resnet50" or found.max() < 0.2
    again = own.told_by(cells, name)
    assert errors(again, cells).mean() == pytest.approx(found.mean(), abs=0.002)


def test_what_was_foretold_of_it_rests_on_the_first_board_and_a_data_sheet() -> None:
    carried = own.HELD_OUT[OURS_LATER]
    assert [model_on(carried, name) for name in LATER] == [model_on(own.GPU, name) for name in LATER]
    assert carried.memory_bandwidth_gb_per_s == 4800
    assert carried.slowdown_per_neighbour == own.GPU.slowdown_per_neighbour
    found = table.off(headroom_later(ROWS), table.by_law(carried, lambda network: model_on(carried, network)))
    assert found.cells == 108
    assert found.time == pytest.approx(0.160, abs=0.001)


def test_neighbours_at_every_batch_cost_what_the_pairs_say() -> None:
    pairs = neighbours.pairs_of(ROWS)
    assert len(pairs) == 76 + 27
    serves, trains, _, *kernels = neighbours.fitted(pairs)
    assert H200.slowdown_per_neighbour == pytest.approx(serves, abs=0.005)
    assert H200.slowdown_per_training == pytest.approx(trains, abs=0.005)
    assert [model_on(H200, name).kernels for name in ("mobilenet", "bert-base")] == pytest.approx(kernels, abs=1.0)
    assert np.mean(neighbours.left_out(pairs)) < 0.05
    told = [each for each in own.slowdowns(ROWS, H200, OURS_LATER) if each.serving]
    for batch in (1, 4, 16):
        published, modelled = np.mean([(each.published, each.modelled) for each in told if each.batch == batch], axis=0)
        assert modelled == pytest.approx(published, abs=0.03)


def test_two_neighbours_cost_less_than_both_added_up() -> None:
    assert H200.neighbours_norm == pytest.approx(neighbours.norm_of(ROWS), abs=0.1)
    told = neighbours.serving_crowds(ROWS)
    summed = neighbours.serving_crowds(ROWS, replace(H200, neighbours_norm=1.0))
    off, off_summed = (np.mean([abs(each.modelled - each.published) for each in found]) for found in (told, summed))
    assert off < 0.05 < off_summed


def test_power_is_what_was_read_from_the_later_board() -> None:
    for name, fitted in own.intensities(ROWS, H200, OURS_LATER).items():
        assert model_on(H200, name).power_intensity == pytest.approx(fitted, rel=0.01)
    watts = own.power(ROWS, H200, OURS_LATER)
    assert np.mean([abs(each.modelled_w / each.published_w - 1.0) for each in watts]) < 0.07


def test_factors_of_engines_stand_between_both_that_were_measured() -> None:
    every = own.cells_of(ROWS, H200, OURS_LATER)
    found = own.factors_of({name: every[name] for name in own.ENGINES})
    told = model_on(H200, "alexnet-trt").work_ms_sm_per_input / MODELS["alexnet-trt"].work_ms_sm_per_input
    assert told == pytest.approx(found[0], rel=0.02)
