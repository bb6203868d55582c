"""Worlds that replay a public study: its measurements as surfaces fitted without a law, with the scatter about them.

What studies tell that may be handed on stands in `replays.json` with source and licence, written by `python -m
benchmarks.calibrate_truth --surfaces`; that of others is fitted when a scenario asks for them, from the folder of
public data. Owns what these others tell of which network, and the fit: local lines in logarithms of batch and share.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from solvers.sim.truth.catalogue import GPUS, key_of
from solvers.sim.truth.replay import Beside, Replay, TimeSurface

CsvRows = Callable[..., list[dict[str, str]]]
"""All rows of a CSV file below the folder of public data, by the parts of its path."""
StudyCell = tuple[str, int, float]
"""Network, batch, part of the GPU's SMs."""
Pairs = dict[tuple[str, str, str], Beside]
"""By GPU type and the keys of the network and of its neighbour."""
STORE = Path(__file__).with_name("replays.json")
PARTS_KEPT = 8
WIDTH = (0.5, 0.25)
"""How far along logarithms of batch and part a cell still counts: about to the next one."""
LEAST_PART = 0.02
SPARSE_PULL = 0.6
"""Where the middling cell tells that much of its own line, lines miss more than measurements scatter."""
NEAREST = 4

IGNITER = {"alexnet": "alexnet-trt", "resnet50": "resnet50-trt", "vgg19": "vgg19-trt", "ssd": "ssd-resnet50"}
INFLESS = {"resnet-50": "resnet50-tfs", "mobilenet": "mobilenet-tfs", "ssd": "ssd-resnet50-tfs"}
INFLESS_CORES, INFLESS_FAILED_MS = "4", 5000.0


