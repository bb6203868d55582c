"""Tables of public measurements as samples, and what predictors may know of a table without measuring.

What they may know are GPU specifications and descriptions of networks, matched to the source's names. The built-in
library of fitted coefficients is kept out on purpose: part of it was fitted to the very rows that are asked for here.

* `igniter-v100`: four TensorRT models on a V100 under MPS, alone and in measured pairs. No licence stated: not
  shippable. Slowdowns of the pairs lie between 1.01 and 1.23, so always predicting their mean is already 3.1 % off
  only; judge by R² on slowdown.
* `rapp-v100` (RaPP / HAS-GPU): 60 torchvision models on a V100 over batch and SM share, PyTorch eager under MPS.
  Apache-2.0. Only rows with the whole time quota are read: other quotas are a token limiter's, which nothing here
  models.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.library import load_gpu_types, load_models
from solvers.domain.arrays import Floats
from solvers.domain.ids import ModelName
from solvers.domain.workload import ModelVariant
from solvers.errors import InputError
from solvers.models.base import Facts, Groups, GroupSamples, Queries, Samples

V100 = "v100"


class SourceMissingError(InputError):
    """A folder or file of measurements is not there."""


def table(data: Path, folder: str, file: str) -> list[dict[str, str]]:
    """All rows of a CSV file. Raises SourceMissingError, with one line that says what to do."""
    path = data / folder / file
    if not path.is_file():
        raise SourceMissingError(f"{path} is missing: set HEADROOM_DATA to the folder that holds {folder}/")
    with path.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def name_of(text: str) -> str:
    """A source's model name in the letters that names may have here."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")


def number(text: str | None) -> float:
    """A cell as a number, NaN where it is empty."""
    return float(text) if text and text.strip() else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    model: str
    gpu_type: str
    batch: float
    latency_ms: float
    share_pct: float = 100.0
    clock_mhz: float = float("nan")
    latency_ms_p99: float = float("nan")
    throughput_rps: float = float("nan")
    power_w: float = float("nan")
    memory_mib: float = float("nan")
    l2_util_pct: float = float("nan")
    dram_util_pct: float = float("nan")


_MEASURED = (
    "latency_ms_p99", "throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct",
)  # fmt: skip


def queries_of(cells: Iterable[MeasuredCell]) -> Queries:
    listed = list(cells)
    return Queries.of(
        [cell.model for cell in listed],
        [cell.gpu_type for cell in listed],
        [cell.batch for cell in listed],
        [cell.share_pct for cell in listed],
        [cell.clock_mhz for cell in listed],
    )


def samples_of(cells: Iterable[MeasuredCell]) -> Samples:
    """Cells as samples, in a fixed order that does not depend on the order of the source's rows."""
    listed = sorted(cells, key=lambda cell: (cell.model, cell.gpu_type, cell.batch, cell.share_pct, cell.clock_mhz))
    others = {name: np.array([getattr(cell, name) for cell in listed]) for name in _MEASURED}
    return Samples.of(queries_of(listed), [cell.latency_ms for cell in listed], **others)


def groups_of(groups: Iterable[Iterable[MeasuredCell]]) -> GroupSamples:
    """Cells that ran on one device at the same time."""
    listed = [list(group) for group in groups]
    members = [cell for group in listed for cell in group]
    numbers = np.repeat(np.arange(len(listed), dtype=np.int64), [len(group) for group in listed])
    latency_ms = np.array([cell.latency_ms for cell in members])
    return GroupSamples(groups=Groups(members=queries_of(members), group=numbers), latency_ms=latency_ms)


