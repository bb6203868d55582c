"""How much is asked of a service, as autoscalers see it: a mean over a window, not the busiest moment.

Owns the samples that they keep from cycle to cycle and their mean. A snapshot tells the mean of its own window; a
longer window is made of several. It refuses to forecast.
"""

from __future__ import annotations

from collections.abc import Mapping

from solvers.domain.ids import ServiceId
from solvers.domain.telemetry import Demand
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.planners.case import Case
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
