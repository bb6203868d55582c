"""Times, slowdowns and power that this project measured itself on an H100 and an H200: what the laws make of them.

Owns the fits behind all that `solvers.sim.truth.catalogue` says of these types alone, but for what several neighbours
do (`neighbours`). `UNSEEN` is the H100 without them, as other studies tell it; `CARRIED` the H200 by the H100's laws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.calibrate_truth.fitting import WILD, Reach, Where, batch_ms, errors, fitted, row
from benchmarks.calibrate_truth.studies import (
    CAPTURED,
    OURS,
    OURS_LATER,
    TRAINING,
    alone_of,
    beside_batch,
    headroom,
    rows_of,
)
from benchmarks.sources.rows import H100, H200
from lab.world.replays import CsvRows
from solvers.sim.truth.catalogue import GPUS, MODELS, GpuTruth, ModelTruth, model_on
from solvers.sim.truth.truth import Resident, board_power_w, dynamic_power_w, execution_ms, idle_power_w, parts

GPU = GPUS[H100]
_USUAL = GPUS["v100"]
UNSEEN = replace(
    GPU,
    name=f"{H100}-unseen",
    bandwidth_part=_USUAL.bandwidth_part,
    slowdown_per_neighbour=_USUAL.slowdown_per_neighbour,
)
CARRIED = replace(
    GPU,
    name=f"{H200}-carried",
    like=H100,
    memory_mib=GPUS[H200].memory_mib,
    memory_bandwidth_gb_per_s=GPUS[H200].memory_bandwidth_gb_per_s,
)
"""All that was known of an H200 before one was measured: the same chip with the memory of its data sheet."""
BOARDS = {OURS: GPU, OURS_LATER: GPUS[H200]}
HELD_OUT = {OURS: UNSEEN, OURS_LATER: CARRIED}
"""The same boards by laws that never saw their study."""
BANDWIDTH_PARTS = (0.5, 0.75, 1.0)
TURNS = 5
ENGINES = ("resnet50-trt", "vgg19-trt")
"""Whose factors stand together for other engines, where both were measured."""
TENSOR_TFLOPS = 989.0
"""Of all SMs at half precision, by the data sheet."""
GFLOP = {"resnet50": 8.2, "resnet50-trt": 8.2, "mobilenet": 0.44, "vgg19-trt": 39.3, "bert-base": 22.3}
"""Of one input, two for a multiplication with an addition; the transformer reads 128 tokens."""
Cells = dict[Where, float]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Of one network beside others; any may train."""

    own: str
    others: tuple[str, ...]
    batch: int
    published: float
    modelled: float

    @property
    def serving(self) -> bool:
        return not self.own.startswith(TRAINING)

    @property
    def beside_training(self) -> bool:
        return any(other.startswith(TRAINING) for other in self.others)


def resident_of(network: str, share_pct: str, batch: str) -> Resident:
    name, training = network.removeprefix(TRAINING), network.startswith(TRAINING)
    model = name if training else CAPTURED[name]
    return Resident(model=model, share_pct_sm=int(share_pct), batch=int(batch), training=training)


def slower(gpu: GpuTruth, mine: Resident, others: Sequence[Resident]) -> float:
    clock = gpu.clock_mhz_sm_max
    return execution_ms(gpu, mine, clock, others) / execution_ms(gpu, mine, clock)


def slowdowns(rows: CsvRows, gpu: GpuTruth = GPU, study: str = OURS) -> list[Slowdown]:
    """Of medians; the last column tells what a law says of the same pair."""
    told = rows(study, "beside.csv")
    alone = alone_of(told)
    found = []
    for each in told:
        if not each["beside"]:
            continue
        mine = resident_of(each["network"], each["share_pct"], each["batch"])
        theirs = resident_of(each["beside"], each["beside_share_pct"], beside_batch(each))
        published = float(each["latency_ms_p50"]) / alone[each["network"], each["share_pct"], each["batch"]]
        modelled = slower(gpu, mine, (theirs,))
        found.append(Slowdown(each["network"], (each["beside"],), mine.batch, published, modelled))
    return found


def crowds(rows: CsvRows, gpu: GpuTruth, study: str) -> list[Slowdown]:
    """Of medians, each of several at once against its time alone."""
    alone, groups = alone_of(rows(study, "beside.csv")), defaultdict(list)
    for each in rows(study, "crowd.csv"):
        groups[each["group"]].append(each)
    found = []
    for group in groups.values():
        every = [resident_of(each["network"], each["share_pct"], each["batch"]) for each in group]
        for place, each in enumerate(group):
            mine, others = every[place], every[:place] + every[place + 1 :]
            names = tuple(other["network"] for other in group if other is not each)
            published = float(each["latency_ms_p50"]) / alone[each["network"], each["share_pct"], each["batch"]]
            found.append(Slowdown(each["network"], names, mine.batch, published, slower(gpu, mine, others)))
    return found


