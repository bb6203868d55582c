"""Times of thirteen networks in eager PyTorch on a V100 under MPS, published with RaPP (HAS-GPU, 2025, Apache-2.0).

Owns the fits behind most convolutional networks of `solvers.sim.truth.catalogue` (whole time quota, batch 1 to 8), and
behind the rows `-tfs` of the 2080 Ti (INFless, ASPLOS'22).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.calibrate_truth.fitting import Where, errors, fitted, row
from benchmarks.calibrate_truth.studies import rapp, rows_of
from lab.world.replays import infless
from solvers.sim.truth.catalogue import GPUS, model_on


def report(data: Path, fitting: bool) -> None:
    """Print errors, and when fitting the coefficients of a new fit."""
    for gpu, cells in (
        (GPUS["v100"], rapp(rows_of(data))),
        (GPUS["rtx-2080ti"], infless(rows_of(data))),
    ):
        found: dict[str, dict[Where, float]] = {}
        for (name, batch, part), time_ms in cells.items():
            found.setdefault(name, {})[gpu, round(100 * part + 0.499), batch] = time_ms
        for name, its in found.items():
            off = errors(model_on(gpu, name), its)
            print(f"{name:16} {len(its)} cells: mean error {100 * off.mean():5.1f} %, worst {100 * off.max():5.1f} %")
            if fitting:
                print("   ", row(fitted(model_on(gpu, name), its)))
