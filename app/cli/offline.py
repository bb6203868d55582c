"""Planning from a file: the same chain of planners and the same verifier as in a cycle, without server and database.

Explanations have the same shape, values and words as a server's. The exit status is 0 only when the plan verifies.
Demand that cannot be served is no error: it is said with numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from app.cli.files import STANDARD, check_target, read_value, write_value
from app.cli.output import CommandError, Exit, Format, number, rows, show, standard_output_to_error, usd, word
from app.cli.tables import binding_lines, candidate_table, split_question, way_lines, why_not_lines
from app.client import Document
from solvers.errors import EngineError, InputError, NotFoundError

if TYPE_CHECKING:
    from app.services.whatif.outcome import Made, Outcome, Wish
    from solvers.cycle.attempts import Asking, Propose
    from solvers.domain.evidence import Finding, Insight, Reason
    from solvers.domain.plan import Plan, Proposal, Unplaced
    from solvers.domain.policy import PlannerSetting
    from solvers.domain.snapshot import Snapshot
    from solvers.planners.base import PlanRequest

SHORT_SHOWN = 20
FINDINGS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """Where a plan goes and what is said of it."""

    out: str | None
    output: Format
    quiet: bool = False
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings of planners for one look; they hold beside the policy's and before them."""

    settings: tuple[PlannerSetting, ...] = ()

    def check(self, wish: Wish) -> None:
        """Raise InputError for a planner or a parameter that there is not."""
        from app import own_planners
        from solvers.planners import registry

        known_planner(wish.planner)
        mine = (
            own_planners.load_planner(wish.planner)
            if wish.planner is not None and own_planners.is_own(wish.planner)
            else None
        )
        for item in self.settings:
            if mine is None or item.planner != mine.spec.name:
                known_planner(item.planner)
                registry.create(item.planner, {item.name: item.value})
            else:
                registry.with_settings(mine, {item.name: item.value})

    def propose(self, planner: str, request: PlanRequest) -> Proposal:
        """Run a planner of Headroom's or one's own in this process."""
        from app import own_planners
        from solvers.domain.evidence import SilentReporter
        from solvers.planners import registry

        made = own_planners.create(planner)
        settings = registry.settings_of(request.snapshot.policy, made.spec.name)
        settings |= {item.name: item.value for item in self.settings if item.planner == made.spec.name}
        made = registry.with_settings(made, settings)
        return registry.think(made, request, None, SilentReporter()).proposal


def plan_file(file: str, wish: Wish, showing: Showing, tuning: Tuning) -> None:
    """Plan from a snapshot's file and say what came of it. Raises CommandError unless the plan verifies."""
    out, output = showing.out, showing.output
    if out is not None:
        check_target(out)
    from app.services.explaining.solves import insight_of
    from app.services.whatif.outcome import outcome_of, planned
    from solvers.domain.codec import to_plain
    from solvers.domain.snapshot import Snapshot

    tuning.check(wish)
    begun_s = time.monotonic()
    snapshot = read_value(Snapshot, file)
    read_s = time.monotonic()
    made = planned(snapshot, wish, asking(tuning))
    planned_s = time.monotonic()
    outcome = outcome_of(made)
    if out is not None:
        write_value(out, made.plan)
    plain: Any = to_plain(outcome)
    plain |= {"read_s": round(read_s - begun_s, 3), "planned_s": round(planned_s - read_s, 3)}
    found = insight_of(made, wish)
    insight = plain["insight"] = told_insight(found)
    if showing.why_not is not None:
        plain["why_not"] = why_not_offline(made, showing.why_not, found, wish, asking(tuning))
    told = [
        *_head(outcome),
        *([] if showing.quiet else [*candidate_table(insight["candidates"]), *binding_lines(insight)]),
        *_short(made.plan.unplaced),
        *([] if showing.quiet else way_lines(insight)),
        *(why_not_lines(plain["why_not"]) if "why_not" in plain else []),
        *_found(outcome),
        _pace(plain),
    ]
    if out == STANDARD:
        typer.echo(f"headroom: {_head(outcome)[1]}", err=True)
    else:
        show(plain, output, told)
    if not outcome.verified:
        raise CommandError("the verifier refutes this plan", Exit.FOUND_WRONG)


