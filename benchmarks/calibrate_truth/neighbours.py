"""What neighbours do at several batches, and several of them at once, as this project measured on an H200.

Owns the fits behind what `solvers.sim.truth.catalogue` says of neighbours on that type alone: what each adds whatever
runs, how many of a graph's kernels each holds up (slowdowns are linear in both), and how several come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from benchmarks.calibrate_truth.own import BOARDS, Slowdown, crowds, resident_of, slowdowns
from benchmarks.calibrate_truth.studies import OURS_LATER, TRAINING, alone_of, beside_batch, rows_of
from lab.world.replays import CsvRows
from solvers.sim.truth.catalogue import GpuTruth, model_on
from solvers.sim.truth.truth import LAUNCH_MS_PER_KERNEL_AND_NEIGHBOUR, parts, slowdown

GPU = BOARDS[OURS_LATER]
NETWORKS = ("resnet50-trt", "mobilenet", "bert-base")
"""Of the pairs, in the order of the fitted kernels."""
NORMS = (1.0, 8.0)


@dataclass(frozen=True, slots=True)
class Pair:
    """A slowdown: published, by pressure on caches and memory alone, and how what is fitted raises it."""

    names: frozenset[str]
    published: float
    pressure: float
    slopes: tuple[float, ...]
    """Of what a neighbour adds that serves, and that trains, then of a kernel of each of `NETWORKS`."""


def pairs_of(rows: CsvRows, study: str = OURS_LATER, gpu: GpuTruth = GPU) -> list[Pair]:
    told = rows(study, "beside.csv")
    alone, found = alone_of(told), []
    for each in told:
        if not each["beside"] or TRAINING in each["network"]:
            continue
        mine = resident_of(each["network"], each["share_pct"], each["batch"])
        theirs = resident_of(each["beside"], each["beside_share_pct"], beside_batch(each))
        clock = gpu.clock_mhz_sm_max
        bare = replace(gpu, slowdown_per_neighbour=0.0, slowdown_per_training=0.0)
        either = replace(gpu, slowdown_per_neighbour=1.0, slowdown_per_training=1.0)
        none, one = (slowdown(gpu, mine, clock, [theirs])[0] for gpu in (bare, either))
        kernel = LAUNCH_MS_PER_KERNEL_AND_NEIGHBOUR / parts(gpu, model_on(gpu, mine.model), mine, clock).total_ms
        least = (one - none) * np.array([not theirs.training, theirs.training])
        slopes = (*least.tolist(), *(kernel * (name == mine.model) for name in NETWORKS))
        published = float(each["latency_ms_p50"]) / alone[each["network"], each["share_pct"], each["batch"]]
        found.append(Pair(frozenset((each["network"], each["beside"])), published, none, slopes))
    return found


def fitted(pairs: Sequence[Pair]) -> np.ndarray:
    """What a neighbour adds, and kernels of each network, by least squares; none is below nothing."""
    missing = np.array([each.published - each.pressure for each in pairs])
    return np.asarray(nnls(np.array([each.slopes for each in pairs]), missing)[0])


def errors_of(pairs: Sequence[Pair], numbers: np.ndarray) -> np.ndarray:
    return np.array([abs(each.pressure + np.array(each.slopes) @ numbers - each.published) for each in pairs])


def left_out(pairs: Sequence[Pair]) -> list[float]:
    """Errors of each two networks, told by what all others say."""
    found: list[float] = []
    for names in {each.names for each in pairs}:
        kept = fitted([each for each in pairs if each.names != names])
        found += errors_of([each for each in pairs if each.names == names], kept).tolist()
    return found


def serving_crowds(rows: CsvRows, gpu: GpuTruth = GPU, study: str = OURS_LATER) -> list[Slowdown]:
    return [each for each in crowds(rows, gpu, study) if each.serving]


def norm_of(rows: CsvRows) -> float:
    """How neighbours come together, by least squares over those that serve among three at once."""

    def off(norm: float) -> float:
        told = serving_crowds(rows, replace(GPU, neighbours_norm=norm))
        return sum((each.modelled - each.published) ** 2 for each in told)

    return float(minimize_scalar(off, bounds=NORMS, method="bounded").x)


def report(data: Path, fitting: bool) -> None:
    """Print errors by batch and of crowds, and when fitting the coefficients of a new fit."""
    rows = rows_of(data)
    pairs = pairs_of(rows)
    beside = slowdowns(rows, GPU, OURS_LATER)
    told = [each for each in beside if each.serving and not each.beside_training]
    for batch in sorted({each.batch for each in told}):
        _print(f"batches of {batch}", [each for each in told if each.batch == batch])
    _print("one neighbour that trains", [each for each in beside if each.serving and each.beside_training])
    every = crowds(rows, GPU, OURS_LATER)
    for training in (False, True):
        what = f"two neighbours{', one trains' if training else ''}"
        _print(what, [each for each in every if each.serving and each.beside_training == training])
    _print("training beside two", [each for each in every if not each.serving])
    if fitting:
        serves, trains, *kernels = fitted(pairs)
        print(
            f"a neighbour adds {serves:.3f}, that trains {trains:.3f}; kernels",
            ", ".join(map("{} {:.1f}".format, NETWORKS, kernels)),
        )
        off = errors_of(pairs, fitted(pairs))
        print(f"mean error {off.mean():.3f}, of two networks left out {np.mean(left_out(pairs)):.3f}")
        print(f"several come together with a norm of {norm_of(rows):.2f}")


def _print(what: str, told: Sequence[Slowdown]) -> None:
    published, modelled = np.array([(each.published, each.modelled) for each in told]).T
    print(
        f"{len(told)} slowdowns, {what}: mean {published.mean():.3f}, modelled {modelled.mean():.3f}; mean error "
        f"{np.abs(modelled - published).mean():.3f}, of the mean {np.abs(published - published.mean()).mean():.3f}"
    )
