"""Morak: virtual GPUs sized by their knees, packed first fit or spread; batches and clock left open for the controller.

Owns the placement of virtual GPUs and the opening of envelopes: a replica begins with its smallest batch at the lowest
clock that keeps every batch's promise, and its controller moves it up to the ceiling and through all clocks. What
controllers ask for after bad periods in a row is answered in the next plan. It refuses to predict what the controller
will reach: the plan promises what holds at the start, and says that the rest is short.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.device import PowerScope
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import DeviceId, Generation, GpuTypeName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, Plan, Proposal, ProposalStatus
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import BrokenLimit, RepartitionWish
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.models.base import Facts
from solvers.models.parts.seen import NO_SAMPLES
from solvers.models.told import company_told
from solvers.planners.base import SERVING, Knob, PlannerSpec, PlanRequest, Recalling, Stateless, Thought, kept, recalled
from solvers.planners.case import Case
from solvers.planners.draft import Draft, Score, on_whole_devices
from solvers.planners.seating import Placed, seat_of
from solvers.planners.traits import Traits, limit_ms
from solvers.policies.morak.cutting import (
    Cutter,
    Leftover,
    MorakParameters,
    PowerBeside,
    Virtual,
    VirtualGpuGoal,
    start_clocks,
)
from solvers.policies.morak.models import CountOnly, learn_beside, power_factor
from solvers.problems.choice import Option
from solvers.problems.fleet import Places
from solvers.problems.needs import Need

# --- What controllers have asked for, and what became of it: the memory of Morak's planner
#
# Latency: the replica's virtual GPU grows by the share that was asked, its donor's shrinks by as much. Power: the
# service leaves that device, if it has another one. A device is answered once per generation, so that a wish that is
# told again before its answer took effect counts once. Old answers are forgotten, because load changes.


FORM = "morak-1"


@value
class Resized:
    """A virtual GPU that is not as its knee says."""

    workload: WorkloadId
    device: DeviceId
    extra_pct: int
    at_s: float


@value
class LeftService:
    workload: WorkloadId
    device: DeviceId
    at_s: float


@value
class Answered:
    """The generation under which a device was answered last."""

    device: DeviceId
    generation: Generation


@value
class Wishes:
    """All of it, each by workload and device."""

    form: str = FORM
    resized: tuple[Resized, ...] = ()
    left: tuple[LeftService, ...] = ()
    answered: tuple[Answered, ...] = ()

    @staticmethod
    def of(state: bytes) -> Wishes:
        """What was kept; nothing where these bytes are of another kind."""
        return recalled(Wishes, state) or Wishes()

    def extra_pct(self, workload: WorkloadId, device: DeviceId) -> int:
        """How much more share than its knee a service has on a device."""
        return next((item.extra_pct for item in self.resized if (item.workload, item.device) == (workload, device)), 0)

    def heard(self, snapshot: Snapshot, forget_s: float) -> Wishes:
        """With what the snapshot's devices ask for, and without what is too old."""
        since_s, generation = snapshot.taken_at_s - forget_s, snapshot.target.generation
        known = replace(
            self,
            resized=tuple(item for item in self.resized if item.at_s >= since_s and item.extra_pct),
            left=tuple(item for item in self.left if item.at_s >= since_s),
        )
        last = {item.device: item.generation for item in known.answered}
        standing = {item.replica: item for item in snapshot.target.assignments}
        for seen in sorted(snapshot.device_telemetry, key=lambda item: item.device):
            if seen.repartition is not None and last.get(seen.device) != generation:
                known = known._answer(
                    seen.repartition,
                    Answered(device=seen.device, generation=generation),
                    at_s=snapshot.taken_at_s,
                    standing=standing,
                )
        return known

    def _answer(
        self, wish: RepartitionWish, answered: Answered, *, at_s: float, standing: dict[ReplicaId, Assignment]
    ) -> Wishes:
        device = answered.device
        subject = standing.get(wish.replica)
        if subject is None or subject.device != device:
            return self
        others = tuple(item for item in self.answered if item.device != device)
        known = replace(self, answered=tuple(sorted((*others, answered), key=lambda item: item.device)))
        if wish.cause is BrokenLimit.POWER:
            elsewhere = any(item.workload == subject.workload and item.device != device for item in standing.values())
            gone = LeftService(workload=subject.workload, device=device, at_s=at_s)
            return replace(known, left=(*known.left, gone)) if elsewhere else known
        known = known._resize(subject.workload, device, at_s=at_s, by_pct=wish.share_pct_sm)
        donor = None if wish.donor is None else standing.get(wish.donor)
        return known if donor is None else known._resize(donor.workload, device, at_s=at_s, by_pct=-wish.share_pct_sm)

    def _resize(self, workload: WorkloadId, device: DeviceId, *, at_s: float, by_pct: int) -> Wishes:
        made = Resized(workload=workload, device=device, extra_pct=self.extra_pct(workload, device) + by_pct, at_s=at_s)
        others = (item for item in self.resized if (item.workload, item.device) != (workload, device))
        return replace(self, resized=tuple(sorted((*others, made), key=lambda item: (item.workload, item.device))))


