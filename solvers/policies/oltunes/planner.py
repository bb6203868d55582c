"""OLTunes as a planner: tasks and services wait in two queues, are rated, grouped on little used devices, and tuned.

A cycle is a tick of its scheduler: hear what became of tasks and learn from it; what stands stays; who is short of
capacity is rated by Eq. 4 to 7 and waits in its queue; groups are formed; window and size of groups follow. A service
is latency-critical work that never ends and comes back while its rate is not served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import TaskId, WorkloadId
from solvers.domain.plan import Assignment, Proposal
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import OfflineTask, Service, SloKind, WorkloadKind
from solvers.planners.base import SERVING, IncumbentTaker, Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.policies.oltunes.groups import NOTHING_UNDONE, GroupBooks, JoinedReplica, WaitingWork, opened
from solvers.policies.oltunes.learned import LearnedSolo
from solvers.policies.oltunes.memory import Flight, Known, OltunesMemory, hear, predictor_of
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import MS_PER_S, Queues, WindowPace
from solvers.policies.oltunes.rating import CandidateJudge, CandidateQuestion, Rated
from solvers.policies.oltunes.scores import is_latency_critical, urgency, worth_a_slice
from solvers.problems.needs import Need

# --- What OLTunes' planner says of its choices, as reasons: scores, estimated power, affinity, groups, places in line
#
# Scores are relative to a task's own candidates, estimated power is the paper's score and no unit.


CANDIDATES_TOLD = 5


def told(
    item: Assignment, joined: JoinedReplica | None, waiting: WaitingWork | None, flight: Flight | None
) -> Assignment:
    """An assignment whose first reason says why this configuration, and why this group."""
    facts: tuple[Fact, ...] = ()
    if joined is not None and waiting is not None:
        facts = (*_scored(waiting.rated, joined.row), *_grouped(joined))
    elif flight is not None and flight.device == item.device:
        facts = (Fact(name="group", value=float(flight.group)), *_affinity(flight.affinity))
    if not facts or not item.reasons:
        return item
    first, *others = item.reasons
    return replace(item, reasons=(replace(first, facts=(*first.facts, *facts)), *others))


def candidates_told(draft: Draft, waiting: WaitingWork, taken: Collection[int]) -> tuple[Reason, ...]:
    """The best of the configurations that were looked at and not taken, best first."""
    rated = waiting.rated
    small = {int(row) for each in rated.small.values() for row in each}
    rows = {int(row) for kept in (rated.small, rated.any) for each in kept.values() for row in each} - set(taken)
    best = sorted(rows, key=lambda row: (-rated.score[row], row))[:CANDIDATES_TOLD]
    found = []
    for row in best:
        option = draft.option(waiting.need, row)
        facts = (
            Fact(name="share_pct_sm", value=float(option.share_pct)),
            Fact(name="batch", value=float(option.batch)),
            *_scored(rated, row),
            *(() if row in small else (Fact(name="fits_a_full_group", value="false"),)),
        )
        found.append(Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=option.gpu_type, facts=facts))
    return tuple(found)


def waits_told(waiting: WaitingWork) -> Reason:
    facts = (
        Fact(name="queue", value="latency-critical" if waiting.urgent or waiting.boost else "throughput-oriented"),
        Fact(name="queue_position", value=float(waiting.position)),
        Fact(name="deadline_over_latency", value=round(waiting.priority, 4)),
        Fact(name="in_time", value=str(bool(waiting.rated.in_time.any())).lower()),
    )
    return Reason(code=ReasonCode.WAITS_IN_LINE, subject=waiting.need.workload, facts=facts)


def slice_told(draft: Draft, joined: Sequence[JoinedReplica], spare_mib: float) -> Iterable[Reason]:
    """Devices that were empty, and of which a new group leaves so much that the rest would do as a MIG slice of its
    own. Nobody cuts a GPU for a plan: that is its host's administrator, so the plan can only say so.
    """
    fleet, stood = draft.fleet, {item.device for item in draft.case.snapshot.target.assignments}
    for device in sorted({item.device for item in joined}):
        whole = fleet.devices[device]
        used_pct = 100.0 - float(fleet.share_free[device])
        if whole.mig is not None or whole.id in stood:
            continue
        if not worth_a_slice(used_pct, float(fleet.memory_free[device]), spare_mib):
            continue
        facts = (
            Fact(name="kept_share_pct_sm", value=used_pct),
            Fact(name="spare_memory_mib", value=float(fleet.memory_free[device])),
            Fact(name="because", value="only its host's administrator cuts a GPU"),
        )
        yield Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=f"a MIG slice of {whole.id}", facts=facts)


def _scored(rated: Rated, row: int) -> tuple[Fact, ...]:
    score = float(rated.score[row])
    return (
        *((Fact(name="score", value=round(score, 6)),) if isfinite(score) else ()),
        Fact(name="epc_score", value=round(float(rated.epc[row]), 3)),
        Fact(name="predicted_latency_ms", value=round(float(rated.latency_ms[row]), 3)),
    )


def _grouped(joined: JoinedReplica) -> tuple[Fact, ...]:
    return (
        Fact(name="group", value=float(joined.group)),
        Fact(name="member", value=float(joined.members)),
        *_affinity(joined.affinity),
        *((Fact(name="affinity_below_threshold", value="true"),) if joined.below_threshold else ()),
        *((Fact(name="tuned", value="true"),) if joined.tuned else ()),
    )


def _affinity(number: float | None) -> tuple[Fact, ...]:
    return () if number is None else (Fact(name="affinity", value=round(number, 2)),)


SPEC = PlannerSpec(
    name="oltunes",
    about="configurations by score, groups by affinity on little used devices, learning from finished tasks",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
    pursues=SERVING,
)
HURRY_MAX = 4.0
"""A task that came late to its place is sized for so many times the rate of its whole deadline at most."""


@dataclass(slots=True, kw_only=True)
class _Cycle:
    request: PlanRequest
    parameters: OltunesParameters
    memory: OltunesMemory
    case: Case
    solo: LearnedSolo | None
    groups: GroupBooks
    waiting: list[WaitingWork] = field(default_factory=list)
    refused: list[Need] = field(default_factory=list)
    """They have no option at all."""

    @property
    def draft(self) -> Draft:
        return self.groups.draft

    @property
    def snapshot(self) -> Snapshot:
        """What is planned for, offers included."""
        return self.case.snapshot

    @property
    def pace(self) -> WindowPace:
        assert self.memory.pace is not None
        return self.memory.pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Oltunes(Recalling):
    parameters: OltunesParameters = field(default_factory=OltunesParameters)

    @property
    def spec(self) -> PlannerSpec:
        return SPEC

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and what was heard, learned and begun. Before it learns all profiles at once it hands over what it
        would plan without.
        """
        first = WindowPace.first(self.parameters)
        memory = hear(OltunesMemory.of(state, self.parameters.predictor, first), request.snapshot, self.parameters)
        if not memory.solo and isinstance(reporter, IncumbentTaker):
            cycle = self._planned(request, memory, None)
            reporter.found(_proposal(cycle, _remembered(cycle)))
        cycle = self._planned(request, *predictor_of(memory, request.snapshot, self.parameters.samples_max))
        memory = _remembered(cycle)
        reporter.event(
            "oltunes.grouped",
            groups=float(cycle.groups.groups),
            joined=float(len(cycle.groups.joined)),
            waiting=float(sum(cycle.groups.wants(item.need) for item in cycle.waiting)),
        )
        return Thought(proposal=_proposal(cycle, memory), state=kept(memory))

    def _planned(self, request: PlanRequest, memory: OltunesMemory, solo: LearnedSolo | None) -> _Cycle:
        case = Case.of(request)
        case.needs = tuple(_hurried(need, case.snapshot, memory) for need in case.needs)
        groups = opened(request, case, self.parameters, memory)
        cycle = _Cycle(request=request, parameters=self.parameters, memory=memory, case=case, solo=solo, groups=groups)
        self._queue(cycle)
        self._form(cycle)
        return cycle

    def _queue(self, cycle: _Cycle) -> None:
        """Rate whoever is short and put it into its queue."""
        draft, snapshot, used = cycle.draft, cycle.snapshot, cycle.groups.utilisation
        judge = CandidateJudge(
            draft=draft,
            solo=cycle.solo,
            gpu_types=snapshot.gpu_types_by_name(),
            load=float(np.clip(used.mean() / 100.0, 0.0, 1.0)) if len(used) else 0.0,
            group_max=cycle.pace.group_max,
            parameters=self.parameters,
        )
        known = {item.task: item for item in cycle.memory.known}
        works: dict[str, Service | OfflineTask] = {item.id: item for item in snapshot.services}
        works |= {item.id: item for item in snapshot.tasks}
        came = sorted(cycle.memory.known, key=lambda item: (item.since_s, item.task))
        order = {item.task: number for number, item in enumerate(came)}
        queues: dict[bool, Queues[WaitingWork]] = {False: Queues(), True: Queues()}
        for need in draft.needs:
            if not cycle.groups.wants(need):
                continue
            asked = _asked(need, works[need.workload], known.get(need.workload), snapshot)
            rated = judge.rate(asked)
            if rated is None:
                cycle.refused.append(need)
                continue
            boost = known[need.workload].boost if need.workload in known else 0
            item = WaitingWork(
                need=need,
                rated=rated,
                urgent=is_latency_critical(asked.latency_weight),
                priority=urgency(asked.deadline_ms, rated.latency_ms_mean),
                order=order.get(need.workload, 0),
                boost=boost,
            )
            queues[_is_task(item)].push(item)
        cycle.waiting = [*queues[False], *queues[True]]

    def _form(self, cycle: _Cycle) -> None:
        """Groups of tasks whose window is over, and of services; then the window moves."""
        memory, now_s, pace = cycle.memory, cycle.snapshot.taken_at_s, cycle.pace
        tasks = sum(_is_task(item) for item in cycle.waiting)
        within = pace.window_ms <= self.parameters.cycle_ms
        over = within or now_s >= pace.wake_s(memory.opened_s, full=tasks >= pace.group_max)
        cycle.groups = self._given(cycle, [item for item in cycle.waiting if over or not _is_task(item)])
        left: Queues[WaitingWork] = Queues()
        for item in cycle.waiting:
            if cycle.groups.wants(item.need):
                left.push(item)
                item.position = len(left)
        cycle.memory = replace(
            memory,
            opened_s=now_s if tasks and over else memory.opened_s,
            pace=pace.after_tick(left.urgent_part, self.parameters),
        )

    def _given(self, cycle: _Cycle, ready: list[WaitingWork]) -> GroupBooks:
        """Places for all of them, services before tasks, because nobody waits for a task. Who is still short takes what
        is left; and where that does not do, everybody new takes as little as he can from the start, if that leaves less
        undone.
        """
        services, tasks = ([item for item in ready if _is_task(item) is wanted] for wanted in (False, True))
        found, closer = cycle.groups, None
        if self.parameters.services_thrifty:
            found.fill(services)
        self._spread(found, services)
        if self._falls_short(found, services):
            closer = self._closer(cycle, services)
        if closer is not None and closer.undone(services) < found.undone(services):
            found = closer
            found.fill(tasks)
        else:
            self._spread(found, tasks)
            if self._falls_short(found, tasks):
                closer = closer or self._closer(cycle, services)
                closer.fill(tasks)
                found = min(found, closer, key=lambda groups: groups.undone(ready))
        found.tune_all()
        return found

    def _spread(self, groups: GroupBooks, waiting: list[WaitingWork]) -> None:
        groups.form(waiting)
        if not self.parameters.kept_strict:
            groups.fill(waiting)

    def _falls_short(self, groups: GroupBooks, waiting: list[WaitingWork]) -> bool:
        return not self.parameters.kept_strict and groups.undone(waiting) > NOTHING_UNDONE

    def _closer(self, cycle: _Cycle, services: list[WaitingWork]) -> GroupBooks:
        """Books in which new replicas of services take as little as they can."""
        groups = opened(cycle.request, cycle.case, self.parameters, cycle.memory)
        groups.fill(services)
        return groups


