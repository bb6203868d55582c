"""Studies that may be handed on: what they tell of which network, and the file that replays read.

Owns `lab/world/replays.json`: fitted values at knots, with source and licence, and no row of anybody else.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.sources.rows import H100, H200, RECORDINGS
from lab.world.replays import CsvRows, Pairs, StudyCell, given, igniter, infless, surfaces_of
from solvers.sim.truth.catalogue import GPUS, key_of
from solvers.sim.truth.replay import Beside

RAPP = {
    "alexnet": "alexnet", "densenet121": "densenet121", "densenet161": "densenet161", "googlenet": "googlenet",
    "efficientnet_b0": "efficientnet", "inception_v3": "inception-v3", "mnasnet1_0": "mnasnet", "vgg19": "vgg19",
    "mobilenet_v3_large": "mobilenet", "resnet18": "resnet18", "resnet50": "resnet50", "resnet101": "resnet101",
    "vgg16_bn": "vgg16",
}  # fmt: skip
PARVA = {"bert": "bert-large", "inceptionv3": "inception-v3", "mobilenetv2": "mobilenet"} | {
    name: name for name in ("densenet121", "resnet50", "resnet101", "resnet152", "vgg16", "vgg19")
}
MISO = {"bert": "bert-base", "mobilenet": "mobilenet", "resnet": "resnet50", "cyclegan": "cyclegan",
        "embedding": "embedding", "deepspeech2": "deepspeech2"}  # fmt: skip
MISO_BATCH = {"bert": "8", "cyclegan": "2", "deepspeech2": "8"}
SLICE_SMS = {1: 14, 2: 28, 3: 42, 4: 56, 7: 98}
OURS, OURS_LATER = "headroom-h100", "headroom-h200"
RECORDED = {OURS: H100, OURS_LATER: H200}
"""What this project measured itself, by GPU type."""
CAPTURED = {
    "resnet50": "resnet50-trt", "mobilenet_v3_large": "mobilenet", "transformer": "bert-base", "vgg19": "vgg19-trt",
}  # fmt: skip
"""Batches replayed as one CUDA graph, by the name of the nearest network here; eager ResNet-50 keeps its own."""
TRAINING = "train:"


def rows_of(data: Path) -> CsvRows:
    """Reads the CSV files below a folder; our own recordings lie in this repository."""

    def rows(folder: str, *path: str) -> list[dict[str, str]]:
        below = RECORDINGS / RECORDED[folder] if folder in RECORDED else data / folder
        with below.joinpath(*path).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    return rows


def rapp(rows: CsvRows) -> dict[StudyCell, float]:
    """Milliseconds on a V100 in eager PyTorch, with the whole time quota."""
    return {
        (RAPP[row["model"]], int(row["batch"]), given("v100", row["sm_pct"])): float(row["latency_ms"])
        for row in rows("rapp-v100", "latency.csv")
        if row["quota_pct"] == "100" and row["model"] in RAPP
    }


def parva(rows: CsvRows) -> dict[StudyCell, float]:
    """Milliseconds of one process on slices of an A100."""
    return {
        (PARVA[row["model"]], int(row["batch"]), SLICE_SMS[int(row["mig_gpcs"])] / GPUS["a100"].sm_count): 1000.0
        * int(row["batch"])
        / float(row["throughput_per_proc_img_s"])
        for row in rows("parvagpu-a100-mig", "profile.csv")
        if row["mps_procs"] == "1" and row["model"] in PARVA and float(row["throughput_per_proc_img_s"] or 0) > 0.0
    }


def miso(rows: CsvRows) -> dict[StudyCell, float]:
    """Iteration times of training on slices of an A100 against those on the largest, at one batch size each."""
    times: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows("miso-a100-mig-training", "train_iter_time_by_mig_slice.csv"):
        if row["batch"] == MISO_BATCH.get(row["model"], "128") and row["model"] in MISO:
            times[MISO[row["model"]]][int(row["mig_slice"][0])] = float(row["median_iter_s"])
    return {
        (name, 1, SLICE_SMS[size] / GPUS["a100"].sm_count): time / found[7]
        for name, found in times.items()
        if 7 in found
        for size, time in found.items()
    }


def headroom(rows: CsvRows, study: str = OURS) -> dict[StudyCell, float]:
    """Median milliseconds on our own GPU under MPS, in PyTorch at half precision."""
    return {
        (
            CAPTURED[row["network"]] if row["captured"] == "1" else row["network"],
            int(row["batch"]),
            given(RECORDED[study], row["share_pct"]),
        ): float(row["latency_ms_p50"])
        for row in rows(study, "surface.csv")
    }


def beside_batch(row: Mapping[str, str]) -> str:
    """Of a row's neighbour; the first recordings had one batch for both."""
    return row.get("beside_batch") or row["batch"]


