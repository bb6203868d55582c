"""LLM services in the joint problem: one replica on a whole GPU, as cells at the full share.

Owns how what `token_plans` says is written so that `patterns.serve` grants exactly that: the promise bounds the
execution alone, the tail is the planned time to the first token, and the mean is what makes the utilisation granted the
rate that was found. Sequences at once are the batch. It refuses parts of a GPU and lowered clocks, of which nothing is
known.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.policy import Policy
from solvers.models.serving.token_plans import TokenPromise, choices
from solvers.planners.joint.reading.tables import Arrays, Table
from solvers.problems.needs import Need


def put_tokens(
    arrays: Arrays,
    at: tuple[int, ModelName],
    need: Need,
    of: tuple[tuple[Table, ...], Mapping[GpuTypeName, GpuType]],
    policy: Policy,
) -> None:
    """Write one network (`at`: its row and name) of a need on all tables."""
    (row, model), (tables, types) = at, of
    for values in (arrays.mean_ms, arrays.tail_ms, arrays.power_w, arrays.memory_mib):
        values[:, row] = np.inf
    wish = need.tokens
    for index, table in enumerate(tables):
        gpu_type = types[table.gpu_type]
        whole = table.sm_part >= 1.0 and table.gpu_part >= 1.0 and table.clock_mhz == gpu_type.clock_mhz_sm_max
        profile = None if wish is None else wish.profile(model, table.gpu_type)
        if wish is None or profile is None or not whole:
            continue
        for found in choices(profile, TokenPromise.of(need, wish, policy.utilisation_max)):
            column = int(np.searchsorted(arrays.batches, found.sequences))
            if found.rate_rps > 0:
                mean_ms = policy.utilisation_max * 1000 * found.sequences / found.rate_rps
                arrays.mean_ms[index, row, -1, column] = mean_ms
                arrays.tail_ms[index, row, -1, column] = found.first_token_ms
                arrays.power_w[index, row, -1, column] = gpu_type.power_limit_w_max - gpu_type.idle_w
            arrays.memory_mib[index, row, column] = found.memory_mib
