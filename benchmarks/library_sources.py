"""Which public measurements may shape the built-in library, under which names, and how each is fitted.

Owns the list of permissively licensed sources with the words that every entry carries about origin and licence, the
renaming of their models to names of the catalogue and the two passes of fitting: first every model for itself, then
with what all models have in common as the prior, which fills in what a source did not vary. Sources whose licence
forbids or does not state it are not read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.sources import headroom_own, nexus_titanx, nvidia_dle_inference, parvagpu_a100_mig, ribbon_t4
from lab.measured import read_rapp
from solvers.domain.arrays import Floats, Parallel
from solvers.models.base import Samples
from solvers.models.belief.forms import (
    LATENCY,
    ShapeFit,
    ShapePrior,
    fit_parameters,
    joint_covariance,
    population,
    weak_prior,
)
from solvers.models.library import LibraryEntry, gpu_key

POINTS_MIN = 3
_DIGITS = 4
_GPU_NAMES = {
    gpu_key(name): name for name in ("v100", "a100", "a100-40gb", "a30", "t4", "titan-x-pascal", "h100", "h200")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells(Parallel):
    """Measured latencies of one model on one GPU type; `share` a fraction, `slowness` highest clock over clock."""

    batch: Floats
    share: Floats
    slowness: Floats
    latency_ms: Floats

    def __len__(self) -> int:
        return len(self.batch)


def fit_shape(cells: Cells, prior: ShapePrior) -> ShapeFit:
    """The most probable parameters of latency's shape given the cells."""
    at, target = (cells.batch, cells.share, cells.slowness), np.log(cells.latency_ms)
    return fit_parameters(LATENCY, at, target, prior)


@dataclass(frozen=True)
class Source:
    """Where entries come from. `name_of` gives a model's name here, None to leave it out."""

    read: Callable[[Path], Samples]
    words: str
    licence: str
    name_of: Callable[[str], str | None]

    def items(self, data: Path) -> Iterator[Measured]:
        """What it tells of each model on each GPU type, but of those with few cells."""
        samples = self.read(data)
        for (model, gpu_type), rows in samples.queries.keys().items():
            name = self.name_of(model)
            queries, latency_ms = samples.queries.take(rows), samples.latency_ms[rows]
            if name is None or len(rows) < POINTS_MIN:
                continue
            cells = Cells(
                batch=queries.batch,
                share=queries.share_pct / 100.0,
                slowness=np.ones(len(rows)),
                latency_ms=latency_ms,
            )
            yield Measured(model=name, gpu_type=_GPU_NAMES[gpu_key(gpu_type)], source=self, cells=cells)


def _dle(name: str) -> str | None:
    # The same networks under the catalogue's names, then the software: resnet50-pytorch-amp, bert-large-trt-fp16.
    name = re.sub(r"^(?:resnet50|rn50)v1\.5", "resnet50", name)
    name = re.sub(r"^(se-)?resnext101-32x4d", r"\1resnext101_32x4d", name)
    # Batches of thousands of table rows are another kind of work than everything else here.
    return None if name.startswith("wideanddeep") else name


def _ribbon(name: str) -> str | None:
    # The source does not say which depth its resnet and vgg have, and their times do not fit any on usual images.
    return None if name in ("resnet", "vgg") else name


OWN = Source(
    read=headroom_own.read_all,
    words="Headroom's own recordings, H100 and H200 under MPS, PyTorch FP16, CUDA graphs (tests/recordings)",
    licence="Apache-2.0",
    name_of=lambda name: name,
)
SOURCES = (
    Source(
        read=read_rapp,
        words="RaPP / HAS-GPU, V100 16 GB, PyTorch eager under MPS (KontonGu/RaPP 600348c)",
        licence="Apache-2.0",
        name_of=lambda name: name,
    ),
    Source(
        read=parvagpu_a100_mig.read,
        words="ParvaGPU, MIG slices of an A100 80 GB, PyTorch 21.11 (MunQ-Lee/ParvaGPU_SC24 5f3de1e)",
        licence="MIT",
        name_of=lambda name: {"bert": "bert-large", "inceptionv3": "inception_v3", "mobilenetv2": "mobilenet_v2"}.get(
            name, name
        ),
    ),
    Source(
        read=nvidia_dle_inference.read,
        words="NVIDIA DeepLearningExamples, published tables, whole GPUs (NVIDIA/DeepLearningExamples 729963d)",
        licence="Apache-2.0, BSD-3-Clause or MIT, by directory",
        name_of=_dle,
    ),
    Source(
        read=ribbon_t4.read,
        words="Ribbon, T4 of AWS g4dn (boringlee24/SC21_Ribbon 822d3d3)",
        licence="MIT",
        name_of=_ribbon,
    ),
    Source(
        read=nexus_titanx.read,
        words="Nexus, TITAN X (Pascal), Caffe and Darknet (uwsampl/nexus b436191)",
        licence="BSD-style, University of Washington",
        name_of={"vgg16": "vgg16-caffe", "vgg_face": "vgg-face", "vgg_s": "vgg-s", "yolo9000": "yolo9000"}.get,
    ),
    OWN,
)


@dataclass(frozen=True)
class Measured:
    """The cells of one model on one GPU type, from one source."""

    model: str
    gpu_type: str
    source: Source
    cells: Cells


def measured(data: Path) -> tuple[Measured, ...]:
    """Everything that may be fitted, in rising order of model and GPU type."""
    found = [item for source in SOURCES for item in source.items(data)]
    return tuple(sorted(found, key=lambda item: (item.model, item.gpu_type)))


def fitted(items: tuple[Measured, ...]) -> tuple[ShapePrior, list[tuple[Measured, ShapeFit]]]:
    """The population of all models and every model's fit under it."""
    first = [
        fit_shape(item.cells, weak_prior(float(np.exp(np.median(np.log(item.cells.latency_ms)))))) for item in items
    ]
    # Only sources that vary the share tell how work follows it. Ours are five networks twice, far from all others.
    public = [(item, fit) for item, fit in zip(items, first, strict=True) if item.source is not OWN]
    telling = [fit for item, fit in public if len(np.unique(item.cells.share)) > 1]
    typical = float(np.exp(np.median([np.median(np.log(item.cells.latency_ms)) for item, _ in public])))
    shared = population(telling, weak_prior(typical))
    second = [(item, fit_shape(item.cells, around(shared, item.cells))) for item in items]
    return shared, second


def around(shared: ShapePrior, cells: Cells) -> ShapePrior:
    """The population, its times unknown by a common factor."""
    return ShapePrior(
        mean=shared.mean,
        covariance=shared.covariance + joint_covariance(2.0),
        origin=shared.origin,
        source=f"{shared.source}, {len(cells)} points",
    )


def entry(item: Measured, fit: ShapeFit) -> LibraryEntry:
    """A fit as the library keeps it. The spread of each parameter is what is left when the others are given, since
    entries keep no correlations.
    """
    spread = 1.0 / np.sqrt(np.diag(np.linalg.inv(fit.covariance)))
    return LibraryEntry(
        model=item.model,
        gpu_type=item.gpu_type,
        parameters=rounded(fit.mean),
        spread=rounded(spread),
        error_pct_mean=round(100.0 * float(np.mean(np.abs(np.expm1(fit.residual)))), 2),
        points=len(item.cells),
        source=item.source.words,
        licence=item.source.licence,
    )


def rounded(values: np.ndarray) -> tuple[float, ...]:
    """Four digits after the point: far finer than any fit, far coarser than what differs between machines."""
    return tuple(round(float(value), _DIGITS) for value in values)