def known_planner(name: str | None) -> None:
    """Raise InputError for a planner that nobody knows, and as `own.load_planner` does for one of a file."""
    from app import own_planners
    from solvers.planners import registry

    if name is not None and own_planners.is_own(name):
        own_planners.load_planner(name)
    elif name is not None and name not in registry.names():
        raise InputError(f"there is no planner {name}; known are {', '.join(registry.names())}")


def asking(tuning: Tuning | None = None) -> Asking:
    """Planners and verifier, run in this process."""
    from solvers.cycle.attempts import Asking
    from solvers.domain.evidence import SilentReporter
    from solvers.verify.checks import verify

    return Asking(propose=_told((tuning or Tuning()).propose), verify=verify, reporter=SilentReporter())


def _told(propose: Propose) -> Propose:
    """Whatever a planner raises is that planner's failure, as it is in the child process of a server."""

    def asked(planner: str, wanted: PlanRequest) -> Proposal:
        try:
            with standard_output_to_error():
                return propose(planner, wanted)
        except (EngineError, ModuleNotFoundError):
            raise
        except Exception as error:
            raise EngineError(f"planner {planner} failed: {type(error).__name__}: {error}") from error

    return asked


def _head(outcome: Outcome) -> list[str]:
    bound = usd(outcome.bound_usd_per_h, per_hour=True) if outcome.bound_usd_per_h is not None else "none proven"
    gap = f"{outcome.gap_pct:.2f} %" if outcome.gap_pct is not None else "not known"
    tried = [item for item in outcome.attempts if item.error]
    short = "nothing"
    if outcome.workloads_short:
        many = "workload" if outcome.workloads_short == 1 else "workloads"
        short = f"{outcome.workloads_short} {many}, {number(outcome.rate_rps_short)} requests/s short"
    by_type = ", ".join(f"{use.gpu_type} {use.in_use}/{use.total}" for use in outcome.gpus if use.in_use)
    return [
        f"plan {outcome.plan}",
        f"by {outcome.planner}: {usd(outcome.cost_usd_per_h, per_hour=True)}, bound {bound}, gap {gap}",
        f"unserved: {short} (weighted {number(outcome.unserved)}), SLO risk {number(outcome.slo_risk)}",
        *([f"full batches carry {number(outcome.capacity_rps)} requests/s"] if outcome.capacity_rps else []),
        *([f"training runs as on {number(outcome.training_rate)} reference GPUs"] if outcome.training_rate else []),
        f"GPUs in use: {outcome.gpus_in_use} of {outcome.gpus_total}" + (f" ({by_type})" if by_type else ""),
        f"{outcome.replicas} replicas: {moves_line(outcome)}",
        f"power planned: {number(outcome.power_w)} W, {number(outcome.energy_kwh_per_day)} kWh a day with cooling",
        f"verified: {'yes' if outcome.verified else 'no'}",
        *(f"tried before: {item.planner}: {item.error}" for item in tried if item.planner != outcome.planner),
    ]


def moves_line(outcome: Outcome) -> str:
    """What has to happen to replicas, in words."""
    moves = outcome.moves
    return f"{moves.starts} started, {moves.stops} stopped, {moves.moved} moved, {moves.changed} changed in place"


def _short(unplaced: Sequence[Unplaced]) -> list[Any]:
    if not unplaced:
        return []
    worst = sorted(unplaced, key=lambda item: (-item.rate_rps_short, item.workload))
    lines = [
        (item.workload, item.rate_rps_short or None, ", ".join(dict.fromkeys(_spoken(item.reasons))))
        for item in worst[:SHORT_SHOWN]
    ]
    more = len(worst) - len(lines)
    return [rows(("short", ">rps", "what blocks it"), lines), *([f"and {more} more"] if more else [])]