def _hurried(need: Need, snapshot: Snapshot, memory: OltunesMemory) -> Need:
    """A task that waited needs what is left in the time that is left; the promise itself stays as it was."""
    task = snapshot.tasks_by_id().get(TaskId(need.workload))
    known = next((item for item in memory.known if item.task == need.workload), None)
    if need.kind is not WorkloadKind.TASK or task is None or known is None or task.slo.deadline_s is None:
        return need
    left_s = known.since_s + task.slo.deadline_s - snapshot.taken_at_s
    if left_s <= 0.0:
        return need
    rate_rps = min(_left(task, snapshot) / left_s, HURRY_MAX * need.rate_rps)
    return replace(need, rate_rps=max(need.rate_rps, rate_rps))


def _left(task: OfflineTask, snapshot: Snapshot) -> float:
    done = next((item.done for item in snapshot.job_statuses if item.workload == WorkloadId(task.id)), 0)
    return float(max(1, task.inputs_total - done))


def _asked(need: Need, work: Service | OfflineTask, known: Known | None, snapshot: Snapshot) -> CandidateQuestion:
    if isinstance(work, Service):
        limit_ms = need.limit_ms if need.limit_ms is not None else MS_PER_S
        return CandidateQuestion(need=need, latency_weight=work.class_lambda, deadline_ms=limit_ms, inputs=None)
    since_s = snapshot.taken_at_s if known is None else known.since_s
    if work.slo.kind is SloKind.DEADLINE and work.slo.deadline_s is not None:
        deadline_s = work.slo.deadline_s
    else:
        deadline_s = work.inputs_total / (work.slo.throughput_rps_min or 1.0)
    left_s = max(1e-3, since_s + deadline_s - snapshot.taken_at_s)
    return CandidateQuestion(
        need=need,
        latency_weight=work.class_lambda,
        deadline_ms=MS_PER_S * left_s,
        inputs=_left(work, snapshot),
    )


