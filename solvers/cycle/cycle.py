"""One planning cycle: observe, propose, verify, diff, gate, actuate, record; and its replay. The only implementation,
in production and simulation.

A planner that fails, has no plan, or is refuted by the verifier gives way to the next in the chain, and at its end the
target stays. Where policies have pools, each plans and judges its own part (`solvers.cycle.parts`), and what planners
keep is kept for each policy. What went wrong is in the record either way. Time, storage and processes are ports. Errors
other than a planner's own (EngineError) and a lost race (SupersededError, LeaseLostError while promoting) abort the
cycle by passing through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from solvers.cycle.attempts import Asking, ChosenPlan, try_chain
from solvers.cycle.dividing import Division, Part
from solvers.cycle.gate import GateCase, gate
from solvers.cycle.parts import Course, SettledPart, Together, decided, standing, try_parts, waiting_on, whole_plan
from solvers.cycle.ports import CycleOrder, Ports, Recollection, movable_workloads
from solvers.cycle.record import CycleRecord, CycleStep, Decision, HoldReason, Timing
from solvers.domain.change import Transition, diff
from solvers.domain.codec import digest, picture_digest
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Digest, Generation, PolicyName, WorkloadId
from solvers.domain.plan import Plan, Proposal
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError, InputError, LeaseLostError, SupersededError
from solvers.models.easing import as_eased
from solvers.models.worth import pinned_settings, worth_of
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.chain import SPEC as KEEP
from solvers.planners.chain import KeepTarget
from solvers.planners.joint.certificate import certified
from solvers.verify.checks import is_fatal, verify
from solvers.verify.picture import knobs

T = TypeVar("T")


@dataclass(slots=True)
class _Watch:
    """Tells the journal of every step and times it."""

    ports: Ports
    timings: list[Timing] = field(default_factory=list)

    def run(self, step: CycleStep, work: Callable[[], T]) -> T:
        self.ports.journal.step(step)
        begun_ms = self.ports.clock.elapsed_ms()
        try:
            return work()
        finally:
            self.timings.append(Timing(step=step, elapsed_ms=self.ports.clock.elapsed_ms() - begun_ms))


def run_cycle(ports: Ports, order: CycleOrder) -> CycleRecord:
    """Run one cycle and return its closed record.

    Raises whatever the observer, the journal or the actuator raises, but for SupersededError and LeaseLostError of the
    actuator, which become hold reasons; the journal then knows the last step that began.
    """
    watch = _Watch(ports)
    started_at_s = ports.clock.now_s()
    snapshot = watch.run(CycleStep.OBSERVE, ports.observer.observe)
    record = CycleRecord(
        id=order.id,
        lane=order.lane,
        started_at_s=started_at_s,
        seed=order.seed,
        budget=Budget(deadline_s=snapshot.policy.planner_deadline_s, work_units=snapshot.policy.work_units),
        movable=movable_workloads(snapshot, order.lane),
        software_version=order.software_version,
        snapshot=snapshot,
        snapshot_digest=picture_digest(snapshot),
    )
    request = PlanRequest(snapshot=snapshot, movable=record.movable, budget=record.budget, seed=order.seed)
    shared = SharedSolve.of(snapshot, order)
    together = _plan(watch, order, request, shared)
    chosen, plan = together.chosen, together.chosen.plan
    record = replace(
        record,
        asked=shared.wider if chosen.proposal is not None and chosen.proposal.planner in shared.by else (),
        attempts=chosen.attempts,
        proposal=chosen.proposal,
        plan_digest=digest(plan) if plan is not None else None,
        findings=chosen.findings,
    )
    if plan is not None and chosen.sound:
        record = replace(record, transition=watch.run(CycleStep.DIFF, partial(_transition, snapshot, plan)))
    if snapshot.policies and plan is not None:
        decision = watch.run(CycleStep.GATE, partial(decided, together.decisions, chosen.findings))
    else:
        decision = watch.run(CycleStep.GATE, partial(_judge, ports, order, request, record))
    record = replace(record, decision=decision)
    if decision.promote and plan is not None and record.transition is not None:
        record = _actuate(watch, record, plan)
    _report(ports, record)
    return watch.run(CycleStep.RECORD, partial(_close, watch, record))


def _close(watch: _Watch, record: CycleRecord) -> CycleRecord:
    closed = replace(record, timings=tuple(watch.timings))
    watch.ports.journal.close(closed)
    return closed


# --- One solve for two lanes


@dataclass(slots=True)
class SharedSolve:
    """A wider lane's workloads, and the planners whose answer to it was this lane's as well."""

    wider: tuple[WorkloadId, ...]
    by: set[str] = field(default_factory=set)

    @staticmethod
    def of(snapshot: Snapshot, order: CycleOrder) -> SharedSolve:
        """Nothing is shared where several policies plan one after the other, nor where a workload of the wider lane
        alone stands nowhere: its answer would place that, and the acting lane would wait for two.
        """
        if order.beside is None or snapshot.policies:
            return SharedSolve(())
        placed = {item.workload for item in snapshot.target.assignments}
        placed.update(movable_workloads(snapshot, order.lane))
        wider = movable_workloads(snapshot, order.beside)
        return SharedSolve(wider if placed.issuperset(wider) else ())

    def propose(self, ask: Callable[[str, PlanRequest], Proposal], planner: str, request: PlanRequest) -> Proposal:
        """One answer for both, where it can be. Raises EngineError."""
        if self.wider and self.wider != request.movable:
            try:
                found = narrowed(ask(planner, replace(request, movable=self.wider)), request)
            except EngineError:
                found = None  # what is wrong with it is asked of this lane alone
            if found is not None:
                self.by.add(planner)
                return found
        return ask(planner, request)


def narrowed(wide: Proposal, request: PlanRequest) -> Proposal | None:
    """A wider lane's proposal told as this one's; None where it moves what this one may not, or would be unsound."""
    snapshot, movable, plan = request.snapshot, request.movable, wide.plan
    if plan is None:
        return None
    mine = set(movable)
    held = {item.replica: item for item in snapshot.target.assignments if item.workload not in mine}
    others = {item.replica: item for item in plan.assignments if item.workload not in mine}
    settings, kept = {item.device: item for item in plan.settings}, pinned_settings(snapshot, movable)
    same = {name: knobs(item) for name, item in others.items()} == {name: knobs(item) for name, item in held.items()}
    if not same or any(settings.get(device) != setting for device, setting in kept.items()):
        return None
    assignments = tuple(held.get(item.replica, item) for item in plan.assignments)
    found = replace(
        plan,
        assignments=assignments,
        unplaced=tuple(item for item in plan.unplaced if item.workload in mine),
        objective=worth_of(snapshot, movable, assignments, plan.settings).objective,
    )
    return None if is_fatal(verify(snapshot, found, movable)) else replace(wide, plan=found)


def _plan(watch: _Watch, order: CycleOrder, request: PlanRequest, shared: SharedSolve) -> Together:
    ports, default = watch.ports, request.snapshot.policy.name
    recollection = Recollection(
        think=lambda *asked: watch.run(CycleStep.PROPOSE, partial(ports.runner.think, *asked)),
        memory=ports.memory,
        default=default,
    )
    asking = Asking(
        propose=lambda *asked: shared.propose(recollection.propose, *asked),
        verify=lambda *asked: watch.run(CycleStep.VERIFY, partial(verify, *asked)),
        reporter=ports.reporter,
    )
    if request.snapshot.policies:
        judge = partial(_judge_part, ports, order)
        together = try_parts(asking, request, Course(judge=judge, obeyed=order.promote))
    else:
        together = Together(chosen=try_chain(asking, request.snapshot.policy.planners, request))
    attempts = (
        replace(item, state_digest=recollection.handed.get((item.policy or default, item.planner)))
        for item in together.chosen.attempts
    )
    return replace(together, chosen=replace(together.chosen, attempts=tuple(attempts)))


def _transition(snapshot: Snapshot, plan: Plan) -> Transition:
    return diff(snapshot.target, plan, {model.name: model.launch_s for model in snapshot.models})


def _judge(ports: Ports, order: CycleOrder, request: PlanRequest, record: CycleRecord) -> Decision:
    case = _case(ports, order, request)
    transition = record.transition or Transition(changes=())
    return gate(replace(case, plan=record.plan, findings=record.findings, transition=transition))


def _judge_part(ports: Ports, order: CycleOrder, part: Part, chosen: ChosenPlan) -> Decision:
    """What a part's own gate says to its plan, by its own picture."""
    case = _case(ports, order, part.request(order.seed))
    if chosen.plan is not None and chosen.sound:
        stays = waiting_on(part, chosen.plan)
        whole = replace(chosen.plan, assignments=(*chosen.plan.assignments, *stays))
        case = replace(case, transition=_transition(part.snapshot, whole))
    return gate(replace(case, plan=chosen.plan, findings=chosen.findings))


