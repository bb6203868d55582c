"""Stored plans and why they are as they are; and questions about the live fleet that take plans of their own: what if,
why not, what an SLO costs.

A project sees its own assignments of a plan and nothing else. A question is answered from one picture and stores
nothing; so many are answered at once, and all plans of one may take so long. Planners run where the caller says, in
production in a child process. The wording of an explanation is `sentences`'; making and applying plans is `planning`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from app import kinds
from app.errors import FieldsError
from app.records import record, record_of
from app.services.declared.ownership import read_owners
from app.services.declared.tokens import Deed, Tokens
from app.services.explaining.explaining import (
    ExplainedAssignment,
    ExplainedGap,
    ToldInsight,
    Types,
    WhyNot,
    choices,
    gaps,
    told,
    why_not,
)
from app.services.explaining.sentences import (
    demand_sentence,
    gap_words,
    given_words,
    mode_sentence,
    owner_sentences,
    places_of,
    problem_sentences,
)
from app.services.explaining.solves import (
    AnsweredAnew,
    ExplainQuestion,
    Forced,
    SloPoint,
    answered_anew,
    check_question,
    refuse_long,
)
from app.services.planning.reviewing import PlanDiff, Review, cheaper_words, difference, known_by_now, tag_of
from app.services.planning.snapshots import (
    StoreObserver,
    deciding_policies,
    read_demands,
    read_services,
    without_idle_built_in,
)
from app.services.whatif.changes import apply_changes
from app.services.whatif.made import Made, Wish, planned, request_of
from app.services.whatif.question import Pictures, WhatIf, WhatIfQuestion, answer
from app.store import documents, nodes, plans, targets
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.plans import PlanState, PlanSummary, StoredPlan
from app.store.targets import Hold, Proven
from solvers.cycle.attempts import Asking, Propose
from solvers.cycle.owners import StandingOwners
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.codec import Plain
from solvers.domain.device import Device
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ServiceMode
from solvers.errors import FieldError, NotFoundError, TransientError, did_you_mean
from solvers.planners import registry
from solvers.verify.checks import verify


@record
class Waiting:
    """Why a workload does not move by itself: its mode, and the plan that would move it."""

    mode: ServiceMode
    plan_id: str | None
    sentence: str


@record
class Explanation:
    """Why a plan is as it is. `waiting` is only told where one workload is asked about and its mode holds it back,
    `why_not` where a GPU type is asked about; `forced` and `slo_curve` only where plans were to be made for them.
    """

    summary: PlanSummary
    gap_told: str
    """How far from the best of which plans it can be, in words."""
    cheaper: str | None
    """What waits for approval and would cost less than what stands; None where nothing does, and for a project's token.
    """
    assignments: tuple[ExplainedAssignment, ...]
    unplaced: tuple[ExplainedGap, ...]
    waiting: Waiting | None
    insight: ToldInsight
    owners: tuple[str, ...]
    """Who owns which knob on the devices of the one workload asked about."""
    demand: str | None
    """How much of the one service asked about must be served now."""
    problems: tuple[str, ...]
    """What stands in the way of the one workload asked about, as nodes say that were told to hold this plan."""
    why_not: WhyNot | None
    forced: Forced | None
    slo_curve: tuple[SloPoint, ...] | None


class Plans:
    def __init__(self, database: Database, cluster: str, observer: StoreObserver) -> None:
        self._database, self._cluster, self._observer = database, cluster, observer
        self._tokens = Tokens(database)

    def page(
        self, order: PageOrder, lane: Lane | None, state: PlanState | None, project: str | None = None
    ) -> StoredPage[PlanSummary]:
        """Plans, the newest first, as a project may see them where named."""
        with self._database.reading() as session:
            found = plans.page(session, order, lane=lane, state=state)
            items = known(session, self._cluster, *found.items)
        return replace(found, items=tuple(self._told(item, project) for item in items))

    def waiting(self, project: str | None) -> tuple[PlanSummary, ...]:
        """Plans that wait, the newest first; before them those that could be approved."""
        with self._database.reading() as session:
            items = known(session, self._cluster, *plans.waiting(session))
        return tuple(self._told(item, project) for item in sorted(items, key=lambda item: bool(item.blocked)))

    def full_id(self, text: str) -> str:
        """The plan whose id begins so. Raises NotFoundError, and FieldError where several do."""
        return self._database.read(plans.full_id, text)

    def get(self, plan_id: str, project: str | None) -> StoredPlan:
        """A plan, of one project's point of view where named. Raises NotFoundError."""
        with self._database.reading() as session:
            (summary,) = known(session, self._cluster, plans.get(session, plan_id))
            plan = plans.load(session, plan_id)
        told = self._told(summary, project)
        return record_of(StoredPlan, told, plan=seen_by(plan, project), gap_told=_gap_told(told, plan, None))

    def _told(self, summary: PlanSummary, project: str | None) -> PlanSummary:
        who = summary.decided_by and self._tokens.name_of(summary.decided_by)
        return told_to(replace(summary, decided_by_name=who), project)

    def diff(self, plan_id: str) -> ComparedPlan:
        """What a plan would change against what stands now. Raises NotFoundError, TransientError."""
        with self._database.reading() as session:
            summary, plan = plans.get(session, plan_id), plans.load(session, plan_id)
            made_for = targets.at(session, plan.parent) if plan.parent else Target()
            terms = plans.terms(session, plan_id)
        review = Review(self._observer.observe(), plan, summary.lane, terms)
        # Of itself it says what holds now, of others what the planner saw.
        seen = replace(summary, blocked=review.blocked, added_usd_per_h=review.added_usd_per_h)
        with self._database.reading() as session:
            (summary,) = known(session, self._cluster, seen, fresh=True)
        return ComparedPlan(diff=difference(review, summary, made_for), tag=tag_of(review.picture.target))

    def reject(self, plan_id: str, comment: str, deed: Deed) -> PlanSummary:
        """Say no to a plan that waits: it is not proposed again unchanged. Raises NotFoundError, StateError naming who
        decided before.
        """
        waits = (PlanState.AWAITING_APPROVAL, PlanState.PROPOSED)
        with self._database.transaction() as session:
            before = plans.get(session, plan_id)
            found = plans.decide(session, plan_id, PlanState.REJECTED, deed.actor, among=waits, comment=comment)
            changed: dict[str, Plain] = {"state": {"from": before.state.value, "to": found.state.value}}
            deed.note(session, "plan.rejected", f"plans/{plan_id}", {"changed": changed, "comment": comment})
            return found

    def hold(self) -> Hold | None:
        """Who holds planning by itself now, if anybody does."""
        return self._database.read(targets.held_back, self._cluster)

    def resume(self, deed: Deed) -> Hold | None:
        """End a hold, so that planning goes on by itself; what it was."""
        with self._database.transaction() as session:
            before = targets.let_go(session, self._cluster)
            if before is not None:
                changed: dict[str, Plain] = {"held_until": {"from": before.until.isoformat(), "to": None}}
                deed.note(session, "planning.resumed", "cluster", {"changed": changed, "held_by": before.by})
            return before

    def note_proposal(self, plan_id: str, lane: Lane, deed: Deed) -> None:
        """Write into the audit trail that somebody asked for a plan and got this one."""
        with self._database.transaction() as session:
            deed.note(session, "plan.proposed", f"plans/{plan_id}", {"lane": lane.value})

    def explain(
        self, plan_id: str, project: str | None, workload: str | None, gpu_type: str | None = None
    ) -> Explanation:
        """Why a plan is as it is, of one workload where named, and why that is not on a GPU type where named. Raises
        NotFoundError, also for a GPU type that does not exist and a workload that neither exists nor has a part in the
        plan; FieldError for a GPU type without a workload.
        """
        if gpu_type is not None and workload is None:
            raise FieldError("query:workload", "say for which workload")
        with self._database.reading() as session:
            summary = told_to(plans.get(session, plan_id), project)
            whole, proven = plans.load(session, plan_id), None
            if summary.generation is not None and summary.generation == targets.generation(session, self._cluster):
                whole = replace(whole, unplaced=targets.short(session, self._cluster))
                proven = targets.proven(session, self._cluster)
            plan = seen_by(whole, project)
            insight = plans.load_insight(session, plan_id, workload)
            gpu_types = documents.by_name(session, kinds.DEVICE, "gpu_type")
            known = documents.by_name(session, kinds.GPU_TYPE, "name") if gpu_type else {}
            types = Types(known=frozenset(known), there=frozenset(gpu_types.values()))
            mode = _mode(session, workload) if workload is not None else None
            owners = _owners(session, whole, workload) if workload is not None else ()
            mine = workload is not None and (project is None or workload.startswith(f"{project}/"))
            demand = _demand(session, workload) if workload is not None and mine else None
            problems = nodes.problems(session, summary.generation) if workload and summary.generation else {}
            pools = _pools(session)
            waiting = self._waiting(session, project, workload, mode) if workload and mode is not None else None
            cheaper = cheaper_words(plans.waiting(session)) if project is None else None
        wanted, missing = choices(plan, gpu_types, workload, pools), gaps(plan.unplaced, workload, pools)
        if workload is not None and mode is None and not wanted and not missing:
            raise NotFoundError(f"there is no workload {workload}", workload=workload)
        return Explanation(
            summary=summary,
            gap_told=_gap_told(summary, whole, proven),
            cheaper=cheaper,
            assignments=wanted,
            unplaced=missing,
            waiting=waiting,
            insight=told(insight, project, workload, pools),
            owners=owners,
            demand=demand,
            problems=problem_sentences(problems, f"{workload}#", project),
            why_not=why_not(plan, insight, (workload, gpu_type), types, pools.get(workload))
            if workload and gpu_type
            else None,
            forced=None,
            slo_curve=None,
        )

    def _waiting(self, session: Session, project: str | None, workload: str, mode: ServiceMode) -> Waiting | None:
        plan_id, told = None, tuple[str, ...]()
        if mode in _WAITS_AS:
            for newest in plans.page(session, PageOrder(limit=1), state=_WAITS_AS[mode]).items:
                plan = plans.load(session, newest.id)
                if workload in {item.workload for item in plan.assignments} | {item.workload for item in plan.unplaced}:
                    (found,) = known(session, self._cluster, newest)
                    plan_id, told = newest.id, told_to(found, project).told
        sentence = mode_sentence(workload, mode, plan_id, told)
        return Waiting(mode=mode, plan_id=plan_id, sentence=sentence) if sentence is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlan:
    """A difference, and the tag of what it was made against."""

    diff: PlanDiff
    tag: str