def known_alone(solo: Samples, pairs: GroupSamples) -> tuple[GroupSamples, Floats]:
    """The pairs both of whose members were measured alone at the same configuration, and their latencies alone."""
    known: dict[tuple[str, float, float], list[float]] = defaultdict(list)
    asked = solo.queries
    for row in range(len(solo)):
        key = (asked.models[asked.model[row]], float(asked.batch[row]), float(asked.share_pct[row]))
        known[key].append(float(solo.latency_ms[row]))
    members = pairs.groups.members
    alone = np.full(len(members), np.nan)
    for row in range(len(members)):
        key = (members.models[members.model[row]], float(members.batch[row]), float(members.share_pct[row]))
        if key in known:
            alone[row] = np.mean(known[key])
    missing = ~np.isfinite(alone) | ~np.isfinite(pairs.latency_ms)
    numbers = np.flatnonzero(np.bincount(pairs.groups.group, weights=missing) == 0)
    rows = np.isin(pairs.groups.group, numbers)
    return pairs.take_groups(numbers), alone[rows]


_SAME = {
    "bert": "bert-large", "inceptionv1": "googlenet", "mnasnet": "mnasnet1_0", "mobilenet": "mobilenet_v1",
    "mobilenetv11": "mobilenet_v1", "mobilenetv21": "mobilenet_v2", "resnet50v15": "resnet50", "resnet": "resnet50",
    "resnetv250": "resnet50", "resnetv2152": "resnet152", "ssd": "ssd-resnet50", "vgg": "vgg19", "vggs": "vgg16",
    "bertbaseuncased": "bert-base", "bertlargeuncased": "bert-large", "bertlarge": "bert-large",
}  # fmt: skip
_FRAMEWORKS = ("-pytorch", "-mxnet", "-tensorflow", "-onnx", "-trt", "-paddlepaddle")


def _letters(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum())


def _described(name: str, by_key: dict[str, ModelVariant]) -> ModelVariant | None:
    stem = name
    for framework in _FRAMEWORKS:
        stem = stem.split(framework)[0]
    for candidate in (name, stem, stem.split(".")[0], stem.removesuffix("_v1")):
        key = _letters(candidate)
        found = by_key.get(key) or by_key.get(_letters(_SAME.get(key, "")))
        if found is not None:
            return found
    return None


def facts_for(queries: Queries) -> Facts:
    """GPU types of the catalogue, and the networks that a table's model names mean, under those names."""
    by_key = {_letters(model.name): model for model in load_models()}
    described = {name: _described(name, by_key) for name in queries.models}
    return Facts(
        gpu_types={gpu_type.name: gpu_type for gpu_type in load_gpu_types()},
        models={name: replace(found, name=ModelName(name)) for name, found in described.items() if found is not None},
    )


IGNITER = "igniter-v100"


def _cell(row: dict[str, str], latency: str = "latency_ms", side: str = "", **others: str) -> MeasuredCell:
    """A row's configuration, with its latency and other columns."""
    return MeasuredCell(
        model=name_of(row[f"model{side}"]),
        gpu_type=V100,
        batch=number(row[f"batch{side}"]),
        share_pct=number(row[f"sm_pct{side}"]),
        latency_ms=number(row[latency]),
        **{name: number(row[column]) for name, column in others.items()},
    )


def read_igniter(data: Path) -> Samples:
    """Latency, throughput, L2 and DRAM utilisation by model, batch 1 to 32 and share."""
    others = {"throughput_rps": "throughput_req_s", "l2_util_pct": "l2_util_pct", "dram_util_pct": "dram_util_pct"}
    return samples_of(_cell(row, **others) for row in table(data, IGNITER, "solo_profile.csv"))


def read_igniter_pairs(data: Path) -> GroupSamples:
    """Latency of both members of every measured pair."""
    pairs = table(data, IGNITER, "colocated_pairs.csv")
    return groups_of([_cell(row, f"latency_{side}_ms", f"_{side}") for side in "ab"] for row in pairs)


RAPP = "rapp-v100"


def read_rapp(data: Path) -> Samples:
    """Latency by model, batch 1 to 8 and share 5 to 100 %."""
    return samples_of(_cell(row) for row in table(data, RAPP, "latency.csv") if row["quota_pct"] == "100")
