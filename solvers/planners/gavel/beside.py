"""The joint planner with packed training on the devices that it leaves to training.

Owns the order: everything is planned jointly, then jobs that are beside no service, and those that wait, are dealt anew
onto the devices without services as Gavel packs them: in turns, alone or in pairs as seen speeds say. Services, and
jobs beside them, are the joint planner's to the letter; so is everything where somebody would be worse off. It refuses
to open a rented device for training, and to weigh training against what devices cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from solvers.domain.evidence import Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.models.worth import worth_of
from solvers.planners.base import PlannerSpec, PlanRequest, Recalling, Thought
from solvers.planners.case import Case, put_pinned
from solvers.planners.draft import Draft
from solvers.planners.gavel.parameters import Parameters
from solvers.planners.gavel.planner import Gavel, Sharing
from solvers.planners.gavel.remembering import Memory
from solvers.planners.joint.planner import Joint
from solvers.planners.memory import kept, recalled
from solvers.problems.fleet import open_fleet

FORM = "joint-packed-1"
DUST = 1e-6


@value
class Both:
    """What the two parts remember; the joint planner's bytes in hexadecimal."""

    form: str = FORM
    services: str = ""
    jobs: Memory = Memory()

    @staticmethod
    def of(state: bytes) -> Both:
        """What was kept; nothing where these bytes are of another kind."""
        found = recalled(Both, state)
        return found if found is not None and found.form == FORM else Both()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPacked(Recalling):
    """See the module."""

    joint: Joint = field(default_factory=Joint)
    parameters: Parameters = field(default_factory=Parameters)

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return PlannerSpec(name="joint_packed", version="1", knobs=self.joint.spec.knobs)

    def first_state(self) -> bytes:
        """Nothing was seen yet."""
        return kept(Both())

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and what was seen so far."""
        both = Both.of(state)
        memory = both.jobs.heard(request.snapshot, self.parameters)
        thought = self.joint.think(request, bytes.fromhex(both.services), reporter)
        services = both.services if thought.state is None else thought.state.hex()
        state, plan = kept(Both(services=services, jobs=memory)), thought.proposal.plan
        if plan is not None:
            plan = self._dealt(request, plan, memory)
            plan = replace(plan, planner=self.spec.name, planner_version=self.spec.version)
        return Thought(proposal=replace(thought.proposal, planner=self.spec.name, plan=plan), state=state)

    def _dealt(self, request: PlanRequest, plan: Plan, memory: Memory) -> Plan:
        """The same plan with its loose jobs dealt anew, where that leaves nobody worse off."""
        asked = with_loose_jobs(request, plan)
        if not asked.movable:
            return plan
        case = Case.of(asked)
        fleet = open_fleet(case.snapshot, case.held)
        put_pinned(case, fleet)
        draft = Draft(request=asked, case=case, fleet=fleet)
        gavel = Gavel(name=self.spec.name, packed=True, parameters=self.parameters)
        Sharing(planner=gavel, draft=draft, memory=memory).train()
        for need in case.needs:
            settled = draft.open(need)
            if not settled.placed:
                waits = Reason(code=ReasonCode.WAITS_IN_LINE, subject=need.workload)
                settled.blockers.append(need.refusal or waits)
        found = merged(request, plan, draft.plan(self.spec))
        worse = found.objective.unserved > plan.objective.unserved + DUST
        return plan if worse or found.objective.slo_risk > plan.objective.slo_risk + DUST else found


def with_loose_jobs(request: PlanRequest, plan: Plan) -> PlanRequest:
    """The picture in which the plan stands but for the jobs on devices without services and those that wait: these
    stand where they stood, and they alone may move.
    """
    picture = request.snapshot
    serving = {item.device for item in plan.assignments if item.kind is not WorkloadKind.JOB}
    jobs = {WorkloadId(job.id) for job in picture.jobs} & set(request.movable)
    held = {item.workload for item in plan.assignments if item.device in serving}
    loose = tuple(item for item in request.movable if item in jobs - held)
    moved = set(loose)
    stand = [item for item in plan.assignments if item.workload not in moved]
    stand += [item for item in picture.target.assignments if item.workload in moved and item.device not in serving]
    assignments = tuple(sorted(stand, key=lambda item: item.replica))
    target = replace(picture.target, assignments=assignments, settings=plan.settings)
    return replace(request, snapshot=replace(picture, target=target), movable=loose)


def merged(request: PlanRequest, plan: Plan, dealt: Plan) -> Plan:
    """The plan with its loose jobs as they were dealt, judged anew."""
    loose = set(with_loose_jobs(request, plan).movable)
    held = [item for item in plan.assignments if item.workload not in loose]
    held += [item for item in dealt.assignments if item.workload in loose]
    assignments = tuple(sorted(held, key=lambda item: item.replica))
    in_use = {item.device for item in assignments}
    known = {item.device: item for item in dealt.settings} | {item.device: item for item in plan.settings}
    settings = tuple(known[device] for device in sorted(known) if device in in_use)
    short = [item for item in plan.unplaced if item.workload not in loose]
    short += [item for item in dealt.unplaced if item.workload in loose]
    picture = request.snapshot.with_offers()
    return replace(
        plan,
        assignments=assignments,
        settings=settings,
        unplaced=tuple(sorted(short, key=lambda item: (item.kind, item.workload))),
        objective=worth_of(picture, request.movable, assignments, settings).objective,
    )
