"""Questions about a plan that take plans of their own: why a service is not on a GPU type, and what its promise costs.

Owns the form of such a question, what it may cost, and the order of answering: what is stored is told as it is, what
was not looked at is looked at in a plan made now, and a rule that a service could bear is tried. The command line and
the API ask here alike. It refuses to know where pictures come from and to store anything.
"""

from __future__ import annotations

from app.services.explaining.explaining import Types, WhyNot, WhyNotVerdict, why_not
from app.services.explaining.solves import FACTORS, Forced, SloPoint, Solves, insight_of, service_of
from app.services.whatif.whatif import Wish, request_of
from solvers.cycle.attempts import Asking
from solvers.domain.ids import GpuTypeName
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.errors import FieldError

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
        """How to plan."""
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
    each_s = request_of(picture, question.wish).budget.deadline_s
    if question.plans * each_s > PLANNING_S_MAX:
        told = f"{question.plans} plans of {each_s:g} s take longer than {PLANNING_S_MAX:g} s"
        raise FieldError("/deadline_s", told)


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
        found = _looked_at(solves, question.workload, gpu_type)
    forced = None
    if gpu_type is not None and found is not None and _could_be(found):
        forced = solves.forced(question.workload, gpu_type)
    curve = solves.slo_curve(question.workload) if question.slo_curve else None
    return AnsweredAnew(why_not=found, forced=forced, slo_curve=curve)


def _could_be(found: WhyNot) -> bool:
    return found.verdict in (WhyNotVerdict.DEARER, WhyNotVerdict.NO_ROOM)


def _unknown(found: WhyNot) -> bool:
    return found.verdict is WhyNotVerdict.NOT_LOOKED_AT


def _looked_at(solves: Solves, workload: str, gpu_type: str) -> WhyNot:
    picture, chosen = solves.picture, solves.chosen
    insight = insight_of(picture, chosen, solves.wish)
    return why_not(solves.plan, insight, (workload, gpu_type), Types.of(picture))
