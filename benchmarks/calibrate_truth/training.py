"""Training: iteration times on MIG slices (MISO, SoCC'22, MIT licence) and beside inference (Tally, ASPLOS'25).

Owns the fit behind the SMs that training can use (`solvers.sim.truth.catalogue`), and the comparison with inference
beside training without share limits, to which nothing was fitted.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np

from lab.world.truth import mig_truth
from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import TRAINING_SERIAL_PART, Resident, execution_ms, filled, training_iteration_ms

A100 = GPUS["a100-40gb"]
SLICES = {size: mig_truth(A100, *shape) for size, shape in {
    1: (14, 4864), 2: (28, 9856), 3: (42, 19968), 4: (56, 19968), 7: (98, 40192)
}.items()}  # fmt: skip
LOAD = 0.5
"""Of the inference server, alone."""


def slowdowns(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Published iteration times against those on seven slices, by (model, batch), then by slice size."""
    times: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    with (folder / "train_iter_time_by_mig_slice.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            times[row["model"], row["batch"]][int(row["mig_slice"][0])] = float(row["median_iter_s"])
    return {
        key: {size: time / found[7] for size, time in found.items() if size < 7}
        for key, found in times.items()
        if 7 in found
    }


def fitted_sms(found: list[tuple[int, float]]) -> tuple[float, float]:
    """SMs in use that tell these slowdowns best, and the mean error left."""

    def off(needed: float) -> float:
        used = {size: filled(part.sm_count, needed) for size, part in SLICES.items()}
        law = [TRAINING_SERIAL_PART + (1.0 - TRAINING_SERIAL_PART) * used[7] / used[size] for size, _ in found]
        return float(statistics.mean(abs(each / true - 1.0) for each, (_, true) in zip(law, found, strict=True)))

    best = min(np.exp(np.linspace(2.0, 6.0, 80)), key=off)
    return float(best), off(float(best))


def errors_of(name: str, published: dict[tuple[str, str], dict[int, float]]) -> list[float]:
    """Of the committed number of one network, over all its batch sizes and slices."""
    one = Resident(model=name, share_pct_sm=100, training=True)
    whole_ms, *parts_ms = (
        training_iteration_ms(SLICES[size], one, A100.clock_mhz_sm_max, (), 1.0, A100) for size in (7, 1, 2, 3, 4)
    )
    ours = dict(zip((1, 2, 3, 4), parts_ms, strict=True))
    mine = [found for (model, _), found in published.items() if model == name]
    return [abs(ours[size] / whole_ms / true - 1.0) for found in mine for size, true in found.items()]


def slice_errors(data: Path) -> list[float]:
    published = slowdowns(data / "miso-a100-mig-training")
    return [each for name in sorted({key[0] for key in published}) for each in errors_of(name, published)]


def print_slices(published: dict[tuple[str, str], dict[int, float]], fitting: bool) -> None:
    """Error of the committed numbers by network, and when fitting the fits by network."""
    for name in sorted({key[0] for key in published}):
        errors = errors_of(name, published)
        print(f"{name:12} {len(errors)} slices: mean error {100 * statistics.mean(errors):.1f} %")
        if fitting:
            cells = [each for key, found in published.items() if key[0] == name for each in found.items()]
            sms, off = fitted_sms(cells)
            print(f"  best: {sms:.0f} SMs, mean error {100 * off:.1f} %")


def beside(data: Path) -> list[tuple[str, float, float]]:
    """Latency of BERT beside a training job without share limits, over its latency alone: published, and ours as a
    queue of single requests at the published load makes it of the slower execution.
    """
    found: dict[str, tuple[str, float, float]] = {}
    with (data / "tally-a100-infer-train" / "priority_aware_perf.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if "bert_infer" not in row["high_priority_job"] or row["best_effort_job"] in found:
                continue
            published = float(row["high_priority_mps_avg_latency"]) / float(row["high_priority_orig_avg_latency"])
            one = Resident(model="bert-base", share_pct_sm=100)
            job = Resident(model=row["best_effort_job"].split("_")[1], share_pct_sm=100, training=True)
            clock = A100.clock_mhz_sm_max
            slower = execution_ms(A100, one, clock, [job]) / execution_ms(A100, one, clock)
            ours = slower * _queued(slower * LOAD) / _queued(LOAD)
            found[row["best_effort_job"]] = (job.model, published, ours)
    return list(found.values())


def _queued(load: float) -> float:
    """Mean time in a queue of single requests, in executions."""
    return 1.0 + load / (2.0 * (1.0 - load))


def report(data: Path, fitting: bool) -> None:
    """Print errors, and when fitting the coefficients of a new fit."""
    print_slices(slowdowns(data / "miso-a100-mig-training"), fitting)
    for job, published, ours in beside(data):
        print(f"bert beside training {job:16} published {published:.2f}, ours {ours:.2f}")
