"""Explanations that take plans of their own: why a service is not on a GPU type, and what its promise costs.

What is stored is told as it is, what was not looked at is looked at in a plan made now, and a rule that a service could
bear is tried. All plans are made from nothing standing, so that a difference is the price of the rule and not of
moving. Where a planner told no candidates, the joint planner's reading of the picture is asked what each workload could
do, without its prices. The command line and the API ask here alike; where pictures come from is theirs, and nothing is
stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.services.explaining.explaining import Types, WhyNot, WhyNotVerdict, why_not
from app.services.whatif.made import Made, Wish, planned, request_of
from app.services.whatif.outcome import Outcome, Serving, WorkloadKey, outcome_of, servings
from solvers.cycle.attempts import Asking
from solvers.domain.evidence import Insight
from solvers.domain.ids import GpuTypeName, ServiceId, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import Service, Slo, SloKind, WorkloadKind
from solvers.errors import FieldError, InputError, NotFoundError
from solvers.models.easing import eased
from solvers.planners.base import PlanRequest

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

    made: Made
    wish: Wish
    asking: Asking

    @staticmethod
    def of(picture: Snapshot, wish: Wish, asking: Asking) -> Solves:
        """Plan the picture as it is, from nothing standing. Raises EngineError."""
        return Solves(planned(_fresh(picture, wish), wish, asking), wish, asking)

    def forced(self, workload: str, gpu_type: str) -> Forced:
        """With a service on this type only. Raises NotFoundError, InputError for what is no service."""
        picture = self.made.picture
        service = service_of(picture, workload)
        name = next((item.name for item in picture.gpu_types if item.name == gpu_type), None)
        if name is None:
            raise NotFoundError(f"there is no GPU type {gpu_type}", gpu_type=gpu_type)
        before, after, serving = self._again(replace(service, gpu_types_allowed=(name,)), anew=True)
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
        service = service_of(self.made.picture, workload)
        points = [self._point(service, factor) for factor in FACTORS]
        for index in range(1, len(points)):
            shorter, longer = points[index - 1], points[index]
            if (shorter.unserved_more, shorter.cost_usd_per_h) < (longer.unserved_more, longer.cost_usd_per_h):
                points[index] = replace(shorter, factor=longer.factor, limit_ms=longer.limit_ms)
        here = points[FACTORS.index(1.0)].cost_usd_per_h
        return tuple(replace(item, cost_usd_per_h_more=round(item.cost_usd_per_h - here, DIGITS)) for item in points)

    def _point(self, service: Service, factor: float) -> SloPoint:
        slo, limit_ms = _scaled(self.made.picture.slo_asked(service), factor)
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

    def _again(self, service: Service, *, anew: bool = False) -> tuple[Outcome, Outcome, Serving]:
        """Both outcomes, and how the changed service is served then; `anew`: with promises eased for it."""
        picture = self.made.picture
        services = tuple(service if item.id == service.id else item for item in picture.services)
        changed = replace(picture, services=services)
        changed = eased(changed) if anew else changed
        again = self.made if changed == picture else planned(changed, self.wish, self.asking)
        serving = servings(again)[WorkloadKey(WorkloadId(service.id), WorkloadKind.SERVICE)]
        return outcome_of(self.made), outcome_of(again), serving


def insight_of(made: Made, wish: Wish) -> Insight | None:
    picture, told = made.picture, made.insight
    if picture.policies or (told is not None and told.candidates):
        # One reading of the whole would let policies have each other's devices.
        return told
    # Only here, so that who never asks need not load it.
    from solvers.planners.joint.explain.explaining import explained
    from solvers.planners.joint.reading.formulation import read
    from solvers.problems.patterns import Layout

    reading = read(picture, request_of(picture, wish).movable)
    found = explained(reading, Layout(patterns=(), counts=()), made.plan)
    return found if told is None else replace(found, contenders=told.contenders, facts=(*told.facts, *found.facts))


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


PLANNING_S_MAX = 600.0
"""All plans of one question together."""


@value
class ExplainQuestion:
    """What is asked of one service: why it is not on a GPU type, what its SLO costs at other lengths, or both; and how
    to plan (None: as the policy says). With `work_units`, equal pictures give equal answers.
    """

    workload: str
    why_not: GpuTypeName | None = None
    slo_curve: bool = False
    planner: str | None = None
    deadline_s: float | None = None
    work_units: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.why_not is None and not self.slo_curve:
            raise FieldError("why_not", "there is nothing to ask: name a GPU type, or ask for the SLO's curve")

    @property
    def plans(self) -> int:
        """How many plans may have to be made: one as it is, and one for every rule that is changed."""
        return 1 + (len(FACTORS) - 1 if self.slo_curve else 0) + (self.why_not is not None)

    @property
    def wish(self) -> Wish:
        return Wish(planner=self.planner, deadline_s=self.deadline_s, work_units=self.work_units, seed=self.seed)


@value
class AnsweredAnew:
    """What plans made now say; what was not asked for is None."""

    why_not: WhyNot | None = None
    forced: Forced | None = None
    """Everything planned with the service on that type only, where it could be there."""
    slo_curve: tuple[SloPoint, ...] | None = None


def check_question(picture: Snapshot, question: ExplainQuestion) -> None:
    """Refuse what would take too long or leads nowhere, before anything is planned. Raises FieldError, NotFoundError,
    InputError.
    """
    service_of(picture, question.workload)
    refuse_long(question.plans, request_of(picture, question.wish))


def refuse_long(plans: int, asked: PlanRequest) -> None:
    """Raise FieldError where so many plans would take too long together."""
    each_s = asked.budget.deadline_s
    if plans * each_s > PLANNING_S_MAX:
        raise FieldError("/deadline_s", f"{plans} plans of {each_s:g} s take longer than {PLANNING_S_MAX:g} s")


def answered_anew(
    picture: Snapshot, question: ExplainQuestion, asking: Asking, stored: WhyNot | None = None
) -> AnsweredAnew:
    """Answer a question that was checked. `stored`: what the plan itself says of the GPU type. Raises EngineError when
    no planner gives a plan, NotFoundError, InputError.
    """
    found, gpu_type = stored, question.why_not
    if not question.slo_curve and found is not None and not (_could_be(found) or _unknown(found)):
        return AnsweredAnew(why_not=found)
    solves = Solves.of(picture, question.wish, asking)
    if gpu_type is not None and (found is None or _unknown(found)):
        made, key = solves.made, (question.workload, gpu_type)
        found = why_not(made.plan, insight_of(made, solves.wish), key, Types.of(made.picture))
    forced = None
    if gpu_type is not None and found is not None and _could_be(found):
        forced = solves.forced(question.workload, gpu_type)
    curve = solves.slo_curve(question.workload) if question.slo_curve else None
    return AnsweredAnew(why_not=found, forced=forced, slo_curve=curve)


def _could_be(found: WhyNot) -> bool:
    return found.verdict in (WhyNotVerdict.DEARER, WhyNotVerdict.NOT_DEARER, WhyNotVerdict.NO_ROOM)


def _unknown(found: WhyNot) -> bool:
    return found.verdict is WhyNotVerdict.NOT_LOOKED_AT
