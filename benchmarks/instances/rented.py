"""Melange's and Inferno's problems as snapshots with GPUs to rent.

Owns the dressing. A bucket of requests (or a service) is a service with a throughput to keep; a replica's rate grows
with its share of the GPU, so that parts of GPUs are worth what they are there. It refuses replicas on several GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.instances.fleet import CLOCK_MHZ, POLICY, PROJECT, Kind, fleet
from benchmarks.instances.inferno import PRIORITY_LOWEST, Inferno
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.offer import Offer
from solvers.domain.profile import Profile, ProfileGrid
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, ModelVariant, Service, Slo, SloKind
from solvers.problems.counts import Slices

SHARES_PCT = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
MEMORY_MIB = 500.0
RENTED_MAX = 1000
CENTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One service: rate, and what a whole GPU of each type serves of it."""

    name: str
    rate_rps: float
    whole_rps: dict[str, float]
    whole_gpus: bool = False
    """Replicas take whole GPUs."""
    priority: int = 100


def melange_snapshot(problem: Slices, name: str) -> Snapshot:
    """Buckets as services, types to rent as many as may be needed."""
    types = [f"type-{number:02d}" for number in range(len(problem.usd))]
    wishes = [
        Wish(
            name=f"bucket-{number:03d}",
            rate_rps=float(problem.slices[number]),
            whole_rps={
                name: 1 / load for name, load in zip(types, problem.load[number], strict=True) if np.isfinite(load)
            },
        )
        for number in range(len(problem.slices))
    ]
    kinds = [Kind(name=name, usd_per_h=float(usd)) for name, usd in zip(types, problem.usd, strict=True)]
    return _snapshot(name, kinds, dict.fromkeys(types, RENTED_MAX), wishes)


def inferno_snapshot(case: Inferno, name: str) -> Snapshot:
    """Services on single accelerators."""
    problem = case.covers
    single = [int(option) for option in np.nonzero(problem.option_units == 1)[0]]
    prices: dict[str, float] = {}
    wishes = []
    for option in single:
        prices[case.types[problem.option_resource[option]]] = float(problem.option_usd[option]) / CENTS
    for demand, service in enumerate(case.services):
        own = [option for option in single if problem.option_demand[option] == demand]
        wishes.append(
            Wish(
                name=service.lower().replace("_", "-"),
                rate_rps=float(problem.demand[demand]),
                whole_rps={_type(case, option): float(problem.option_rate[option]) for option in own},
                whole_gpus=True,
                priority=100 * (PRIORITY_LOWEST - case.priorities[demand]),
            )
        )
    counts = {name: int(problem.units[case.types.index(name)]) for name in prices}
    kinds = [Kind(name=name.lower(), usd_per_h=usd) for name, usd in prices.items()]
    return _snapshot(name, kinds, {name.lower(): count for name, count in counts.items()}, wishes)


def _type(case: Inferno, option: int) -> str:
    return case.types[int(case.covers.option_resource[option])].lower()


def _snapshot(name: str, kinds: list[Kind], counts: dict[str, int], wishes: list[Wish]) -> Snapshot:
    bare = fleet(name, kinds, [])
    return replace(
        bare,
        offers=tuple(
            Offer(name=kind, gpu_type=GpuTypeName(kind), count_max=count) for kind, count in sorted(counts.items())
        ),
        models=tuple(
            ModelVariant(
                name=ModelName(wish.name), family="llm", parameters_million=7000, memory_mib_weights=MEMORY_MIB
            )
            for wish in sorted(wishes, key=lambda item: item.name)
        ),
        services=tuple(
            Service(
                project=PROJECT,
                name=wish.name,
                model=ModelName(wish.name),
                slo=Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=wish.rate_rps),
                rate_rps_declared=wish.rate_rps,
                replicas_max=1024,
                priority=wish.priority,
                affinity=Affinity(anti_affinity=AntiAffinity.OFF, dedicated=wish.whole_gpus),
            )
            for wish in sorted(wishes, key=lambda item: item.name)
        ),
        profiles=tuple(sorted(_profiles(wishes), key=lambda item: (item.model, item.gpu_type))),
    )


def _profiles(wishes: list[Wish]) -> Iterator[Profile]:
    for wish in wishes:
        shares = SHARES_PCT[-1:] if wish.whole_gpus else SHARES_PCT
        for kind, whole_rps in wish.whole_rps.items():
            yield Profile(
                model=ModelName(wish.name),
                gpu_type=GpuTypeName(kind),
                grid=ProfileGrid(
                    clocks_mhz_sm=(CLOCK_MHZ,),
                    shares_pct_sm=shares,
                    batches=(1,),
                    latency_ms=tuple(POLICY.utilisation_max * 1e5 / (whole_rps * share) for share in shares),
                    memory_mib=(MEMORY_MIB,),
                ),
            )
