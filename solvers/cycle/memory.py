"""How long the busiest moment of a service is remembered: no longer than its own past shows to be worth it.

Who was busy lately may be again, and what was let go is fetched back late. How late is known of every service: had its
last hour been planned by a shorter memory, so many more of its requests would have found too little. The shortest
memory is taken that would have cost next to none of what its promise lets be late; a service that returns is remembered
for all the time that its policy says, and so is one that fell too seldom to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.policy import Policy
from solvers.domain.telemetry import DEMAND_BIN_S, DEMAND_JUMP_SIGMAS
from solvers.domain.workload import Service
from solvers.problems.needs import sizes_rps

PARTS, LEAST_S, LEAST_BINS = (0.1, 0.2, 0.5), 30.0, 2.0
"""Of the policy's memory, from the shortest; and no shorter than that, and than so many bins."""
PAST_S = 3600.0
SOON_S = 1200.0
"""Who was counted for no hour yet but for so long is told by a sterner rule: that nothing at all would have lacked."""
FORGOTTEN_PART, FORGOTTEN_MOST = 0.02, 1e-3
"""Of what a promise lets be late, what may come of forgetting sooner; and of all requests at most."""
SEEN_S = 10.0
"""Until a rise was seen and planned for; then replicas launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was asked of a service: the rate of the bin that ended with each half bin in which somebody counted, or what
    is sure of the half, the oldest first.
    """

    half_s: float
    rates_rps: Floats

    @staticmethod
    def of(counts: Floats) -> Past:
        """Of requests counted in every half bin."""
        half_s = DEMAND_BIN_S / 2.0
        sure_rps = (counts - DEMAND_JUMP_SIGMAS * np.sqrt(counts)) / half_s
        bins_rps = (counts + np.concatenate(([0.0], counts))[: len(counts)]) / DEMAND_BIN_S
        return Past(half_s=half_s, rates_rps=np.maximum(sure_rps, bins_rps))

    def busiest(self, seconds: float) -> Floats:
        """At the end of every half bin the highest rate of so long."""
        found, covers, count = self.rates_rps, 1, max(1, round(seconds / self.half_s))
        while covers < count:
            step = min(covers, count - covers)
            found = np.maximum(found, np.concatenate((np.zeros(step), found))[: len(found)])
            covers += step
        return found


def memory_s(past: Past, service: Service, policy: Policy, launch_s: float) -> float:
    """How long to remember what was asked of a service, whose replicas take so long to launch."""
    whole_s = policy.demand_lookback_s
    late = math.ceil((SEEN_S + launch_s) / past.half_s)
    known_s = past.half_s * len(past.rates_rps)
    if known_s < max(SOON_S, whole_s + past.half_s * late):
        return whole_s
    asked = past.rates_rps[late:]
    most = min(FORGOTTEN_MOST, FORGOTTEN_PART * (1.0 - service.slo.percentile / 100.0)) * asked.sum()
    bears = sizes_rps(past.busiest(whole_s), policy)[:-late]
    lacks = np.maximum(0.0, asked - bears).sum() if known_s >= PAST_S - 4.0 * past.half_s else 0.0
    least_s = max(LEAST_S, LEAST_BINS * 2.0 * past.half_s)
    for part in (part for part in PARTS if part * whole_s >= least_s):
        less = sizes_rps(past.busiest(part * whole_s), policy)[:-late]
        more = np.maximum(0.0, asked - less).sum() - lacks
        if more <= most and past.half_s * np.count_nonzero(less < bears) >= whole_s:
            return part * whole_s
    return whole_s