def alone_of(told: Iterable[Mapping[str, str]]) -> dict[tuple[str, str, str], float]:
    """Median milliseconds of each network, share and batch as it was measured alone beside the pairs."""
    return {
        (row["network"], row["share_pct"], row["batch"]): float(row["latency_ms_p50"])
        for row in told
        if not row["beside"]
    }


def headroom_pairs(rows: CsvRows, study: str = OURS) -> Pairs:
    """Slowdowns of the medians of each network that serves beside each other, shares adding up to the GPU."""
    told, gpu = rows(study, "beside.csv"), RECORDED[study]
    alone = alone_of(told)
    found: dict[tuple[str, str, str], list[tuple[float, ...]]] = defaultdict(list)
    for row in told:
        if row["beside"] and TRAINING not in row["network"] + row["beside"]:
            own, other = CAPTURED[row["network"]], CAPTURED[row["beside"]]
            shares = (given(gpu, row["share_pct"]), given(gpu, row["beside_share_pct"]))
            factor = float(row["latency_ms_p50"]) / alone[row["network"], row["share_pct"], row["batch"]]
            batches = float(row["batch"]), float(beside_batch(row))
            found[gpu, key_of(own), key_of(other)].append((batches[0], shares[0], batches[1], shares[1], factor))
    return {pair: Beside(tuple(cells)) for pair, cells in found.items()}


headroom_later = partial(headroom, study=OURS_LATER)
pairs_later = partial(headroom_pairs, study=OURS_LATER)


@dataclass(frozen=True, slots=True)
class KeptStudy:
    licence: str
    origin: str
    times: Callable[[CsvRows], dict[StudyCell, float]] | None = None
    iterations: Callable[[CsvRows], dict[StudyCell, float]] | None = None
    pairs: Callable[[CsvRows], Pairs] | None = None


KEPT = {
    "rapp-v100": KeptStudy("Apache-2.0", "github KontonGu/RaPP at 600348c1 (HAS-GPU, 2025)", rapp),
    "parvagpu-a100-mig": KeptStudy("MIT", "github MunQ-Lee/ParvaGPU_SC24 at 5f3de1e (SC'24)", parva),
    "miso-a100-mig-training": KeptStudy("MIT", "github boringlee24/socc22-miso at 39b1ee6 (SoCC'22)", None, miso),
    OURS: KeptStudy("Apache-2.0", "this project, tests/recordings/h100", headroom, None, headroom_pairs),
    OURS_LATER: KeptStudy("Apache-2.0", "this project, tests/recordings/h200", headroom_later, None, pairs_later),
}
EVERY = {
    "rapp-v100": ("v100", "Apache-2.0", rapp),
    "igniter-v100": ("v100", "none stated", igniter),
    "parvagpu-a100-mig": ("a100", "MIT", parva),
    "infless-2080ti": ("rtx-2080ti", "none stated", infless),
    OURS: (H100, "Apache-2.0", headroom),
    OURS_LATER: (H200, "Apache-2.0", headroom_later),
}
"""Times of a batch alone: GPU, licence, reader."""


def stored_text(rows: CsvRows, names: Collection[str] = tuple(KEPT)) -> str:
    """The file of what may be handed on of these studies, each with source and licence."""
    kept: dict[str, Any] = {}
    for name in names:
        study = KEPT[name]
        kinds = (("times", study.times), ("iterations", study.iterations))
        told = {kind: surfaces_of(reader(rows)) if reader else {} for kind, reader in kinds}
        kept[name] = {"origin": study.origin, "licence": study.licence} | {
            kind: {network: asdict(surface) for network, surface in found.items()} for kind, found in told.items()
        }
        if study.pairs:
            beside: dict[str, dict[str, Any]] = defaultdict(dict)
            for (_, own, other), found in study.pairs(rows).items():
                beside[own][other] = found.cells
            kept[name]["slowdowns"] = beside
    numbers = json.loads(json.dumps(kept), parse_float=lambda text: float(f"{float(text):.4g}"))
    return json.dumps(numbers, separators=(",", ":"), sort_keys=True).replace('},"', '},\n"') + "\n"
