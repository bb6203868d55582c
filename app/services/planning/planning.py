"""Planning: the leader's cycles in every lane, a cycle on request, applying a stored plan.

Around the core's `run_cycle` stands here the wiring of its ports, the journals that remember cycles and settle the
state in which a plan ends, which lanes have work, that a cycle which raised does not look as if it still ran, and the
name under which a planner's state is kept: a planner's own, after its policy's where that has a pool, and its version,
so that no planner is handed the state of another version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy.orm import Session

from app import kinds
from app.clock import new_id
from app.logs import EventLog, bound
from app.records import record_of
from app.services.beliefs.beliefs import Beliefs
from app.services.beliefs.completion import Completion
from app.services.declared.ownership import misgoverned, read_owners
from app.services.declared.tokens import Deed
from app.services.planning.deciding import BARE, Decisions, Remark, RolledBack
from app.services.planning.reviewing import Review, Waits, left_standing, live, matter_of, short_plan
from app.services.planning.rollout import Author, StoreActuator, outdated, terms_of
from app.services.planning.snapshots import StoreObserver, nodes_heard, read_policy
from app.services.whatif.made import no_plan
from app.store import cycles, documents, plans, targets, telemetry
from app.store.cycles import NewCycle
from app.store.engine import Database
from app.store.pages import PageOrder
from app.store.plans import NewPlan, PlanState, PlanSummary
from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import Clock, CycleOrder, Journal, Memory, Observer, Ports, Runner
from solvers.cycle.record import CycleRecord, CycleStep, HoldReason, Lane
from solvers.domain.codec import Plain
from solvers.domain.evidence import Reporter
from solvers.domain.ids import CycleId, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ServiceMode
from solvers.errors import EndingError, EngineError, StateError
from solvers.planners import registry
from solvers.planners.base import PlanRequest, Thought


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The process that plans by itself, and its fencing token."""

    holder: str
    fencing: int


class LeaderJournal:
    """Writes a cycle as it goes, so that a dead leader's successor sees how far it came."""

    def __init__(self, database: Database, cluster: str, cycle: NewCycle) -> None:
        self._database = database
        self._cluster = cluster
        self._cycle = cycle
        self._begun = False

    def step(self, step: CycleStep) -> None:
        """Open the cycle at its first step, note every step. Raises LeaseLostError once a newer leader aborted it."""
        with self._database.transaction() as session:
            if not self._begun:
                cycles.begin(session, self._cycle)
            cycles.note_step(session, self._cycle.id, step)
        self._begun = True

    def draft(self, record: CycleRecord) -> None:
        """Keep record and plan, before the plan may become the target."""
        with self._database.transaction() as session:
            cycles.draft(session, record)
            if record.plan is not None:
                plans.put(session, _new_plan(record, record.plan, PlanState.PROPOSED, self._cycle.holder))

    def close(self, record: CycleRecord) -> None:
        with self._database.transaction() as session:
            cycles.close(session, record)
            # One that changes nothing lives on in the record alone, or such plans would bury the others.
            news = record.decision is None or HoldReason.NOTHING_TO_CHANGE not in record.decision.reasons
            if record.plan is not None and record.generation is None and news:
                self._settle(session, record, record.plan)
            if record.lane is not Lane.SHADOW and (stands := left_standing(record)) is not None:
                others = {WorkloadId(work.id) for work in record.snapshot.works}.difference(record.movable)
                known = [item for item in targets.short(session, self._cluster) if item.workload in others]
                generation = record.snapshot.target.generation
                targets.note_short(session, self._cluster, generation, (*known, *stands.unplaced))
                if stands.bound_usd_per_h is not None:
                    usd_per_h = stands.objective.cost_usd_per_h
                    targets.note_proven(session, self._cluster, generation, usd_per_h, stands.bound_usd_per_h)

    def _settle(self, session: Session, record: CycleRecord, plan: Plan) -> None:
        holder, end = self._cycle.holder, _end_state(record)
        if end is PlanState.AWAITING_APPROVAL:
            waits = _waiting_plan(record, plan, holder)
            asked = plans.decided_on(session, str(waits.matter))
            # One that waits and is blocked may give way to the newer one; what was rejected stays so.
            if asked is None or (asked.blocked and asked.state is PlanState.AWAITING_APPROVAL):
                plans.put(session, waits)
            return
        if end in (PlanState.SHADOW, PlanState.REJECTED) and _stands_already(session, record, plan, end):
            return
        stored = plans.put(session, _new_plan(record, plan, PlanState.PROPOSED, holder))
        if stored.state is PlanState.PROPOSED:  # else a newer generation has set it aside already
            plans.decide(session, stored.id, end, holder, among=(PlanState.PROPOSED,))


