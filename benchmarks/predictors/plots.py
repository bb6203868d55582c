"""Draws the results into `docs/lab/plots/`: few-shot curves, calibration, slowdowns at unseen pairs, error by split.

Owns the pictures. Curves are SVG; the scatter, whose points stem from rows that may not be passed on, is a small PNG.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from benchmarks.predictors.alone import LEVELS, SOLO_NAMES
from benchmarks.predictors.datasets import DATASETS
from benchmarks.predictors.results import Results, load_points
from benchmarks.predictors.tables import DOCUMENT, GROUPS, LABELS, OURS, answers_all, curve_of, number, splits_of
from lab.claims.predictors import r_squared
from solvers.models.suite import suites

FOLDER = DOCUMENT.parent / "plots"
_DRAWN_ERROR_MAX_PCT = 300.0
_SCATTER = ("headroom", "inss", "igniter", "gpulet", "rf", "fm-ftrl")


def _style(name: str, names: tuple[str, ...]) -> dict[str, object]:
    colours = mpl.colormaps["tab10"]
    ours = name == OURS
    return {
        "color": "black" if ours else colours(names.index(name) % 10), "linewidth": 2.4 if ours else 1.1,
        "marker": "o", "markersize": 4 if ours else 3, "label": name, "zorder": 3 if ours else 2,
    }  # fmt: skip


def _save(figure: plt.Figure, name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "headroom"
    metadata = {"Date": None} if name.endswith(".svg") else {"Software": None}
    figure.savefig(FOLDER / name, metadata=metadata, dpi=80, bbox_inches="tight")
    plt.close(figure)


def few_shot(results: Results) -> None:
    """Error of a new model by the points measured of it."""
    names = [dataset.name for dataset in DATASETS if len(curve_of(results, dataset.name, OURS)) > 1]
    if not names:
        return
    columns = 3
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.0 * columns, 3.0 * rows), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        for predictor in SOLO_NAMES:
            curve = curve_of(results, name, predictor)
            if curve:
                axis.plot(list(curve), list(curve.values()), **_style(predictor, SOLO_NAMES))
        axis.set(title=LABELS[name], xscale="log", yscale="log", xlabel="points of the new model", ylabel="MAPE %")
        axis.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    _save(figure, "few_shot.svg")


def _covered(results: Results, names: tuple[str, ...], *, groups: bool) -> dict[str, np.ndarray]:
    found = {}
    for name in names:
        curves = [
            record.calibration
            for (_, split, predictor), record in results.records.items()
            if predictor == name and split.startswith(GROUPS) == groups and record.calibration
        ]
        if curves:
            found[name] = np.nanmean(np.array(curves, dtype=np.float64), axis=0)
    return found


def calibration(results: Results) -> None:
    """How often intervals hold what they should, averaged over all splits."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    for axis, names, groups, title in (
        (axes[0], SOLO_NAMES, False, "replicas alone"),
        (axes[1], tuple(suites()), True, "beside others"),
    ):
        for name, covered in _covered(results, names, groups=groups).items():
            axis.plot(LEVELS, covered, **_style(name, names))
        axis.plot([0, 100], [0, 100], color="grey", linestyle=":")
        axis.set(title=title, xlabel="interval should hold %", ylabel="holds %", xlim=(0, 100), ylim=(0, 100))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    _save(figure, "calibration.svg")


def slowdowns() -> None:
    """Predicted and measured slowdown of pairs that were never seen together; drawn from the last run's points."""
    points = {name: load_points(f"pair-{name}") for name in _SCATTER}
    drawn = [name for name in _SCATTER if points[name]]
    if not drawn:
        return
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), sharex=True, sharey=True)
    for axis, name in zip(axes.flat, drawn, strict=False):
        truth, mean = points[name]["truth"], points[name]["mean"]
        known = np.isfinite(mean)
        axis.plot([1, 1.25], [1, 1.25], color="grey", linewidth=1)
        axis.scatter(truth, np.clip(mean, 0.9, 1.4), s=4, alpha=0.5, color="black" if name == OURS else "tab:blue")
        axis.set(title=f"{name}: R² {r_squared(truth[known], mean[known]):.2f}", xlim=(1, 1.25), ylim=(0.9, 1.4))
        axis.grid(alpha=0.3)
    figure.supxlabel("measured slowdown")
    figure.supylabel("predicted for a pair never seen together")
    figure.tight_layout()
    _save(figure, "slowdown_unseen_pair.png")


def _grid(results: Results) -> Iterable[tuple[str, list[float]]]:
    for dataset in DATASETS:
        for split in splits_of(results, dataset.name, groups=False):
            records = results.of(dataset.name, split)
            yield (
                f"{dataset.label}: {split}",
                [
                    number(records.get(name), "mape_pct") if answers_all(records.get(name)) else np.nan
                    for name in SOLO_NAMES
                ],
            )


def errors(results: Results) -> None:
    """MAPE of every model on every split as colours."""
    lines = list(_grid(results))
    if not lines:
        return
    values = np.array([line for _, line in lines])
    figure, axis = plt.subplots(figsize=(7.5, 0.19 * len(lines) + 1.2))
    shades = axis.imshow(np.log10(np.clip(values, 0.5, _DRAWN_ERROR_MAX_PCT)), aspect="auto", cmap="RdYlGn_r")
    axis.set_xticks(range(len(SOLO_NAMES)), SOLO_NAMES, rotation=40, ha="right", fontsize=7)
    axis.set_yticks(range(len(lines)), [label for label, _ in lines], fontsize=6)
    bar = figure.colorbar(shades, ax=axis, fraction=0.03)
    bar.set_ticks([0, 1, 2], labels=["1 %", "10 %", "100 %"])
    axis.set_title("MAPE of replicas alone; white: no complete answer", fontsize=8)
    _save(figure, "error_by_split.png")


def draw(results: Results) -> list[Path]:
    """All pictures that the results allow."""
    mpl.use("Agg")
    few_shot(results)
    calibration(results)
    slowdowns()
    errors(results)
    return sorted(FOLDER.iterdir()) if FOLDER.is_dir() else []