def given(gpu: str, pct: str) -> float:
    sms = GPUS[gpu].sm_count
    unit = GPUS[gpu].sm_granularity
    return max(1, int(pct) * sms // (100 * unit)) * unit / sms


def igniter(rows: CsvRows) -> dict[StudyCell, float]:
    """Milliseconds on a V100 as TensorRT engines."""
    return {
        (IGNITER[row["model"]], int(row["batch"]), given("v100", row["sm_pct"])): float(row["latency_ms"])
        for row in rows("igniter-v100", "solo_profile.csv")
    }


def infless(rows: CsvRows) -> dict[StudyCell, float]:
    """Milliseconds on a 2080 Ti behind TensorFlow Serving with four cores."""
    return {
        (INFLESS[row["model"]], int(row["batch"]), given("rtx-2080ti", row["gpu_sm_pct"])): float(row["latency_ms"])
        for row in rows("infless-2080ti", "profile.csv")
        if row["model"] in INFLESS
        and row["cpu_cores"] == INFLESS_CORES
        and row["gpu_sm_pct"] != "0"
        and float(row["latency_ms"]) < INFLESS_FAILED_MS
    }


def igniter_pairs(rows: CsvRows) -> Pairs:
    """Slowdowns of each network beside each other, shares adding up to the GPU."""
    alone, found = igniter(rows), defaultdict(list)
    for row in rows("igniter-v100", "colocated_pairs.csv"):
        sides = [
            (IGNITER[row[f"model_{side}"]], int(row[f"batch_{side}"]), given("v100", row[f"sm_pct_{side}"]))
            for side in "ab"
        ]
        for (mine, theirs), side in ((sides, "a"), (sides[::-1], "b")):
            if mine in alone:
                factor = float(row[f"latency_{side}_ms"]) / alone[mine]
                found["v100", key_of(mine[0]), key_of(theirs[0])].append((*mine[1:], *theirs[1:], factor))
    return {pair: Beside(tuple(cells)) for pair, cells in found.items()}


@dataclass(frozen=True, slots=True)
class Study:
    """One that may not be handed on is read where it lies; the others stand here."""

    gpu: str
    times: Callable[[CsvRows], dict[StudyCell, float]] | None = None
    pairs: Callable[[CsvRows], Pairs] | None = None


STUDIES = {
    "rapp-v100": Study("v100"),
    "igniter-v100": Study("v100", igniter, igniter_pairs),
    "parvagpu-a100-mig": Study("a100"),
    "infless-2080ti": Study("rtx-2080ti", infless),
    "miso-a100-mig-training": Study("a100"),
    "headroom-h100": Study("h100"),
    "headroom-h200": Study("h200"),
}


# --- Surfaces


def surface_of(cells: Mapping[tuple[int, float], float]) -> TimeSurface:
    """Local straight lines through what was measured nearby; how far measurements lie about them is the noise."""
    where = np.array([(np.log(batch), np.log(max(part, LEAST_PART))) for batch, part in cells])
    logs = np.log(np.array(list(cells.values())))
    batches = sorted({batch for batch, _ in cells})
    every = sorted({part for _, part in cells})
    places = np.unique(np.linspace(0, len(every) - 1, min(PARTS_KEPT, len(every))).round().astype(int))
    parts = [every[place] for place in places]
    grid = [[_local(where, logs, np.log([batch, part]))[0] for part in parts] for batch in batches]
    nearby = [_local(where, logs, place) for place in where]
    # What a cell would be off if it had not pulled its line; the median, for single wild cells are no noise.
    off = [abs(log - line) / max(1.0 - pull, 0.1) for log, (line, pull) in zip(logs, nearby, strict=True)]
    scatter = float(np.median(off))
    if np.median([pull for _, pull in nearby]) > SPARSE_PULL:
        scatter = min([scatter, *_scatter_of_few(where, logs)])
    values = tuple(tuple(float(each) for each in np.exp(row)) for row in grid)
    return TimeSurface(tuple(batches), tuple(parts), values, 1.48 * scatter)


def _scatter_of_few(where: np.ndarray, logs: np.ndarray) -> list[float]:
    """How far cells of one batch lie off the cubic through their four nearest, in units of one cell's scatter: the
    median, or nothing where no batch has five. A cubic follows what bends between few cells, a line does not.
    """
    found = []
    for place, log in zip(where, logs, strict=True):
        away = np.abs(where[:, 1] - place[1])
        others = np.flatnonzero((where[:, 0] == place[0]) & (away > 0.0))
        nearest = others[np.argsort(away[others], kind="stable")[:NEAREST]]
        if len(nearest) == NEAREST:
            weights = _through(where[nearest, 1], float(place[1]))
            found.append(abs(log - weights @ logs[nearest]) / np.sqrt(1.0 + weights @ weights))
    return [float(np.median(found))] if found else []


def _through(axis: np.ndarray, place: float) -> np.ndarray:
    """Weights of values on an axis in what the polynomial through all of them says of a place (Lagrange)."""
    apart = axis[:, None] - axis[None, :] + np.eye(len(axis))
    ways = np.where(np.eye(len(axis)) > 0.0, 1.0, (place - axis[None, :]) / apart)
    return np.asarray(np.prod(ways, axis=1))


def _local(where: np.ndarray, logs: np.ndarray, place: np.ndarray) -> tuple[float, float]:
    """The line's value at a place, and how much a cell right there would pull it."""
    away = (where - place) / np.array(WIDTH)
    weights = np.exp(-0.5 * np.sum(away**2, axis=1)) + 1e-9
    design = np.column_stack([np.ones(len(logs)), where - place])
    # A little of a ridge on the slopes, for axes of one value.
    normal = np.linalg.inv(design.T @ (weights[:, None] * design) + np.diag([0.0, 1e-6, 1e-6]))
    return float(normal[0] @ design.T @ (weights * logs)), float(normal[0, 0])


def surfaces_of(cells: Mapping[StudyCell, float]) -> dict[str, TimeSurface]:
    apart: dict[str, dict[tuple[int, float], float]] = defaultdict(dict)
    for (name, batch, part), value in cells.items():
        apart[name][batch, part] = value
    return {name: surface_of(its) for name, its in apart.items()}


def replay_of(names: Sequence[str], rows: CsvRows) -> Replay:
    """The studies of these names together; where two tell the same, the first counts. Raises what `rows` raises."""
    found: dict[str, dict[tuple[str, str], TimeSurface]] = {"times": {}, "iterations": {}}
    slowdowns: Pairs = {}
    stored = json.loads(STORE.read_text(encoding="utf-8"))
    for name in names:
        study = STUDIES[name]
        for kind, its in found.items():
            told = _loaded(stored.get(name, {}).get(kind, {}))
            if kind == "times" and study.times is not None:
                told = surfaces_of(study.times(rows))
            for network, surface in told.items():
                its.setdefault((study.gpu, key_of(network)), surface)
        kept = stored.get(name, {}).get("slowdowns", {})
        slowdowns = (_beside(study.gpu, kept) if study.pairs is None else study.pairs(rows)) | slowdowns
    return Replay(name="+".join(names), slowdowns=slowdowns, **found)


def _beside(gpu: str, stored: Mapping[str, Mapping[str, Any]]) -> Pairs:
    return {
        (gpu, own, other): Beside(tuple(map(tuple, cells)))
        for own, its in stored.items()
        for other, cells in its.items()
    }


def _loaded(stored: Mapping[str, Any]) -> dict[str, TimeSurface]:
    return {
        name: TimeSurface(
            tuple(each["batches"]), tuple(each["parts"]), tuple(map(tuple, each["values"])), float(each["noise"])
        )
        for name, each in stored.items()
    }
