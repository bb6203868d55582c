"""What a file of kind `world` may say about fleet, services, training jobs, faults and the run itself.

Owns the short forms; whatever a record of the core already says well (an SLO, a policy, what was profiled, the rhythm)
is taken as that record. It refuses to build anything: `lab.arena.worlds` does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from lab.arena.forms import Duration, Factor, LoadForm
from lab.arena.kinds import ScenarioForm
from solvers.domain.device import ColocationClass, DeviceMode, PowerScope, PriceKind, Taint
from solvers.domain.ids import PolicyName
from solvers.domain.policy import Policy
from solvers.domain.workload import Affinity, ModelVariant, OfflineTask, Project, Slo, TrainingJob
from solvers.sim.outcome import Better
from solvers.sim.scenario import FaultKind, Level, Profiling, Rhythm, Routing

Name = Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$")]
Count = Annotated[int, Field(ge=1, le=100_000)]
PROJECT = "sim"
"""Whose everything is that names no project."""


class FleetForm(ScenarioForm):
    """Nodes that are alike."""

    gpu_type: str
    """A type of the built-in library that the simulated hardware knows too."""
    nodes: Count = 1
    devices_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    name: Name | None = None
    """Nodes are called `<name>-0`, `<name>-1`, …; the GPU type's name where nothing is said."""
    usd_per_h: Annotated[float, Field(ge=0)] | None = None
    """Price of one GPU; the library's list price where nothing is said."""
    price_kind: PriceKind = PriceKind.ON_DEMAND
    interruptions_per_h: Annotated[float, Field(ge=0)] = 0.0
    memory_mib: Count | None = None
    """Of one GPU, where it differs from the type's."""
    mig: tuple[str, ...] = ()
    """Each GPU is cut into these slices (`[3g.40gb, 3g.40gb]`)."""
    mode: DeviceMode = DeviceMode.MPS
    colocation: ColocationClass = ColocationClass.ANY
    rack: Name | None = None
    nodes_per_rack: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Racks `<name>-rack-0`, … with so many nodes each; otherwise all stand in `rack`, or in one of the entry's own."""
    failure_domain: Name = "zone-0"
    region: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    taints: tuple[Taint, ...] = ()


class CapForm(ScenarioForm):
    """A power cap; without a subject, one for everything of this scope."""

    scope: PowerScope
    subject: str | None = None
    limit_w: Factor


class OfferForm(ScenarioForm):
    """GPUs that could be rented."""

    name: Name
    gpu_type: str
    count_max: Count
    price_kind: PriceKind = PriceKind.ON_DEMAND
    usd_per_h: Annotated[float, Field(ge=0)] | None = None


class ServiceForm(ScenarioForm):
    """A service with its load. `copies` makes `<name>-0`, `<name>-1`, …, whose rates fall evenly in ratio until the
    last has `last_copy` of the first's.
    """

    name: Name
    project: Name = PROJECT
    model: str
    slo: Slo
    load: LoadForm
    copies: Annotated[int, Field(ge=1, le=10_000)] | None = None
    last_copy: Annotated[float, Field(gt=0, le=1)] = 1.0
    rate_rps_declared: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """What its owner said; the load's own mean over the run where nothing is said. Needed where that is not known
    before: for clients and saturating loads."""
    drop: bool = True
    """Whether requests are dropped that cannot be in time any more."""
    routing: Routing = Routing.LEAST_OUTSTANDING
    class_lambda: Annotated[float, Field(ge=0, le=0.999999)] = 0.9
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    replicas_min: Annotated[int, Field(ge=0, le=1024)] = 1
    replicas_max: Annotated[int, Field(ge=1, le=1024)] = 16
    gpu_types_allowed: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    accuracy_pct_min: float | None = None
    affinity: Affinity = Affinity()
    tolerations: tuple[Taint, ...] = ()
    budget_usd_per_h: Factor | None = None
    policy: str | None = None
    """Who plans it: one of `policies`."""


class PolicyChangeForm(ScenarioForm):
    """From a moment on these are the policies with pools."""

    at: Duration
    policies: tuple[Policy, ...]


