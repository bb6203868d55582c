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
from solvers.sim.truth.truth import TRAINING_SERIAL_PART, Resident, execution_ms, training_iteration_ms

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
        filled = {size: (part.sm_count**-2.0 + needed**-2.0) ** -0.5 for size, part in SLICES.items()}
        law = [TRAINING_SERIAL_PART + (1.0 - TRAINING_SERIAL_PART) * filled[7] / filled[size] for size, _ in found]
        return float(statistics.mean(abs(each / true - 1.0) for each, (_, true) in zip(law, found, strict=True)))

    best = min(np.exp(np.linspace(2.0, 6.0, 80)), key=off)
    return float(best), off(float(best))


def print_slices(published: dict[tuple[str, str], dict[int, float]], fitting: bool) -> None:
    """Error of the committed numbers by network, and when fitting the fits by network and by batch."""
    for name in sorted({key[0] for key in published}):
        errors = []
        for (model, _), found in published.items():
            one = Resident(model=name, share_pct_sm=100, training=True)
            for size, true in found.items() if model == name else ():
                whole_ms, part_ms = (
                    training_iteration_ms(part, one, A100.clock_mhz_sm_max, (), 1.0, A100)
                    for part in (SLICES[7], SLICES[size])
                )
                errors.append(abs(part_ms / whole_ms / true - 1.0))
        print(f"{name:12} {len(errors)} slices: mean error {100 * statistics.mean(errors):.1f} %")
        for batch in sorted((key[1] for key in published if key[0] == name), key=int) if fitting else ():
            sms, off = fitted_sms(list(published[name, batch].items()))
            print(f"  batch {batch}: {sms:.0f} SMs, mean error {100 * off:.1f} %")


def print_beside(folder: Path) -> None:
    """Latency of BERT beside a training job without share limits, over its latency alone: published, and ours as a
    queue of single requests at the published load makes it of the slower execution.
    """
    seen = set()
    with (folder / "priority_aware_perf.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if "bert_infer" not in row["high_priority_job"] or row["best_effort_job"] in seen:
                continue
            seen.add(row["best_effort_job"])
            published = float(row["high_priority_mps_avg_latency"]) / float(row["high_priority_orig_avg_latency"])
            one = Resident(model="bert-base", share_pct_sm=100)
            job = Resident(model=row["best_effort_job"].split("_")[1], share_pct_sm=100, training=True)
            clock = A100.clock_mhz_sm_max
            slower = execution_ms(A100, one, clock, [job]) / execution_ms(A100, one, clock)
            ours = slower * _queued(slower * LOAD) / _queued(LOAD)
            print(f"bert beside training {job.model:16} published {published:.2f}, ours {ours:.2f}")


def _queued(load: float) -> float:
    """Mean time in a queue of single requests, in executions."""
    return 1.0 + load / (2.0 * (1.0 - load))


def report(data: Path, fitting: bool) -> None:
    """Print errors, and when fitting the coefficients of a new fit."""
    print_slices(slowdowns(data / "miso-a100-mig-training"), fitting)
    print_beside(data / "tally-a100-infer-train")
