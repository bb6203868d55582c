"""A simulated world before it begins: fleet, work, traffic, faults, what planners may know, and the rhythm of control.

`lab.world.world` lets it run; everything random in it follows from the seed of the run. How hardware behaves is
`solvers.sim.truth`'s, by GPU type and model name, so every GPU type a fleet has must be in its catalogue.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from lab.outcome import About
from lab.world.arrivals import ArrivalPattern
from solvers.domain.change import Target
from solvers.domain.device import Device, GpuType, Node, Offer, PowerCap
from solvers.domain.ids import DeviceId, NodeId, ServiceId
from solvers.domain.policy import Policy
from solvers.domain.value import (
    NOT_NEGATIVE,
    POSITIVE,
    Limit,
    check_range,
    distinct,
    each,
    late,
    rising,
    text,
    value,
    within,
)
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob
from solvers.errors import FieldError
from solvers.sim.truth.replay import Replay


class Level(StrEnum):
    """How requests are simulated: one by one, or as a fluid in closed form."""

    REQUEST = "request"
    FLUID = "fluid"


class Routing(StrEnum):
    """How a service's requests are spread over its replicas, by the capacities that their plan says."""

    WEIGHTED_RANDOM = "weighted_random"
    ROUND_ROBIN = "round_robin"
    LEAST_OUTSTANDING = "least_outstanding"


@value
class Open:
    """Requests come whatever becomes of them."""

    pattern: ArrivalPattern


@value
class ClientStep:
    """From a moment on so many clients."""

    from_s: Annotated[float, NOT_NEGATIVE]
    clients: Annotated[int, NOT_NEGATIVE]


@value
class Closed:
    """Clients that each wait for their answer, think for an exponential time, and ask again: load gives way when a
    service is slow.
    """

    steps: tuple[ClientStep, ...]
    think_s_mean: Annotated[float, NOT_NEGATIVE]

    def __post_init__(self) -> None:
        if not self.steps or [step.from_s for step in self.steps] != sorted({step.from_s for step in self.steps}):
            raise FieldError("steps", "steps must rise in time, and there must be one")


@value
class Saturating:
    """There is always a full batch waiting: throughput is what the hardware gives, latency is execution alone."""


@value
class Traffic:
    """A service with what is asked of it. Hopeless requests are dropped where `drop` is set and the SLO has a limit."""

    service: Service
    load: Open | Closed | Saturating
    drop: bool = True
    routing: Routing = Routing.LEAST_OUTSTANDING


@value
class JobEntry:
    """A training job that comes at a moment, and may leave unfinished at another."""

    job: TrainingJob
    at_s: Annotated[float, NOT_NEGATIVE] = 0.0


@value
class TaskEntry:
    """An offline task that comes at a moment."""

    task: OfflineTask
    at_s: Annotated[float, NOT_NEGATIVE] = 0.0


def _check_pool(field: str, policy: Policy) -> None:
    if policy.pool is None:
        raise FieldError(field, f"policy {policy.name} needs a pool; `policy` has all that is in none")


POOLED = Limit(_check_pool)


@value
class PolicyChange:
    """From a moment on these are the policies that have pools."""

    at_s: Annotated[float, POSITIVE]
    policies: Annotated[tuple[Policy, ...], distinct("name"), each(POOLED)]


class FaultKind(StrEnum):
    """What can go wrong."""

    NODE_LOST = "node_lost"
    """Its processes are gone at once; it comes back empty."""
    NODE_SILENT = "node_silent"
    """It goes on serving what it holds and neither reports nor hears."""
    DEVICE_LOST = "device_lost"
    REPLICA_CRASH = "replica_crash"
    """One process, the first by name of those on the subject's device; it is started again."""
    SLOW_DEVICE = "slow_device"
    """Everything on it takes `factor` times as long."""
    POWER_LIMIT = "power_limit"
    """The board's own limit becomes `factor` times what it was, whatever was set."""
    PLANNER_DOWN = "planner_down"
    """No cycle runs."""


@value
class ScenarioFault:
    """One fault. The subject is a node or a device; for `planner_down` it is not read."""

    kind: FaultKind
    at_s: Annotated[float, NOT_NEGATIVE]
    lasts_s: Annotated[float, POSITIVE]
    subject: Annotated[str, text(96)] = "-"
    factor: Annotated[float, POSITIVE] = 1.0


@value
class ScenarioFleet:
    """What there is. GPU types carry prices; every device's type is in the truth's catalogue."""

    gpu_types: Annotated[tuple[GpuType, ...], distinct("name")]
    nodes: Annotated[tuple[Node, ...], distinct("id")]
    devices: Annotated[tuple[Device, ...], distinct("id")]
    power_caps: tuple[PowerCap, ...] = ()
    offers: tuple[Offer, ...] = ()

    def __post_init__(self) -> None:
        nodes: set[NodeId] = {item.id for item in self.nodes}
        names = {item.name for item in self.gpu_types}
        for device in self.devices:
            if device.node not in nodes:
                raise FieldError("devices", f"{device.id} stands on unknown node {device.node}")
            if device.gpu_type not in names:
                raise FieldError("devices", f"{device.id} is of unknown GPU type {device.gpu_type}")


