"""Explanations that take solves: a service forced onto a GPU type, and what its promise costs at other lengths.

Owns what is asked and what is compared: both plans are made from nothing standing, so that the difference is the
price of the rule and not of moving. Where a planner told no candidates, the joint planner's reading of the picture is
asked what each workload could do, without its prices. It refuses to store anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.services.whatif.outcome import Outcome, outcome_of
from app.services.whatif.whatif import Wish, request_of, solved
from app.services.whatif.workloads import Serving, workload_changes
from solvers.cycle.attempts import Asking, Chosen
from solvers.domain.ids import GpuTypeName, ServiceId
from solvers.domain.insight import Insight
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import Service, Slo, SloKind
from solvers.errors import EngineError, InputError, NotFoundError

FACTORS = (0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0)
"""Of the promise as it is."""
DIGITS = 6


@value
class Forced:
    """The whole plan with a service on one GPU type only, against the plan without that rule."""

    workload: str
    gpu_type: GpuTypeName
    cost_usd_per_h: float
    cost_usd_per_h_more: float
    rate_rps_short: float
    """Of the service."""
    unserved_more: float
    """Of everybody, weighted by priority."""
    verified: bool


@value
class SloPoint:
    """The whole plan with a service's promise at another length."""

    factor: float
    limit_ms: float
    """Of a request, or of its first token; the time between tokens is scaled alike."""
    cost_usd_per_h: float
    cost_usd_per_h_more: float
    """Than at the promise as it is."""
    rate_rps_short: float
    """Of the service."""
    unserved_more: float
    replicas: int
    gpus: tuple[str, ...]
    """GPU types that serve it, with replicas."""
    verified: bool


@dataclass(frozen=True, slots=True)
class Solves:
    """Plans of changed pictures, each against the same first one."""

    picture: Snapshot
    chosen: Chosen
    wish: Wish
    asking: Asking

    @staticmethod
    def of(picture: Snapshot, wish: Wish, asking: Asking) -> Solves:
        """Plan the picture as it is, from nothing standing. Raises EngineError."""
        fresh = _fresh(picture, wish)
        return Solves(fresh, solved(fresh, wish, asking), wish, asking)

    @property
    def plan(self) -> Plan:
        """Of the picture as it is. Raises EngineError without one."""
        if self.chosen.plan is None:
            raise EngineError("no planner gave a plan")
        return self.chosen.plan

    def forced(self, workload: str, gpu_type: str) -> Forced:
        """With a service on this type only. Raises NotFoundError, InputError for what is no service."""
        service = service_of(self.picture, workload)
        name = next((item.name for item in self.picture.gpu_types if item.name == gpu_type), None)
        if name is None:
            raise NotFoundError(f"there is no GPU type {gpu_type}", gpu_type=gpu_type)
        before, after, serving = self._again(replace(service, gpu_types_allowed=(name,)))
        more = after.cost_usd_per_h - before.cost_usd_per_h
        return Forced(
            workload=workload,
            gpu_type=name,
            cost_usd_per_h=after.cost_usd_per_h,
            # A rule more never makes the best plan cheaper: where this one is, the other could have been it.
            cost_usd_per_h_more=round(more if after.unserved > before.unserved else max(0.0, more), DIGITS),
            rate_rps_short=serving.rate_rps_short,
            unserved_more=round(after.unserved - before.unserved, DIGITS),
            verified=after.verified,
        )

    def slo_curve(self, workload: str) -> tuple[SloPoint, ...]:
        """What other lengths of the promise cost. A plan that keeps a shorter one keeps a longer one too, so costs
        never rise along the curve. Raises NotFoundError, InputError for a service without a latency.
        """
        service = service_of(self.picture, workload)
        points = [self._point(service, factor) for factor in FACTORS]
        for index in range(1, len(points)):
            shorter, longer = points[index - 1], points[index]
            if (shorter.unserved_more, shorter.cost_usd_per_h) < (longer.unserved_more, longer.cost_usd_per_h):
                points[index] = replace(shorter, factor=longer.factor, limit_ms=longer.limit_ms)
        here = points[FACTORS.index(1.0)].cost_usd_per_h
        return tuple(replace(item, cost_usd_per_h_more=round(item.cost_usd_per_h - here, DIGITS)) for item in points)

    def _point(self, service: Service, factor: float) -> SloPoint:
        slo, limit_ms = _scaled(service.slo, factor)
        before, after, serving = self._again(replace(service, slo=slo))
        return SloPoint(
            factor=factor,
            limit_ms=limit_ms,
            cost_usd_per_h=after.cost_usd_per_h,
            cost_usd_per_h_more=round(after.cost_usd_per_h - before.cost_usd_per_h, DIGITS),
            rate_rps_short=serving.rate_rps_short,
            unserved_more=round(after.unserved - before.unserved, DIGITS),
            replicas=serving.replicas,
            gpus=tuple(f"{item.replicas} x {item.gpu_type}" for item in serving.on),
            verified=after.verified,
        )

    def _again(self, service: Service) -> tuple[Outcome, Outcome, Serving]:
        """Both outcomes, and how the changed service is served then."""
        services = tuple(service if item.id == service.id else item for item in self.picture.services)
        changed = replace(self.picture, services=services)
        again = self.chosen if changed == self.picture else solved(changed, self.wish, self.asking)
        rows = workload_changes((changed, None), (changed, again.plan))
        serving = next((row.after for row in rows if str(row.workload) == service.id), Serving())
        return outcome_of(self.picture, self.chosen), outcome_of(changed, again), serving


