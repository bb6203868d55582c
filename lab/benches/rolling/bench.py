"""A sequence of pictures planned one after the other: each step's demand meets what the step before left standing.

Owns the course: demand of a step, one production cycle with its gate, the target that it leaves, and what that costs
and fails to serve until the next step. Shortage is the verifier's: rate that the standing replicas cannot be shown to
serve. It refuses requests, and it refuses time: replicas that a cycle starts serve at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agents.wire import mirrored
from lab.outcome import (
    About,
    Better,
    Metric,
    Planners,
    ProgressListener,
    RunContender,
    RunOutcome,
    RunWindow,
    ServiceOutcome,
    metric,
)
from lab.world.ports import CountingReporter, InProcessRunner, LastRecord, StateMemory
from lab.world.targets import next_target
from lab.world.world import policy_of
from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder, Ports, movable_workloads
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.ids import CycleId, Generation, ServiceId
from solvers.domain.plan import Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import NodeStatus, Replica, ReplicaState, Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.workload import Service, SloKind
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.chain import KeepTarget
from solvers.verify.bounds import usd_per_h
from solvers.verify.checks import verify
from solvers.verify.picture import Picture

SECONDS_PER_HOUR = 3600.0
VERSION = "simulated"
PERCENT = 100.0
RATE_LEAST_RPS = 1e-3
"""What a throughput wants at least: none is no promise."""


@dataclass(slots=True)
class _Course:
    """Where a run is, as the ports show it to the cycle."""

    picture: Snapshot
    at_s: float = 0.0

    def observe(self) -> Snapshot:
        return self.picture

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:  # noqa: ARG002 - a port
        """Compare-and-set. Raises SupersededError."""
        target = next_target(self.picture.target, plan, self.at_s)
        self.picture = replace(self.picture, target=target)
        return target.generation

    def now_s(self) -> float:
        """Since the first step."""
        return self.at_s

    def elapsed_ms(self) -> float:
        """Thinking takes no time of this course's."""
        return 0.0