@value
class Profiling:
    """What was measured before the run and planners may know: every model on every GPU type of the fleet over this
    grid, each cell with noise of the measurement, and the slowdown of pairs. The same for every contender.
    """

    batches: Annotated[tuple[int, ...], rising()] = (1, 2, 4, 8, 16, 32)
    shares_pct_sm: Annotated[tuple[int, ...], rising()] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    clocks: Annotated[int, within(1, 64)] = 1
    """So many clocks from the highest down, evenly; 1: the highest alone."""
    noise: Annotated[float, within(0, 1)] = 0.01
    """Relative standard deviation of a measured latency."""
    noise_power: Annotated[float, within(0, 1)] = 0.04
    noise_memory: Annotated[float, within(0, 1)] = 0.02
    interference: bool = True
    """Whether pairs were measured; without it planners have nothing but their margin."""


@value
class Rhythm:
    """How often things happen, seconds. Demand is told to planners as production does it: the mean over
    `demand_window_s`, the busiest bin of 10 s within the policy's `demand_lookback_s`.
    """

    cycle_s: Annotated[float, POSITIVE] = 15.0
    look_s: Annotated[float, POSITIVE] | None = late(None)
    """How often it is seen whether demand left what stands, or jobs came or ended: production answers that with a cycle
    at once. None: never.
    """
    count_s: Annotated[float, POSITIVE] | None = late(None)
    """How often gateways count what is asked, and have what jumped looked at; None: they wait for the look."""
    stretch_s: Annotated[float, POSITIVE] = 5.0
    """Longest time without a new settlement of mutual slowdowns; windows of the outcome are as long."""
    governor_s: Annotated[float, POSITIVE] = 1.0
    demand_window_s: Annotated[float, POSITIVE] = 60.0
    report_delay_s: Annotated[float, NOT_NEGATIVE] = 0.0
    """How old everything is that planners see."""
    apply_delay_s: Annotated[float, NOT_NEGATIVE] = 0.5
    """From promotion until nodes begin to act."""


@value
class WorldScenario:
    """A world to be run for `span_s`; the first `warmup_s` of it count in no number."""

    about: About
    level: Level
    span_s: Annotated[float, POSITIVE]
    warmup_s: float = 0.0
    fleet: ScenarioFleet
    models: tuple[ModelVariant, ...]
    projects: tuple[Project, ...] = ()
    traffic: Annotated[tuple[Traffic, ...], distinct("service.id")] = ()
    jobs: Annotated[tuple[JobEntry, ...], distinct("job.id")] = ()
    tasks: Annotated[tuple[TaskEntry, ...], distinct("task.id")] = ()
    policy: Policy
    policies: Annotated[tuple[Policy, ...], distinct("name"), each(POOLED)] = ()
    policy_changes: tuple[PolicyChange, ...] = ()
    """In the order of time."""
    profiling: Profiling = Profiling()
    rhythm: Rhythm = Rhythm()
    governor: str | None = None
    """Name of the controller that moves batches and clocks inside their envelopes; None: none does."""
    boards_hold_caps: bool = True
    """Whether boards take the power limits that plans set. If not, boards run up to their own limit, and a power cap is
    a goal that plans and controllers keep or miss."""
    faults: tuple[ScenarioFault, ...] = ()
    standing: Target = Target()
    """What holds before the first cycle, ready and warm."""
    warm_start: bool = True
    """Whether what the first cycle wants is ready at once: fleets are compared at work, not at their first start."""
    latency_noise: Annotated[float, within(0, 1)] = 0.03
    """Spread of the logarithm of a batch's time."""
    launch_scale: Annotated[float, NOT_NEGATIVE] = 1.0
    """Multiplies the truth's launch times."""
    replay: Replay | None = None
    """Studies whose measurements stand in for the laws of hardware."""

    def __post_init__(self) -> None:
        check_range("warmup_s", self.warmup_s, 0, self.span_s)
        if [each.at_s for each in self.policy_changes] != sorted({each.at_s for each in self.policy_changes}):
            raise FieldError("policy_changes", "changes of policies must rise in time")
        every = (self.policies, *(change.policies for change in self.policy_changes))
        if self.policy.name in {each.name for pools in every for each in pools}:
            raise FieldError("policies", f"policy {self.policy.name} has what is in no pool, and no pool of its own")
        known = {model.name for model in self.models}
        for name in (item.service.model for item in self.traffic):
            if name not in known:
                raise FieldError("traffic", f"model {name} is not among the models")
        subjects: set[NodeId | DeviceId | str] = {item.id for item in self.fleet.nodes}
        subjects |= {item.id for item in self.fleet.devices}
        for fault in self.faults:
            if fault.kind is not FaultKind.PLANNER_DOWN and fault.subject not in subjects:
                raise FieldError("faults", f"{fault.subject} is neither a node nor a device")

    def policies_at(self, at_s: float) -> tuple[Policy, ...]:
        found = self.policies
        for change in self.policy_changes:
            found = change.policies if change.at_s <= at_s else found
        return tuple(sorted(found, key=lambda policy: policy.name))

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(sorted((item.service for item in self.traffic), key=lambda item: item.id))

    def traffic_of(self, service: ServiceId) -> Traffic:
        return {item.service.id: item for item in self.traffic}[service]
