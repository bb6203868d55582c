"""Services told by what a whole GPU of each type serves of them, as pictures with GPUs to rent or GPUs that stand.

Owns the dressing. A replica's rate grows with its share of the GPU, so that parts of GPUs are worth what they are
there. It refuses replicas on several GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lab.benches.rolling.fleet import CLOCK_MHZ, POLICY, PROJECT, GpuKind, fleet
from lab.benches.rolling.inferno import PRIORITY_LOWEST, Inferno
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.offer import Offer
from solvers.domain.profile import Profile, ProfileGrid
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, ModelVariant, Service, Slo, SloKind

SHARES_PCT = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
MEMORY_MIB = 500.0
CENTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWish:
    """One service: rate, and what a whole GPU of each type serves of it."""

    name: str
    rate_rps: float
    whole_rps: dict[str, float]
    whole_gpus: bool = False
    """Replicas take whole GPUs."""
    priority: int = 100


def inferno_wishes(case: Inferno) -> tuple[list[ServiceWish], list[GpuKind], dict[str, int]]:
    """Services on single accelerators: what they want, what there is and how many of each."""
    problem = case.covers
    single = [int(option) for option in np.nonzero(problem.option_units == 1)[0]]
    prices: dict[str, float] = {}
    wishes = []
    for option in single:
        prices[case.types[problem.option_resource[option]]] = float(problem.option_usd[option]) / CENTS
    for demand, service in enumerate(case.services):
        own = [option for option in single if problem.option_demand[option] == demand]
        wishes.append(
            ServiceWish(
                name=service.lower().replace("_", "-"),
                rate_rps=float(problem.demand[demand]),
                whole_rps={_type(case, option): float(problem.option_rate[option]) for option in own},
                whole_gpus=True,
                priority=100 * (PRIORITY_LOWEST - case.priorities[demand]),
            )
        )
    counts = {name: int(problem.units[case.types.index(name)]) for name in prices}
    kinds = [GpuKind(name=name.lower(), usd_per_h=usd) for name, usd in prices.items()]
    return wishes, kinds, {name.lower(): count for name, count in counts.items()}


def _type(case: Inferno, option: int) -> str:
    return case.types[int(case.covers.option_resource[option])].lower()


def rented(name: str, kinds: list[GpuKind], counts: dict[str, int], wishes: list[ServiceWish]) -> Snapshot:
    """A picture with GPUs to rent."""
    bare = fleet(name, kinds, [])
    offers = tuple(
        Offer(name=kind, gpu_type=GpuTypeName(kind), count_max=count) for kind, count in sorted(counts.items())
    )
    return wished(replace(bare, offers=offers), wishes)


def wished(bare: Snapshot, wishes: list[ServiceWish]) -> Snapshot:
    """The same fleet with these services."""
    return replace(
        bare,
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


def _profiles(wishes: list[ServiceWish]) -> Iterator[Profile]:
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