def _case(ports: Ports, order: CycleOrder, request: PlanRequest) -> GateCase:
    standing = KeepTarget().propose(request, b"", ports.reporter).plan
    return GateCase(
        order=order,
        snapshot=request.snapshot,
        movable=request.movable,
        plan=None,
        standing=standing,
        standing_findings=() if standing is None else verify(request.snapshot, standing, request.movable),
    )


def _actuate(watch: _Watch, record: CycleRecord, plan: Plan) -> CycleRecord:
    """Store the cause, then change the target. A lost race leaves the target to whoever won it."""
    ports = watch.ports

    def promote() -> Generation | HoldReason:
        ports.journal.draft(record)
        try:
            return ports.actuator.promote(record, plan)
        except LeaseLostError:
            return HoldReason.LEASE_LOST
        except SupersededError:
            return HoldReason.SUPERSEDED

    outcome = watch.run(CycleStep.ACTUATE, promote)
    if isinstance(outcome, HoldReason):
        return replace(record, decision=Decision(promote=False, reasons=(outcome,)))
    return replace(record, generation=outcome)


def _report(ports: Ports, record: CycleRecord) -> None:
    decision, answer = record.decision, record.answered
    if answer is not None and answer.stood_in:
        ports.reporter.event(
            "plan.stood_in",
            asked=answer.asked,
            planner=answer.planner or "",
            ending=answer.ending.value,
            failures="; ".join(answer.failures),
        )
    if record.generation is not None and record.plan is not None:
        ports.reporter.event(
            "plan.promoted",
            generation=record.generation,
            planner=record.plan.planner,
            usd_per_h=record.plan.objective.cost_usd_per_h,
        )
    elif decision is not None:
        ports.reporter.event("plan.held", reasons=",".join(reason.value for reason in decision.reasons))