def _is_task(item: WaitingWork) -> bool:
    return item.need.kind is WorkloadKind.TASK


def _remembered(cycle: _Cycle) -> OltunesMemory:
    """The memory with this cycle's places; a task that runs in several is not watched, nobody could tell them apart."""
    joined = {item.workload: item for item in cycle.groups.joined}
    rated = {item.need.workload: item for item in cycle.waiting}
    found: list[Known] = []
    for item in cycle.memory.known:
        settled = cycle.draft.settled.get(item.task)
        placed = settled.placed if settled is not None else []
        flight = None
        if item.task not in cycle.draft.case.menus:
            flight = item.flight
        elif len(placed) == 1:
            flight = _flight(cycle, item, placed[0], joined.get(item.task), rated.get(item.task))
        found.append(replace(item, flight=flight, boost=0 if placed else item.boost))
    return replace(cycle.memory, known=tuple(found), groups=cycle.memory.groups + cycle.groups.groups)


def _flight(
    cycle: _Cycle, known: Known, placed: Placed, joined: JoinedReplica | None, waiting: WaitingWork | None
) -> Flight | None:
    if joined is None or waiting is None or placed.standing is not None or placed.option is None:
        return known.flight
    return Flight(
        device=cycle.draft.fleet.devices[placed.seat.device].id,
        gpu_type=placed.option.gpu_type,
        model=waiting.need.model,
        batch=placed.option.batch,
        share_pct=placed.option.share_pct,
        predicted_ms=float(waiting.rated.latency_ms[joined.row]),
        group=joined.group,
        affinity=joined.affinity,
        sm_part=cycle.draft.fleet.class_at(placed.seat.device).sm_part,
    )


