"""What InSS' actor is trained for, and how: any fleet of simulated GPUs with any networks, and the paper's Table 1.

Owns how fleets and networks are written, what is taken for limits and rates that nobody gave, the two settings of the
paper's fleet whose actors are shipped (rates of six networks as their authors generate them; those of the other two are
ours), and the hyper-parameters with their ranges. It refuses numbers that training cannot use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from solvers.domain.ids import WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.errors import InputError
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.needs import needs_of
from solvers.sim.truth.catalogue import GPUS, GpuTruth, gpu_truth
from solvers.sim.truth.truth import Resident, execution_curve_ms, memory_mib


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


LIMIT_TIMES, LIMIT_BATCH = 4.0, 4
"""Where no limit is given: so many times what a batch of so many takes alone on the slowest of the GPUs."""
RATE_PART, WALK = 0.5, 4.0
"""Where no rates are given: all networks together climb to this part of what the fleet does with such batches, from so
many times less.
"""
_FLEET = "2xrtx-2060-super:8000,2xrtx-2060:6000"
SIX = (
    "alexnet:64:100-500,resnet50:303:100-400,vgg16:125:50-200,mnasnet1_0:210:100-400,mobilenet_v2:170:100-450,"
    "efficientnet_b0:158:100-400"
)
# From half the lowest rates on, so that light loads are known as well; at the upper ends eight networks are more than
# these four GPUs can serve.
EIGHT = (
    "alexnet:64:50-500,resnet50:303:50-400,vgg16:125:25-200,mnasnet1_0:210:50-400,mobilenet_v2:170:50-450,"
    "efficientnet_b0:158:50-400,resnet18:75:50-400,vgg19:210:25-200"
)
SETTINGS = {"six": SIX, "eight": EIGHT}


def setting(name: str) -> TrainingSetting:
    """One of the paper's by its name. Raises InputError."""
    if name not in SETTINGS:
        raise InputError(f"there is no setting {name!r}; known are {', '.join(SETTINGS)}")
    return setting_for(name, _FLEET, SETTINGS[name])


def setting_for(name: str, fleet: str, models: str) -> TrainingSetting:
    """A setting as it is written. Raises InputError that says how, and where nothing can be learned."""
    kinds = [kind for part in fleet.split(",") for kind in _gpus(part)]
    gpus = tuple(Gpu(gpu_type=kind.name, memory_mib=float(kind.memory_mib)) for kind in kinds)
    parts = models.split(",")
    served = tuple(_network(part, kinds, len(parts)) for part in parts)
    if len({each.model for each in served}) < len(served):
        raise InputError("an actor serves each network once")
    units = min(kind.sm_count // kind.sm_granularity for kind in kinds)
    if len(served) > units:
        raise InputError(f"{len(served)} networks may meet on one GPU, and the smallest has {units} units of SMs")
    step_rps = min(20.0, *(each.high_rps / 5 for each in served))
    return TrainingSetting(name=name, served=served, gpus=gpus, step_rps=step_rps)


def _gpus(part: str) -> list[GpuTruth]:
    """`2xt4` or `2xt4:15000`: so many of a type, with the memory that replicas may fill where it is not all."""
    told = re.fullmatch(r"([1-9][0-9]?)x([A-Za-z0-9-]+)(?::([1-9][0-9]{1,8}))?", part.strip())
    kind = None if told is None else gpu_truth(told[2])
    if told is None or kind is None:
        raise InputError(f"{part!r} is no GPUs to train for: written 2xt4 or 2xt4:15000, of {', '.join(GPUS)}")
    return [replace(kind, memory_mib=int(told[3] or kind.memory_mib))] * int(told[1])


def _network(part: str, kinds: list[GpuTruth], networks: int) -> ServedNetwork:
    """`resnet50`, `resnet50:80` or `resnet50:303:100-400`: the limit in ms, and between which rates it wanders."""
    told = re.fullmatch(rf"([A-Za-z0-9._-]+)(?::({_NUMBER}))?(?::({_NUMBER})-({_NUMBER}))?", part.strip())
    if told is None:
        raise InputError(f"{part!r} is no network to train for: written resnet50, resnet50:80 or resnet50:303:100-400")
    loads = Resident(model=told[1], share_pct_sm=100, batch=LIMIT_BATCH)
    took_ms = [execution_curve_ms(kind, loads, kind.clock_mhz_sm_max)[-1] for kind in kinds]
    usual_rps = RATE_PART * sum(1000.0 * LIMIT_BATCH / each for each in took_ms) / networks
    low, high = (float(told[3]), float(told[4])) if told[3] else (usual_rps / WALK, usual_rps)
    limit_ms = float(told[2]) if told[2] else round(LIMIT_TIMES * max(took_ms), 3)
    if not (0.0 <= low <= high and high > 0.0 and limit_ms > 0.0):
        raise InputError(f"{told[1]} wants a limit above 0 and rates that rise, not {part!r}")
    if memory_mib(told[1], LIMIT_BATCH) > max(kind.memory_mib for kind in kinds):
        raise InputError(f"{told[1]} fits on none of these GPUs")
    return ServedNetwork(model=told[1], limit_ms=limit_ms, low_rps=low, high_rps=high)


_NUMBER = r"[0-9]{1,7}(?:\.[0-9]{1,6})?"


def written(picture: Snapshot) -> tuple[str, str]:
    """The fleet of a picture and its services, each from a fifth of what it is sized for to one and a half times it."""
    types = picture.gpu_types_by_name()
    fleet = ",".join(f"1x{each.gpu_type}:{types[each.gpu_type].memory_mib}" for each in picture.devices)
    needs = needs_of(picture, tuple(WorkloadId(service.id) for service in picture.services))
    told = [(need, need.rate_rps or 1.0) for need in needs]
    models = (f"{need.model}:{need.limit_ms or 1e6:.6f}:{0.2 * rate:.6f}-{1.5 * rate:.6f}" for need, rate in told)
    return fleet, ",".join(models)


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