def insight_of(picture: Snapshot, chosen: Chosen, wish: Wish) -> Insight | None:
    """What is known beside a plan; None without a plan."""
    if chosen.plan is None:
        return None
    told = chosen.proposal.insight if chosen.proposal is not None else None
    if picture.policies or (told is not None and told.candidates):
        # One reading of the whole would let policies have each other's devices.
        return told
    # Only here, so that who never asks need not load it.
    from solvers.planners.joint.explain.explaining import explained
    from solvers.planners.joint.reading.formulation import read
    from solvers.problems.layout import Layout

    reading = read(picture, request_of(picture, wish).movable)
    found = explained(reading, Layout(patterns=(), counts=()), chosen.plan)
    if told is None or found is None:
        return found
    return replace(found, contenders=told.contenders, facts=(*told.facts, *found.facts))


def service_of(picture: Snapshot, name: str) -> Service:
    """A service by `project/name`. Raises NotFoundError, InputError for a job or a task."""
    found = picture.services_by_id().get(ServiceId(name))
    if found is not None:
        return found
    if name in {*(str(item.id) for item in picture.jobs), *(str(item.id) for item in picture.tasks)}:
        raise InputError(f"{name} is no service: it has no promise and no GPU types of its own to try")
    raise NotFoundError(f"there is no service {name}", workload=name)


def _fresh(picture: Snapshot, wish: Wish) -> Snapshot:
    """The picture with nothing standing of what may move."""
    movable = set(request_of(picture, wish).movable)
    stays = tuple(item for item in picture.target.assignments if item.workload not in movable)
    devices = {item.device for item in stays}
    settings = tuple(item for item in picture.target.settings if item.device in devices)
    return replace(picture, target=replace(picture.target, assignments=stays, settings=settings))


def _scaled(slo: Slo, factor: float) -> tuple[Slo, float]:
    if slo.kind is SloKind.LATENCY and slo.latency_ms is not None:
        limit_ms = round(slo.latency_ms * factor, DIGITS)
        return replace(slo, latency_ms=limit_ms), limit_ms
    if slo.kind is SloKind.DEADLINE and slo.deadline_s is not None:
        deadline_s = round(slo.deadline_s * factor, DIGITS)
        return replace(slo, deadline_s=deadline_s), 1000 * deadline_s
    if slo.first_token_ms is not None and slo.inter_token_ms is not None:
        first_ms, between_ms = (round(item * factor, DIGITS) for item in (slo.first_token_ms, slo.inter_token_ms))
        return replace(slo, first_token_ms=first_ms, inter_token_ms=between_ms), first_ms
    raise InputError(f"an SLO of kind {slo.kind.value} has no latency to price")
