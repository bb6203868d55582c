"""Throughput of one to five processes on MIG slices of an A100, published with ParvaGPU (SC'24, MIT licence).

Owns the fit behind the a100 rows of `solvers.sim.truth.catalogue` (one process) and behind the law of overlapping
shares in `solvers.sim.truth.truth` (several processes without share limits).
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from benchmarks.calibrate_truth.fitting import Where, fitted, row
from lab.world.truth import mig_truth
from solvers.sim.truth.catalogue import GPUS, model_on
from solvers.sim.truth.truth import Resident, execution_ms, wanted

A100 = GPUS["a100"]
SLICES = {size: mig_truth(A100, *shape) for size, shape in {
    1: (14, 9728), 2: (28, 19968), 3: (42, 40192), 4: (56, 40192), 7: (98, 81920)
}.items()}  # fmt: skip
NAMES = {"bert": "bert-large", "inceptionv3": "inception-v3", "mobilenetv2": "mobilenet"}
UNKNOWN = {"densenet169", "densenet201"}
"""Networks that the simulated world does not have."""
Case = tuple[str, int, int]


def rates(folder: Path) -> dict[Case, dict[int, float]]:
    """Published inputs per second of each process, by (model, slice size, batch), then by number of processes."""
    found: dict[Case, dict[int, float]] = defaultdict(dict)
    with (folder / "profile.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rate = float(row["throughput_per_proc_img_s"] or 0)
            if rate > 0.0 and row["model"] not in UNKNOWN:
                case = (NAMES.get(row["model"], row["model"]), int(row["mig_gpcs"]), int(row["batch"]))
                found[case][int(row["mps_procs"])] = rate
    return found


def alone_of(published: dict[Case, dict[int, float]], name: str) -> dict[Where, float]:
    """Milliseconds of a batch of one process on each slice."""
    return {
        (SLICES[case[1]], 100, case[2]): 1000.0 * case[2] / found[1]
        for case, found in published.items()
        if case[0] == name and 1 in found
    }


def _resident(case: Case) -> Resident:
    return Resident(model=case[0], share_pct_sm=100, batch=case[2])


def _pct(errors: list[float]) -> float:
    return 100 * statistics.mean(errors)


def print_alone(published: dict[Case, dict[int, float]]) -> None:
    """Error of one process' time on a slice, by network and by slice size."""
    by_name: dict[str, list[float]] = defaultdict(list)
    by_size: dict[int, list[float]] = defaultdict(list)
    for case, found in published.items():
        if 1 in found:
            part = SLICES[case[1]]
            time_ms = execution_ms(part, _resident(case), part.clock_mhz_sm_max)
            error = abs(time_ms * found[1] / (1000.0 * case[2]) - 1.0)
            by_name[case[0]].append(error)
            by_size[case[1]].append(error)
    for name, errors in by_name.items():
        print(f"{name:13} {len(errors)} cells: mean {_pct(errors):4.1f} %, worst {100 * max(errors):5.1f} %")
    for size, errors in sorted(by_size.items()):
        print(f"{size} of 7 slices: mean error {_pct(errors):4.1f} %")


def crowds(published: dict[Case, dict[int, float]]) -> np.ndarray:
    """Processes, part of the GPU that one wants, published slowdown, ours; a row for each crowd of two to five."""
    rows = []
    for case, found in published.items():
        part, one = SLICES[case[1]], _resident(case)
        for processes in found if 1 in found else ():
            if processes > 1:
                clock = part.clock_mhz_sm_max
                ours = execution_ms(part, one, clock, [one] * (processes - 1)) / execution_ms(part, one, clock)
                rows.append((processes, np.prod(wanted(part, one, clock)), found[1] / found[processes], ours))
    return np.array(rows)


def print_crowds(rows: np.ndarray) -> None:
    """Error of the slowdown without share limits, by the number of processes, beside that of saying their mean."""
    for processes in (2, 3, 4, 5):
        _, _, published, ours = rows[rows[:, 0] == processes].T
        off, constant = (np.mean(np.abs(each / published - 1.0)) for each in (ours, np.mean(published)))
        print(
            f"{processes} processes, {len(ours)} crowds: mean error {100 * off:.1f} %, constant {100 * constant:.1f} %"
        )


def fit_crowds(rows: np.ndarray) -> np.ndarray:
    """How much of a GPU kernels want that fill all of it, and how sharp the edge of a full GPU is."""
    processes, part, published, _ = rows.T

    def off(point: np.ndarray) -> float:
        mine = point[0] * part
        law = ((1.0 + (processes * mine) ** point[1]) / (1.0 + mine ** point[1])) ** (1.0 / point[1])
        return float(np.mean(np.abs(np.log(law / published))))

    return np.asarray(minimize(off, [1.0, 3.0], method="Nelder-Mead").x)


def report(data: Path, fitting: bool) -> None:
    """Print errors, and when fitting the coefficients of a new fit."""
    published = rates(data / "parvagpu-a100-mig")
    print_alone(published)
    rows = crowds(published)
    print_crowds(rows)
    if fitting:
        full, edge = fit_crowds(rows)
        print(f"overlapping shares: a full GPU is wanted {full:.2f} times, sharpness {edge:.1f}")
        for name in sorted({case[0] for case in published}):
            print(f"{name:13}", row(fitted(model_on(A100, name), alone_of(published, name))))