def _spoken(reasons: Sequence[Reason]) -> list[str]:
    return [reason.code.value.replace("_", " ") for reason in reasons]


def _found(outcome: Outcome) -> list[str]:
    lines = finding_lines(outcome.findings)
    more = len(lines) - FINDINGS_SHOWN
    return [*lines[:FINDINGS_SHOWN], *([f"and {more} more findings"] if more > 0 else [])]


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """One line for each finding, the fatal ones first."""
    return [
        f"{item.severity.value}: {item.code.value}: {item.subject}"
        + "".join(f", {fact.name} {word(fact.value)}" for fact in item.facts)
        for item in sorted(findings, key=lambda item: item.severity.value != "fatal")
    ]


def _pace(plain: dict[str, Any]) -> str:
    return f"read in {plain['read_s']:.2f} s, planned and verified in {plain['planned_s']:.2f} s"


def told_insight(insight: Insight | None, workload: str | None = None) -> Any:
    """As JSON data, with sentences."""
    from app.services.explaining.explaining import told
    from solvers.domain.codec import to_plain

    return to_plain(told(insight, None, workload))


def explained_offline(picture: Snapshot, wish: Wish, asking: Asking, workload: str) -> Document:
    """Why a workload is where it is in a plan made now; shaped like a server's answer."""
    from app.records import plain
    from app.services.explaining.explaining import choices, gaps
    from app.services.explaining.solves import insight_of
    from app.services.whatif.outcome import planned

    made = planned(picture, wish, asking)
    plan = made.plan
    types = {str(device.id): str(device.gpu_type) for device in picture.with_offers().devices}
    return {
        "summary": _summary(plan),
        "assignments": plain(choices(plan, types, workload)),
        "unplaced": plain(gaps(plan, workload)),
        "waiting": None,
        "insight": told_insight(insight_of(made, wish), workload),
        "owners": _owners(picture, plan, workload),
        "why_not": None,
    }


def why_not_offline(made: Made, asked: str, insight: Insight | None, wish: Wish, asking: Asking) -> Document:
    """Why a service is not on a GPU type; where it could be, with a plan that has it there. Raises CommandError."""
    from app.services.explaining.explaining import Types, why_not
    from app.services.explaining.solves import Solves
    from solvers.domain.codec import to_plain

    service, gpu_type = split_question(asked)
    workload = name_in(made.picture, service)
    try:
        answer: Any = to_plain(why_not(made.plan, insight, (workload, gpu_type), Types.of(made.picture)))
    except NotFoundError as error:
        raise CommandError(error.message, Exit.NOT_FOUND) from None
    answer["forced"] = None
    if answer["verdict"] in ("dearer", "no_room") and workload in made.picture.services_by_id():
        answer["forced"] = to_plain(Solves.of(made.picture, wish, asking).forced(workload, gpu_type))
    return dict(answer)


def why_not_anew(picture: Snapshot, asking: Asking, stored: Document) -> Document:
    """What plans made now add to what a stored plan says of a service and a GPU type."""
    from app.services.explaining.explaining import WhyNot
    from app.services.explaining.solves import ExplainQuestion, answered_anew
    from solvers.domain.codec import from_plain, to_plain
    from solvers.domain.ids import GpuTypeName

    if stored["workload"] not in picture.services_by_id():
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


def _owners(picture: Snapshot, plan: Plan, workload: str) -> list[str]:
    from app.services.explaining.sentences import owner_sentences, places_of
    from solvers.cycle.owners import StandingOwners
    from solvers.domain.ownership import owners_of

    names = places_of(picture.with_offers().devices)
    standing = StandingOwners.of(plan.assignments, plan.planner, plan.parts)
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
