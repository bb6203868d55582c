"""What a planner found out beside its plan: who contended, what was looked at for each workload, what each scarce thing
is worth, and what would have to give where nothing fits.

Owns the values. Sentences for people are built from them at the edge.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.evidence import Fact, Reason
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.objective import Objective
from solvers.domain.value import value


class Resource(StrEnum):
    """What a shadow price is about, with the unit that one more of it means."""

    GPU = "gpu"
    """One more GPU of the type `subject`."""
    POWER_W = "power_w"
    """One watt more under the cap `subject` (`scope/name`)."""
    MEMORY_GIB = "memory_gib"
    """One GiB more on every GPU of the type `subject`."""
    LATENCY_MS = "latency_ms"
    """One millisecond more in the SLO of the workload `subject`."""
    RATE_RPS = "rate_rps"
    """One request per second less of the workload `subject`."""
    QUOTA_GPU = "quota_gpu"
    """One GPU more in the quota of the project `subject`."""
    REPLICA = "replica"
    """One replica more allowed to the workload `subject`."""
    REPLICA_LEAST = "replica_least"
    """One replica fewer that the workload `subject` must have at least."""
    BUDGET_USD = "budget_usd"
    """One $/h more in the budget of the workload `subject`."""
    GPU_TYPE = "gpu_type"
    """The GPU type `subject` among those that the workload may use: 0 or 1."""


@value
class ShadowPrice:
    """What one more unit of something scarce would save, $/h; `binding` False: there is some left over."""

    resource: Resource
    subject: str
    usd_per_h: float
    binding: bool = True


@value
class Candidate:
    """The best one workload could do on one GPU type, were it to be served there alone."""

    workload: WorkloadId
    gpu_type: GpuTypeName
    model: ModelName
    chosen: bool
    feasible: bool
    share_pct_sm: int = 0
    batch: int = 0
    clock_mhz_sm: int = 0
    memory_mib: int = 0
    replicas: float = 0.0
    """Of this configuration to serve the whole rate; a plan may split it over several configurations."""
    latency_ms: float | None = None
    capacity_rps: float = 0.0
    usd_per_h: float = 0.0
    """For the whole rate, at the price of the part of devices that it takes."""
    usd_per_h_more: float | None = None
    """What serving it here instead would add to the cost, scarce things at their shadow prices; None where nothing of
    it is served.
    """
    reasons: tuple[Reason, ...] = ()
    """What rules it out, or why it is dearer."""


@value
class Contender:
    """One complete answer that was considered; the best by the policy's objective became the plan."""

    name: str
    objective: Objective
    bound_usd_per_h: float | None = None
    gap_pct: float | None = None
    facts: tuple[Fact, ...] = ()


@value
class Relaxation:
    """One thing that would have to give for a workload to be served: what, whose, from how much to how much.

    Those of one workload and one `way` belong together; each way is enough by itself, while the rest stays as planned.
    """

    resource: Resource
    subject: str
    workload: WorkloadId | None
    """None: its part in the smallest set that serves all who are short together."""
    value_now: float
    value_needed: float
    way: int = 1
    reason: Reason | None = None


@value
class Insight:
    """Everything of it. Ordered: prices by (resource, subject), candidates by (workload, gpu_type, model)."""

    contenders: tuple[Contender, ...] = ()
    prices: tuple[ShadowPrice, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    facts: tuple[Fact, ...] = ()
    """How the answer was found: columns, rounds, seconds of each phase."""