def known(session: Session, cluster: str, *items: PlanSummary, fresh: bool = False) -> tuple[PlanSummary, ...]:
    """Summaries with what whoever decides should know by now. `fresh`: what they say of themselves was seen now."""
    if all(item.state is not PlanState.AWAITING_APPROVAL for item in items):
        return items
    looked = plans.looked_at(session)
    for item in items if fresh else ():
        looked.pop(item.id, None)
    generation = targets.generation(session, cluster)
    return tuple(replace(item, told=known_by_now(item, generation, looked)) for item in items)


def _gap_told(summary: PlanSummary, plan: Plan, proven: Proven | None) -> str:
    """`proven`: what was seen since, of a plan that stands."""
    given = given_words(plan.assignments, plan.unplaced, pooled=bool(plan.parts))
    if proven is not None and summary.cost_usd_per_h is not None:
        return gap_words(proven.usd_per_h, proven.bound_usd_per_h, given)
    return gap_words(summary.cost_usd_per_h, summary.bound_usd_per_h, given)


def told_to(summary: PlanSummary, project: str | None) -> PlanSummary:
    """A summary as a project may see it: what is said of other projects' workloads, and of all together, stays out."""
    if project is None:
        return summary
    return replace(
        summary,
        cost_usd_per_h=None,
        bound_usd_per_h=None,
        unplaced_count=None,
        blocked=(),
        comment=None,
        decided_by_name=None,
        added_usd_per_h=None,
        told=(),
        answered=None,
    )


