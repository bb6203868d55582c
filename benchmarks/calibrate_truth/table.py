"""How far simulated hardware is from each public study: told by the numbers that rest on it, and by those that do not.

Owns the table of `docs/lab/simulator.md` (`python -m benchmarks.calibrate_truth --write`). *Held out* leaves a whole
study out: the laws then tell its networks by what other studies gave them, a replay by another study's surface of the
same network on the same GPU. Time is a batch's, alone; slowdown is its time against that on the largest share measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.calibrate_truth import clocks, igniter, own, slices, training
from benchmarks.calibrate_truth.studies import EVERY, OURS, OURS_LATER, headroom_pairs, miso
from lab.world.replays import CsvRows, Pairs, StudyCell, igniter_pairs, surface_of, surfaces_of
from solvers.sim.truth.catalogue import GPUS, MODELS, PAIRS, GpuTruth, ModelTruth, key_of, model_on, model_truth
from solvers.sim.truth.replay import Beside
from solvers.sim.truth.truth import Resident, parts

PAGE = Path("docs/lab/simulator.md")
BEGIN, END = "<!-- errors by source: python -m benchmarks.calibrate_truth --write -->\n", "<!-- end of errors -->\n"
Told = Callable[[StudyCell], float | None]
SECOND: Mapping[str, Mapping[str, str]] = {
    "rapp-v100": {"alexnet": "alexnet-trt", "resnet50": "resnet50-trt", "vgg19": "vgg19-trt"},
    "igniter-v100": {"alexnet-trt": "alexnet", "resnet50-trt": "resnet50", "vgg19-trt": "vgg19"},
    "infless-2080ti": {"resnet50-tfs": "resnet50", "mobilenet-tfs": "mobilenet", "ssd-resnet50-tfs": "ssd-resnet50"},
}
"""Whose numbers stand for a network where its own study is left out; else the A100's for the V100 and the other way."""
OTHERS_SURFACE = {
    "rapp-v100": "igniter-v100", "igniter-v100": "rapp-v100", OURS: OURS_LATER, OURS_LATER: OURS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeanErrors:
    """Mean relative errors, of all cells that were told."""

    cells: int
    time: float
    slowdown: float

    def text(self) -> str:
        return f"{100 * self.time:.1f} / {100 * self.slowdown:.1f}" if self.cells else "–"


def off(cells: Mapping[StudyCell, float], told: Told) -> MeanErrors:
    found = {cell: value for cell in cells if (value := told(cell)) is not None}
    largest: dict[tuple[str, int], StudyCell] = {}
    for cell in found:
        known = largest.setdefault(cell[:2], cell)
        largest[cell[:2]] = max(known, cell, key=lambda each: each[2])
    time = [abs(value / cells[cell] - 1.0) for cell, value in found.items()]
    slower = [
        abs(value / found[whole] / (cells[cell] / cells[whole]) - 1.0)
        for cell, value in found.items()
        if (whole := largest[cell[:2]]) != cell
    ]
    return MeanErrors(len(time), float(np.mean(time or [0.0])), float(np.mean(slower or [0.0])))


def by_law(gpu: GpuTruth, numbers: Callable[[str], ModelTruth | None]) -> Told:
    """Told by the laws; a cell's part of the SMs is a slice of an A100, elsewhere a share."""

    def told(cell: StudyCell) -> float | None:
        model = numbers(cell[0])
        if model is None:
            return None
        part = gpu
        share = min(100, int(np.ceil(100 * cell[2] - 1e-9)))
        if gpu.name == "a100":
            part, share = next(each for each in slices.SLICES.values() if each.sm_count == round(108 * cell[2])), 100
        one = Resident(model=model.name, share_pct_sm=share, batch=cell[1])
        return parts(part, model, one, part.clock_mhz_sm_max).total_ms

    return told


def held_out(study: str, name: str) -> ModelTruth | None:
    """The network by numbers that do not rest on the study."""
    if study in own.HELD_OUT:
        return model_on(own.HELD_OUT[study], name)
    if name in SECOND.get(study, {}):
        return MODELS[SECOND[study][name]]
    if study == "parvagpu-a100-mig":
        # Its own numbers on a V100; those of resnet152 and bert-large rest on this study.
        return model_truth(name) if name not in ("resnet152", "bert-large") else None
    on_a100 = PAIRS.get(("a100", key_of(name)))
    return replace(MODELS[name], **on_a100) if study == "rapp-v100" and on_a100 else None


def alone_row(name: str, rows: CsvRows) -> str:
    gpu_name, licence, read = EVERY[name]
    cells, gpu = read(rows), GPUS[gpu_name]
    surfaces, unseen = surfaces_of(cells), own.HELD_OUT.get(name, gpu)
    other = OTHERS_SURFACE.get(name)
    elsewhere = surfaces_of(EVERY[other][2](rows)) if other else {}
    named = SECOND.get(name, {})

    def from_other(cell: StudyCell) -> float | None:
        surface = elsewhere.get(cell[0] if name in own.BOARDS else named.get(cell[0], ""))
        return None if surface is None else surface.at(*cell[1:])

    found = (
        off(cells, by_law(gpu, lambda network: model_on(gpu, network))),
        off(cells, by_law(unseen, lambda network: held_out(name, network))),
        off(cells, lambda cell: surfaces[cell[0]].at(*cell[1:])),
        off(cells, from_other),
        off(cells, left_out(cells)),
    )
    return f"| {name}, {gpu_name}, {licence} | {len(cells)} | " + " | ".join(each.text() for each in found) + " |"


def left_out(cells: Mapping[StudyCell, float], every: int = 5) -> Told:
    """A surface fitted to four fifths of its network's cells tells the last fifth."""
    by_network: dict[str, dict[tuple[int, float], float]] = {}
    for cell, value in cells.items():
        by_network.setdefault(cell[0], {})[cell[1:]] = value
    told: dict[StudyCell, float] = {}
    for network, its in by_network.items():
        for turn in range(every):
            kept = {where: value for place, (where, value) in enumerate(sorted(its.items())) if place % every != turn}
            surface = surface_of(kept)
            told |= {(network, *where): surface.at(*where) for where in its if where not in kept}
    return told.get


def pairs_row(
    what: str, published: Sequence[float], modelled: Sequence[float], pairs: Pairs, unseen: Sequence[float] = ()
) -> str:
    law = float(np.mean(np.abs(np.array(modelled) - published)))
    constant = float(np.mean(np.abs(np.mean(published) - np.array(published))))
    replayed, left = [], []
    for beside in pairs.values():
        for place, (*where, factor) in enumerate(beside.cells):
            rest = Beside((*beside.cells[:place], *beside.cells[place + 1 :]))
            replayed.append(abs(beside.at(*where) - factor))
            left.append(abs(rest.at(*where) - factor))
    told = f"{np.mean(replayed):.3f} | {np.mean(left):.3f}" if pairs else "|"
    without = f" ({np.mean(np.abs(np.array(unseen) - published)):.3f})" if unseen else ""
    return f"| {what}, absolute | {len(published)} | {law:.3f}{without} | {constant:.3f} | {told} |"


def own_rows(rows: CsvRows, study: str) -> list[str]:
    """Our own GPU: pairs that serve, serving beside training, board power; in brackets by laws that never saw it."""
    both = own.BOARDS[study], own.HELD_OUT[study]
    beside, unseen = ([each for each in own.slowdowns(rows, gpu, study) if each.serving] for gpu in both)
    found = []
    for training_too, pairs in ((False, headroom_pairs(rows, study)), (True, {})):
        its, without = ([each for each in told if each.beside_training == training_too] for told in (beside, unseen))
        what = f"{study}: slowdown beside one neighbour{' that trains' if training_too else ''}"
        modelled, apart = ([each.modelled for each in told] for told in (its, without))
        found.append(pairs_row(what, [each.published for each in its], modelled, pairs, apart))
    if study == OURS_LATER:
        crowds, apart_crowds = ([each for each in own.crowds(rows, gpu, study) if each.serving] for gpu in both)
        modelled, apart = ([each.modelled for each in told] for told in (crowds, apart_crowds))
        found.append(
            pairs_row(f"{study}: slowdown beside two", [each.published for each in crowds], modelled, {}, apart)
        )
    watts, without_w = (own.power(rows, gpu, study) for gpu in both)
    for captured in (True, False):
        off_by = [
            100 * np.mean([abs(each.modelled_w / each.published_w - 1.0) for each in told if each.captured == captured])
            for told in (watts, without_w)
        ]
        count = sum(each.captured == captured for each in watts)
        what = f"{study}: board power, {'engines' if captured else 'eager PyTorch'}"
        found.append(f"| {what} | {count} | {off_by[0]:.1f} % ({off_by[1]:.1f} %) | | | |")
    return found


def others(data: Path, rows: CsvRows) -> list[str]:
    """Rows of what is no time of a batch alone: cells, error of the laws, error of always saying the mean, replays."""
    watts = igniter.power_errors(data / "igniter-v100")
    published, modelled = igniter.slowdowns_of(data / "igniter-v100")
    found = [
        pairs_row("igniter-v100: slowdown beside one neighbour", published, modelled, igniter_pairs(rows)),
        f"| igniter-v100: board power | {len(watts)} | {100 * np.mean(watts):.1f} % | | | |",
        *(line for study in own.BOARDS for line in own_rows(rows, study)),
    ]
    crowds = slices.crowds(slices.rates(data / "parvagpu-a100-mig"))
    _, _, published, ours = crowds.T
    law, constant = (100 * np.mean(np.abs(each / published - 1.0)) for each in (ours, published.mean()))
    crowd = "parvagpu-a100-mig: two to five processes without limits"
    found.append(f"| {crowd} | {len(ours)} | {law:.1f} % | {constant:.1f} % | | |")
    slices_off = training.slice_errors(data)
    cells = miso(rows)
    surfaces = surfaces_of(cells)
    replayed = off(cells, lambda cell: surfaces[cell[0]].at(*cell[1:]))
    found.append(
        f"| miso-a100-mig-training: iterations on slices | {len(slices_off)} | {100 * np.mean(slices_off):.1f} % | | "
        f"{100 * replayed.time:.1f} % | {100 * off(cells, left_out(cells, 3)).time:.1f} % |"
    )
    for board, runs in clocks.limited(data).items():
        gpu = GPUS[clocks.LIMITED[board]]
        wrong = clocks.limit_errors(runs, gpu.uncore_part, gpu.voltage_floor)
        mean = 100 * np.mean(np.abs(wrong))
        found.append(f"| zeus-train-power, {board}: epochs under power limits | {len(runs)} | {mean:.1f} % | | | |")
    lines = clocks.exponents(data)
    found.append(
        f"| dlbench-dvfs-train: exponent of dynamic power over the clock, published {np.median(lines):.2f} | "
        f"{len(lines)} | {clocks.ours():.2f} | | | |"
    )
    beside = ", ".join(f"{published:.2f} ({ours:.2f})" for _, published, ours in training.beside(data))
    found.append(f"| tally-a100-infer-train: BERT beside training, latency, published (ours) | 4 | {beside} | | | |")
    return found


def text(data: Path, rows: CsvRows) -> str:
    """Both tables."""
    columns = ("study, GPU, licence", "cells", "laws, fitted", "laws, study left out", "replay, fitted")
    head = "| " + " | ".join((*columns, "replay, other study's", "replay, a fifth of cells left out")) + " |"
    alone = [alone_row(name, rows) for name in EVERY]
    rest = "| what else | cells | laws | always the mean | replay | replay, left out |"
    lines = [head, "|---|---|---|---|---|---|---|", *alone, "", rest, "|---|---|---|---|---|---|", *others(data, rows)]
    return "\n".join(lines) + "\n"


def write(data: Path, rows: CsvRows) -> None:
    """Put the tables into the page, in place of those that stand there."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text(data, rows)}\n{END}{after}", encoding="utf-8")
