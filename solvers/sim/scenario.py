"""A simulated world before it begins: fleet, work, traffic, faults, what planners may know, and the rhythm of control.

Owns the records; files are read elsewhere, and `solvers.sim.world.world` lets the world run. Everything random in it
follows from the seed of the run. It refuses to hold truth: how hardware behaves is `solvers.sim.truth.truth`'s, by GPU
type and model name, so every GPU type a fleet has must be in its catalogue.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.device import Device, GpuType, Node, Offer, PowerCap
from solvers.domain.ids import DeviceId, NodeId, ServiceId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import Policy
from solvers.domain.value import check_distinct, check_not_negative, check_positive, check_range, check_text, value
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob
from solvers.errors import FieldError
from solvers.sim.arrivals import ArrivalPattern
from solvers.sim.outcome import About


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

    from_s: float
    clients: int

    def __post_init__(self) -> None:
        check_not_negative("from_s", self.from_s)
        check_not_negative("clients", self.clients)


@value
class Closed:
    """Clients that each wait for their answer, think for an exponential time, and ask again: load gives way when a
    service is slow.
    """

    steps: tuple[ClientStep, ...]
    think_s_mean: float

    def __post_init__(self) -> None:
        check_not_negative("think_s_mean", self.think_s_mean)
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
    at_s: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("at_s", self.at_s)


@value
class TaskEntry:
    """An offline task that comes at a moment."""

    task: OfflineTask
    at_s: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("at_s", self.at_s)


@value
class PolicyChange:
    """From a moment on these are the policies that have pools."""

    at_s: float
    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        check_positive("at_s", self.at_s)
        _check_pools(self.policies)


def _check_pools(policies: tuple[Policy, ...]) -> None:
    check_distinct("policies", (policy.name for policy in policies))
    for policy in policies:
        if policy.pool is None:
            raise FieldError("policies", f"policy {policy.name} needs a pool; `policy` has all that is in none")


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
    at_s: float
    lasts_s: float
    subject: str = "-"
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_not_negative("at_s", self.at_s)
        check_positive("lasts_s", self.lasts_s)
        check_positive("factor", self.factor)
        check_text("subject", self.subject, 96)


@value
class ScenarioFleet:
    """What there is. GPU types carry prices; every device's type is in the truth's catalogue."""

    gpu_types: tuple[GpuType, ...]
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    power_caps: tuple[PowerCap, ...] = ()
    offers: tuple[Offer, ...] = ()

    def __post_init__(self) -> None:
        check_distinct("gpu_types", (item.name for item in self.gpu_types))
        check_distinct("nodes", (item.id for item in self.nodes))
        check_distinct("devices", (item.id for item in self.devices))
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

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    shares_pct_sm: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    clocks: int = 1
    """So many clocks from the highest down, evenly; 1: the highest alone."""
    noise: float = 0.01
    """Relative standard deviation of a measured latency."""
    interference: bool = True
    """Whether pairs were measured; without it planners have nothing but their margin."""

    def __post_init__(self) -> None:
        for field in ("batches", "shares_pct_sm"):
            axis = getattr(self, field)
            if not axis or list(axis) != sorted(set(axis)) or axis[0] < 1:
                raise FieldError(field, f"{field} must list rising whole numbers from 1")
        check_range("clocks", self.clocks, 1, 64)
        check_range("noise", self.noise, 0, 1)


@value
class Rhythm:
    """How often things happen, seconds. Demand is told to planners as production does it: the mean over
    `demand_window_s`, the busiest bin of 10 s within the policy's `demand_lookback_s`.
    """

    cycle_s: float = 15.0
    stretch_s: float = 5.0
    """Longest time without a new settlement of mutual slowdowns; windows of the outcome are as long."""
    governor_s: float = 1.0
    demand_window_s: float = 60.0
    report_delay_s: float = 0.0
    """How old everything is that planners see."""
    apply_delay_s: float = 0.5
    """From promotion until nodes begin to act."""

    def __post_init__(self) -> None:
        for field in ("cycle_s", "stretch_s", "governor_s", "demand_window_s"):
            check_positive(field, getattr(self, field))
        check_not_negative("report_delay_s", self.report_delay_s)
        check_not_negative("apply_delay_s", self.apply_delay_s)


@value
class ScenarioStanding:
    """What holds before the first cycle, ready and warm."""

    assignments: tuple[Assignment, ...] = ()
    settings: tuple[DeviceSetting, ...] = ()


@value
class WorldScenario:
    """A world to be run for `span_s`; the first `warmup_s` of it count in no number."""

    about: About
    level: Level
    span_s: float
    warmup_s: float = 0.0
    fleet: ScenarioFleet
    models: tuple[ModelVariant, ...]
    projects: tuple[Project, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    jobs: tuple[JobEntry, ...] = ()
    tasks: tuple[TaskEntry, ...] = ()
    policy: Policy
    policies: tuple[Policy, ...] = ()
    """Those with a pool of devices; services, jobs and tasks name them."""
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
    standing: ScenarioStanding = ScenarioStanding()
    warm_start: bool = True
    """Whether what the first cycle wants is ready at once: fleets are compared at work, not at their first start."""
    latency_noise: float = 0.03
    """Spread of the logarithm of a batch's time."""
    launch_scale: float = 1.0
    """Multiplies the truth's launch times."""

    def __post_init__(self) -> None:
        check_positive("span_s", self.span_s)
        check_range("warmup_s", self.warmup_s, 0, self.span_s)
        check_range("latency_noise", self.latency_noise, 0, 1)
        check_not_negative("launch_scale", self.launch_scale)
        check_distinct("traffic", (item.service.id for item in self.traffic))
        check_distinct("jobs", (item.job.id for item in self.jobs))
        check_distinct("tasks", (item.task.id for item in self.tasks))
        _check_pools(self.policies)
        if [each.at_s for each in self.policy_changes] != sorted({each.at_s for each in self.policy_changes}):
            raise FieldError("policy_changes", "changes of policies must rise in time")
        if self.policy.name in {each.name for pools in self._all_policies for each in pools}:
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

    @property
    def _all_policies(self) -> tuple[tuple[Policy, ...], ...]:
        return (self.policies, *(change.policies for change in self.policy_changes))

    def policies_at(self, at_s: float) -> tuple[Policy, ...]:
        """Policies with pools at a moment, by name."""
        found = self.policies
        for change in self.policy_changes:
            found = change.policies if change.at_s <= at_s else found
        return tuple(sorted(found, key=lambda policy: policy.name))

    @property
    def services(self) -> tuple[Service, ...]:
        """Services by id."""
        return tuple(sorted((item.service for item in self.traffic), key=lambda item: item.id))

    def traffic_of(self, service: ServiceId) -> Traffic:
        """The traffic of a service. Raises KeyError."""
        return {item.service.id: item for item in self.traffic}[service]