@dataclass(frozen=True, slots=True)
class BoardPower:
    model: str
    captured: bool
    published_w: float
    modelled_w: float


def power(rows: CsvRows, gpu: GpuTruth = GPU, study: str = OURS) -> list[BoardPower]:
    """Of the board at the clock that it ran at, one worker executing without pause."""
    found = []
    for each in rows(study, "surface.csv"):
        one = Resident(model=_model(each), share_pct_sm=int(each["share_pct"]), batch=int(each["batch"]))
        watts = board_power_w(gpu, [one], int(each["clock_mhz"]), gpu.tdp_w)
        found.append(BoardPower(one.model, each["captured"] == "1", float(each["power_w"]), watts))
    return found


def _model(told: dict[str, str]) -> str:
    return CAPTURED[told["network"]] if told["captured"] == "1" else told["network"]


# --- Fits


def cells_of(rows: CsvRows, gpu: GpuTruth = GPU, study: str = OURS) -> dict[str, Cells]:
    """Median milliseconds by network, but for those that a power limit held below the highest clock."""
    found: dict[str, Cells] = {}
    for each in rows(study, "surface.csv"):
        if not each["throttle"]:
            where = gpu, int(each["share_pct"]), int(each["batch"])
            found.setdefault(_model(each), {})[where] = float(each["latency_ms_p50"])
    return found


def half_precision(name: str) -> Reach:
    """Half the bytes, of which a large cache keeps some, graphs that hide no narrow kernel behind a host, and no more
    speed than the tensor cores have.
    """
    work_min = GFLOP[name] / TENSOR_TFLOPS * GPU.sm_count * GPU.sm_speed
    return Reach(width_min=1.0, spread_max=16.0, traffic_min=0.05, traffic_max=10.0, work_min=work_min)


def told_by(cells: Cells, name: str) -> ModelTruth:
    """A network by a fit to these cells, from what other studies say of it onwards."""
    return fitted(MODELS[name], cells, half_precision(name))


def left_out(cells: Cells, name: str) -> list[float]:
    """Errors of each fifth of the cells, told by a fit to the other four."""
    found: list[float] = []
    for turn in range(TURNS):
        apart = {where: time_ms for place, (where, time_ms) in enumerate(cells.items()) if place % TURNS == turn}
        kept = {where: time_ms for where, time_ms in cells.items() if where not in apart}
        found += errors(told_by(kept, name), apart).tolist()
    return found


def scaled(model: ModelTruth, factors: np.ndarray) -> ModelTruth:
    """Less work and a faster host, all else as other studies have it."""
    work, host = (float(each) for each in factors)
    return replace(model, work_ms_sm_per_input=work * model.work_ms_sm_per_input, host_ms=host * model.host_ms)


def factors_of(every: Mapping[str, Cells]) -> np.ndarray:
    """What half precision and this machine make of these networks' work and host, in two numbers."""
    times = np.array([time_ms for cells in every.values() for time_ms in cells.values()])

    def off(point: np.ndarray) -> np.ndarray:
        models = {name: scaled(MODELS[name], np.exp(point)) for name in every}
        told = [batch_ms(models[name], where) for name, cells in every.items() for where in cells]
        return np.asarray(np.log(np.array(told) / times))

    least_work = max(half_precision(name).work_min / MODELS[name].work_ms_sm_per_input for name in every)
    bounds = (np.log([least_work, 5e-3]), np.log([3.0, 3.0]))
    found = least_squares(off, np.log([0.5, 0.5]), bounds=bounds, loss="soft_l1", f_scale=2.0 * WILD)
    return np.asarray(np.exp(found.x))


@dataclass(frozen=True, slots=True)
class Pair:
    """A slowdown beside one that serves: published, by the laws if neighbours added nothing, and how what they add
    raises it.
    """

    names: frozenset[str]
    published: float
    without: float
    slope: float

    def off(self, added: float) -> float:
        return abs(self.without + self.slope * added - self.published)


def per_neighbour(pairs: Sequence[Pair]) -> float:
    """What a neighbour that serves adds, by least squares: slowdowns are linear in it."""
    slope = np.array([each.slope for each in pairs])
    missing = np.array([each.published - each.without for each in pairs])
    return float(slope @ missing / (slope @ slope))


def pairs_of(rows: CsvRows) -> list[Pair]:
    none, one = (slowdowns(rows, replace(GPU, slowdown_per_neighbour=each)) for each in (0.0, 1.0))
    return [
        Pair(frozenset((less.own, *less.others)), less.published, less.modelled, more.modelled - less.modelled)
        for less, more in zip(none, one, strict=True)
        if less.serving and not less.beside_training
    ]