def _proposal(cycle: _Cycle, memory: OltunesMemory) -> Proposal:
    """The plan with every choice told."""
    draft = cycle.draft
    for need in cycle.refused:
        draft.refuse(need)
    joined = {(item.workload, draft.fleet.devices[item.device].id): item for item in cycle.groups.joined}
    rated = {item.need.workload: item for item in cycle.waiting}
    for item in cycle.waiting:
        settled = draft.open(item.need)
        if cycle.groups.wants(item.need):
            settled.blockers.append(waits_told(item))
            option = draft.option(item.need, int(next(iter(item.rated.any.values()))[0]))
            found = draft.places(settled, option)
            draft.block(settled, found if isinstance(found, ReasonCode) else ReasonCode.ANTI_AFFINITY, option)
        taken = {each.row for each in cycle.groups.joined if each.workload == item.need.workload}
        settled.blockers.extend(candidates_told(draft, item, taken))
    wishes = tuple(slice_told(draft, cycle.groups.joined, cycle.parameters.slice_spare_mib))
    proposal = draft.proposal(SPEC, wishes)
    assert proposal.plan is not None
    summary, *others = proposal.reasons
    learned = (
        Fact(name="window_ms", value=cycle.pace.window_ms),
        Fact(name="group_max", value=float(cycle.pace.group_max)),
        Fact(name="lessons", value=float(memory.lessons.lessons)),
        Fact(name="retrainings", value=float(memory.lessons.retrainings)),
    )
    summary = replace(summary, facts=(*summary.facts, *learned))
    flights = {item.task: item.flight for item in memory.known if item.flight is not None}
    assignments = tuple(
        told(item, joined.get((item.workload, item.device)), rated.get(item.workload), flights.get(item.workload))
        for item in proposal.plan.assignments
    )
    plan = replace(proposal.plan, assignments=assignments)
    return replace(proposal, plan=plan, reasons=(summary, *others))
