"""What a file of kind `world` may say: loads, fleet, services, training jobs, faults and the run itself.

Times are written `90s`, `15min`, `2h`, `1d`, or as plain seconds. Whatever a record of the core already says well (an
SLO, a policy, what was profiled, the rhythm) is taken as that record. Everything is closed: an unknown field is a
complaint.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from lab.arena.loading import Heading, ScenarioForm
from lab.outcome import Better
from lab.world.arrivals import Spacing
from lab.world.scenario import FaultKind, Level, Profiling, Rhythm, Routing
from solvers.domain.device import ColocationClass, DeviceMode, PowerScope, PriceKind, Taint
from solvers.domain.ids import PolicyName
from solvers.domain.policy import Policy
from solvers.domain.workload import Affinity, ModelVariant, OfflineTask, Project, Slo, TrainingJob

_DURATION = r"^(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)$"
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _seconds(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    found = re.fullmatch(_DURATION, given.strip())
    if found is None:
        raise ValueError(f"{given!r} is no time; say seconds, or a number with ms, s, min, h or d, such as 15min")
    return float(found[1]) * _SECONDS[found[2]]


Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION}],
            "description": "A time: seconds as a number, or a text such as 90s, 15min, 2h, 1d.",
        }
    ),
]
Rate = Annotated[float, Field(ge=0, le=1e9)]
Factor = Annotated[float, Field(gt=0, le=1e9)]


Points = Annotated[tuple[tuple[Duration, Rate], ...], Field(min_length=1, max_length=10_000)]
"""Moments with numbers: `[[0s, 200], [10min, 800]]`."""


class SteadyForm(ScenarioForm):
    """The same rate all the time."""

    pattern: Literal["steady"]
    rate_rps: Rate
    spacing: Spacing = Spacing.POISSON


class BurstsForm(ScenarioForm):
    """Two rates that take turns at random (MMPP); `calm` and `burst` are how long either lasts on average."""

    pattern: Literal["bursts"]
    rate_rps_calm: Rate
    rate_rps_burst: Rate
    calm: Duration
    burst: Duration
    spacing: Spacing = Spacing.POISSON


class DailyForm(ScenarioForm):
    """A wave that begins at its lowest, with one spike."""

    pattern: Literal["daily"]
    rate_rps_mean: Rate
    swing: Annotated[float, Field(ge=0, le=1)] = 0.5
    period: Duration = 86_400.0
    spike_factor: Rate = 4.0
    spike_at: Duration = 0.0
    spike: Duration = 0.0
    spacing: Spacing = Spacing.POISSON


class PointsForm(ScenarioForm):
    """Rates by points in time, straight lines between them (`ramp`) or steps."""

    pattern: Literal["points"]
    points: Points
    ramp: bool = True
    spacing: Spacing = Spacing.POISSON


class Scaled(ScenarioForm):
    """How a day or a trace becomes a load: a part of it, faster or slower, and at most one word on its height."""

    begin: Duration = 0.0
    """Where in the day or trace the run begins."""
    end: Duration | None = None
    """Where it ends, to begin anew at `begin`."""
    time_scale: Factor = 1.0
    """0.1: ten times as fast, at the same rates."""
    rate_scale: Factor | None = None
    mean_rps: Factor | None = None
    """Scale the part so that this is its mean."""
    peak_rps: Factor | None = None
    """Scale the part so that this is its highest bin."""
    spacing: Spacing = Spacing.POISSON


class ShapeForm(Scaled):
    """A day as a fitted curve, which needs no data."""

    pattern: Literal["shape"]
    shape: Literal["twitter-day5", "twitter-median-day"]


class TraceForm(Scaled):
    """A real trace out of the folder that HEADROOM_DATA names."""

    pattern: Literal["trace"]
    source: Literal["twitter", "azure-llm", "mooncake", "muxserve", "dlrm"]
    day: Annotated[int, Field(ge=1, le=20)] | None = None
    """twitter: one of its days; otherwise all of them."""
    part: Literal["code", "conv"] = "conv"
    """azure-llm: which of the two services."""
    app: str | None = None
    """dlrm: whose GPU instances (`app_0`), each standing for one request per second; scale as you need."""
    service: str | None = None
    """muxserve: whose rate (`llm-1`)."""
    condense: int = 2000
    """muxserve: how much the authors compressed time."""
    bin: Annotated[Duration, Field(gt=0)] | None = None
    """How long a rate holds; each source has its own choice."""


class ClosedForm(ScenarioForm):
    """Clients that wait for their answer, think, and ask again. Either a number of them, or points in time."""

    pattern: Literal["closed"]
    clients: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    points: Points | None = None
    ramp: bool = True
    step: Annotated[Duration, Field(gt=0)] = 10.0
    """How long the number of clients stays on a ramp."""
    think: Duration
    """Mean of the exponential thinking time."""


class SaturatingForm(ScenarioForm):
    """There is always a full batch waiting."""

    pattern: Literal["saturating"]


LoadForm = Annotated[
    SteadyForm | BurstsForm | DailyForm | PointsForm | ShapeForm | TraceForm | ClosedForm | SaturatingForm,
    Field(discriminator="pattern"),
]


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
    (its jobs of one GPU), whose times are scaled.
    """

    name: Name
    project: Name = PROJECT
    templates: Annotated[tuple[TemplateForm, ...], Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)] | Literal["run"] = 1
    """A number: every run has the same jobs. `run`: every seed has others, the same for all contenders."""
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


class TruthForm(ScenarioForm):
    """How simulated hardware behaves: by the laws, or as public studies measured it."""

    replay: Annotated[tuple[str, ...], Field(min_length=1)]
    """Studies by name; where two measured the same, the first counts."""


class WorldForm(Heading):
    """A simulated world."""

    kind: Literal["world"]
    level: Level = Level.REQUEST
    span: Annotated[Duration, Field(gt=0)]
    warmup: Duration = 0.0
    goal: str = "cost_usd"
    better: Better = Better.LOWER
    guard: str | None = "violation_pct"
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
    by_pursuit: bool = False
    """Whether the gate judges a plan by what its planner pursues, as production does; if not, all contenders' by the
    policy's objective."""
    governor: str | None = None
    boards_hold_caps: bool = True
    """If not, boards run up to their own limit, and power caps are for plans and controllers to keep."""
    warm_start: bool = True
    latency_noise: Annotated[float, Field(ge=0, le=1)] = 0.03
    launch_scale: Annotated[float, Field(ge=0, le=1000)] = 1.0
    truth: TruthForm | None = None

    @classmethod
    def completed(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """A policy in a scenario needs no name of its own."""
        policy = plain.get("policy")
        return {**plain, "policy": {"name": "scenario", **policy}} if isinstance(policy, dict) else plain