class RequestJournal:
    """Writes a cycle that was asked for once it is over: nothing of it can be left half-way."""

    def __init__(self, database: Database, cycle: NewCycle) -> None:
        self._database = database
        self._cycle = cycle

    def step(self, step: CycleStep) -> None:
        """Nothing to note: whoever asked waits for the end."""

    def draft(self, record: CycleRecord) -> None:
        """Nothing to keep yet: such a cycle never acts."""

    def close(self, record: CycleRecord) -> None:
        """Keep record and plan at once. One for approval waits like the planner's own."""
        state = PlanState.SHADOW if record.lane is Lane.SHADOW else PlanState.PROPOSED
        with self._database.transaction() as session:
            cycles.begin(session, self._cycle)
            cycles.close(session, record)
            if record.plan is None:
                return
            waits = record.lane is Lane.APPROVE and _end_state(record) is PlanState.AWAITING_APPROVAL
            make = _waiting_plan if waits else partial(_new_plan, state=state)
            plans.put(session, make(record, record.plan, created_by=self._cycle.holder))


def _waiting_plan(record: CycleRecord, plan: Plan, created_by: str) -> NewPlan:
    new = _new_plan(record, plan, PlanState.AWAITING_APPROVAL, created_by)
    waits_s = record.snapshot.policy.approval_expires_s
    return replace(new, matter=matter_of(record.snapshot, plan), waits_s=waits_s)


def _new_plan(record: CycleRecord, plan: Plan, state: PlanState, created_by: str) -> NewPlan:
    return NewPlan(
        plan=plan,
        lane=record.lane,
        state=state,
        created_by=created_by,
        cycle_id=record.id,
        policy=record.snapshot.policy.name,
        insight=record.proposal.insight if record.proposal is not None else None,
        terms=terms_of(record.snapshot, plan) if record.lane is Lane.APPROVE else None,
    )


def _end_state(record: CycleRecord) -> PlanState:
    """Where a plan ends that its own cycle did not promote."""
    reasons = record.decision.reasons if record.decision is not None else ()
    if record.lane is Lane.SHADOW:
        return PlanState.SHADOW
    if HoldReason.SUPERSEDED in reasons:
        return PlanState.SUPERSEDED
    return PlanState.AWAITING_APPROVAL if reasons == (HoldReason.AWAITING_APPROVAL,) else PlanState.REJECTED


def _stands_already(session: Session, record: CycleRecord, plan: Plan, state: PlanState) -> bool:
    """Whether the lane's newest plan ended so and wishes the very same: it stays, and cycles' records have the rest."""
    newest = next(iter(plans.page(session, PageOrder(limit=1), lane=record.lane).items), None)
    if newest is None or newest.state is not state or newest.parent_generation != plan.parent:
        return False
    standing = plans.load(session, newest.id)
    return _wish(standing) == _wish(plan)


def _wish(plan: Plan) -> object:
    """What a plan asks for and whom it leaves short, without why and at what moment."""
    assignments = tuple(
        (each.replica, each.device, each.model, each.share_pct_sm, each.memory_mib_limit, each.batch, each.envelope)
        for each in plan.assignments
    )
    return assignments, plan.settings, {item.workload for item in plan.unplaced}