def seen_by(plan: Plan, project: str | None) -> Plan:
    """The plan as a project may see it: its own workloads. Device settings stay out, so does what is said of the whole:
    its objective is empty, and what it makes room for is not told.
    """
    if project is None:
        return plan
    prefix = f"{project}/"
    return replace(
        plan,
        assignments=tuple(item for item in plan.assignments if item.workload.startswith(prefix)),
        unplaced=tuple(item for item in plan.unplaced if item.workload.startswith(prefix)),
        settings=(),
        objective=Objective(),
        bound_usd_per_h=None,
        parts=(),
        toward=None,
    )


def _mode(session: Session, workload: str) -> ServiceMode | None:
    """The mode of a workload; None when there is no such document."""
    key = tuple(workload.split("/"))
    found = (documents.find(session, kind, key) for kind in kinds.workloads())
    return next((ServiceMode(str(stored.spec["mode"])) for stored in found if stored is not None), None)


_WAITS_AS = {ServiceMode.APPROVE: PlanState.AWAITING_APPROVAL, ServiceMode.SHADOW: PlanState.SHADOW}
"""In which state the plans wait that a mode holds back."""


def _pools(session: Session) -> dict[str, str]:
    """The policy that decides on each workload; nothing while one decides on everything."""
    owners = read_owners(session)
    if not owners.bound:
        return {}
    found = (stored for kind in kinds.workloads() for stored in documents.all_specs(session, kind))
    named = {"/".join(stored.key): stored.spec.get("policy") for stored in found}
    return {name: str(policy if policy in owners.bound else owners.default.name) for name, policy in named.items()}