KNOBS = (Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH, Knob.CLOCK)
SPEC = PlannerSpec(
    name="morak",
    about="virtual GPUs sized by the knee of latency over share, batches and clock left to the controller",
    version="1",
    knobs=KNOBS,
    leaves_clock_open=True,
    pursues=SERVING,
)
WHOLE_GPU = PlannerSpec(
    name="whole_gpu",
    about="every replica a GPU of its own, batches and clock left to the controller",
    version="1",
    knobs=(Knob.REPLICAS, Knob.PLACEMENT, Knob.MEMORY, Knob.BATCH, Knob.CLOCK),
    leaves_clock_open=True,
)


@dataclass(frozen=True, slots=True)
class Morak(Recalling):
    parameters: MorakParameters = field(default_factory=MorakParameters)
    spec: PlannerSpec = SPEC

    def first_state(self) -> bytes:
        return kept(Wishes())

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        snapshot = request.snapshot.with_offers()
        wishes = Wishes.of(state).heard(snapshot, self.parameters.forget_s)
        case = Case.of(request, start_clocks(snapshot, request.movable, self.parameters))
        partition = _Partition(request, case, self.parameters, wishes)
        proposal = partition.proposal(SPEC)
        reporter.event("morak.partitioned", virtual=float(partition.count), resized=float(len(wishes.resized)))
        return Thought(proposal=proposal, state=kept(wishes))


@dataclass(frozen=True, slots=True)
class WholeGpu(Stateless):
    """The same without partitioning, for controllers that know none: every replica has a GPU to itself."""

    parameters: MorakParameters = field(
        default_factory=lambda: MorakParameters(ceiling_part=1.0, leftover=Leftover.RESERVE)
    )
    spec: PlannerSpec = WHOLE_GPU

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        """One service per GPU, in turn."""
        snapshot = request.snapshot.with_offers()
        case = on_whole_devices(Case.of(request, start_clocks(snapshot, request.movable, self.parameters)))
        partition = _Partition(request, case, self.parameters, Wishes())
        proposal = partition.proposal(WHOLE_GPU)
        reporter.event("whole_gpu.placed", replicas=float(partition.count))
        return proposal


def crowds_of(case: Case) -> dict[GpuTypeName, CountOnly]:
    """L_int(n) on every GPU type, learned from what profiles tell of company by the formula that is judged."""
    facts, found = Facts(), dict[GpuTypeName, CountOnly]()
    for kind in case.beliefs.classes:
        told = {
            model: profile.interference
            for (model, gpu_type), profile in sorted(case.beliefs.profiles.items())
            if gpu_type == kind.gpu_type and profile.interference is not None
        }
        company = company_told(kind.gpu_type, told, lambda _, shares: np.ones(len(shares)), facts, NO_SAMPLES)
        found.setdefault(kind.gpu_type, learn_beside(company, facts))
    return found


