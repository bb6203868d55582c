"""What planners may know of a simulated world's hardware: profiles as somebody would have measured them before.

Every model is measured alone on every GPU type over the scenario's grid, with noise; pairs side by side at a few shares
and batches, and small groups without limits on shares, from which the numbers of mutual pressure are fitted. The same
scenario and seed measure the same, whoever contends. Training jobs are not measured, nor what does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from lab.world.scenario import Profiling, WorldScenario
from solvers.domain.arrays import Streams
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, Profile, ProfileGrid, ProfileOrigin
from solvers.domain.value import value
from solvers.errors import InputError
from solvers.models.believed import ADDED_MIN, PAIR_BATCHES, PAIR_SHARES_PCT, Disturbances, fit_interference, neighbours
from solvers.sim.truth.replay import Replay
from solvers.sim.truth.truth import GpuTruth, Resident, dynamic_power_w, execution_ms, gpu_truth, memory_mib

TAIL = 2.326
"""Standard deviations that 99 % of normal numbers are below."""
DIGITS = 6
SOURCE = "simulated measurement"
TENANTS_MAX = 4
"""So many replicas were measured together at most where shares are not limited."""


@value
class Measuring:
    profiling: Profiling
    models: tuple[ModelName, ...]
    gpu_types: tuple[GpuType, ...]
    latency_noise: float
    seed: int
    replay: Replay | None


def profiles_of(scenario: WorldScenario, seed: int) -> tuple[Profile, ...]:
    """Profiles of all models of a scenario on all GPU types that its fleet and its offers have."""
    used = {device.gpu_type for device in scenario.fleet.devices}
    used |= {offer.gpu_type for offer in scenario.fleet.offers}
    return _measured(
        Measuring(
            profiling=scenario.profiling,
            models=served_models(scenario),
            gpu_types=tuple(
                sorted((each for each in scenario.fleet.gpu_types if each.name in used), key=lambda each: each.name)
            ),
            latency_noise=scenario.latency_noise,
            seed=seed,
            replay=scenario.replay,
        )
    )


def served_models(scenario: WorldScenario) -> tuple[ModelName, ...]:
    """The networks that answer requests or do tasks; training is nothing that a profile of inference tells."""
    services = [item.service for item in scenario.traffic]
    named = {name for service in services for name in (service.model, *service.alternatives)}
    return tuple(sorted(named | {entry.task.model for entry in scenario.tasks}))


def known_truth(gpu_type: GpuTypeName, replay: Replay | None = None) -> GpuTruth:
    """How a GPU type behaves, by the laws or as a study measured it. Raises InputError for one that no world has."""
    truth = gpu_truth(gpu_type)
    if truth is None:
        raise InputError(f"no simulated world has GPUs of type {gpu_type}", gpu_type=gpu_type)
    return replace(truth, replay=replay)


@lru_cache(maxsize=16)
def _measured(measuring: Measuring) -> tuple[Profile, ...]:
    streams = Streams(measuring.seed)
    found = []
    for gpu_type in measuring.gpu_types:
        truth = known_truth(gpu_type.name, measuring.replay)
        pressed: dict[ModelName, Interference] = {}
        crowded: dict[ModelName, Interference] = {}
        if measuring.profiling.interference and measuring.models:
            pressed = _pairs(measuring, truth, streams.stream(f"profiling/pairs/{gpu_type.name}"))
            crowded = _groups(measuring, truth, streams.stream(f"profiling/groups/{gpu_type.name}"))
        found += [
            Profile(
                model=model,
                gpu_type=gpu_type.name,
                grid=_grid(measuring, gpu_type, model, streams.stream(f"profiling/{model}/{gpu_type.name}")),
                interference=pressed.get(model),
                unlimited=crowded.get(model),
            )
            for model in measuring.models
        ]
    return tuple(sorted(found, key=lambda each: (each.model, each.gpu_type)))


def _grid(measuring: Measuring, gpu_type: GpuType, model: ModelName, draw: np.random.Generator) -> ProfileGrid:
    """One model alone on one GPU type: a cell that does not fit into its memory has latency 0."""
    truth, plan = known_truth(gpu_type.name, measuring.replay), measuring.profiling
    clocks = _clocks(gpu_type.clocks_mhz_sm, plan.clocks)
    true_mib = [memory_mib(model, batch) for batch in plan.batches]
    latency, power = [], []
    for clock in clocks:
        for share in plan.shares_pct_sm:
            for batch, mib in zip(plan.batches, true_mib, strict=True):
                load = Resident(model=model, share_pct_sm=share, batch=batch)
                mean_ms = execution_ms(truth, load, clock) * float(np.exp(plan.noise * draw.standard_normal()))
                latency.append(mean_ms if mib <= gpu_type.memory_mib else 0.0)
                power.append(dynamic_power_w(truth, load, clock))
    power = list(power * np.exp(plan.noise_power * draw.standard_normal(len(power))))
    memory = list(true_mib * np.exp(plan.noise_memory * draw.standard_normal(len(true_mib))))
    tail = float(np.exp(TAIL * measuring.latency_noise))
    return ProfileGrid(
        clocks_mhz_sm=clocks,
        shares_pct_sm=plan.shares_pct_sm,
        batches=plan.batches,
        latency_ms=_short(latency),
        latency_ms_p99=_short([each * tail for each in _short(latency)]) if tail > 1.0 else (),
        power_w=_short(power),
        memory_mib=_short(memory),
        origin=ProfileOrigin.SIMULATED,
        source=SOURCE,
    )


def _clocks(table: tuple[int, ...], count: int) -> tuple[int, ...]:
    """So many clocks of a table, evenly, the highest among them, the lowest not."""
    count = min(count, len(table))
    places = {round((step + 1) / count * len(table)) - 1 for step in range(count)}
    return tuple(table[place] for place in sorted(places))


def _short(numbers: Sequence[float]) -> tuple[float, ...]:
    """As many digits as a measurement deserves."""
    return tuple(float(f"{number:.{DIGITS}g}") for number in numbers)


def _pairs(measuring: Measuring, truth: GpuTruth, draw: np.random.Generator) -> dict[ModelName, Interference]:
    """Each model beside its next few in order of name, at a few shares and batches: what it suffers, and fits that."""
    models, found = measuring.models, []
    for pair, share, batch in product(neighbours(len(models)), PAIR_SHARES_PCT, PAIR_BATCHES):
        for one, two in (pair, pair[::-1]):
            mine = Resident(model=models[one], share_pct_sm=int(100 - share), batch=int(batch))
            theirs = Resident(model=models[two], share_pct_sm=int(share), batch=int(batch))
            found.append(_Added(one, two, share, _added(truth, mine, (theirs,))))
    return _fitted(measuring, found, draw)


def _groups(measuring: Measuring, truth: GpuTruth, draw: np.random.Generator) -> dict[ModelName, Interference]:
    """The same without limits on shares: each model beside its next few, so many of each at once, at equal batches."""
    models, found = measuring.models, []
    pairs = neighbours(len(models))
    both = sorted({*pairs, *(pair[::-1] for pair in pairs)})
    for (one, two), many, batch in product(both, range(1, TENANTS_MAX), measuring.profiling.batches):
        mine, other = (Resident(model=models[each], share_pct_sm=100, batch=batch) for each in (one, two))
        # Told for one neighbour, so that the form, which adds up, is above what several of them do.
        found.append(_Added(one, two, 100.0, _added(truth, mine, (other,) * many) / many))
    return _fitted(measuring, found, draw)


class _Added(NamedTuple):
    suffers: int
    presses: int
    share_pct: float
    added: float


def _added(truth: GpuTruth, mine: Resident, others: tuple[Resident, ...]) -> float:
    """What others add to the time of one, as a part of it."""
    clock = truth.clock_mhz_sm_max
    return execution_ms(truth, mine, clock, others) / execution_ms(truth, mine, clock) - 1.0


def _fitted(measuring: Measuring, found: list[_Added], draw: np.random.Generator) -> dict[ModelName, Interference]:
    noise = measuring.profiling.noise * draw.standard_normal(len(found))
    return fit_interference(
        list(measuring.models),
        Disturbances(
            suffers=np.array([each.suffers for each in found], dtype=np.int64),
            presses=np.array([each.presses for each in found], dtype=np.int64),
            share_pct=np.array([each.share_pct for each in found]),
            added=np.maximum(np.array([each.added for each in found]) + noise, ADDED_MIN),
        ),
        ProfileOrigin.SIMULATED,
    )
