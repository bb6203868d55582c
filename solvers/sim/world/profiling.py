"""What planners may know of a simulated world's hardware: profiles as somebody would have measured them before.

Owns the measuring: every model alone on every GPU type over the scenario's grid, with noise, and pairs side by side at
a few shares and batches, and small groups without limits on shares, from which the numbers of mutual pressure are
fitted. The same scenario and seed measure the
same, whoever contends. It refuses what was not asked for: training jobs are not measured, nor what does not fit.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from solvers.domain.arrays import Streams
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, Profile, ProfileGrid, ProfileOrigin
from solvers.domain.value import value
from solvers.errors import InputError
from solvers.models.pressing import ADDED_MIN, BATCHES, PARTNERS, SHARES_PCT, Disturbances, fit_interference
from solvers.sim.scenario import Profiling, WorldScenario
from solvers.sim.truth.truth import GpuTruth, Resident, dynamic_power_w, execution_ms, gpu_truth, memory_mib

if TYPE_CHECKING:
    from collections.abc import Sequence

TAIL = 2.326
"""Standard deviations that 99 % of normal numbers are below."""
DIGITS = 6
SOURCE = "simulated measurement"
TENANTS_MAX = 4
"""So many replicas were measured together at most where shares are not limited."""


@value
class Measuring:
    """What is measured."""

    profiling: Profiling
    models: tuple[ModelName, ...]
    gpu_types: tuple[GpuType, ...]
    latency_noise: float
    seed: int


def profiles_of(scenario: WorldScenario, seed: int) -> tuple[Profile, ...]:
    """Profiles of all models of a scenario on all GPU types that its fleet and its offers have."""
    used = {device.gpu_type for device in scenario.fleet.devices}
    used |= {offer.gpu_type for offer in scenario.fleet.offers}
    return _measured(
        Measuring(
            profiling=scenario.profiling,
            models=tuple(sorted(model.name for model in scenario.models)),
            gpu_types=tuple(
                sorted((each for each in scenario.fleet.gpu_types if each.name in used), key=lambda each: each.name)
            ),
            latency_noise=scenario.latency_noise,
            seed=seed,
        )
    )


def known_truth(gpu_type: GpuTypeName) -> GpuTruth:
    """How a GPU type behaves. Raises InputError for one that no simulated world has."""
    truth = gpu_truth(gpu_type)
    if truth is None:
        raise InputError(f"no simulated world has GPUs of type {gpu_type}", gpu_type=gpu_type)
    return truth


@lru_cache(maxsize=16)
def _measured(measuring: Measuring) -> tuple[Profile, ...]:
    streams = Streams(measuring.seed)
    found = []
    for gpu_type in measuring.gpu_types:
        truth = known_truth(gpu_type.name)
        pressed: dict[ModelName, Interference] = {}
        crowded: dict[ModelName, Interference] = {}
        if measuring.profiling.interference:
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
    truth, plan = known_truth(gpu_type.name), measuring.profiling
    clocks = _clocks(gpu_type.clocks_mhz_sm, plan.clocks)
    memory = [memory_mib(model, batch) for batch in plan.batches]
    latency, power = [], []
    for clock in clocks:
        for share in plan.shares_pct_sm:
            for batch, mib in zip(plan.batches, memory, strict=True):
                load = Resident(model=model, share_pct_sm=share, batch=batch)
                mean_ms = execution_ms(truth, load, clock) * float(np.exp(plan.noise * draw.standard_normal()))
                latency.append(mean_ms if mib <= gpu_type.memory_mib else 0.0)
                power.append(dynamic_power_w(truth, load, clock))
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
    models = measuring.models
    count = len(models)
    ahead = sorted({step % count for step in range(PARTNERS + 1)})
    pairs = sorted({(first, (first + step) % count) for first in range(count) for step in ahead})
    asked = [
        (one, two, share, batch)
        for (first, second), share, batch in product(pairs, SHARES_PCT, BATCHES)
        for one, two in ((first, second), (second, first))
    ]
    added = [_added(truth, (models[one], models[two]), share, int(batch)) for one, two, share, batch in asked]
    noise = measuring.profiling.noise * draw.standard_normal(len(added))
    return fit_interference(
        list(models),
        Disturbances(
            suffers=np.array([one for one, *_ in asked], dtype=np.int64),
            presses=np.array([two for _, two, *_ in asked], dtype=np.int64),
            share_pct=np.array([share for *_, share, _ in asked]),
            added=np.maximum(np.array(added) + noise, ADDED_MIN),
        ),
        ProfileOrigin.SIMULATED,
    )


def _added(truth: GpuTruth, pair: tuple[ModelName, ModelName], share: float, batch: int) -> float:
    """What the second of a pair, at this share, adds to the time of the first, as a part of it."""
    clock = truth.clock_mhz_sm_max
    mine = Resident(model=pair[0], share_pct_sm=int(100 - share), batch=batch)
    theirs = Resident(model=pair[1], share_pct_sm=int(share), batch=batch)
    return execution_ms(truth, mine, clock, (theirs,)) / execution_ms(truth, mine, clock) - 1.0


def _groups(measuring: Measuring, truth: GpuTruth, draw: np.random.Generator) -> dict[ModelName, Interference]:
    """The same without limits on shares: each model beside its next few, so many of each at once, at equal batches."""
    models = measuring.models
    count = len(models)
    ahead = sorted({step % count for step in range(PARTNERS + 1)})
    pairs = sorted({pair for one in range(count) for step in ahead for pair in _both(one, (one + step) % count)})
    asked = list(product(pairs, range(1, TENANTS_MAX), measuring.profiling.batches))
    noise = measuring.profiling.noise * draw.standard_normal(len(asked))
    # Told for one neighbour, so that the form, which adds up, is above what several of them do.
    added = [_crowded(truth, (models[one], models[two]), many, batch) / many for (one, two), many, batch in asked]
    return fit_interference(
        list(models),
        Disturbances(
            suffers=np.array([one for (one, _), *_ in asked], dtype=np.int64),
            presses=np.array([two for (_, two), *_ in asked], dtype=np.int64),
            share_pct=np.full(len(asked), 100.0),
            added=np.maximum(np.array(added) + noise, ADDED_MIN),
        ),
        ProfileOrigin.SIMULATED,
    )


def _both(one: int, two: int) -> tuple[tuple[int, int], ...]:
    return (one, two), (two, one)


def _crowded(truth: GpuTruth, pair: tuple[ModelName, ModelName], many: int, batch: int) -> float:
    """What so many of the second of a pair add to the time of the first, as a part of it, with the GPU open to all."""
    mine, other = (Resident(model=model, share_pct_sm=100, batch=batch) for model in pair)
    clock = truth.clock_mhz_sm_max
    return execution_ms(truth, mine, clock, (other,) * many) / execution_ms(truth, mine, clock) - 1.0
