"""What a simulated stretch was worth: SLO violations, throughput, energy, money and training, summed over stretches.

Owns the sums and the ratios read off them; both modes fill the same tallies, so that their numbers can be compared. A
request is violated when it is answered late or dropped. It refuses to keep single requests: percentiles come from a
histogram with steps of 2 %, so a tally costs the same after a minute and after a month.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from solvers.sim.requests import Outcome
from solvers.sim.serving import Served

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = 1.02
_LEAST_MS = 0.01
_BINS = 1200
"""Up to 0.01 ms times 1.02 ** 1200, which is more than two days."""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class ServiceTally:
    """One service: requests as numbers, fractional in fluid mode. Waiting ones are in none of the sums yet."""

    completed: float = 0.0
    late: float = 0.0
    dropped: float = 0.0
    histogram: NDArray[np.float64] = field(default_factory=lambda: np.zeros(_BINS))
    """Answers by latency; empty in fluid mode, which knows no single ones."""

    def __add__(self, other: ServiceTally) -> ServiceTally:
        return ServiceTally(
            self.completed + other.completed,
            self.late + other.late,
            self.dropped + other.dropped,
            self.histogram + other.histogram,
        )

    @property
    def violation_fraction(self) -> float:
        """Late and dropped as a part of all that ended; 0 when nothing did."""
        ended = self.completed + self.dropped
        return (self.late + self.dropped) / ended if ended > 0.0 else 0.0

    def latency_ms(self, percentile: float) -> float | None:
        """Latency that this percentage of answers keeps, up to 2 % too high; None without single answers."""
        total = float(self.histogram.sum())
        if total <= 0.0:
            return None
        index = int(np.searchsorted(np.cumsum(self.histogram), total * percentile / 100.0 - 1e-9))
        return float(_LEAST_MS * _STEP ** (index + 1))


def tally_requests(outcome: Outcome, limit_ms: float | None) -> ServiceTally:
    """A stretch at request level. Each request is counted in the stretch in which its fate is known."""
    latency = outcome.latency_ms[outcome.batch > 0]
    index = np.floor(np.log(np.maximum(latency, _LEAST_MS) / _LEAST_MS) / np.log(_STEP)).astype(np.int64)
    counts = np.bincount(np.minimum(index, _BINS - 1), minlength=_BINS).astype(np.float64)
    return ServiceTally(
        completed=float(len(latency)),
        late=0.0 if limit_ms is None else float(outcome.late(limit_ms)),
        dropped=float(np.count_nonzero(outcome.dropped)),
        histogram=counts,
    )


def tally_fluid(outcomes: Iterable[Served]) -> ServiceTally:
    """A stretch in fluid mode: the outcomes of all of a service's replicas."""
    total = ServiceTally()
    for each in outcomes:
        total += ServiceTally(completed=each.completed, late=each.violated, dropped=each.dropped)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTally:
    """One device: how long it was rented, its joules and dollars, the share-seconds in use
    (1 = the whole device for one second), and iterations trained.
    """

    rented_s: float = 0.0
    energy_j: float = 0.0
    cost_usd: float = 0.0
    busy_share_s: float = 0.0
    iterations: float = 0.0

    def __add__(self, other: DeviceTally) -> DeviceTally:
        return DeviceTally(
            rented_s=self.rented_s + other.rented_s,
            energy_j=self.energy_j + other.energy_j,
            cost_usd=self.cost_usd + other.cost_usd,
            busy_share_s=self.busy_share_s + other.busy_share_s,
            iterations=self.iterations + other.iterations,
        )

    @property
    def utilisation(self) -> float:
        """Part of the rented device time in which shares worked; 0 when nothing was rented."""
        return self.busy_share_s / self.rented_s if self.rented_s > 0.0 else 0.0

    @property
    def energy_kwh(self) -> float:
        """Energy as it is billed."""
        return self.energy_j / JOULES_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScore:
    """A whole run in the numbers by which policies are compared."""

    violation_fraction: float
    """Of all services' requests together."""
    throughput_rps: float
    """Answers in time."""
    cost_usd: float
    energy_kwh: float
    utilisation: float
    iterations: float


def score(services: Iterable[ServiceTally], devices: Iterable[DeviceTally], span_s: float) -> FleetScore:
    """Sum up a run of `span_s`."""
    asked = sum(services, ServiceTally())
    held = sum(devices, DeviceTally())
    return FleetScore(
        violation_fraction=asked.violation_fraction,
        throughput_rps=(asked.completed - asked.late) / span_s,
        cost_usd=held.cost_usd,
        energy_kwh=held.energy_kwh,
        utilisation=held.utilisation,
        iterations=held.iterations,
    )
