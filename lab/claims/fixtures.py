"""What papers print about their hardware, beside what the calibrated truth answers for the same states.

Owns the states of Morak's and HetSev's measurements and the numbers printed for them; each function returns plain
records that tests and claims compare. It refuses to judge: how near is near enough is theirs.

Morak prints GoogLeNet's throughput and latency for the same state, and one time cannot meet both: 64 inputs in 38.4 ms
are 1,667 a second, not 1,600 (+4.2 %), four times 16 in 35.2 ms are 1,818, not 1,860 (-2.2 %). Our reading, which the
paper does not state: the cycle of batches holds host's work that is in no answer's time, and an answer's time holds a
copy that is in no cycle (`answer_shift_ms`). Its two numbers were solved from the two latencies, so that these are met
says nothing about the reading. The paper locks no clock there: the highest is taken. The knees are those of a batch of
one; the paper does not say which.

HetSev's tenants share a GPU without limits: each gets 100 % of the SMs, so kernels queue where they overlap. A client
waits for its answer before it sends again, so each replica is busy all the time, mostly on its host. The paper does not
say which of its GPUs it measured; the host's time was set on the V100.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement, product

from solvers.policies.morak.cutting import knee_share_pct
from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import GpuTruth, Resident, answer_shift_ms, board_power_w, execution_ms, wanted

SHARE_PCT_UNLIMITED = 100
HETSEV_BATCHES = {"resnet50-tfs": 8, "inception-v3-tfs": 8, "ssd-resnet50-tfs": 4, "transformer-tfs": 2}
"""The networks of HetSev's evaluation as its serving stack runs them, with their batch sizes there."""
PAIR_BATCHES = (2, 4, 8, 16)
REPLICAS_MAX = 3
KNEES_STATED_PCT = {"mobilenet": 20, "googlenet": 30, "resnet101": 30}
SHARES_PCT = tuple(range(10, 101, 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Triple:
    """A state of a GPU: throughput of all its replicas, latency of one, watts of the board; ours, then printed."""

    replicas: int
    share_pct_sm: int
    batch: int
    throughput_rps: float
    latency_ms: float
    power_w: float
    throughput_rps_stated: float
    latency_ms_stated: float
    power_w_stated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Share of the SMs beyond which more hardly shortens a batch of one; ours, then printed."""

    model: str
    share_pct_sm: int
    share_pct_sm_stated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two tenants on one GPU, and the mean of their latencies' increase over having it alone, as a part."""

    models: tuple[str, str]
    batches: tuple[int, int]
    increase: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """One to three replicas of a network on one GPU, by their number: requests per second of all, and the part of time
    in which kernels run.
    """

    model: str
    batch: int
    throughput_rps: tuple[float, ...]
    utilisation: tuple[float, ...]


def _triple(gpu: GpuTruth, replicas: int, batch: int, stated: tuple[float, float, float]) -> Triple:
    one = Resident(model="googlenet", share_pct_sm=100 // replicas, batch=batch)
    clock = gpu.clock_mhz_sm_max
    others = [one] * (replicas - 1)
    cycle_ms = execution_ms(gpu, one, clock, others)
    return Triple(
        replicas=replicas,
        share_pct_sm=one.share_pct_sm,
        batch=batch,
        throughput_rps=1000.0 * replicas * batch / cycle_ms,
        latency_ms=cycle_ms + answer_shift_ms(gpu, one, others),
        power_w=board_power_w(gpu, [one] * replicas, clock, gpu.tdp_w),
        throughput_rps_stated=stated[0],
        latency_ms_stated=stated[1],
        power_w_stated=stated[2],
    )


def morak_triples() -> tuple[Triple, Triple]:
    """GoogLeNet on an RTX 2080 Ti: alone on the whole of it, and as four on a quarter each."""
    gpu = GPUS["rtx-2080ti"]
    return _triple(gpu, 1, 64, (1600.0, 38.4, 152.0)), _triple(gpu, 4, 16, (1860.0, 35.2, 156.0))


def knees_2080ti() -> tuple[Knee, ...]:
    """Knees on an RTX 2080 Ti, by Morak's rule."""
    gpu, found = GPUS["rtx-2080ti"], []
    for model, stated in KNEES_STATED_PCT.items():
        curve = {
            share: execution_ms(gpu, Resident(model=model, share_pct_sm=share), gpu.clock_mhz_sm_max)
            for share in SHARES_PCT
        }
        found.append(Knee(model=model, share_pct_sm=knee_share_pct(curve), share_pct_sm_stated=stated))
    return tuple(found)


def _tenant(model: str, batch: int) -> Resident:
    return Resident(model=model, share_pct_sm=SHARE_PCT_UNLIMITED, batch=batch)


def _increase(gpu: GpuTruth, one: Resident, other: Resident) -> float:
    clock = gpu.clock_mhz_sm_max
    return execution_ms(gpu, one, clock, [other]) / execution_ms(gpu, one, clock) - 1.0


def hetsev_pairs(gpu_type: str = "v100") -> tuple[Pairing, ...]:
    """The 160 combinations: ten pairs of networks, identical ones included, by four batch sizes each."""
    gpu, found = GPUS[gpu_type], []
    for models in combinations_with_replacement(HETSEV_BATCHES, 2):
        for batches in product(PAIR_BATCHES, repeat=2):
            one, other = (_tenant(model, batch) for model, batch in zip(models, batches, strict=True))
            mean = 0.5 * (_increase(gpu, one, other) + _increase(gpu, other, one))
            found.append(Pairing(models=models, batches=(batches[0], batches[1]), increase=mean))
    return tuple(found)


def hetsev_replicas(gpu_type: str = "v100") -> tuple[Replicas, ...]:
    """One to three replicas of each network, each with a client that always has a request waiting."""
    gpu, found = GPUS[gpu_type], []
    clock = gpu.clock_mhz_sm_max
    for model, batch in HETSEV_BATCHES.items():
        one = _tenant(model, batch)
        running, _ = wanted(gpu, one, clock)
        alone_ms = execution_ms(gpu, one, clock)
        throughput, utilisation = [], []
        for replicas in range(1, REPLICAS_MAX + 1):
            factor = execution_ms(gpu, one, clock, [one] * (replicas - 1)) / alone_ms
            throughput.append(1000.0 * replicas * batch / (alone_ms * factor))
            # Waiting for others' kernels is time on the GPU, not on the host.
            utilisation.append(1.0 - (1.0 - (running + factor - 1.0) / factor) ** replicas)
        found.append(
            Replicas(model=model, batch=batch, throughput_rps=tuple(throughput), utilisation=tuple(utilisation))
        )
    return tuple(found)
