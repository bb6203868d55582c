"""The fleet's summary: what is told of the plan, nodes, devices, services and work, line by line."""

from __future__ import annotations

from collections.abc import Mapping

from app.records import record
from app.services.declared.ownership import PolicyLine
from solvers.domain.workload import Slo


@record
class PlanLine:
    """The standing plan in one line."""

    id: str
    planner: str
    cost_usd_per_h: float
    bound_usd_per_h: float | None
    unplaced_count: int


@record
class CostLineNow:
    """Dollars per hour now: of what the plan uses, and of the whole fleet. A project sees its own shares."""

    planned_usd_per_h: float
    fleet_usd_per_h: float | None


@record
class NodeLine:
    """A node; `age_s` is the seconds since its last report, null before the first."""

    id: str
    rack: str
    failure_domain: str
    schedulable: bool
    up: bool
    age_s: float | None
    generation_applied: int
    endpoint: str | None
    agent_version: str | None
    devices: int


@record
class ReplicaLine:
    """A replica as its node last reported it."""

    replica: str
    kind: str
    workload: str
    model: str
    state: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    latency_ms_p99: float | None


@record
class DeviceLine:
    """A device with what it holds; readings are null while its node is silent."""

    id: str
    node: str
    index: int
    gpu_type: str
    mode: str
    memory_mib: int
    schedulable: bool
    up: bool
    healthy: bool | None
    power_w: float | None
    utilisation_pct: float | None
    memory_mib_used: float | None
    clock_mhz_sm: int | None
    price_usd_per_h: float
    policy: str
    """The policy that decides on everything here."""
    owners: Mapping[str, str]
    """Who of it owns each knob: `POLICY: planner NAME` or `governor NAME`."""
    share_pct_sm_planned: int
    share_pct_sm_held: int
    replicas: tuple[ReplicaLine, ...]


@record
class ServiceLine:
    """A service: replicas, offered load, and how much of it was served within its SLO over the last five minutes."""

    id: str
    project: str
    name: str
    model: str
    mode: str
    policy: str
    slo: Slo
    replicas_planned: int
    replicas_ready: int
    rate_rps: float | None
    rate_rps_declared: float
    latency_ms_p99: float | None
    slo_attainment: float | None
    """0 to 1; null when nothing was asked."""


@record
class WorkLine:
    """A training job or offline task with its progress."""

    id: str
    kind: str
    project: str
    name: str
    model: str
    mode: str
    policy: str
    replicas_planned: int
    replicas_ready: int
    done: float
    total: int
    evictions: int


@record
class FleetSummary:
    """The whole at a glance; with a project's token, what that project holds of it."""

    cluster: str
    generation: int
    plan: PlanLine | None
    promoted_at_s: float
    cost: CostLineNow
    slo_attainment: float | None
    policies: tuple[PolicyLine, ...]
    """Empty for a project's token."""
    nodes: tuple[NodeLine, ...]
    devices: tuple[DeviceLine, ...]
    services: tuple[ServiceLine, ...]
    jobs: tuple[WorkLine, ...]