@dataclass(slots=True)
class _Sums:
    usd: float = 0.0
    gpu_s: float = 0.0
    starts: int = 0
    stops: int = 0
    refuted: int = 0
    held: int = 0
    asked: dict[ServiceId, float] = field(default_factory=dict)
    short: dict[ServiceId, float] = field(default_factory=dict)
    windows: list[RunWindow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rolling:
    """A fleet with its services, and their rates step by step, in the order of the picture's services."""

    about: About
    picture: Snapshot
    rates_rps: tuple[tuple[float, ...], ...]
    step_s: float

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:
        """All steps. Raises EngineError for an unknown planner."""
        planners(contender.planners[0], contender.settings)
        policy = policy_of(self.picture.policy, contender)
        course, counting = _Course(replace(self.picture, policy=policy)), CountingReporter()
        ports = Ports(
            observer=course,
            runner=InProcessRunner(
                planners, contender.planners[0], contender.settings, counting, policy.planner_settings
            ),
            actuator=course,
            clock=course,
            journal=LastRecord(),
            reporter=counting,
            memory=StateMemory(),
        )
        sums = _Sums()
        for number, rates_rps in enumerate(self.rates_rps):
            course.at_s = number * self.step_s
            course.picture = self._asked(course, policy, rates_rps, first=number == 0)
            order = CycleOrder(
                id=CycleId(f"step-{number:04d}"),
                lane=Lane.ACT,
                seed=seed + number,
                software_version=VERSION,
                by_pursuit=self.about.by_pursuit,
            )
            record = run_cycle(ports, order)
            if record.generation is None or record.transition is None:
                sums.held += 1
            else:
                sums.starts += record.transition.process_starts
                sums.stops += record.transition.process_stops
            self._account(sums, course, rates_rps)
            progress((number + 1) / len(self.rates_rps))
        sums.refuted += counting.counts.get("plan.refuted", 0)
        return RunOutcome(
            scenario=self.about.name,
            contender=contender.label,
            seed=seed,
            metrics=self._metrics(sums),
            services=tuple(_outcome(service, sums) for service in sorted(sums.asked)),
            windows=tuple(sums.windows),
        )

    def _asked(self, course: _Course, policy: Policy, rates_rps: tuple[float, ...], *, first: bool) -> Snapshot:
        """The picture in which this is asked, and what was promoted stands ready."""
        standing, services = course.picture.target, self.picture.services
        origin = DemandOrigin.DECLARED if first else DemandOrigin.OBSERVED
        return replace(
            self.picture,
            policy=policy,
            taken_at_s=self.picture.taken_at_s + course.at_s,
            target=standing,
            services=tuple(_at_rate(service, rate) for service, rate in zip(services, rates_rps, strict=True)),
            node_statuses=tuple(
                NodeStatus(node=node.id, age_s=0.0, generation_applied=standing.generation)
                for node in self.picture.nodes
            ),
            demands=tuple(
                Demand(
                    service=service.id,
                    rate_rps_mean=rate,
                    rate_rps_upper=rate,
                    origin=origin,
                    window_s=self.step_s,
                    age_s=0.0,
                )
                for service, rate in zip(services, rates_rps, strict=True)
            ),
            replicas=tuple(
                mirrored(Replica, item, id=item.replica, state=ReplicaState.READY) for item in standing.assignments
            ),
        )

    def _account(self, sums: _Sums, course: _Course, rates_rps: tuple[float, ...]) -> None:
        picture = course.picture
        movable = movable_workloads(picture, Lane.ACT)
        request = PlanRequest(snapshot=picture, movable=movable, budget=Budget(), seed=1)
        plan = KeepTarget().propose(request, b"", CountingReporter()).plan
        assert plan is not None
        cost = usd_per_h(Picture(picture, plan, movable))
        devices = len({item.device for item in plan.assignments})
        short = _shortages(verify(picture, plan, movable))
        lost = 0.0
        for service, rate in zip(picture.services, rates_rps, strict=True):
            missing = min(rate, short.get(str(service.id), 0.0))
            sums.asked[service.id] = sums.asked.get(service.id, 0.0) + rate * self.step_s
            sums.short[service.id] = sums.short.get(service.id, 0.0) + missing * self.step_s
            lost += missing
        sums.usd += cost * self.step_s / SECONDS_PER_HOUR
        sums.gpu_s += devices * self.step_s
        sums.windows.append(
            RunWindow(
                from_s=course.at_s,
                until_s=course.at_s + self.step_s,
                asked_rps=sum(rates_rps),
                in_time_rps=sum(rates_rps) - lost,
                violated_rps=lost,
                devices_used=float(devices),
                replicas=float(len(plan.assignments)),
                usd_per_h=cost,
                power_w=0.0,
                utilisation_pct=0.0,
            )
        )

    def _metrics(self, sums: _Sums) -> tuple[Metric, ...]:
        weight = {service.id: float(service.priority) for service in self.picture.services}
        asked, short = sum(sums.asked.values()), sum(sums.short.values())
        weighted = sum(weight[key] * value for key, value in sums.asked.items())
        lost = sum(weight[key] * value for key, value in sums.short.items())
        return (
            metric("cost_usd", sums.usd, Better.LOWER),
            metric("unserved_pct", PERCENT * short / asked if asked else 0.0, Better.LOWER),
            metric("unserved_weighted_pct", PERCENT * lost / weighted if weighted else 0.0, Better.LOWER),
            metric("usd_per_million_served", 1e6 * sums.usd / max(asked - short, 1.0), Better.LOWER),
            metric("gpu_hours", sums.gpu_s / SECONDS_PER_HOUR, Better.LOWER),
            metric("starts", sums.starts, Better.NEITHER),
            metric("stops", sums.stops, Better.NEITHER),
            metric("cycles_held", sums.held, Better.NEITHER),
            metric("unsound_plans", sums.refuted, Better.LOWER),
        )


def _at_rate(service: Service, rate_rps: float) -> Service:
    """A service that wants a throughput wants this one now; others keep what they declared."""
    if service.slo.kind is not SloKind.THROUGHPUT:
        return service
    asked = max(rate_rps, RATE_LEAST_RPS)
    return replace(service, slo=replace(service.slo, throughput_rps_min=asked), rate_rps_declared=asked)


def _shortages(findings: tuple[Finding, ...]) -> dict[str, float]:
    short = [finding for finding in findings if finding.code is FindingCode.CAPACITY_SHORT]
    facts = {finding.subject: {fact.name: fact.value for fact in finding.facts} for finding in short}
    return {subject: float(each["rate_rps"]) - float(each["capacity_rps"]) for subject, each in facts.items()}


def _outcome(service: ServiceId, sums: _Sums) -> ServiceOutcome:
    asked, short = sums.asked[service], sums.short[service]
    return ServiceOutcome(
        service=service, asked=asked, completed=asked - short, late=0.0, dropped=short, attained=short <= 0.0
    )
