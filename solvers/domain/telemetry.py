"""What was seen lately: demand per service, state of devices, performance of replicas. Every value carries its age in
seconds.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

from solvers.domain.ids import DeviceId, ReplicaId, ServiceId
from solvers.domain.value import NOT_NEGATIVE, late, value, within


class DemandOrigin(StrEnum):
    """Whether a rate was declared by the owner or observed at the edge."""

    DECLARED = "declared"
    OBSERVED = "observed"


DEMAND_BIN_S = 10.0
"""How long a rate must last to count as demand: shorter bursts are what queues are for."""
DEMAND_JUMP_SIGMAS = 3.0
"""Half as long is enough for what is left of a rate without so many standard deviations of a Poisson count, and so is
what was counted last: a jump is seen at the next look, and chance alone is none.
"""
DEMAND_COUNT_S = 1.0
"""How often gateways count; what was counted in less time is taken for that of so much."""


def surely_rps(count: float, seconds: float) -> float:
    """What of a rate chance does not explain, of so many requests in so many seconds."""
    return max(0.0, count - DEMAND_JUMP_SIGMAS * math.sqrt(count)) / max(seconds, DEMAND_COUNT_S)


@value
class Demand:
    """Arrival rate of a service, requests per second. `rate_rps_mean` is that of the last moments; `rate_rps_upper` the
    highest over `DEMAND_BIN_S` in the whole window, or surely over half of it or in what was counted last, so it rises
    at once and falls only when the window has passed.
    """

    service: ServiceId
    rate_rps_mean: Annotated[float, NOT_NEGATIVE]
    rate_rps_upper: Annotated[float, NOT_NEGATIVE]
    origin: DemandOrigin
    window_s: Annotated[float, NOT_NEGATIVE]
    age_s: Annotated[float, NOT_NEGATIVE]

    @staticmethod
    def declared(service: ServiceId, rate_rps: float) -> Demand:
        """What a service says of itself, where nobody counts its requests."""
        origin = DemandOrigin.DECLARED
        return Demand(
            service=service, rate_rps_mean=rate_rps, rate_rps_upper=rate_rps, origin=origin, window_s=0.0, age_s=0.0
        )


class BrokenLimit(StrEnum):
    """Which limit a device could not keep by moving batches and clock alone."""

    POWER = "power"
    LATENCY = "latency"


@value
class RepartitionWish:
    """What a device's controller asks planners for after bad periods in a row. For latency: so much more share for a
    replica, from a donor or else from what is free. For power: a replica less.
    """

    cause: BrokenLimit
    replica: ReplicaId
    donor: ReplicaId | None = None
    share_pct_sm: Annotated[int, within(0, 100)] = 0


SLOW_PRICE_FACTOR = 3.0
"""Of a device that is slower than its type: no promise made for the type holds on it, and it is still better than
none.
"""


@value
class DeviceTelemetry:
    """Latest reading of a device."""

    device: DeviceId
    power_w: Annotated[float, NOT_NEGATIVE]
    utilisation_pct: Annotated[float, within(0, 100)]
    memory_mib_used: Annotated[float, NOT_NEGATIVE]
    clock_mhz_sm: int
    temperature_c: float | None = None
    healthy: bool = True
    age_s: Annotated[float, NOT_NEGATIVE]
    repartition: RepartitionWish | None = None
    """What its controller asks for since it last kept its limits."""
    slow_factor: Annotated[float, within(1.0, math.inf)] = late(1.0)
    """How many times as long as others of its type it takes, as far as was found."""

    @property
    def price_factor(self) -> float:
        """How many times dearer a planner holds it for, so that it uses any other of its type first."""
        return SLOW_PRICE_FACTOR if self.slow_factor > 1.0 else 1.0


@value
class ReplicaTelemetry:
    """Latest reading of a replica; latencies are end to end and None when nothing finished in the interval."""

    replica: ReplicaId
    rate_rps: Annotated[float, NOT_NEGATIVE]
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    queue_length: Annotated[float, NOT_NEGATIVE]
    batch_mean: Annotated[float, NOT_NEGATIVE]
    violation_fraction: Annotated[float, within(0, 1)]
    age_s: Annotated[float, NOT_NEGATIVE]
