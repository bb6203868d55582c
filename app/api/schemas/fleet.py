"""The fleet's summary on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from solvers.domain.workload import Slo


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlanLine(_Closed):
    """The standing plan in one line."""

    id: str
    planner: str
    cost_usd_per_h: float
    bound_usd_per_h: float | None
    unplaced_count: int


class CostLineNow(_Closed):
    """Dollars per hour now: of what the plan uses, and of the whole fleet. A project sees its own shares."""

    planned_usd_per_h: float
    fleet_usd_per_h: float | None


class NodeLine(_Closed):
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


class PolicyLine(_Closed):
    """A policy that decides on anything: its chain, which planner of it made what stands, its controller, how much it
    owns, and why its part of the standing plan was left as it stood, if it was.
    """

    policy: str
    planners: list[str]
    planner: str
    governor: str
    devices: int
    workloads: int
    held: list[str]


class ReplicaLine(_Closed):
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


class DeviceLine(_Closed):
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
    policy: str = Field(description="The policy that decides on everything here.")
    owners: dict[str, str] = Field(description="Who of it owns each knob: `POLICY: planner NAME` or `governor NAME`.")
    share_pct_sm_planned: int
    share_pct_sm_held: int
    replicas: list[ReplicaLine]


class ServiceLine(_Closed):
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
    slo_attainment: float | None = Field(description="0 to 1; null when nothing was asked.")


class WorkLine(_Closed):
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


class FleetSummary(_Closed):
    """The whole at a glance; with a project's token, what that project holds of it."""

    cluster: str
    generation: int
    plan: PlanLine | None
    promoted_at_s: float
    cost: CostLineNow
    slo_attainment: float | None
    policies: list[PolicyLine] = Field(description="Empty for a project's token.")
    nodes: list[NodeLine]
    devices: list[DeviceLine]
    services: list[ServiceLine]
    jobs: list[WorkLine]
