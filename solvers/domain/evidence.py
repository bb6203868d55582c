"""Why: reasons attached to decisions, findings of the verifier, and the reporter through which the core tells its shell
what it does.

Owns the closed lists of codes. A sentence for people is built from code and values at the edge; the values are what
tests look at.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from solvers.domain.value import value


class ReasonCode(StrEnum):
    """Why an assignment looks as it does, or why there is none."""

    CHEAPEST_FEASIBLE = "cheapest_feasible"
    KEPT_STANDING = "kept_standing"
    PINNED_BY_MODE = "pinned_by_mode"
    REJECTED_ALTERNATIVE = "rejected_alternative"
    NO_PROFILE = "no_profile"
    SLO_UNREACHABLE = "slo_unreachable"
    NO_DEVICE_OF_TYPE = "no_device_of_type"
    TYPE_NOT_ALLOWED = "type_not_allowed"
    NO_SHARE_LEFT = "no_share_left"
    NO_MEMORY_LEFT = "no_memory_left"
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
        ...


class SilentReporter:
    """Hears everything and says nothing."""

    def event(self, name: str, **facts: str | float) -> None:
        """Drop the event."""
