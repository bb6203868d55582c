"""HetSev's evaluation, simulated: tenants of a GPU, and its planner against the Kubernetes autoscaler.

Both face the same closed loops of clients. A figure that is not reached is told as it is, with what explains it.

HetSev's tenants share a GPU without limits: each gets 100 % of the SMs, so kernels queue where they overlap. A client
waits for its answer before it sends again, so each replica is busy all the time, mostly on its host. The paper does not
say which of its GPUs it measured; the host's time was set on the V100.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from statistics import fmean

import numpy as np

from lab.claims.claim import ClaimEvidence, Effort, Outcomes, figure, found, mean_metric, outcomes, scenarios
from lab.outcome import RunOutcome, RunWindow
from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import GpuTruth, Resident, execution_ms, wanted

OURS, THEIRS = "hetsev", "k8s_hpa"
PRODUCTION, FLUCTUATING, COST = "hetsev-production", "hetsev-fluctuating", "hetsev-cost"
MODELS = ("resnet50-tfs", "inception-v3-tfs")
SPIKE_FROM_S = 3500.0
MINUTE_WINDOWS = 12
"""Of 5 s: a peak is held, not touched."""


SHARE_PCT_UNLIMITED = 100
HETSEV_BATCHES = {"resnet50-tfs": 8, "inception-v3-tfs": 8, "ssd-resnet50-tfs": 4, "transformer-tfs": 2}
"""The networks of HetSev's evaluation as its serving stack runs them, with their batch sizes there."""
PAIR_BATCHES = (2, 4, 8, 16)
REPLICAS_MAX = 3


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


def tenants(_effort: Effort) -> ClaimEvidence:
    """The simulated hardware's own answers for the paper's pairs, and for copies of one network on a V100."""
    pairs = hetsev_pairs()
    increases = np.array([pair.increase for pair in pairs])
    same = np.array([pair.models[0] == pair.models[1] for pair in pairs])
    tail_pct = 100 * float(np.quantile(increases, 0.9))
    identical_pct, different_pct = 100 * float(increases[same].mean()), 100 * float(increases[~same].mean())
    gains = [each.throughput_rps[-1] / each.throughput_rps[0] for each in hetsev_replicas()]
    gain = float(np.mean(gains))
    wrong = [
        *([] if tail_pct < 18 else ["the 90th percentile is too high"]),
        *([] if identical_pct > different_pct else ["identical pairs are not worse"]),
        *([] if abs(gain / 1.85 - 1) <= 0.1 else ["replicas gain another factor"]),
    ]
    kinds = f"identical pairs {identical_pct:.1f} %, different ones {different_pct:.1f} %"
    measured = f"90th percentile {tail_pct:.1f} % of {len(pairs)} pairs; {kinds}; three replicas {gain:.2f}x"
    return figure(measured, reached=not wrong, note="; ".join(wrong))


def in_spike(effort: Effort) -> ClaimEvidence:
    """Ratios in the spike, means over seeds. The paper says "up to": the greatest ratio that was held for a minute."""
    runs = outcomes(PRODUCTION, (OURS, THEIRS), effort)
    throughput = best_minute(runs, answered_rps)
    utilisation = best_minute(runs, lambda at: at.kernels_pct * at.devices_used)
    response = ratio(runs, tail_ms)
    reached = throughput >= 2.21 and utilisation >= 2.56 and response <= 1 / 2.3
    measured = (
        f"throughput up to {throughput:.2f}x, cluster utilisation up to {utilisation:.2f}x, "
        f"response time {response:.3f}x (1/{1 / response:.2f})"
    )
    peaks = ratio(runs, lambda outcome: max(minutes([answered_rps(at) for at in spike(outcome)])))
    bound = ", ".join(f"{gpu_type} {pair_gain(gpu_type):.2f}x" for gpu_type in ("v100", "t4"))
    note = f"{effort.told}; peak over peak {peaks:.2f}x; two tenants gain at most: {bound}; {_resources(runs)}"
    return figure(measured, reached=reached, note=note)


def before_spike(effort: Effort) -> ClaimEvidence:
    throughput = ratio(
        outcomes(PRODUCTION, (OURS, THEIRS), effort),
        lambda outcome: fmean(answered_rps(at) for at in outcome.windows if at.until_s <= SPIKE_FROM_S),
    )
    apart = [] if abs(throughput - 1.0) <= 0.05 else ["the two are not alike"]
    return found(f"throughput {throughput:.3f}x, {effort.told}", apart)


