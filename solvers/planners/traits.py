"""What baselines and autoscalers read beside the options: executions, use of what partitions share, and mean rates.

A model's execution time at a configuration, what it counts to serve, and its use of L2 and memory bandwidth in
proportion to its share; where that was never measured, the middle of what is published. How much is asked of a service
is, for autoscalers, a mean over a window and not the busiest moment: a snapshot tells the mean of its own window, a
longer one is made of several that they keep from cycle to cycle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from solvers.domain.ids import GpuTypeName, ServiceId
from solvers.domain.telemetry import Demand
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.models.parts.disturbed import DRAM_PER_SHARE, L2_PER_SHARE
from solvers.planners.case import Case
from solvers.problems.choice import Option, Options
from solvers.problems.needs import Need

DUST = 1e-6


@value
class Sample:
    """The mean rate over the window of one snapshot."""

    at_s: float
    rate_rps: float
    window_s: float


def sampled(case: Case, need: Need) -> Sample:
    """What the snapshot tells now; of what has no telemetry, what it needs."""
    at_s = case.snapshot.taken_at_s
    demands: Mapping[ServiceId, Demand] = case.snapshot.demands_by_service()
    demand = demands.get(ServiceId(need.workload)) if need.kind is WorkloadKind.SERVICE else None
    if demand is None:
        return Sample(at_s=at_s, rate_rps=need.rate_rps_least, window_s=0.0)
    # Who asks for a rate of its own, whatever comes, is asked for that.
    promised_rps = need.rate_rps_least if need.rate_rps_least > demand.rate_rps_upper * (1 + DUST) else 0.0
    return Sample(at_s=at_s, rate_rps=max(demand.rate_rps_mean, promised_rps), window_s=demand.window_s)


def mean_rate_rps(samples: tuple[Sample, ...], window_s: float) -> float:
    """The mean over so long a window, as far as it was seen; the newest sample is the last. Samples overlap where
    cycles come faster than their windows pass; the mean of them is of the same window then, its ends counting less.
    """
    newest = samples[-1]
    reach_s = max(0.0, window_s - newest.window_s)
    inside = [item.rate_rps for item in samples if newest.at_s - item.at_s <= reach_s + DUST]
    return sum(inside) / len(inside)


@dataclass(frozen=True, slots=True)
class Use:
    """Of one replica, as parts of what the GPU has."""

    l2: float
    dram: float


class Counting(StrEnum):
    PROVEN = "proven"
    """What is left under the careful promise that every plan must prove: queues, tails, neighbours."""
    BUSY = "busy"
    """Batch over its time alone, as the papers of these baselines count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    case: Case
    counting: Counting = Counting.PROVEN
    _uses: dict[tuple[str, GpuTypeName], Use] = field(default_factory=dict)

    def execution_ms(self, need: Need, option: Option) -> float:
        """How long a batch takes alone, by the measured share that is not above the option's; inf where unknown."""
        kind = self.case.beliefs.classes[option.device_class]
        grid = None if need.tokens is not None else self.case.beliefs.grid(need.model, kind)
        if grid is None:
            return option.latency_ms / 2
        row = int(np.searchsorted(grid.shares_pct, option.share_pct * kind.sm_part + 1e-9, "right")) - 1
        column = int(np.searchsorted(grid.batches, option.batch))
        measured = grid.measured[: row + 1, column]
        return float(grid.latency_ms_mean[np.flatnonzero(measured)[-1], column]) if measured.any() else math.inf

    def throughput_rps(self, need: Need, option: Option) -> float:
        """What a replica is counted to serve."""
        if self.counting is Counting.PROVEN or need.tokens is not None:
            return option.capacity_rps
        took_ms = self.execution_ms(need, option)
        return 1000.0 * option.batch / took_ms if took_ms < math.inf else 0.0

    def use(self, need: Need, option: Option) -> Use:
        """What a replica takes of L2 and bandwidth at its share."""
        key = (need.model, option.gpu_type)
        if key not in self._uses:
            profile = self.case.beliefs.profiles.get((need.model, option.gpu_type))
            points = [] if profile is None else [item for item in profile.points if not item.neighbours]
            l2 = [item.l2_util_pct / item.share_pct_sm for item in points if item.l2_util_pct is not None]
            dram = [item.dram_util_pct / item.share_pct_sm for item in points if item.dram_util_pct is not None]
            self._uses[key] = Use(
                float(np.median(l2)) if l2 else L2_PER_SHARE, float(np.median(dram)) if dram else DRAM_PER_SHARE
            )
        part = option.share_pct / 100 * self.case.beliefs.classes[option.device_class].sm_part
        return Use(min(1.0, self._uses[key].l2 * part), min(1.0, self._uses[key].dram * part))


def roomy(options: Options, option: Option, batch_max: int) -> Option:
    """The same with memory for the largest batch at its share, so that another batch needs no new process."""
    mine = (options.device_class == option.device_class) & (options.share_pct == option.share_pct)
    able = options.memory_mib[mine & (options.batch <= batch_max)]
    return replace(option, memory_mib=max(option.memory_mib, int(able.max(initial=0))))


def limit_ms(need: Need) -> float:
    """What the need promises one request; inf where that is nothing."""
    return math.inf if need.limit_ms is None else need.limit_ms
