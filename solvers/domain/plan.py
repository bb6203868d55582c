"""The answer: assignments of replicas to devices with all their knobs, device settings, what is left unplaced, cost and
objective.

Owns the values; a plan is immutable and its id is the digest of its canonical form. It refuses to know how it was found
beyond naming the planner, and how it will be carried out (that is `change`).
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.device import DeviceMode
from solvers.domain.evidence import Reason
from solvers.domain.ids import DeviceId, Digest, Generation, ModelName, ReplicaId, WorkloadId
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind


@value
class Envelope:
    """Bounds inside which an agent's governor may move batch and SM clock between plans."""

    batch_min: int
    batch_max: int
    clock_mhz_sm_min: int
    clock_mhz_sm_max: int


@value
class Assignment:
    """One replica on one device. Memory limit in MiB; latency is the planned percentile of the SLO, end to end where
    the SLO says so.
    """

    replica: ReplicaId
    kind: WorkloadKind
    workload: WorkloadId
    model: ModelName
    device: DeviceId
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    envelope: Envelope
    latency_ms_planned: float | None
    capacity_rps: float
    power_w_planned: float
    """Dynamic power above idle that this replica is planned to draw."""
    reasons: tuple[Reason, ...] = ()


@value
class DeviceSetting:
    """Device-wide knobs. None leaves the driver's default."""

    device: DeviceId
    mode: DeviceMode = DeviceMode.MPS
    clock_mhz_sm: int | None = None
    power_limit_w: float | None = None


@value
class Unplaced:
    """Demand (requests per second) or work that found no place, and what blocks it."""

    kind: WorkloadKind
    workload: WorkloadId
    rate_rps_short: float
    reasons: tuple[Reason, ...]


@value
class Objective:
    """Lexicographic: unserved demand weighted by priority, SLO risk, cost per hour, churn, imbalance."""

    unserved: float = 0.0
    slo_risk: float = 0.0
    cost_usd_per_h: float = 0.0
    churn: float = 0.0
    imbalance: float = 0.0

    def key(self) -> tuple[float, float, float, float, float]:
        """For comparison; lower is better. Rounded so that float dust decides nothing."""
        return (
            round(self.unserved, 6),
            round(self.slo_risk, 6),
            round(self.cost_usd_per_h, 6),
            round(self.churn, 6),
            round(self.imbalance, 6),
        )


@value
class Plan:
    """A complete wish for the fleet. `parent` is the generation it was computed against."""

    snapshot: Digest
    parent: Generation
    planner: str
    planner_version: str
    seed: int
    assignments: tuple[Assignment, ...]
    """Ordered by replica id."""
    settings: tuple[DeviceSetting, ...]
    """Ordered by device id."""
    unplaced: tuple[Unplaced, ...]
    objective: Objective
    bound_usd_per_h: float | None = None
    """Proven lower bound on the cost; None when the planner proves none."""


class ProposalStatus(StrEnum):
    """What a planner's answer is worth."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOT_APPLICABLE = "not_applicable"
    NO_SOLUTION = "no_solution"


@value
class Proposal:
    """A planner's answer: a status, a plan when there is one, and reasons that concern the whole."""

    status: ProposalStatus
    planner: str
    plan: Plan | None
    reasons: tuple[Reason, ...] = ()
