"""Explanations of plans made from a file: the same values and words as a server's.

Owns the shape of such an answer. It refuses to lay anything out and to decide what is looked into: services do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.cli.explaining_tables import split_question
from app.cli.failures import CommandError, Exit
from app.client import Document
from solvers.errors import EngineError, NotFoundError

if TYPE_CHECKING:
    from app.services.whatif.whatif import Wish
    from solvers.cycle.attempts import Asking, Chosen
    from solvers.domain.insight import Insight
    from solvers.domain.plan import Plan
    from solvers.domain.snapshot import Snapshot


def told_insight(insight: Insight | None, workload: str | None = None) -> Any:
    """As JSON data, with sentences."""
    from app.services.explaining.explaining import told
    from solvers.domain.codec import to_plain

    return to_plain(told(insight, None, workload))


def explained_offline(picture: Snapshot, wish: Wish, asking: Asking, workload: str) -> Document:
    """Why a workload is where it is in a plan made now; shaped like a server's answer."""
    from app.records import plain
    from app.services.explaining.choices import choices, gaps
    from app.services.explaining.solves import insight_of
    from app.services.whatif.whatif import solved

    chosen = solved(picture, wish, asking)
    plan = _plan(chosen)
    types = {str(device.id): str(device.gpu_type) for device in picture.with_offers().devices}
    return {
        "summary": _summary(plan),
        "assignments": plain(choices(plan, types, workload)),
        "unplaced": plain(gaps(plan, workload)),
        "waiting": None,
        "insight": told_insight(insight_of(picture, chosen, wish), workload),
        "owners": _owners(picture, plan, workload),
        "why_not": None,
    }


def why_not_offline(
    picture: Snapshot, asked: str, plan: tuple[Chosen, Insight | None], how: tuple[Wish, Asking]
) -> Any:
    """Why a service is not on a GPU type; where it could be, with a plan that has it there. Raises CommandError."""
    from app.services.explaining.explaining import Types, why_not
    from solvers.domain.codec import to_plain

    service, gpu_type = split_question(asked)
    workload = name_in(picture, service)
    chosen, insight = plan
    try:
        answer: Any = to_plain(why_not(_plan(chosen), insight, (workload, gpu_type), Types.of(picture)))
    except NotFoundError as error:
        raise CommandError(error.message, Exit.NOT_FOUND) from None
    takes = answer["verdict"] in ("dearer", "no_room")
    answer["forced"] = forced(picture, how, (workload, gpu_type)) if takes else None
    return answer


def forced(picture: Snapshot, how: tuple[Wish, Asking], asked: tuple[str, str]) -> Any:
    """What everything costs with a service on one GPU type only; None for what is no service."""
    from app.services.explaining.solves import Solves
    from solvers.domain.codec import to_plain

    if asked[0] not in {str(item.id) for item in picture.services}:
        return None
    return to_plain(Solves.of(picture, *how).forced(*asked))


def why_not_anew(picture: Snapshot, asking: Asking, stored: Document) -> Document:
    """What plans made now add to what a stored plan says of a service and a GPU type."""
    from app.services.explaining.anew import ExplainQuestion, answered_anew
    from app.services.explaining.explaining import WhyNot
    from solvers.domain.codec import from_plain, to_plain
    from solvers.domain.ids import GpuTypeName

    if stored["workload"] not in {str(item.id) for item in picture.services}:
        return {**stored, "forced": None}
    question = ExplainQuestion(workload=stored["workload"], why_not=GpuTypeName(stored["gpu_type"]))
    found = answered_anew(picture, question, asking, from_plain(WhyNot, stored))
    answer: Any = to_plain(found.why_not)
    return {**answer, "forced": to_plain(found.forced) if found.forced is not None else None}


def name_in(picture: Snapshot, workload: str) -> str:
    """`project/name` of a workload given by either form. Raises CommandError when it is unknown or not unique."""
    names = [str(item.id) for items in (picture.services, picture.jobs, picture.tasks) for item in items]
    if "/" not in workload:
        return unique(workload, [name for name in names if name.partition("/")[2] == workload])
    if workload not in names:
        raise CommandError(f"there is no workload {workload}", Exit.NOT_FOUND)
    return workload


def unique(workload: str, found: list[str]) -> str:
    """The one workload of a name. Raises CommandError."""
    if not found:
        raise CommandError(f"there is no workload named {workload}", Exit.NOT_FOUND)
    if len(found) > 1:
        raise CommandError(f"{workload} is ambiguous: {', '.join(sorted(found))}", Exit.USAGE)
    return found[0]


def _plan(chosen: Chosen) -> Plan:
    if chosen.plan is None:
        raise EngineError("no planner gave a plan")
    return chosen.plan


def _owners(picture: Snapshot, plan: Plan, workload: str) -> list[str]:
    from app.services.declared.ownership_words import owner_sentences, places_of
    from solvers.cycle.owners import Standing
    from solvers.domain.ownership import owners_of

    fleet = picture.with_offers()
    names = places_of((device.id, device.node, device.index) for device in fleet.devices)
    standing = Standing.of(plan.assignments, plan.planner, plan.parts)
    return owner_sentences(owners_of(picture), standing, workload, names)


def _summary(plan: Plan) -> Document:
    from solvers.domain.codec import digest

    return {
        "id": str(digest(plan)),
        "generation": None,
        "state": "made from a file",
        "planner": plan.planner,
        "cost_usd_per_h": plan.objective.cost_usd_per_h,
        "bound_usd_per_h": plan.bound_usd_per_h,
    }
