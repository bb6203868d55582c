"""What a run of any scenario gives back, and who may be run: the records by which policies are compared.

A bench runs a contender under a seed and returns an outcome of named numbers; the same contender, scenario and seed
give the same outcome to the last bit. How long planning took is told beside an outcome, never in it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol

from solvers.domain.ids import JobId, ServiceId
from solvers.domain.value import NAME, check_finite, check_name, check_not_negative, text, value, within
from solvers.planners.base import Planner


class Better(StrEnum):
    """Which direction of a metric is good; NEITHER: told for the reader, not compared."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


@value
class Metric:
    """One number of a run. The unit is in the name (`cost_usd`, `violation_pct`, `energy_kwh`)."""

    name: str
    value: float
    better: Better

    def __post_init__(self) -> None:
        check_finite(self.name, self.value)


@value
class TuningSetting:
    """One tuning parameter as text: JSON of a number, a truth value or a string."""

    name: str
    value: str


@value
class RunContender:
    """Who runs: a chain of planners with their tuning, what overrides the scenario's policy, and the controller that
    moves batches and clocks between plans. Equal labels mean equal contenders.
    """

    label: Annotated[str, text(120)]
    planners: tuple[str, ...]
    settings: tuple[TuningSetting, ...] = ()
    """Tuning of the first planner of the chain."""
    policy: tuple[TuningSetting, ...] = ()
    """Fields of the policy that differ from the scenario's."""
    governor: str | None = None
    """Name of a controller; None: the scenario's, which may be none."""


@value
class ServiceOutcome:
    """What a service's requests met. Numbers of requests are fractional in fluid mode."""

    service: ServiceId
    asked: float
    completed: float
    late: float
    dropped: float
    latency_ms_p50: float | None = None
    latency_ms_p95: float | None = None
    latency_ms_p99: float | None = None
    windows: int = 0
    """Windows in which anything was asked."""
    windows_violation_pct_mean: float = 0.0
    """Mean over these windows of the part of requests that were late or dropped."""
    attained: bool = True
    """Whether the service's own percentile of requests kept its limit, over the whole run."""

    @property
    def violation_pct(self) -> float:
        """Late and dropped requests as a part of all that ended."""
        ended = self.completed + self.dropped
        return 100.0 * (self.late + self.dropped) / ended if ended > 0.0 else 0.0


@value
class JobOutcome:
    """What became of a training job or offline task. Times since the job came; None: it did not begin, or not end."""

    job: JobId
    waited_s: float | None
    took_s: float | None
    done_part: float
    evictions: int = 0


@value
class RunWindow:
    """A stretch of the run in numbers, for plots. Rates are means over the window."""

    from_s: float
    until_s: float
    asked_rps: float
    in_time_rps: float
    violated_rps: float
    devices_used: float
    replicas: float
    usd_per_h: float
    power_w: float
    utilisation_pct: float
    iterations: float = 0.0
    kernels_pct: float = 0.0
    """Part of the time in which kernels run on the GPUs in use: what GPU monitors call utilisation."""


@value
class RunEvent:
    """One line of what happened: a promotion, a fault, a refusal; for reading a run, never for comparing it."""

    at_s: float
    kind: str
    text: str


@value
class RunOutcome:
    scenario: str
    contender: str
    seed: int
    metrics: tuple[Metric, ...]
    """By name, each once."""
    services: tuple[ServiceOutcome, ...] = ()
    jobs: tuple[JobOutcome, ...] = ()
    windows: tuple[RunWindow, ...] = ()
    deeds: tuple[RunEvent, ...] = ()

    def metric(self, name: str) -> float | None:
        """The value of a metric, None where this run does not have it."""
        return next((each.value for each in self.metrics if each.name == name), None)


@value
class About:
    """What a bench is, for lists and reports. `goal`: the metric by which it is decided, at no more of `guard`."""

    name: Annotated[str, NAME]
    title: Annotated[str, text(200)]
    kind: str
    goal: str
    better: Better
    guard: str | None = None
    planners: tuple[str, ...] = ()
    """Contenders that its authors propose, best known first."""
    seeds: Annotated[int, within(1, 10_000)] = 3
    by_pursuit: bool = False
    """Whether plans are judged by what their planners pursue, as production does; if not, all by the objective of the
    scenario's policy.
    """


class ProgressListener(Protocol):
    """Hears how far a run is."""

    def __call__(self, part: float) -> None:
        """`part` of the run is done, 0…1."""


class Planners(Protocol):
    """Makes planners by name, one's own included."""

    def __call__(self, name: str, settings: tuple[TuningSetting, ...]) -> Planner:
        """A planner with this tuning. Raises EngineError for an unknown name, FieldError for a bad setting."""


class Bench(Protocol):
    """Anything that can be run for comparison: a simulated world, a sequence of pictures, a packing."""

    @property
    def about(self) -> About:
        """What it is."""

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:
        """Run it to its end. Raises EngineError when the contender cannot be run here at all."""


def metric(name: str, number: float, better: Better = Better.NEITHER) -> Metric:
    check_name("name", name.replace("_", "-"))
    return Metric(name=name, value=float(number), better=better)


def check_outcome(outcome: RunOutcome) -> None:
    """Refuse an outcome whose sums cannot be: more late than completed, a metric told twice."""
    names = [each.name for each in outcome.metrics]
    if len(set(names)) != len(names):
        raise ValueError(f"a metric is told twice in {outcome.scenario}: {sorted(names)}")
    for service in outcome.services:
        for field in ("asked", "completed", "late", "dropped"):
            check_not_negative(field, getattr(service, field))
        if service.late > service.completed * (1 + 1e-9) + 1e-9:
            raise ValueError(f"more late than completed requests of {service.service} in {outcome.scenario}")