# --- A recorded cycle planned again
#
# The same planner on the same snapshot with the same seed, budget and state must give the same plan. A planner whose
# budget is time may stop elsewhere on another day; one whose work is counted may not.

Propose = Callable[[str, PlanRequest, bytes | None], Proposal]


def replay(
    record: CycleRecord, propose: Propose = registry.propose, states: Mapping[PolicyName, bytes] | None = None
) -> Digest:
    """Digest of the plan that the record's makers make now, each handed its policy's part of `states`.

    Raises InputError when the cycle had no plan.
    """
    if record.proposal is None or record.plan is None:
        raise InputError(f"cycle {record.id} has no plan to repeat", cycle=record.id)
    request = PlanRequest(snapshot=record.snapshot, movable=record.movable, budget=record.budget, seed=record.seed)
    states = states or {}
    if record.plan.parts:
        plan: Plan | None = _in_parts(record.plan, request, propose, states)
    else:
        shared, state = SharedSolve(record.asked), states.get(record.snapshot.policy.name)
        plan = shared.propose(lambda name, asked: propose(name, asked, state), record.proposal.planner, request).plan
        plan = plan and _told_as_then(record.plan.bound_usd_per_h, request, plan)
    if plan is None:
        raise EngineError(f"planner {record.proposal.planner} has no plan this time", cycle=record.id)
    # A version that has fewer fields reads an older record's picture as its own; it is the same picture.
    return digest(replace(plan, snapshot=record.snapshot_digest))


def _told_as_then(bound_usd_per_h: float | None, request: PlanRequest, plan: Plan) -> Plan:
    """With a bound of ours where the recorded plan has any: older records have none."""
    return as_eased(request.snapshot, plan if bound_usd_per_h is None else certified(request, plan))


def _in_parts(plan: Plan, request: PlanRequest, propose: Propose, states: Mapping[PolicyName, bytes]) -> Plan | None:
    lines = {line.policy: line for line in plan.parts}
    division = Division(request.snapshot, request.movable)
    asking = Asking(
        propose=lambda planner, asked: propose(planner, asked, None), verify=verify, reporter=SilentReporter()
    )
    settled: list[SettledPart] = []
    for policy in division.policies:
        part, line = division.part(policy), lines[policy.name]
        if line.planner == KEEP.name:
            item = SettledPart(part=part, plan=standing(part, request.seed, asking), held=line.held)
        else:
            asked = part.request(request.seed)
            proposal = propose(line.planner, asked, states.get(policy.name))
            if proposal.plan is None:
                return None
            told = _told_as_then(line.bound_usd_per_h, asked, proposal.plan)
            item = SettledPart(part=part, plan=told, proposal=proposal)
        division.settle(part, item.plan)
        settled.append(item)
    return whole_plan(asking, request, tuple(settled)).plan
