"""Measurements by invented laws, for tests of models that learn from measurements.

Owns a solo law (work over share up to a knee, a launch floor, work linear in batch) and a law of company (everybody is
slowed by the L2 use of the others). The numbers are invented and belong to tests alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.workload import LayerCount, ModelVariant
from solvers.models.base import Facts, Groups, GroupSamples, Queries, Samples
from tests import builders

BATCHES = (1, 2, 4, 8, 16, 32)
SHARES = (10, 20, 40, 60, 80, 100)
GPU = "v100"
WORK_MS = {"alex": 0.15, "res": 0.6, "vgg": 1.4, "ssd": 2.1}
"""Per input, on the whole device."""
L2 = {"alex": 0.50, "res": 0.30, "vgg": 0.40, "ssd": 0.20}
"""Use of L2 alone on the whole device."""
LAYERS = {"alex": 20, "res": 80, "vgg": 29, "ssd": 93}


def facts(*, layers: bool = True) -> Facts:
    """The device and the networks."""
    models = {
        name: ModelVariant(
            name=builders.ModelName(name),
            family=name,
            parameters_million=10.0 + 40.0 * work,
            memory_mib_weights=100.0,
            gflop_per_input=5.0 * work,
            layers=(LayerCount(kind="conv", count=LAYERS[name]),) if layers else (),
        )
        for name, work in WORK_MS.items()
    }
    return Facts(gpu_types={GPU: builders.gpu_type(GPU)}, models=models)


def latency_ms(queries: Queries) -> Floats:
    """0.4 ms of launching, then work over share; 90 % of the device are as good as all of it."""
    work = np.array([WORK_MS[name] for name in queries.models])[queries.model]
    share = np.minimum(queries.share_pct, 90.0) / 90.0
    return np.asarray(0.4 + work * (0.5 + queries.batch) / share)


def l2_pct(queries: Queries) -> Floats:
    """Use of L2 in percent, in proportion to the share."""
    return np.asarray(np.array([L2[name] for name in queries.models])[queries.model] * queries.share_pct)


def solo(
    models: Iterable[str] = tuple(WORK_MS), batches: Sequence[int] = BATCHES, shares: Sequence[int] = SHARES
) -> Samples:
    """Everything about some models alone."""
    rows = [(model, batch, share) for model in models for batch in batches for share in shares]
    queries = Queries.of([row[0] for row in rows], GPU, [row[1] for row in rows], [row[2] for row in rows])
    latency = latency_ms(queries)
    return Samples.of(
        queries,
        latency,
        latency_ms_p99=1.2 * latency,
        power_w=40.0 + 1.5 * queries.share_pct,
        memory_mib=500.0 + 20.0 * queries.batch,
        l2_util_pct=l2_pct(queries),
        dram_util_pct=0.8 * l2_pct(queries),
    )


def pairs(
    names: Iterable[tuple[str, str]] | None = None,
    batches: Sequence[int] = (2, 8, 32),
    shares: Sequence[int] = (20, 40, 60, 80),
) -> Groups:
    """Pairs of models that share the device without rest."""
    wanted = list(combinations(WORK_MS, 2) if names is None else names)
    rows = [
        (one, two, first, second, share)
        for one, two in wanted
        for first in batches
        for second in batches
        for share in shares
    ]
    return Groups.pairs(
        Queries.of([row[0] for row in rows], GPU, [row[2] for row in rows], [row[4] for row in rows]),
        Queries.of([row[1] for row in rows], GPU, [row[3] for row in rows], [100 - row[4] for row in rows]),
    )


def slowdown(groups: Groups) -> Floats:
    """A third of the others' use of L2."""
    return np.asarray(1.0 + groups.sum_of_others(l2_pct(groups.members)) / 100.0 / 3.0)


def measured(groups: Groups) -> GroupSamples:
    """Latency of every member by the law."""
    return GroupSamples(groups=groups, latency_ms=latency_ms(groups.members) * slowdown(groups))
