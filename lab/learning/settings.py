"""What InSS' actor is trained for, and how: the paper's fleet with six or eight of its networks, and its Table 1.

Owns the settings (rates of the six networks as their authors generate them; those of the other two are ours) and the
hyper-parameters with their ranges. It refuses numbers that training cannot use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from solvers.domain.value import value
from solvers.errors import InputError
from solvers.planners.tuning import Tune, TunedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedNetwork:
    """One network: its limit, and between which rates it wanders."""

    model: str
    limit_ms: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    gpu_type: str
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetting:
    """A fleet, its networks and the walk of their rates: a step up or down every so many seconds."""

    name: str
    served: tuple[ServedNetwork, ...]
    gpus: tuple[Gpu, ...]
    step_rps: float = 20.0
    hold_s: int = 10


_GPUS = (
    Gpu(gpu_type="rtx-2060-super", memory_mib=8000.0),
    Gpu(gpu_type="rtx-2060-super", memory_mib=8000.0),
    Gpu(gpu_type="rtx-2060", memory_mib=6000.0),
    Gpu(gpu_type="rtx-2060", memory_mib=6000.0),
)
_SIX = (
    ServedNetwork(model="alexnet", limit_ms=25.0, low_rps=100.0, high_rps=500.0),
    ServedNetwork(model="resnet50", limit_ms=80.0, low_rps=100.0, high_rps=400.0),
    ServedNetwork(model="vgg16", limit_ms=150.0, low_rps=50.0, high_rps=200.0),
    ServedNetwork(model="mnasnet1_0", limit_ms=50.0, low_rps=100.0, high_rps=400.0),
    ServedNetwork(model="mobilenet_v2", limit_ms=60.0, low_rps=100.0, high_rps=450.0),
    ServedNetwork(model="efficientnet_b0", limit_ms=40.0, low_rps=100.0, high_rps=400.0),
)
_EIGHT = (
    *_SIX,
    ServedNetwork(model="resnet18", limit_ms=60.0, low_rps=100.0, high_rps=400.0),
    ServedNetwork(model="vgg19", limit_ms=200.0, low_rps=50.0, high_rps=200.0),
)


SETTINGS = {
    each.name: each
    for each in (
        TrainingSetting(name="six", served=_SIX, gpus=_GPUS),
        # From half the lowest rates on, so that light loads are known as well; at the upper ends eight networks are
        # more than these four GPUs can serve.
        TrainingSetting(
            name="eight", served=tuple(replace(one, low_rps=one.low_rps / 2) for one in _EIGHT), gpus=_GPUS
        ),
    )
}


def setting(name: str) -> TrainingSetting:
    """One by its name. Raises InputError."""
    if name not in SETTINGS:
        raise InputError(f"there is no setting {name!r}; known are {', '.join(SETTINGS)}")
    return SETTINGS[name]


class Entropy(StrEnum):
    PAPER = "paper"
    HEADS = "heads"


@value
class Hyper(TunedRecord):
    """Table 1, and below it what the paper leaves open."""

    episodes: Annotated[int, Tune("episodes", 1, 1_000_000)] = 1500
    steps: Annotated[int, Tune("steps of an episode, a second each", 1, 100_000)] = 200
    replay: Annotated[int, Tune("transitions remembered", 1, 10_000_000)] = 10_000
    minibatch: Annotated[int, Tune("transitions of an update", 1, 100_000)] = 100
    learning_rate: Annotated[float, Tune("of critics, actor and temperature", 1e-9, 1)] = 1e-4
    discount: Annotated[float, Tune("of what comes a step later", 0, 0.9999)] = 0.99
    temperature: Annotated[float, Tune("at the start", 1e-9, 1e6)] = 1.0
    soft_update: Annotated[float, Tune("part of the critics that targets take on", 1e-9, 1)] = 0.01
    hidden_first: Annotated[int, Tune("neurons of the first hidden layer", 1, 8192)] = 512
    hidden_second: Annotated[int, Tune("neurons of the second hidden layer", 1, 8192)] = 256
    penalty: Annotated[float, Tune("of a whole network's requests being late or lost", 0, 1e6)] = 100.0
    entropy: Annotated[Entropy, Tune("aim of the temperature: as printed, or a part of the most there is")] = (
        Entropy.PAPER
    )
    entropy_part: Annotated[float, Tune("with heads: part of the most entropy there is", 0, 1)] = 0.98
    lanes: Annotated[int, Tune("episodes side by side; one update a step of all of them", 1, 1000)] = 8
    reward_scale: Annotated[float, Tune("what rewards are multiplied with for learning", 1e-9, 1e6)] = 1.0
