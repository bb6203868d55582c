"""Mudi: one inference service to a device, with the batch and the least share it needs, and training in the rest.

Owns the order: what readings say is remembered, every service is sized and placed (standing replicas stay while they
serve and are not much larger than they need be), then training jobs are selected devices and divide what is left. Where
there are more services than devices, services meet on a device rather than go unserved. Replicas change share by the
cycle's own hand-over, which starts the new one before the old one ends: the shadow instance. It refuses to move memory:
a plan says what is resident, and who may live with less says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.plan import Proposal, ProposalStatus
from solvers.domain.workload import WorkloadKind
from solvers.engines.least_share import available
from solvers.planners.base import SERVING, Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept
from solvers.planners.case import Case, put_pinned, with_last_resort
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.policies.mudi.curves import Company, MudiCurves, MudiParameters, ShareEngine
from solvers.policies.mudi.selecting import Slack
from solvers.policies.mudi.sizing import CoordinatedReplica, Coordinator, MudiMemory, Size, Sizer
from solvers.problems.fleet import Places, open_fleet
from solvers.problems.needs import Need

KNOBS = (Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH)
SPEC = PlannerSpec(
    name="mudi",
    about="one service to a GPU with the least share it needs, training jobs where that costs the service least",
    version="1",
    knobs=KNOBS,
    pursues=SERVING,
)
FEWER_GAIN = 0.1
"""Part of its cost that another count of replicas must save."""
LATE_BORNE = 0.05
"""A batch with which more was late is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mudi(Recalling):
    parameters: MudiParameters = field(default_factory=MudiParameters)
    spec: PlannerSpec = SPEC

    def first_state(self) -> bytes:
        return kept(MudiMemory())

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        if self.parameters.share_engine is ShareEngine.CONVEX and not available():
            return Thought(proposal=_without_engine(), state=state)
        case = Case.of(request)
        memory = MudiMemory.of(state).heard(case.snapshot, self.parameters.heed)
        round_ = Round(request, case, memory, self.parameters)
        proposal = round_.answer()
        slack = round_.slack
        counts = {"services": len(round_.reasons), "jobs": len(slack.guests), "untuned": slack.untuned}
        reporter.event("mudi.tuned", **{name: float(count) for name, count in counts.items()})
        return Thought(proposal=proposal, state=kept(memory))