class StoreMemory:
    """States by planner, or policy and planner, and version."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recall(self, planner: str) -> bytes | None:
        """The newest state; None for a planner that nobody knows or that kept nothing."""
        version = _version(planner)
        if version is None:
            return None
        found = self._database.read(cycles.newest_state, planner, version)
        return None if found is None else found.state

    def keep(self, planner: str, state: bytes) -> None:
        version = _version(planner)
        if version is not None:
            with self._database.transaction() as session:
                cycles.put_state(session, planner, version, state)


class LanePass:
    """What the lanes of one pass see together: one picture until one of them changes the target, what planners kept
    before it, and what a planner answered. Where two lanes may move the same, it is asked once.
    """

    def __init__(self, observer: Observer, runner: Runner, memory: Memory) -> None:
        self._observer, self._runner, self._memory = observer, runner, memory
        self.renew()

    def renew(self) -> None:
        """The target changed: look again."""
        self._picture: Snapshot | None = None
        self._recalled: dict[str, bytes | None] = {}
        self._answers: list[tuple[tuple[str, PlanRequest, bytes | None], Thought]] = []

    def observe(self) -> Snapshot:
        if self._picture is None:
            self._picture = self._observer.observe()
        return self._picture

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        """What it answered, if it was asked the same before."""
        asked = (planner, request, state)
        for before, thought in self._answers:
            if before == asked:
                return thought
        thought = self._runner.think(*asked)
        self._answers.append((asked, thought))
        return thought

    def recall(self, planner: str) -> bytes | None:
        """What was kept before this pass, so that equal questions are equal."""
        if planner not in self._recalled:
            self._recalled[planner] = self._memory.recall(planner)
        return self._recalled[planner]

    def keep(self, planner: str, state: bytes) -> None:
        self._memory.keep(planner, state)


def _version(key: str) -> str | None:
    try:
        return registry.create(key.rpartition("/")[2]).spec.version
    except EngineError:
        return None


_log = EventLog("headroom.planning")
LOOKED_THROUGH_MAX = 16
"""Of the plans that wait, so many of the newest are held against the fleet in every pass."""
WAITING_EVERY_S = 300.0
"""Where others are on auto, lanes that only wait for people are planned so often while they ask for something, and at
once when documents, nodes or decisions change: they must not take the others' cycles.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningParts:
    """What planning is made of, wired by bootstrap."""

    database: Database
    runner: Runner
    clock: Clock
    reporter: Reporter
    cluster: str
    software_version: str
    beliefs: Beliefs | None = None
    """None: plan with what was measured alone."""