class _Partition:
    """One plan's virtual GPUs."""

    def __init__(self, request: PlanRequest, case: Case, parameters: MorakParameters, wishes: Wishes) -> None:
        self.parameters, self.wishes = parameters, wishes
        self.draft, caps = Draft.of(request, case), case.snapshot.power_caps
        self.cutter = Cutter(parameters=parameters, beliefs=case.beliefs)
        # L_int(n) by GPU type.
        self.crowds = crowds_of(case)
        devices = self.draft.fleet.devices
        # By device, how many times its latency alone the tightest of its virtual GPUs may take, and P_c.
        self.tolerated: Floats = np.full(len(devices), np.inf)
        caps_w = {cap.subject: cap.limit_w for cap in caps if cap.scope is PowerScope.DEVICE}
        self.capped_w: Floats = np.array([caps_w.get(device.id, np.inf) for device in devices], dtype=np.float64)
        self.count = 0
        able = []
        for need in self.draft.needs:
            if len(self.draft.options(need)):
                able.append(need)
            else:
                self.draft.refuse(need)
        if parameters.goal is VirtualGpuGoal.DEVICES:
            for need in able:
                self._pack(need)
            return
        if parameters.leftover is Leftover.COPIES:
            self._meet(able)
            self._favour(able)
        else:
            self._spread(able)
        if parameters.leftover is not Leftover.RESERVE:
            self._distribute(able)

    def _meet(self, needs: list[Need]) -> None:
        """Copies in turn, until everybody's demand is met at the largest batches."""
        reached_rps = dict.fromkeys((need.workload for need in needs), 0.0)
        waiting = list(needs)
        while waiting:
            still = []
            for need in waiting:
                added = self._add(need, self.parameters.copies_per_device)
                reached_rps[need.workload] += 0.0 if added is None else added.ceiling_rps
                short = reached_rps[need.workload] < need.rate_rps
                if added is not None and (short or len(self.draft.open(need).placed) < need.replicas_floor):
                    still.append(need)
            waiting = still

    def _favour(self, needs: list[Need]) -> None:
        """As many copies as fit of who serves most for its share, then of the next."""
        for need in sorted(needs, key=self._served_by_share, reverse=True):
            while self._add(need, self.parameters.copies_per_device) is not None:
                pass

    def _served_by_share(self, need: Need) -> float:
        virtuals = (self.cutter.cut(need, number) for number in range(len(self.draft.fleet.classes)))
        return max((each.ceiling_rps / each.option.share_pct for each in virtuals if each is not None), default=0.0)

    def _distribute(self, needs: list[Need]) -> None:
        """Let the virtual GPUs of every device grow into what is left there, each by the same part of itself; a device
        where rounding leaves something gives it to the first. One that may not grow stays as it is.
        """
        fleet = self.draft.fleet
        here: dict[int, list[tuple[Need, Placed]]] = {}
        for need in needs:
            for item in self.draft.open(need).placed:
                here.setdefault(item.seat.device, []).append((need, item))
        for device, items in here.items():
            left = int(fleet.share_free[device])
            held = sum(item.seat.share_pct for _, item in items)
            extras = [left * item.seat.share_pct // held for _, item in items]
            extras[0] += left - sum(extras)
            for (need, item), extra_pct in zip(items, extras, strict=True):
                self._grow(need, item, extra_pct)

    def _grow(self, need: Need, item: Placed, extra_pct: int) -> None:
        settled, number = self.draft.open(need), int(self.draft.fleet.class_of[item.seat.device])
        knee = self.cutter.cut(need, number)
        if extra_pct <= 0 or knee is None:
            return
        larger = self.cutter.cut(need, number, item.seat.share_pct + extra_pct - knee.option.share_pct)
        if larger is None:
            return
        at = settled.placed.index(item)
        self.draft.fleet.lift(item.seat)
        settled.placed.remove(item)
        found = self.draft.places(settled, larger.option)
        here = np.array([item.seat.device], dtype=np.intp)
        fits = not isinstance(found, ReasonCode) and here[0] in found and bool(self._within_cap(larger.option, here)[0])
        grown = Placed(seat=seat_of(need, larger.option, item.seat.device), option=larger.option) if fits else item
        settled.add(grown)
        settled.placed.insert(at, settled.placed.pop())

    def _spread(self, needs: list[Need]) -> None:
        """Copies in turn, the emptiest GPU first; more than one per service and GPU when nobody else finds room."""
        for copies in range(1, self.parameters.copies_per_device + 1):
            waiting = list(needs)
            while waiting:
                waiting = [need for need in waiting if self._add(need, copies) is not None]

    def _pack(self, need: Need) -> None:
        """First fit, until the demand is met at the largest batches."""
        settled, reached_rps = self.draft.open(need), 0.0
        while reached_rps < need.rate_rps or len(settled.placed) < need.replicas_floor:
            added = self._add(need, self.parameters.copies_per_device)
            if added is None:
                return
            reached_rps += added.ceiling_rps

    def _add(self, need: Need, copies: int) -> Virtual | None:
        """One more virtual GPU where the score is lowest; says what is in the way of the first one."""
        settled = self.draft.open(need)
        best: tuple[float, int, Virtual] | None = None
        blocked: ReasonCode | None = None
        for (number, extra_pct), members in self._groups(need, copies).items():
            virtual = self.cutter.cut(need, number, extra_pct)
            found = None if virtual is None else self.draft.places(settled, virtual.option)
            if virtual is None or found is None or isinstance(found, ReasonCode):
                blocked = blocked or (found if isinstance(found, ReasonCode) else ReasonCode.SLO_UNREACHABLE)
                continue
            open_to_it = self._bearable(need, virtual, found[np.isin(found, members)])
            if len(open_to_it):
                score = self._score(need)(open_to_it)
                at = int(np.argmin(score))
                best = min(
                    best or (np.inf, 0, virtual), (float(score[at]), int(open_to_it[at]), virtual), key=itemgetter(0, 1)
                )
        if best is None:
            if blocked is not None and not settled.placed and not settled.blockers:
                self.draft.block(settled, blocked, self.draft.option(need, 0))
            return None
        _, device, virtual = best
        self.tolerated[device] = min(self.tolerated[device], self._borne(need, virtual))
        settled.add(Placed(seat=seat_of(need, virtual.option, device), option=virtual.option))
        self.count += 1
        return virtual

    def _borne(self, need: Need, virtual: Virtual) -> float:
        """How many times its latency alone, at the batch it begins with, the virtual GPU may take."""
        return limit_ms(need) / Traits(case=self.draft.case).execution_ms(need, virtual.option)

    def _bearable(self, need: Need, virtual: Virtual, places: Places) -> Places:
        """Devices where L L_int(n) <= L_u for it and for all that are there, with one more model (3)."""
        fleet = self.draft.fleet
        gpu_type, count = virtual.option.gpu_type, np.asarray(fleet.occupants[places] + 1.0, dtype=np.float64)
        factor = self.crowds[gpu_type].factor(gpu_type, count)
        bearable = factor <= np.minimum(self.tolerated[places], self._borne(need, virtual)) * (1 + 1e-9)
        return places[bearable & self._within_cap(virtual.option, places)]

    def _within_cap(self, option: Option, places: Places) -> Flags:
        """Where P P_int(n) <= P_c with one more model (4), idle power in P; no board draws above its limit."""
        fleet, counted = self.draft.fleet, self.parameters.power_beside is PowerBeside.P_INT
        count = np.asarray(1.0 + fleet.occupants[places] * counted, dtype=np.float64)
        sum_w = np.asarray(fleet.idle_w[places] + fleet.dynamic_w[places] + option.power_w, dtype=np.float64)
        drawn_w = np.minimum(fleet.limit_w[places], sum_w * power_factor(count))
        return np.asarray(drawn_w <= self.capped_w[places] * (1 + 1e-9))

    def _groups(self, need: Need, copies: int) -> dict[tuple[int, int], list[int]]:
        """Devices where one more copy is allowed, by class and by what its controllers had changed."""
        fleet = self.draft.fleet
        hosted = fleet.hosts.get(need.workload, {})
        left = {item.device for item in self.wishes.left if item.workload == need.workload}
        resized = {item.device: item.extra_pct for item in self.wishes.resized if item.workload == need.workload}
        groups: dict[tuple[int, int], list[int]] = {}
        for index, device in enumerate(fleet.devices):
            if device.id not in left and hosted.get(index, 0) < copies:
                key = (int(fleet.class_of[index]), resized.get(device.id, 0))
                groups.setdefault(key, []).append(index)
        return groups

    def _score(self, need: Need) -> Score:
        if self.parameters.goal is VirtualGpuGoal.THROUGHPUT:
            return self.draft.at_home(
                need, lambda places: np.asarray(-self.draft.fleet.share_free[places], dtype=np.float64)
            )
        return self._first_fit

    def _first_fit(self, places: Places) -> Floats:
        return np.asarray((self.draft.fleet.occupants[places] == 0) * 1e9 + places, dtype=np.float64)

    def proposal(self, spec: PlannerSpec) -> Proposal:
        """Finish and answer, with open envelopes."""
        self.draft.settle_rest()
        plan = self._opened(self.draft.plan(spec))
        facts = (
            Fact(name="virtual_gpus", value=float(self.count)),
            Fact(name="devices_in_use", value=float(len({item.device for item in plan.assignments}))),
        )
        summary = Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=self.draft.request.snapshot.cluster, facts=facts)
        return Proposal(status=ProposalStatus.FEASIBLE, planner=spec.name, plan=plan, reasons=(summary,))

    def _opened(self, plan: Plan) -> Plan:
        """The same plan with every clock open on devices where only its own services are, as far as shared caps go."""
        types = self.draft.case.snapshot.gpu_types_by_name()
        tokens = {need.workload for need in self.draft.needs if need.tokens is not None}
        mine = {need.workload for need in self.draft.needs} - tokens
        closed = {item.device for item in plan.assignments if item.workload not in mine}
        closed |= {item.device for item in self.draft.case.pinned}
        kinds = {device.id: types[device.gpu_type] for device in self.draft.fleet.devices}
        open_to = self._at_their_limits({item.device for item in plan.assignments} - closed)

        def opened(item: Assignment) -> Assignment:
            if item.device not in open_to or item.kind is WorkloadKind.JOB:
                return item
            clocks = kinds[item.device].clocks_mhz_sm
            envelope = replace(item.envelope, clock_mhz_sm_min=clocks[0], clock_mhz_sm_max=clocks[-1])
            return replace(item, envelope=envelope)

        return replace(plan, assignments=tuple(opened(item) for item in plan.assignments))

    def _at_their_limits(self, devices: set[DeviceId]) -> set[DeviceId]:
        """Those of them, in turn, that may draw all that their boards and own caps allow under every shared cap."""
        fleet, found = self.draft.fleet, set[DeviceId]()
        for device in sorted(devices):
            at = fleet.index[device]
            most_w = min(fleet.limit_w[at], self.capped_w[at])
            more_w = max(0.0, float(most_w - fleet.idle_w[at] - fleet.dynamic_w[at]))
            if all(domains.within(np.array([more_w]), np.array([at]))[0] for domains in fleet.domains):
                found.add(device)
                for domains in fleet.domains:
                    domains.book(at, more_w)
        return found
