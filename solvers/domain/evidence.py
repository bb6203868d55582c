"""Why: reasons attached to decisions, findings of the verifier, what a planner found out beside its plan, and the
reporter through which the core tells its shell what it does. Sentences for people are built from codes and values at
the edge.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.policy import Objective
from solvers.domain.value import value


class ReasonCode(StrEnum):
    """Why an assignment looks as it does, or why there is none."""

    CHEAPEST_FEASIBLE = "cheapest_feasible"
    KEPT_STANDING = "kept_standing"
    KEPT_AT_RISK = "kept_at_risk"
    NEAREST_KNOWN = "nearest_known"
    PINNED_BY_MODE = "pinned_by_mode"
    REJECTED_ALTERNATIVE = "rejected_alternative"
    NO_PROFILE = "no_profile"
    SLO_UNREACHABLE = "slo_unreachable"
    NO_DEVICE_OF_TYPE = "no_device_of_type"
    TYPE_NOT_ALLOWED = "type_not_allowed"
    NO_SHARE_LEFT = "no_share_left"
    NO_MEMORY_LEFT = "no_memory_left"
    ROOM_UNUSED = "room_unused"
    POWER_CAP = "power_cap"
    ANTI_AFFINITY = "anti_affinity"
    TAINTED = "tainted"
    REPLICAS_MAX = "replicas_max"
    REPLICAS_MIN = "replicas_min"
    CLIENTS_MAX = "clients_max"
    BUDGET = "budget"
    QUOTA = "quota"
    FILLS_SPARE_SHARE = "fills_spare_share"
    WAITS_IN_LINE = "waits_in_line"
    COSTLIER = "costlier"
    ACCURACY_TOO_LOW = "accuracy_too_low"
    SOLVER_FAILED = "solver_failed"
    NEIGHBOURS_PRESSURE = "neighbours_pressure"


@value
class Fact:
    """One number or word behind a reason, its unit in the name (`latency_ms`, `usd_per_h`)."""

    name: str
    value: float | str


def facts_of(**values: float | str) -> tuple[Fact, ...]:
    """By name, in the order told."""
    return tuple(Fact(name=name, value=value) for name, value in values.items())


@value
class Reason:
    """One step of an explanation: what (code), about whom (subject), and the facts."""

    code: ReasonCode
    subject: str
    facts: tuple[Fact, ...] = ()


class Severity(StrEnum):
    """A fatal finding blocks promotion; a warning is stored and shown."""

    FATAL = "fatal"
    WARNING = "warning"


class FindingCode(StrEnum):
    """Everything the verifier can hold against a plan."""

    UNKNOWN_DEVICE = "unknown_device"
    UNKNOWN_WORKLOAD = "unknown_workload"
    UNKNOWN_MODEL = "unknown_model"
    ACCURACY_TOO_LOW = "accuracy_too_low"
    DUPLICATE_REPLICA = "duplicate_replica"
    SHARE_EXCEEDED = "share_exceeded"
    SHARE_INVALID = "share_invalid"
    MEMORY_EXCEEDED = "memory_exceeded"
    MEMORY_TOO_SMALL = "memory_too_small"
    BATCH_INVALID = "batch_invalid"
    CLIENTS_EXCEEDED = "clients_exceeded"
    CLOCK_UNSUPPORTED = "clock_unsupported"
    POWER_LIMIT_OUT_OF_RANGE = "power_limit_out_of_range"
    POWER_LIMIT_TOO_LOW = "power_limit_too_low"
    POWER_CAP_EXCEEDED = "power_cap_exceeded"
    POWER_UNDERSTATED = "power_understated"
    LATENCY_EXCEEDED = "latency_exceeded"
    CAPACITY_SHORT = "capacity_short"
    TYPE_NOT_ALLOWED = "type_not_allowed"
    ANTI_AFFINITY_BROKEN = "anti_affinity_broken"
    AVOIDED_NEIGHBOUR = "avoided_neighbour"
    DEDICATED_BROKEN = "dedicated_broken"
    COLOCATION_CLASS_BROKEN = "colocation_class_broken"
    TAINT_NOT_TOLERATED = "taint_not_tolerated"
    DEVICE_UNSCHEDULABLE = "device_unschedulable"
    DEVICE_SILENT = "device_silent"
    REPLICAS_OUT_OF_RANGE = "replicas_out_of_range"
    FAILURE_DOMAINS_SHORT = "failure_domains_short"
    BUDGET_EXCEEDED = "budget_exceeded"
    QUOTA_EXCEEDED = "quota_exceeded"
    PINNED_CHANGED = "pinned_changed"
    COST_WRONG = "cost_wrong"
    BOUND_WRONG = "bound_wrong"
    CAPACITY_OVERSTATED = "capacity_overstated"
    TRAINING_OVERSTATED = "training_overstated"
    PARENT_MISMATCH = "parent_mismatch"
    SNAPSHOT_MISMATCH = "snapshot_mismatch"
    ENVELOPE_INVALID = "envelope_invalid"
    SETTING_DUPLICATE = "setting_duplicate"
    FOREIGN_DEVICE = "foreign_device"
    ENVELOPE_UNKEPT = "envelope_unkept"


@value
class Finding:
    """One thing the verifier found: what, how bad, about whom, and the facts."""

    code: FindingCode
    severity: Severity
    subject: str
    facts: tuple[Fact, ...] = ()


class Reporter(Protocol):
    """Where the core says what it does. The shell turns this into log lines, metrics or nothing."""

    def event(self, name: str, **facts: str | float) -> None:
        """Report `noun.past_verb` with facts."""


class SilentReporter:
    """Hears everything and says nothing."""

    def event(self, name: str, **facts: str | float) -> None:
        """Drop the event."""


# --- What a planner found out beside its plan: who contended, what was looked at for each workload, what each scarce
# thing is worth, and what would have to give where nothing fits


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
    """What one more unit of something scarce would save of the relaxed optimum at most, $/h; whole devices may save
    more or less. `binding` False: there is some left over.
    """

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
