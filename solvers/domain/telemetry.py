"""What was seen lately: demand per service, state of devices, performance of replicas. Every value carries its age in
seconds.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.ids import DeviceId, ReplicaId, ServiceId
from solvers.domain.value import check_not_negative, check_range, value


class DemandOrigin(StrEnum):
    """Whether a rate was declared by the owner or observed at the edge."""

    DECLARED = "declared"
    OBSERVED = "observed"


DEMAND_BIN_S = 10.0
"""How long a rate must last to count as demand: shorter bursts are what queues are for."""


@value
class Demand:
    """Arrival rate of a service, requests per second. `rate_rps_mean` is that of the last moments; `rate_rps_upper` the
    highest over `DEMAND_BIN_S` in the whole window, so it rises at once and falls only when the window has passed.
    """

    service: ServiceId
    rate_rps_mean: float
    rate_rps_upper: float
    origin: DemandOrigin
    window_s: float
    age_s: float

    def __post_init__(self) -> None:
        for field in ("rate_rps_mean", "rate_rps_upper", "window_s", "age_s"):
            check_not_negative(field, getattr(self, field))

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
    share_pct_sm: int = 0

    def __post_init__(self) -> None:
        check_range("share_pct_sm", self.share_pct_sm, 0, 100)


@value
class DeviceTelemetry:
    """Latest reading of a device."""

    device: DeviceId
    power_w: float
    utilisation_pct: float
    memory_mib_used: float
    clock_mhz_sm: int
    temperature_c: float | None = None
    healthy: bool = True
    age_s: float
    repartition: RepartitionWish | None = None
    """What its controller asks for since it last kept its limits."""

    def __post_init__(self) -> None:
        check_not_negative("power_w", self.power_w)
        check_range("utilisation_pct", self.utilisation_pct, 0, 100)
        check_not_negative("memory_mib_used", self.memory_mib_used)
        check_not_negative("age_s", self.age_s)


@value
class ReplicaTelemetry:
    """Latest reading of a replica; latencies are end to end and None when nothing finished in the interval."""

    replica: ReplicaId
    rate_rps: float
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    queue_length: float
    batch_mean: float
    violation_fraction: float
    age_s: float

    def __post_init__(self) -> None:
        for field in ("rate_rps", "queue_length", "batch_mean", "age_s"):
            check_not_negative(field, getattr(self, field))
        check_range("violation_fraction", self.violation_fraction, 0, 1)