class JobForm(ScenarioForm):
    """A training job and when it comes."""

    at: Duration = 0.0
    job: TrainingJob


class TaskForm(ScenarioForm):
    """An offline task and when it comes."""

    at: Duration = 0.0
    task: OfflineTask


class TemplateForm(ScenarioForm):
    """A kind of training job; `weight` is how often it comes beside the others."""

    model: str
    iteration_ms_reference: Factor
    gpu_type_reference: str
    memory_mib: Count
    memory_mib_resident_min: Count | None = None
    weight: Factor = 1.0
    share_pct_sm_min: Annotated[int, Field(ge=1, le=100)] = 10
    share_pct_sm_max: Annotated[int, Field(ge=1, le=100)] = 100
    priority: Annotated[int, Field(ge=0, le=1000)] = 10
    value_usd_per_h: Annotated[float, Field(ge=0)] = 0.0


class JobStreamForm(ScenarioForm):
    """Training jobs that come by themselves: a Poisson stream with log-normal lengths, or a part of the Philly trace
    (its jobs of one GPU), whose times are scaled. Drawn by the stream's own seed, so that every run has the same jobs.
    """

    name: Name
    project: Name = PROJECT
    templates: Annotated[tuple[TemplateForm, ...], Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)] = 1
    jobs_per_h: Factor | None = None
    iterations_median: Factor | None = None
    iterations_sigma: Annotated[float, Field(ge=0, le=5)] = 1.0
    trace: Literal["philly"] | None = None
    begin: Duration = 0.0
    """philly: where in the trace the run begins."""
    time_scale: Factor = 1.0
    """philly: 0.01 brings jobs a hundred times as fast."""
    length_scale: Factor | None = None
    """philly: multiplies how long jobs run; as `time_scale` where nothing is said."""


class FaultForm(ScenarioForm):
    """Something that goes wrong."""

    kind: FaultKind
    at: Duration
    lasts: Annotated[Duration, Field(gt=0)]
    subject: str = "-"
    factor: Factor = 1.0


class WorldForm(ScenarioForm):
    """A simulated world."""

    kind: Literal["world"]
    name: Name
    title: Annotated[str, Field(min_length=1, max_length=200)]
    level: Level = Level.REQUEST
    span: Annotated[Duration, Field(gt=0)]
    warmup: Duration = 0.0
    goal: str = "cost_usd"
    better: Better = Better.LOWER
    guard: str | None = "violation_pct"
    planners: tuple[str, ...] = ()
    """Contenders that its authors propose."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 3
    fleet: Annotated[tuple[FleetForm, ...], Field(min_length=1)]
    power_caps: tuple[CapForm, ...] = ()
    offers: tuple[OfferForm, ...] = ()
    models: tuple[ModelVariant, ...] = ()
    """Networks that the built-in library does not have."""
    projects: tuple[Project, ...] = ()
    services: tuple[ServiceForm, ...] = ()
    jobs: tuple[JobForm, ...] = ()
    job_streams: tuple[JobStreamForm, ...] = ()
    tasks: tuple[TaskForm, ...] = ()
    faults: tuple[FaultForm, ...] = ()
    policy: Policy = Policy(name=PolicyName("scenario"))
    policies: tuple[Policy, ...] = ()
    """Policies with pools of devices; services, jobs and tasks name them."""
    policy_changes: tuple[PolicyChangeForm, ...] = ()
    profiling: Profiling = Profiling()
    rhythm: Rhythm = Rhythm()
    governor: str | None = None
    boards_hold_caps: bool = True
    """If not, boards run up to their own limit, and power caps are for plans and controllers to keep."""
    warm_start: bool = True
    latency_noise: Annotated[float, Field(ge=0, le=1)] = 0.03
    launch_scale: Annotated[float, Field(ge=0, le=1000)] = 1.0

    @classmethod
    def completed(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """A policy in a scenario needs no name of its own."""
        policy = plain.get("policy")
        return {**plain, "policy": {"name": "scenario", **policy}} if isinstance(policy, dict) else plain