class Round:
    """A plan in the making; at first only what is pinned has its place."""

    def __init__(self, request: PlanRequest, case: Case, memory: MudiMemory, parameters: MudiParameters) -> None:
        fleet = open_fleet(case.snapshot, case.held)
        put_pinned(case, fleet)
        self.draft = Draft(request=request, case=case, fleet=fleet)
        curves = MudiCurves(beliefs=case.beliefs, models=case.snapshot.models_by_name())
        random = request.streams.stream("mudi.selector")
        # By device its inference replicas, and networks of its standing training jobs.
        self.hosting, self.trained = np.zeros(len(fleet.devices)), dict[int, Company]()
        for item in case.snapshot.target.assignments:
            if item.kind is WorkloadKind.JOB and item.device in fleet.index:
                device = fleet.index[item.device]
                self.trained[device] = tuple(sorted((*self.trained.get(device, ()), item.model)))
        for item in case.pinned:
            self.hosting[fleet.index[item.device]] += item.kind is not WorkloadKind.JOB
        self.sizer = Sizer(draft=self.draft, curves=curves, memory=memory, parameters=parameters)
        coordinator = Coordinator(sizer=self.sizer)
        self.slack = Slack(draft=self.draft, coordinator=coordinator, parameters=parameters, random=random, hosts={})
        self.reasons = list[Reason]()

    def answer(self) -> Proposal:
        draft = self.draft
        self.serve()
        self.slack.fill()
        draft.settle_rest()
        return draft.answered(SPEC, (*self.reasons, *self.slack.reasons))

    def serve(self) -> None:
        """Settle services and tasks: jobs find their hosts."""
        draft = self.draft
        standing = draft.stand()
        for items in standing.values():
            for item in items:
                self.hosting[item.seat.device] += 1
        for need in draft.needs:
            self._serve(need, standing[need.workload])
        for need in draft.needs:
            settled = with_last_resort(draft.case, draft.open(need), draft.let_go)
            for item in settled.placed:
                host = CoordinatedReplica(need=need, placed=item, replicas=len(settled.placed))
                self.slack.hosts.setdefault(item.seat.device, []).append(host)

    def _serve(self, need: Need, running: list[Placed]) -> None:
        """Keep what runs, or size and place it anew."""
        draft = self.draft
        for item in running:
            self.hosting[item.seat.device] -= 1
        if not len(draft.options(need)):
            draft.keep(need, running, [])
            draft.refuse(need)
            return
        first = running[0].option.batch if running and running[0].option is not None else None
        wanted = need.rate_rps > 0 or need.replicas_floor > 0
        company = self._company(running)
        sizes = self.sizer.sizes(need, first, company) if wanted else []
        if wanted and company and not sizes:
            # Beside these jobs nothing serves, so they are what has to go.
            company, sizes = (), self.sizer.sizes(need, first)
        stays = self._stays(need, running, sizes[0] if sizes else None)
        settled = draft.keep(need, running, running if stays else [])
        if not stays and wanted:
            for size in self._with_running(need, running, sizes, company):
                self._place(need, size)
            if settled.rate_rps_wanting or len(settled.placed) < need.replicas_floor:
                draft.fill(settled, np.ones(len(draft.options(need)), dtype=np.bool_), self._shared)
        for item in settled.placed:
            self.hosting[item.seat.device] += 1
        if sizes:
            self.reasons.append(_sized(need, sizes[0]))

    def _stays(self, need: Need, running: list[Placed], best: Size | None) -> bool:
        """Whether what runs serves, in a count not much dearer than the best, with shares near the least."""
        if not running or best is None or len(running) < need.replicas_floor:
            return False
        if sum(item.capacity_rps for item in running) < need.rate_rps_least or self._crowded(running):
            return False
        late = self.sizer.memory.late(need.workload)
        spare = self.sizer.parameters.keep_pct
        share_pct = sum(item.seat.share_pct for item in running)
        quiet = all(item.option is not None and late.get(item.option.batch, 0.0) < LATE_BORNE for item in running)
        return quiet and share_pct <= best.option.share_pct * best.replicas + spare * len(running)

    def _crowded(self, running: list[Placed]) -> bool:
        """Whether a service shares a device although another one has nobody."""
        alone = any(not count for count in self.hosting)
        return alone and any(self.hosting[item.seat.device] > 0 for item in running)

    def _company(self, running: list[Placed]) -> Company:
        """The jobs that stand beside the replica with the most of them."""
        beside = [self.trained.get(item.seat.device, ()) for item in running]
        return max(beside, key=lambda models: (len(models), models), default=())

    def _with_running(self, need: Need, running: list[Placed], sizes: list[Size], company: Company) -> list[Size]:
        """The count that runs comes first where another one saves little: with its batch and more share, which is all
        that a rise of the rate needs at once, else tuned anew.
        """
        if not running or not sizes or running[0].option is None:
            return sizes
        option, sizer = running[0].option, self.sizer
        batch, number = option.batch, option.device_class
        quiet = sizer.memory.late(need.workload).get(batch, 0.0) < LATE_BORNE
        raised = sizer.raised(need, number, len(running), batch, company) if quiet else None
        tried = (raised, sizer.size(need, number, len(running), batch, company))
        most = sizes[0].usd_per_h * (1 + FEWER_GAIN)
        return [*(size for size in tried if size is not None and size.usd_per_h <= most), *sizes]

    def _place(self, need: Need, size: Size) -> None:
        """Replicas on devices without inference while there are any, else beside others."""
        draft, settled = self.draft, self.draft.open(need)
        score = draft.at_home(need, self._shared)
        while len(settled.placed) < size.replicas and (
            settled.rate_rps_wanting or len(settled.placed) < max(1, need.replicas_floor)
        ):
            apart = draft.apart(settled)
            among = np.arange(len(self.hosting)) if apart is None else apart.places
            free = among[(self.hosting + self._own(need))[among] == 0]
            if draft.put(settled, size.option, score, free) is None:
                continue
            if draft.put(settled, size.option, self._shared, among) is not None:
                return

    def _own(self, need: Need) -> Floats:
        """Replicas of the need itself, by device."""
        count = np.zeros(len(self.hosting))
        for device, held in self.draft.fleet.hosts.get(need.workload, {}).items():
            count[device] += held
        return count

    def _shared(self, places: Places) -> Floats:
        """Least inference, then least training that would have to move."""
        jobs = np.array([len(self.trained.get(int(place), ())) for place in places])
        return np.asarray(1e6 * self.hosting[places] + 1e3 * self.draft.fleet.unrented[places] + jobs)


def _sized(need: Need, size: Size) -> Reason:
    facts = (
        Fact(name="batch", value=float(size.option.batch)),
        Fact(name="share_pct_least", value=size.least_pct),
        Fact(name="share_pct_sm", value=float(size.option.share_pct)),
        Fact(name="replicas", value=float(size.replicas)),
        Fact(name="evaluations", value=float(size.evaluations)),
    )
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=need.workload, facts=facts)


def _without_engine() -> Proposal:
    needed = "cvxpy is not installed: install headroom-gpu[convex], or set share_engine: closed"
    facts = (Fact(name="needs", value=needed),)
    reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=SPEC.name, facts=facts)
    return Proposal(status=ProposalStatus.NOT_APPLICABLE, planner=SPEC.name, plan=None, reasons=(reason,))