def _owners(session: Session, plan: Plan, workload: str) -> tuple[str, ...]:
    """Told by the policies of now; a plan says which of their planners made it."""
    names = places_of(documents.values(session, kinds.DEVICE, Device))
    standing = StandingOwners.of(plan.assignments, plan.planner, plan.parts)
    return tuple(owner_sentences(read_owners(session), standing, workload, names))


def _demand(session: Session, workload: str) -> str | None:
    """Nothing of what is no service."""
    found = [service for service in read_services(session) if service.id == workload]
    policies = deciding_policies(session, found)
    return next((demand_sentence(each, policies[each.service]) for each in read_demands(session, found)), None)


AT_ONCE_MAX = 2


class Simulations:
    """Answers about the fleet as it is now. Safe to ask from several threads. `propose` runs one planner under its
    deadline and raises EngineError.
    """

    def __init__(self, observer: StoreObserver, propose: Propose) -> None:
        self._observer = observer
        self._asking = Asking(propose=propose, verify=verify, reporter=SilentReporter())
        self._places = threading.BoundedSemaphore(AT_ONCE_MAX)

    def snapshot(self) -> Snapshot:
        """The picture that a plan would be made from now. Raises TransientError."""
        return self._observer.observe()

    def answer(self, question: WhatIfQuestion) -> WhatIf:
        """Plan the fleet as it is and as it would be. Raises FieldsError or FieldError with a pointer for changes that
        do not fit the fleet or take too long, TransientError when too many questions are being answered, EngineError
        when no planner gives a plan.
        """
        return self.together().answer(question)

    def together(self) -> Inquiry:
        """For several questions of one fleet."""
        return Inquiry(self._observer, self._asking, self._place)

    def explain(self, question: ExplainQuestion, stored: WhyNot | None) -> AnsweredAnew:
        """What plans of the fleet as it is now say of a service. `stored`: what a stored plan says already. Raises
        FieldError with a pointer for an unknown planner or what takes too long, NotFoundError, InputError,
        TransientError and EngineError as above.
        """
        _known_planner(question.planner)
        with self._place():
            picture = self._observer.observe()
            check_question(picture, question)
            return answered_anew(picture, question, self._asking, stored)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise TransientError("too many simulations are being made at once; try again shortly")
        try:
            yield
        finally:
            self._places.release()


class Inquiry:
    """Questions of one who asks one after the other: all of the fleet as it is at the first, which is planned once for
    all that wish the same.
    """

    def __init__(
        self, observer: StoreObserver, asking: Asking, place: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._observer, self._asking, self._place = observer, asking, place
        self._whole: Snapshot | None = None
        self._made: dict[Wish, Made] = {}

    def answer(self, question: WhatIfQuestion) -> WhatIf:
        """As `Simulations.answer`."""
        _known_planner(question.planner)
        with self._place():
            pictures = self._pictures(question)
            return answer(question, pictures, self._asking, lambda: self._as_it_is(question, pictures.before))

    def _as_it_is(self, question: WhatIfQuestion, picture: Snapshot) -> Made:
        wish = record_of(Wish, question)
        if wish not in self._made:
            self._made[wish] = planned(picture, wish, self._asking)
        return self._made[wish]

    def _pictures(self, question: WhatIfQuestion) -> Pictures:
        """Both out of one reading of the database, so that nothing differs but what was asked."""
        if self._whole is None:
            self._whole = self._observer.whole()
        whole = self._whole
        try:
            changed = apply_changes(whole, question.changes)
        except FieldsError as error:
            raise FieldsError(
                tuple(replace(item, pointer=f"/changes{item.pointer}") for item in error.faults)
            ) from None
        before, after = (self._observer.completed(without_idle_built_in(item)) for item in (whole, changed))
        refuse_long(question.plans, request_of(after, question))
        return Pictures(before=before, after=after, types=changed.gpu_types, complete=self._observer.completed)


def _known_planner(name: str | None) -> None:
    if name is not None and name not in registry.names():
        near = did_you_mean(name, registry.names(), all_known=True)
        raise FieldError("/planner", f"there is no planner {name}{near}")