def fluctuating(effort: Effort) -> ClaimEvidence:
    runs = outcomes(FLUCTUATING, (OURS, THEIRS), effort)
    requests = mean_metric(runs[OURS], "violation_pct")
    windows = mean_metric(runs[OURS], "windows_violation_pct")
    most = max(at.replicas for outcome in runs[OURS] for at in outcome.windows)
    measured = f"{requests:.2f} % of requests, {windows:.2f} % in the mean window, at most {most:.0f} instances"
    theirs = f"{THEIRS}: {mean_metric(runs[THEIRS], 'violation_pct'):.2f} % of requests"
    reached = requests <= 1.12 and windows < 4.0 and most <= 18
    return figure(measured, reached=reached, note=f"{effort.told}; {theirs}")


RULES = {
    "paper": ("cost_occupied_usd", "cost_reserved_usd"),
    "reserved": ("cost_reserved_usd", "cost_reserved_usd"),
    "occupied": ("cost_occupied_usd", "cost_occupied_usd"),
}
"""By accounting: what the autoscaler pays and what HetSev pays. The paper bills the one for whole GPUs and the other
for the memory that its instances use; their limits are no less than that.
"""


def costs(effort: Effort) -> ClaimEvidence:
    """Cost by three accountings, each model in a run of its own."""
    ratios: dict[str, list[float]] = {rule: [] for rule in RULES}
    kept: list[bool] = []
    names = scenarios(COST)
    for name in names:
        runs = outcomes(name, (OURS, THEIRS), effort)
        kept += [mean_metric(some, "attained_pct") >= 100.0 for some in runs.values()]
        for rule, (theirs, ours) in RULES.items():
            ratios[rule].append(mean_metric(runs[THEIRS], theirs) / mean_metric(runs[OURS], ours))
    told = {
        rule: f"{fmean(some):.2f}x (best {max(some):.2f}x, worst {min(some):.2f}x)" for rule, some in ratios.items()
    }
    reached = all(kept) and fmean(ratios["paper"]) >= 1.79 and max(ratios["paper"]) >= 2.15
    slo = "SLO kept by both" if all(kept) else "SLO missed in some run"
    equal = f"by equal rules: reserved memory {told['reserved']}, occupied GPUs {told['occupied']}"
    note = f"{effort.told} of {len(names)} scenarios; {equal}; instances hold a small part of a GPU's memory here"
    return figure(f"{told['paper']}, {slo}", reached=reached, note=note)


def answered_rps(at: RunWindow) -> float:
    """In time or late: nothing is dropped in this scenario."""
    return at.in_time_rps + at.violated_rps


def pair_gain(gpu_type: str) -> float:
    """Throughput of the two models of the production load on one GPU over one of them alone, both always busy."""
    pairs = {(pair.models, pair.batches): pair.increase for pair in hetsev_pairs(gpu_type)}
    return 2 / (1 + pairs[MODELS, (8, 8)])


def ratio(runs: Outcomes, read: Callable[[RunOutcome], float]) -> float:
    return fmean(map(read, runs[OURS])) / fmean(map(read, runs[THEIRS]))


def spike(outcome: RunOutcome) -> list[RunWindow]:
    """Windows after the low load."""
    return [at for at in outcome.windows if at.from_s >= SPIKE_FROM_S]


def best_minute(runs: Outcomes, read: Callable[[RunWindow], float]) -> float:
    """The greatest ratio of ours to theirs that was held for a minute of the spike; the mean over seeds."""
    best = []
    for ours, theirs in zip(runs[OURS], runs[THEIRS], strict=True):
        pairs = zip(*(minutes([read(at) for at in spike(outcome)]) for outcome in (ours, theirs)), strict=True)
        best.append(max(left / right for left, right in pairs if right > 0.0))
    return fmean(best)


def minutes(numbers: Sequence[float]) -> list[float]:
    count = max(1, len(numbers) - MINUTE_WINDOWS + 1)
    return [fmean(numbers[at : at + MINUTE_WINDOWS]) for at in range(count)]


def tail_ms(outcome: RunOutcome) -> float:
    """The 95th percentile over services by their requests; with this load it lies in the spike."""
    known = [(each.completed, each.latency_ms_p95) for each in outcome.services if each.latency_ms_p95 is not None]
    return sum(completed * tail for completed, tail in known) / sum(completed for completed, _ in known)


def _resources(runs: Outcomes) -> str:
    """What each of them used in the spike, which is why figures are as they are."""
    parts = []
    for label, some in runs.items():
        windows = [at for outcome in some for at in spike(outcome)]
        gpus, replicas = fmean(at.devices_used for at in windows), fmean(at.replicas for at in windows)
        busy_pct, late_rps = fmean(at.kernels_pct for at in windows), fmean(at.violated_rps for at in windows)
        used = f"{gpus:.1f} GPUs {busy_pct:.0f} % busy, {replicas:.1f} instances, {late_rps:.1f} requests/s late"
        parts.append(f"{label} in the spike: {used}")
    return ", ".join(parts)
