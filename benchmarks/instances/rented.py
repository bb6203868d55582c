"""Melange's and Inferno's problems as snapshots with GPUs to rent.

A bucket of requests (or a service) is a service with a throughput to keep; a replica's rate grows
with its share of the GPU, so that parts of GPUs are worth what they are there. Replicas on several GPUs are left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.instances.melange import Slices
from lab.benches.rolling.problems import GpuKind, Inferno, ServiceWish, fleet, inferno_wishes, wished
from solvers.domain.device import Offer
from solvers.domain.ids import GpuTypeName
from solvers.domain.snapshot import Snapshot

RENTED_MAX = 1000


def melange_snapshot(problem: Slices, name: str) -> Snapshot:
    """Buckets as services, types to rent as many as may be needed."""
    types = [f"type-{number:02d}" for number in range(len(problem.usd))]
    wishes = [
        ServiceWish(
            name=f"bucket-{number:03d}",
            rate_rps=float(problem.slices[number]),
            whole_rps={
                name: 1 / load for name, load in zip(types, problem.load[number], strict=True) if np.isfinite(load)
            },
        )
        for number in range(len(problem.slices))
    ]
    kinds = [GpuKind(name=name, usd_per_h=float(usd)) for name, usd in zip(types, problem.usd, strict=True)]
    return rented(name, kinds, dict.fromkeys(types, RENTED_MAX), wishes)


def inferno_snapshot(case: Inferno, name: str) -> Snapshot:
    """Services on single accelerators."""
    wishes, kinds, counts = inferno_wishes(case)
    return rented(name, kinds, counts, wishes)


def rented(name: str, kinds: list[GpuKind], counts: dict[str, int], wishes: list[ServiceWish]) -> Snapshot:
    bare = fleet(name, kinds, [])
    offers = tuple(
        Offer(name=kind, gpu_type=GpuTypeName(kind), count_max=count) for kind, count in sorted(counts.items())
    )
    return wished(replace(bare, offers=offers), wishes)