class Planning:
    """Every way in which a plan comes to be or becomes the target."""

    def __init__(self, parts: PlanningParts) -> None:
        self._parts = parts
        completion = Completion(parts.beliefs) if parts.beliefs is not None else None
        self._observer = StoreObserver(parts.database, parts.cluster, completion)
        self._unended: set[CycleId] = set()
        self._decisions = Decisions(parts.database, parts.cluster, self._observer)
        self._mark: object = None
        self._asked_ms: dict[Lane, float] = {}
        """When lanes that wait for people were planned last."""

    # -- the leader ---------------------------------------------------------------------------------------------------

    def run_lanes(self, leader: Leader, *, deaf: bool = False) -> tuple[CycleRecord, ...]:
        """One cycle in every lane that has workloads of its own; the acting lane first. `deaf` as in `CycleOrder`.
        Raises TransientError, LeaseLostError, InvariantError; the cycle that raised is marked aborted, at once where
        the process ends.
        """
        lanes, seed = self._prepare(leader)
        if self._parts.beliefs is not None and not lanes:
            # Nobody asks what is believed, but the leader learns for all.
            self._parts.beliefs.belief()
        sight, records = self._pass(), list[CycleRecord]()
        for lane in lanes:
            beside = Lane.APPROVE if lane is Lane.ACT and Lane.APPROVE in lanes else None
            if lane is Lane.APPROVE and records and records[0].asked and records[0].generation is not None:
                continue  # asked together: nothing of it was for people to decide
            new = self._new(lane, leader.holder, leader.fencing)
            order = replace(self._order(new, seed), beside=beside, deaf=deaf)
            records.append(self._lead(leader, new, order, sight))
            if records[-1].generation is not None:
                sight.renew()
        self._note_waiting(records)
        self._look_through(leader, sight)
        return tuple(records)

    def _due(self, session: Session) -> tuple[Lane, ...]:
        """Lanes with work; those that wait for people only now and then, while others are on auto."""
        lanes = lanes_with_work(session, self._parts.cluster)
        mark = (telemetry.intent_mark(session), nodes_heard(session), plans.last_decided(session))
        if mark != self._mark or ServiceMode.AUTO not in modes_declared(session):
            self._mark, self._asked_ms = mark, {}
        now_ms = self._parts.clock.elapsed_ms()
        late_ms = now_ms - 1000.0 * WAITING_EVERY_S
        return tuple(lane for lane in lanes if self._asked_ms.get(lane, late_ms) <= late_ms)

    def _note_waiting(self, records: Sequence[CycleRecord]) -> None:
        """Remember which lanes asked for something and must not be asked again at once; one that had its answer
        together with another costs nothing.
        """
        free = any(record.asked for record in records)
        for record in records:
            if record.lane is Lane.SHADOW or (record.lane is Lane.APPROVE and not free):
                self._asked_ms[record.lane] = self._parts.clock.elapsed_ms()

    def _look_through(self, leader: Leader, sight: LanePass) -> None:
        """Hold what waits for approval against the fleet as it is: what could not be approved says why, what has
        nothing left to change is set aside, and of all others one waits on.
        """
        with self._parts.database.reading() as session:
            waiting = plans.waiting(session)[:LOOKED_THROUGH_MAX]
            found = [(each, plans.load(session, each.id), plans.terms(session, each.id)) for each in waiting]
            renewed, seen = (_outdated(session), plans.looked_at(session)) if found else ((), {})
        waits: list[Waits] = []
        for summary, plan, terms in found:
            review = Review(sight.observe(), plan, summary.lane, terms)
            if not review.asks(renewed):
                told = {"comment": "nothing is left to change for services on approve"}
                self._lapse(leader, summary, told["comment"], told if summary.id in seen else None)
                continue
            with self._parts.database.transaction() as session:
                targets.require_token(session, targets.PLANNER, leader.fencing)
                plans.note_look(session, summary.id, review.blocked, review.added_usd_per_h)
            waits.append(Waits(summary, review))
        kept = live(waits)
        for each in waits:
            if kept is not None and each is not kept:
                why, told = f"plan {short_plan(kept.summary.id)} waits in its place", {"by": kept.summary.id}
                self._lapse(leader, each.summary, why, told if each.summary.id in seen else None)

    def _lapse(self, leader: Leader, summary: PlanSummary, why: str, told: Mapping[str, str] | None) -> None:
        """Set aside what waits, though nobody decided; `told`: by the audit trail, where somebody may have read it."""
        with self._parts.database.transaction() as session:
            targets.require_token(session, targets.PLANNER, leader.fencing)
            gone = plans.lapse(session, summary.id, why)
            if gone and told is not None:
                states: dict[str, Plain] = {"from": summary.state.value, "to": PlanState.SUPERSEDED.value}
                facts: dict[str, Plain] = {"changed": {"state": states}, **told}
                Deed(actor=leader.holder).note(session, "plan.superseded", f"plans/{summary.id}", facts)

    def rehearse(self) -> None:
        """Look as a leader would: what is believed is at hand then when this process leads. Raises TransientError."""
        self._observer.observe()

    def _prepare(self, leader: Leader) -> tuple[tuple[Lane, ...], int]:
        """Mark what dead leaders left running, and see which lanes have work."""
        with self._parts.database.transaction() as session:
            aborted = cycles.abort_older(session, leader.fencing)
            own = [cycle for cycle in sorted(self._unended) if cycles.abort(session, cycle)]
            held = targets.held_back(session, self._parts.cluster) is not None
            lanes, seed = () if held else self._due(session), read_policy(session).seed
        self._unended.clear()
        for cycle in (*aborted, *own):
            _log.warning("cycle.aborted", cycle=cycle)
        return lanes, seed

    def _pass(self) -> LanePass:
        return LanePass(self._observer, self._parts.runner, StoreMemory(self._parts.database))

    def _lead(self, leader: Leader, new: NewCycle, order: CycleOrder, sight: LanePass) -> CycleRecord:
        self._unended.add(new.id)
        with bound(cycle=new.id, lane=new.lane.value):
            journal = LeaderJournal(self._parts.database, self._parts.cluster, new)
            author = Author(name=leader.holder, fencing=leader.fencing)
            try:
                record = self._run(journal, author, order, sight)
            except EndingError:
                with self._parts.database.transaction() as session:
                    cycles.abort(session, new.id)
                raise
            self._unended.discard(new.id)
            return record

    # -- on request ---------------------------------------------------------------------------------------------------

    def propose(self, lane: Lane, actor: str) -> str:
        """Plan once in a lane and promote nothing; the id of the stored plan. Raises StateError when the lane has no
        workloads of its own, EngineError when no planner gave a plan.
        """
        with self._parts.database.reading() as session:
            lanes, seed = lanes_with_work(session, self._parts.cluster), read_policy(session).seed
        if not lanes:
            raise StateError("there is nothing to plan for: no service, job or task is declared, or all are off")
        if lane not in lanes:
            raise StateError(f"no workload is in a mode that the {lane.value} lane moves", lane=lane.value)
        new = self._new(lane, actor, 0)
        with bound(cycle=new.id, lane=lane.value):
            journal = RequestJournal(self._parts.database, new)
            order = replace(self._order(new, seed), promote=False)
            record = self._run(journal, Author(name=actor), order, self._pass())
        if record.plan_digest is None:
            raise EngineError(no_plan(record.snapshot, record.attempts), cycle=record.id)
        return record.plan_digest

    def apply(self, plan_id: str, actor: str, terms: Remark = BARE) -> int:
        """Make a stored plan the target; the new generation. Raises as `Decisions.apply`."""
        return self._decisions.apply(plan_id, actor, terms)

    def rollback(self, wanted: int | None, hold_s: float, actor: str, terms: Remark = BARE) -> RolledBack:
        """Make the plan of an earlier generation the target again. Raises as `Decisions.rollback`."""
        return self._decisions.rollback(wanted, hold_s, actor, terms)

    # -- one cycle ----------------------------------------------------------------------------------------------------

    def _new(self, lane: Lane, holder: str, fencing: int) -> NewCycle:
        version = self._parts.software_version
        return NewCycle(id=CycleId(new_id()), lane=lane, holder=holder, fencing_token=fencing, software_version=version)

    def _run(self, journal: Journal, author: Author, order: CycleOrder, sight: LanePass) -> CycleRecord:
        parts = self._parts
        ports = Ports(
            observer=sight,
            runner=sight,
            actuator=StoreActuator(parts.database, parts.cluster, author),
            clock=parts.clock,
            journal=journal,
            reporter=parts.reporter,
            memory=sight,
        )
        return run_cycle(ports, order)

    def _order(self, cycle: NewCycle, seed: int) -> CycleOrder:
        return record_of(CycleOrder, cycle, seed=seed, by_pursuit=True, outdated=self._parts.database.read(_outdated))


def _outdated(session: Session) -> tuple[WorkloadId, ...]:
    return tuple(sorted({*outdated(session), *misgoverned(session, read_owners(session))}))


def lanes_with_work(session: Session, cluster: str) -> tuple[Lane, ...]:
    """Lanes that have workloads of their own, the acting one first. It also runs when nothing may move but something
    stands: what was deleted must stop.
    """
    found = modes_declared(session)
    if targets.current(session, cluster).assignments:
        found.add(ServiceMode.AUTO)
    lanes = {ServiceMode.AUTO: Lane.ACT, ServiceMode.APPROVE: Lane.APPROVE, ServiceMode.SHADOW: Lane.SHADOW}
    return tuple(lane for mode, lane in lanes.items() if mode in found)


def modes_declared(session: Session) -> set[ServiceMode]:
    return {
        ServiceMode(str(stored.spec["mode"]))
        for kind in kinds.workloads()
        for stored in documents.all_specs(session, kind)
    }
