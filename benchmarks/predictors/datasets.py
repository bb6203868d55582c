"""The data sets of the benchmark: where they come from, what is asked of them, and which were left out and why.

Owns the list and the sizes of a run. Rows are read once; large sets are thinned by a seed, the same for everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.predictors.measured import MeasuredSolo
from benchmarks.predictors.splits import FewShot, group_count
from benchmarks.sources import (
    batchdvfs_p40,
    headroom_own,
    infless_2080ti,
    lucid_rtx3090,
    muxserve_llama_a100,
    nexus_titanx,
    nvidia_dle_inference,
    parvagpu_a100_mig,
    pctodl_surrogate,
    proteus_hetero,
    ribbon_t4,
)
from benchmarks.sources.rows import H100, H200
from lab.measured import read_igniter, read_igniter_pairs, read_rapp
from solvers.domain.arrays import Floats
from solvers.models.base import GroupSamples, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything a run takes. No names of data sets: all of them."""

    name: str
    repeats: int
    values_out: int
    few_shot: FewShot
    rows_max: int
    groups_max: int
    pair_folds_max: int
    fold_s_max: float
    datasets: tuple[str, ...] = ()


SIZES = {
    "quick": Size(
        name="quick", repeats=1, values_out=1, few_shot=FewShot(models=1, others=6, points=(8, 16)), rows_max=400,
        groups_max=150, pair_folds_max=1, fold_s_max=20.0, datasets=("rapp-v100", "igniter-v100", "nexus-titanx"),
    ),
    "usual": Size(
        name="usual", repeats=1, values_out=1, few_shot=FewShot(models=1, others=8, points=(8, 16)), rows_max=600,
        groups_max=200, pair_folds_max=3, fold_s_max=30.0,
    ),
    "full": Size(
        name="full", repeats=2, values_out=3, few_shot=FewShot(models=8, others=16), rows_max=5000, groups_max=1000,
        pair_folds_max=8, fold_s_max=300.0,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One source as the benchmark sees it. Of a source with `rows_max`, random rows are taken."""

    name: str
    read: Callable[[Path], Samples]
    read_groups: Callable[[Path], GroupSamples] | None = None
    solo: bool = True
    rows_max: int | None = None
    remark: str = ""

    @property
    def label(self) -> str:
        """How it is shown."""
        return f"{self.name} ({self.remark})" if self.remark else self.name


DATASETS = (
    Dataset(name="rapp-v100", read=read_rapp),
    Dataset(
        name="igniter-v100", read=read_igniter,
        read_groups=read_igniter_pairs,
    ),
    Dataset(name="parvagpu-a100-mig", read=parvagpu_a100_mig.read, read_groups=parvagpu_a100_mig.read_pairs),
    Dataset(name="infless-2080ti", read=infless_2080ti.read),
    Dataset(
        name="pctodl-surrogate", read=pctodl_surrogate.read, read_groups=pctodl_surrogate.read_pairs, rows_max=1800,
        remark="third-party fitted surrogate",
    ),
    Dataset(name="batchdvfs-p40", read=batchdvfs_p40.read),
    Dataset(name="nvidia-dle-inference", read=nvidia_dle_inference.read),
    Dataset(name="ribbon-t4", read=ribbon_t4.read),
    Dataset(name="nexus-titanx", read=nexus_titanx.read),
    Dataset(name="muxserve-llama-a100", read=muxserve_llama_a100.read),
    Dataset(name="proteus-hetero", read=proteus_hetero.read),
    Dataset(
        name="lucid-rtx3090", read=lucid_rtx3090.read, read_groups=lucid_rtx3090.read_pairs, solo=False,
    ),
    *(
        Dataset(
            name=f"headroom-{gpu_type}", read=partial(headroom_own.read, gpu_type),
            read_groups=partial(headroom_own.read_pairs, gpu_type),
        )
        for gpu_type in (H100, H200)
    ),
)  # fmt: skip

LEFT_OUT = {
    "tally-a100-infer-train": "eight pairs of an inference server with a training job, one load level and no SM limit: "
    "eight numbers are too few to learn from and to be asked for",
    "iadeep-train-interference": "scores whose unit is not documented and several placeholder rows: nothing that a "
    "slowdown could be compared with",
}
"""Sources with inference or neighbours in them that are not suitable, and why."""

THINNING_SEED = 20


def samples_of(dataset: Dataset, data: Path, rows_max: int) -> Samples:
    """What a run takes of a source."""
    samples = dataset.read(data)
    if dataset.rows_max is not None and len(samples) > dataset.rows_max:
        order = np.random.default_rng(THINNING_SEED).permutation(len(samples))
        samples = samples.take(np.sort(order[: dataset.rows_max]))
    return _thinned(samples, rows_max)


def _thinned(samples: Samples, rows_max: int) -> Samples:
    """At most so many rows, all of the models that are kept."""
    if len(samples) <= rows_max:
        return samples
    keys = list(samples.queries.keys().values())
    order = np.random.default_rng(THINNING_SEED).permutation(len(keys))
    kept, count = [], 0
    for index in order:
        if count + len(keys[index]) <= rows_max or not kept:
            kept.append(keys[index])
            count += len(keys[index])
    return samples.take(np.sort(np.concatenate(kept)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Groupings:
    """Measured groups with what each member takes alone, from the same table."""

    samples: GroupSamples
    alone_ms: Floats
    solo: Samples

    @property
    def slowdown(self) -> Floats:
        """Measured latency over measured latency alone."""
        return np.asarray(self.samples.latency_ms / self.alone_ms)


def groupings(dataset: Dataset, data: Path, groups_max: int) -> Groupings | None:
    """The groups all members of which were measured alone, thinned; None where a source has none."""
    if dataset.read_groups is None:
        return None
    solo, samples = dataset.read(data), dataset.read_groups(data)
    measured = MeasuredSolo(solo)
    known = np.isfinite(measured.latency_ms(samples.groups.members)) & np.isfinite(samples.latency_ms)
    complete = np.bincount(samples.groups.group, weights=~known, minlength=group_count(samples.groups)) == 0
    numbers = np.flatnonzero(complete)
    if len(numbers) > groups_max:
        numbers = np.sort(np.random.default_rng(THINNING_SEED).permutation(numbers)[:groups_max])
    kept = samples.take_groups(numbers)
    return Groupings(samples=kept, alone_ms=measured.latency_ms(kept.groups.members), solo=solo)
