"""Worlds that replay a study: surfaces without a law, their scatter, what is refused, what may stand here."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.library import load_gpu_types, load_models
from benchmarks.calibrate_truth.studies import rows_of, stored_text
from lab.arena.loading import load
from lab.world import replays
from lab.world.profiling import known_truth, profiles_of
from lab.world.replays import STUDIES, Study, replay_of, surface_of
from lab.world.world import World
from solvers.domain.ids import GpuTypeName
from solvers.errors import InputError
from solvers.sim.truth.catalogue import GPUS, MODELS, key_of, model_truth
from solvers.sim.truth.replay import Beside, Replay, TimeSurface
from solvers.sim.truth.truth import Resident, execution_ms, slowdown, training_iteration_ms

V100 = GPUS["v100"]
FILE = """
kind: world
name: replayed
title: One service on a V100 as measured
span: 20s
truth: {replay: [STUDY]}
fleet:
  - {gpu_type: v100, nodes: 1, usd_per_h: 2.48}
services:
  - {name: classify, model: resnet50, slo: {latency_ms: 120}, load: {pattern: steady, rate_rps: 40}}
"""


def no_data(*path: str) -> list[dict[str, str]]:
    raise AssertionError(f"{path} was read")


def read(folder: Path, study: str, data: Path) -> World:
    file = folder / "mine.yaml"
    file.write_text(FILE.replace("STUDY", study), encoding="utf-8")
    made = load(file, data)
    assert isinstance(made, World)
    return made


def one(model: str, share: int, batch: int) -> Resident:
    return Resident(model=model, share_pct_sm=share, batch=batch)


def test_a_surface_is_straight_between_cells_and_grows_beyond_the_largest_batch_as_it_did() -> None:
    told = TimeSurface((1, 4), (0.25, 1.0), ((4.0, 1.0), (16.0, 4.0)))
    assert told.at(1, 0.5) == pytest.approx(2.0)
    assert told.at(2, 0.25) == pytest.approx(8.0)
    assert told.at(8, 1.0) == pytest.approx(8.0)
    assert told.at(1, 0.05) == told.at(1, 0.25)


def test_a_surface_is_fitted_through_what_was_measured_and_knows_its_scatter() -> None:
    cells = {(batch, part): 3.0 * batch**0.5 / part for batch in (1, 2, 4, 8) for part in (0.1, 0.2, 0.4, 0.8)}
    fitted = surface_of(cells)
    assert all(fitted.at(*cell) == pytest.approx(value, rel=1e-3) for cell, value in cells.items())
    assert fitted.noise < 1e-3
    luck = np.exp(0.1 * np.random.default_rng(1).standard_normal(len(cells)))
    rough = {cell: value * float(each) for (cell, value), each in zip(cells.items(), luck, strict=True)}
    assert 0.02 < surface_of(rough).noise < 0.15


def test_what_lines_miss_between_few_cells_is_no_noise() -> None:
    """Without scatter a coarse grid has none, and with scatter it has that much."""
    parts = (0.09, 0.2, 0.29, 0.5, 0.74, 1.0)
    exact = {(batch, part): (1.0 + 0.5 * batch) * (0.3 + 0.7 / part) for batch in (1, 4, 16, 64) for part in parts}
    assert surface_of(exact).noise < 2e-3
    luck = np.exp(0.01 * np.random.default_rng(2).standard_normal(len(exact)))
    rough = {cell: value * float(each) for (cell, value), each in zip(exact.items(), luck, strict=True)}
    assert surface_of(rough).noise == pytest.approx(0.01, rel=0.5)


def test_the_noise_of_our_own_gpu_is_near_what_its_repeats_say() -> None:
    """Repeats of a captured batch scatter by 0.6 to 1.0 %, told from medians and 99th percentiles."""
    for network in ("resnet50-trt", "mobilenet", "bert-base"):
        assert replay_of(["headroom-h100"], no_data).times["h100", key_of(network)].noise < 0.015
        assert replay_of(["headroom-h200"], no_data).times["h200", key_of(network)].noise < 0.015


def test_a_study_tells_times_slowdowns_and_training_where_it_measured_and_laws_the_rest() -> None:
    key, flat = ("v100", key_of("resnet50")), TimeSurface((1, 8), (0.1, 1.0), ((50.0, 5.0), (80.0, 8.0)))
    told = Replay(
        name="mine",
        times={key: flat},
        slowdowns={(*key, key_of("vgg19")): Beside(((8, 0.5, 8, 0.5, 1.7), (1, 0.1, 1, 0.9, 1.2)))},
        iterations={key: TimeSurface((1,), (0.5, 1.0), ((3.0, 1.0),))},
    )
    gpu = replace(V100, replay=told)
    assert execution_ms(gpu, one("resnet50", 100, 8), 1530) == pytest.approx(8.0)
    assert execution_ms(gpu, one("resnet50", 100, 8), 765) > 8.0
    assert execution_ms(gpu, one("vgg19", 50, 8), 1530) == execution_ms(V100, one("vgg19", 50, 8), 1530)
    assert slowdown(gpu, one("resnet50", 50, 8), 1530, [one("vgg19", 50, 8)])[0] == pytest.approx(1.7, abs=0.01)
    assert slowdown(gpu, one("vgg19", 50, 8), 1530, [one("resnet50", 50, 8)])[0] < 1.3
    job = replace(one("resnet50", 50, 1), training=True)
    assert training_iteration_ms(gpu, job, 1530, (), 100.0, V100) == pytest.approx(300.0)


def test_a_world_of_a_kept_study_needs_no_data_and_measures_it(tmp_path: Path) -> None:
    made = read(tmp_path, "rapp-v100", tmp_path / "nowhere").scenario
    told = replay_of(["rapp-v100"], no_data)
    surface = told.times["v100", key_of("resnet50")]
    truth = known_truth(GpuTypeName("v100"), made.replay)
    found = execution_ms(truth, one("resnet50", 20, 4), 1530)
    assert found == pytest.approx(surface.at(4, 0.2))
    assert found != pytest.approx(execution_ms(V100, one("resnet50", 20, 4), 1530), rel=1e-3)
    assert made.latency_noise == pytest.approx(0.03, abs=0.02)
    assert made.latency_noise != 0.03
    grid = profiles_of(replace(made, profiling=replace(made.profiling, noise=0.0)), 1)[0].grid
    assert grid is not None
    place = grid.shares_pct_sm.index(20) * len(grid.batches) + grid.batches.index(4)
    assert grid.latency_ms[place] == pytest.approx(surface.at(4, 0.2), rel=1e-4)


def test_a_kept_study_tells_slowdowns_of_pairs_too_and_the_first_of_two_counts() -> None:
    gpu = replace(GPUS["h100"], replay=replay_of(["headroom-h100", "rapp-v100"], no_data))
    assert execution_ms(gpu, one("resnet50-trt", 100, 16), 1980) == pytest.approx(2.48, rel=0.02)
    assert execution_ms(gpu, one("resnet50", 100, 16), 1980) == pytest.approx(3.77, rel=0.02)
    beside = [one("mobilenet", 70, 16)]
    assert slowdown(gpu, one("resnet50-trt", 30, 16), 1980, beside)[0] == pytest.approx(1.21, abs=0.02)
    law = slowdown(GPUS["h100"], one("resnet50-trt", 30, 16), 1980, beside)[0]
    assert law == pytest.approx(1.25, abs=0.01)


def test_pairs_are_replayed_at_the_batches_that_were_measured() -> None:
    gpu = replace(GPUS["h200"], replay=replay_of(["headroom-h200"], no_data))

    def beside(batch: int, other: int) -> float:
        return slowdown(gpu, one("mobilenet", 50, batch), 1980, [one("resnet50-trt", 50, other)])[0]

    assert beside(16, 16) == pytest.approx(1.194, abs=0.005)
    assert beside(4, 4) == pytest.approx(1.234, abs=0.005)
    assert beside(1, 1) == pytest.approx(1.327, abs=0.005)
    assert beside(1, 16) == pytest.approx(1.432, abs=0.005)
    assert execution_ms(gpu, one("vgg19-trt", 100, 64), 1980) == pytest.approx(11.97, rel=0.01)


@pytest.mark.parametrize("study", ["headroom-h100", "headroom-h200"])
def test_what_is_kept_of_our_own_gpus_is_what_their_recordings_say(study: str) -> None:
    stored = json.loads(replays.STORE.read_text(encoding="utf-8"))
    assert json.loads(stored_text(rows_of(Path("nowhere")), [study])) == {study: stored[study]}


@pytest.mark.parametrize(
    ("study", "words"),
    [("lucid", "no study lucid can be replayed; known: rapp-v100"), ("igniter-v100", "has no igniter-v100/")],
)
def test_a_study_that_is_not_there_is_one_line(tmp_path: Path, study: str, words: str) -> None:
    with pytest.raises(InputError, match=r"mine.yaml:6: truth.replay") as told:
        read(tmp_path, study, tmp_path / "nowhere")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_only_studies_that_may_be_handed_on_stand_here_with_source_and_licence() -> None:
    stored = json.loads(replays.STORE.read_text(encoding="utf-8"))
    assert set(stored) == {name for name, study in STUDIES.items() if study.times is None}
    assert {each["licence"] for each in stored.values()} <= {"Apache-2.0", "MIT", "CC BY 4.0"}
    assert all(each["origin"] for each in stored.values())
    # Knots of a fit, and no table of anybody: fewer numbers than were measured.
    assert sum(len(row) for each in stored["rapp-v100"]["times"].values() for row in each["values"]) <= 988 / 2


def test_the_world_shares_no_constant_of_a_network_or_an_idle_a100_with_what_is_believed() -> None:
    """Data-sheet facts are both sides': SMs, memory, limits of power."""
    known = {model.name: model for model in load_models()}
    both = [name for name in known if key_of(name) in {key_of(each) for each in MODELS}]
    assert len(both) >= 12
    same = [name for name in both if known[name].memory_mib_per_input == model_truth(name).memory_mib_per_input]
    assert same == []
    a100 = next(each for each in load_gpu_types() if each.name == "a100")
    assert a100.idle_w != GPUS["a100"].idle_w


def test_studies_are_read_from_their_own_rows() -> None:
    def rows(*path: str) -> list[dict[str, str]]:
        assert path == ("infless-2080ti", "profile.csv")
        line = {"model": "resnet-50", "cpu_cores": "4", "gpu_sm_pct": "20", "batch": "8", "latency_ms": "138"}
        return [line, line | {"cpu_cores": "8"}, line | {"latency_ms": "9999"}, line | {"gpu_sm_pct": "0"}]

    study: Study = STUDIES["infless-2080ti"]
    assert study.times is not None
    assert list(study.times(rows).items()) == [(("resnet50-tfs", 8, 12 / 68), 138.0)]
    assert math.isclose(138.0, replay_of(["infless-2080ti"], rows).times["rtx-2080ti", "resnet50tfs"].at(8, 0.2))