def pairs_left_out(pairs: Sequence[Pair]) -> list[float]:
    """Errors of each two networks, told by what all others say."""
    return [each.off(per_neighbour([other for other in pairs if other.names != each.names])) for each in pairs]


def intensities(rows: CsvRows, gpu: GpuTruth = GPU, study: str = OURS) -> dict[str, float]:
    """Of each network's power, by least squares of relative errors: watts are linear in it."""
    idle_w = gpu.idle_w + gpu.context_w
    found: dict[str, list[tuple[float, float]]] = {}
    for each in rows(study, "surface.csv"):
        one = Resident(model=_model(each), share_pct_sm=int(each["share_pct"]), batch=int(each["batch"]))
        alike = dynamic_power_w(gpu, one, int(each["clock_mhz"])) / model_on(gpu, one.model).power_intensity
        published_w = float(each["power_w"])
        found.setdefault(one.model, []).append((alike / published_w, 1.0 - idle_w / published_w))
    told = {name: np.array(its).T for name, its in found.items()}
    return {name: float(slope @ missing / (slope @ slope)) for name, (slope, missing) in told.items()}


def _fits(rows: CsvRows, study: str) -> None:
    gpu = BOARDS[study]
    every = cells_of(rows, gpu, study)
    for name, its in every.items():
        told = told_by(its, name)
        apart = left_out(its, name)
        print(f"{name:13}", row(told), f"mean error {100 * errors(told, its).mean():.1f} %,", end=" ")
        print(f"of a fifth of its cells left out {100 * np.mean(apart):.1f} %")
    for part in BANDWIDTH_PARTS:
        other = cells_of(rows, replace(gpu, bandwidth_part=part), study)
        each_off = [errors(told_by(its, name), its) for name, its in other.items()]
        means = ", ".join(f"{100 * each.mean():.1f}" for each in each_off)
        print(f"all bandwidth from {part:.2f} of the SMs on: mean errors {means} %")
    together = [(name,) for name in every] + [ENGINES] * all(name in every for name in ENGINES)
    for names in together:
        factors = factors_of({name: every[name] for name in names})
        off = {other: errors(scaled(MODELS[other], factors), cells).mean() for other, cells in every.items()}
        means = ", ".join(f"{other} {100 * each:.1f}" for other, each in off.items())
        print(f"{'+'.join(names):13} work times {factors[0]:.3f}, host {factors[1]:.3f}; mean errors {means} %")
    if study == OURS:
        pairs = pairs_of(rows)
        print(f"a neighbour adds {per_neighbour(pairs):.3f}, mean error left out {np.mean(pairs_left_out(pairs)):.3f}")
    print("power:", ", ".join(f"{name} {each:.3g}" for name, each in intensities(rows, gpu, study).items()))


def report(data: Path, fitting: bool) -> None:
    """Print errors by network, and when fitting the coefficients of a new fit."""
    rows = rows_of(data)
    for study in BOARDS:
        print(f"{study}:")
        _report(rows, study)
        if fitting:
            _fits(rows, study)


def _report(rows: CsvRows, study: str) -> None:
    gpu = BOARDS[study]
    ratios: dict[str, list[float]] = {}
    for (name, batch, part), published_ms in headroom(rows, study).items():
        one = Resident(model=name, share_pct_sm=min(100, int(np.ceil(100 * part - 1e-9))), batch=batch)
        law = parts(gpu, model_on(gpu, name), one, gpu.clock_mhz_sm_max).total_ms
        ratios.setdefault(name, []).append(law / published_ms)
    for name, each in ratios.items():
        print(f"{name:13} law / measured: median {np.median(each):.2f}, {min(each):.2f} to {max(each):.2f}")
    beside = slowdowns(rows, gpu, study)
    for serving, training in ((True, False), (True, True), (False, False), (False, True)):
        its = [each for each in beside if (each.serving, each.beside_training) == (serving, training)]
        if not its:
            continue
        published, modelled = np.array([(each.published, each.modelled) for each in its]).T
        print(
            f"{len(its)} slowdowns, {'serving' if serving else 'training'} beside "
            f"{'training' if training else 'serving'}: mean {published.mean():.3f} ({published.min():.3f} to "
            f"{published.max():.3f}), modelled {modelled.mean():.3f} ({modelled.min():.3f} to {modelled.max():.3f}); "
            f"mean error {np.abs(modelled - published).mean():.3f}"
        )
    watts = power(rows, gpu, study)
    off = [each.modelled_w / each.published_w - 1.0 for each in watts]
    print(f"{len(watts)} board powers: mean error {100 * np.mean(np.abs(off)):.1f} %, worst {100 * max(off):.1f} %")
    print(f"idle: {gpu.idle_w:.0f} W, {idle_power_w(gpu, [resident_of('resnet50', '10', '1')]):.0f} W with a context")
