"""Gavel's max-min fairness among training jobs, alone or packed in pairs, and POP, which solves it in parts.

Owns the order: services stand or are placed first, the cheapest way and as tightly as they fit; jobs that stand beside
a service, or that may not move, stay. The devices that then have nobody are shared among the other jobs: the allocation
says which part of its time each job should have where, and rounds follow it by priority. Between two rounds only who
waits is placed. What still waits takes spare share beside services. A plan that only makes jobs change places saves
nothing and serves no more, so a cycle's gate holds it until a plan has another reason; shares received are therefore
counted by what stands. It refuses gangs of several GPUs, which training jobs here do not have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from lab.gavel.problem import Allocation, Jobs, ThroughputTable, deal, job_of, nobodys, part_of, progress, read_jobs
from lab.gavel.rounds import Entrant, GavelMemory, GavelParameters, GavelRound, JobCrew, seconds_of
from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import ProposalStatus
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.engines.base import EngineAnswer, Limits, Program, ProgrammeRows, create
from solvers.errors import EngineError
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept
from solvers.planners.case import Case, put_pinned
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, job_seat, placed_job, stay
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import Need

# --- The linear programmes of Gavel's max-min fairness, alone and packed, and of POP's parts
#
# A second stage may then give what is left where it makes most progress, nobody falling below the least.


SLACK = 1e-7
"""Part of the least progress that the second stage may give up, for an engine's tolerance."""
SIMPLEX_STEPS = 200_000.0
"""Work is counted, so that equal tables end alike on every machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """An allocation, the least normalised progress that it gives, and the most that any could. Classes and pairs are
    the asked table's; of a part, only its own hold anything.
    """

    allocation: Allocation
    least: float
    bound: float


def share(table: ThroughputTable, *, spread: bool = False, steps: float = SIMPLEX_STEPS) -> Shared:
    """The allocation of the best least progress; with `spread` also of the most progress altogether among these. Raises
    EngineError where the engine gives up.
    """
    useful = table.useful()
    first = _solve(_programme(useful), steps)
    bound = -first.bound
    answer = first
    if spread:
        answer = _solve(_programme(useful, bound * (1.0 - SLACK)), steps)
    found = _read(table, useful, answer)
    return Shared(allocation=found, least=float(progress(table, found).min(initial=np.inf)), bound=bound)


def share_part(table: ThroughputTable, classes: Whole, number: int, *, spread: bool = False) -> Shared:
    """POP: one of so many equal parts of the cluster, shared among a job of each of these classes."""
    part, mine = part_of(table, classes, number)
    shared = share(part, spread=spread)
    single = np.zeros_like(table.speed)
    single[mine] = shared.allocation.single
    paired = _at_pairs(table, mine[part.pairs], shared.allocation.paired)
    return replace(shared, allocation=Allocation(single=single, paired=paired))


def _programme(table: ThroughputTable, floor: float | None = None) -> Program:
    """min -least; or with a floor under everybody's progress, the most progress of all."""
    rows, scale = ProgrammeRows(), table.scale / table.count
    able, together = table.speed > 0, (table.pair_speed > 0).any(axis=2)
    classes, types = np.nonzero(able)
    couples, on = np.nonzero(together)
    worth = table.speed[classes, types] * scale[classes]
    ends = table.pairs[couples]
    worths = table.pair_speed[couples, on] * scale[ends]
    free: Floats = np.array([np.inf])
    least = rows.add_columns(np.array([-1.0 if floor is None else 0.0]), free, integer=False)
    # What the second stage counts is progress by job, so that large classes do not count as one.
    total = 0.0 if floor is None else 1.0
    single = rows.add_columns(-total * worth * table.count[classes], free, integer=False)
    paired = rows.add_columns(-total * (worths * table.count[ends]).sum(axis=1), free, integer=False)
    room = rows.add_rows(np.full(len(table.devices), -np.inf), table.devices)
    rows.enter(room[types], single, table.gpus[classes].astype(np.float64))
    rows.enter(room[on], paired, table.gpus[ends].max(axis=1, initial=0).astype(np.float64))
    time = rows.add_rows(np.full(len(table.count), -np.inf), table.count.astype(np.float64))
    rows.enter(time[classes], single, 1.0)
    same = ends[:, 0] == ends[:, 1]
    rows.enter(time[ends[:, 0]], paired, np.where(same, 2.0, 1.0))
    rows.enter(time[ends[~same, 1]], paired[~same], 1.0)
    low = np.full(len(table.count), 0.0 if floor is None else floor)
    gain = rows.add_rows(low, np.full(len(table.count), np.inf))
    rows.enter(gain[classes], single, worth)
    rows.enter(gain[ends[:, 0]], paired, np.where(same, worths.sum(axis=1), worths[:, 0]))
    rows.enter(gain[ends[~same, 1]], paired[~same], worths[~same, 1])
    if floor is None:
        rows.enter(gain, np.broadcast_to(least, gain.shape), -1.0)
    return rows.program()


def _solve(program: Program, steps: float) -> EngineAnswer:
    answer = create("highs").solve(program, Limits(work=steps))
    if answer.values is None:
        raise EngineError(f"no allocation of GPU types: {answer.status.value} {answer.note}", engine="highs")
    return answer


def _read(table: ThroughputTable, useful: ThroughputTable, answer: EngineAnswer) -> Allocation:
    """Values of the useful columns at their places in the whole table."""
    assert answer.values is not None
    values = np.maximum(answer.values[1:], 0.0)
    able = useful.speed > 0
    single = np.zeros_like(table.speed)
    single[able] = values[: int(able.sum())]
    together = (useful.pair_speed > 0).any(axis=2)
    held: Floats = np.zeros(together.shape)
    held[together] = values[int(able.sum()) :]
    return Allocation(single=single, paired=_at_pairs(table, useful.pairs, held))


def _at_pairs(table: ThroughputTable, pairs: Whole, held: Floats) -> Floats:
    """What these pairs hold, at their places in the whole table."""
    pair_at = {(int(left), int(right)): index for index, (left, right) in enumerate(table.pairs)}
    paired = np.zeros((len(table.pairs), len(table.devices)))
    for index, (left, right) in enumerate(pairs):
        paired[pair_at[int(left), int(right)]] = held[index]
    return paired


KNOBS = (Knob.GPU_TYPE, Knob.PLACEMENT, Knob.SHARE)
POP_PARTS = 8
ABOUT = {
    "gavel": "training jobs take turns on GPU types so that the least normalised progress is highest",
    "gavel_packed": "gavel with two jobs to a GPU where that gains",
    "pop": "gavel_packed solved in random parts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel(Recalling):
    name: str = "gavel"
    packed: bool = False
    parameters: GavelParameters = field(default_factory=GavelParameters)

    @property
    def spec(self) -> PlannerSpec:
        return PlannerSpec(name=self.name, version="1", about=ABOUT[self.name], knobs=KNOBS)

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        case = Case.of(request)
        memory = GavelMemory.of(state).heard(case.snapshot, self.parameters)
        fleet = open_fleet(case.snapshot, case.held)
        put_pinned(case, fleet)
        draft = Draft(request=request, case=case, fleet=fleet)
        sharing = GavelSharing(planner=self, draft=draft, memory=memory)
        sharing.serve()
        sharing.train()
        reporter.event("gavel.shared", jobs=float(sharing.took_part), least=sharing.least)
        proposal = draft.proposal(self.spec, sharing.reasons())
        if proposal.status is not ProposalStatus.FEASIBLE:
            return Thought(proposal=proposal)
        return Thought(proposal=proposal, state=kept(memory))


@dataclass(slots=True, kw_only=True)
class GavelSharing:
    planner: Gavel
    draft: Draft
    memory: GavelMemory
    took_part: int = 0
    least: float = 0.0
    rotated: bool = False

    def serve(self) -> None:
        """Services and tasks: what stands stays, what is missing comes the cheapest way, tightly packed."""
        draft = self.draft
        standing = draft.stand()
        for need in draft.needs:
            settled = draft.keep(need, standing[need.workload], standing[need.workload])
            if not len(draft.options(need)):
                draft.refuse(need)
                continue
            every = np.ones(len(draft.options(need)), dtype=np.bool_)
            draft.fill(settled, every, draft.at_home(need, draft.best_fit))

    def train(self) -> None:
        read = read_jobs(self.draft, apart(self.draft), self.memory, self.planner.parameters)
        if read.needs:
            self._share(read)

    def _share(self, read: Jobs) -> None:
        self.took_part = len(read.needs)
        round_ = GavelRound(
            entrants=self._entrants(read),
            room={kind: len(devices) for kind, devices in read.devices.items()},
            given=seconds_of(self.memory.given),
        )
        begun_s, now_s = self.memory.round_s, self.draft.case.snapshot.taken_at_s
        self.rotated = begun_s is None or now_s - begun_s >= self.planner.parameters.round_s
        if not self.rotated:
            for kind, crew in self._standing(read):
                round_.keep(crew, kind)
        round_.choose()
        if self.planner.packed:
            round_.join()
        CrewSeats(draft=self.draft, read=read).seat(round_.crews)

    def _entrants(self, read: Jobs) -> list[Entrant]:
        """All jobs with their parts, of the whole cluster or of a part of it."""
        parts = self.planner.parameters.parts
        table = read.table if self.planner.packed else read.table.alone()
        read = replace(read, table=table)
        random = self.draft.request.streams.stream("gavel.parts")
        found, leasts = list[Entrant](), list[float]()
        for members in deal(len(read.needs), parts, random):
            try:
                shared = share_part(table, read.class_of[members], parts, spread=True)
            except EngineError:
                # Then these jobs go wherever there is room.
                shared = Shared(allocation=nobodys(table), least=0.0, bound=math.inf)
            leasts.append(shared.least)
            found += read.entrants(members, shared.allocation)
        self.least = min(leasts)
        return found

    def _standing(self, read: Jobs) -> list[tuple[str, tuple[WorkloadId, ...]]]:
        """Who stands together, by device."""
        fleet, mine = self.draft.fleet, job_of(read)
        kind_at = {device: kind for kind, devices in read.devices.items() for device in devices}
        crews: dict[int, list[WorkloadId]] = {}
        for job in sorted(mine):
            for item in self.draft.case.standing.get(job, [])[:1]:
                device = fleet.index.get(item.device)
                if device in kind_at and device is not None:
                    crews.setdefault(device, []).append(job)
        return [(kind_at[device], tuple(crews[device])) for device in sorted(crews)]

    def reasons(self) -> tuple[Reason, ...]:
        facts = (
            Fact(name="jobs", value=float(self.took_part)),
            Fact(name="progress_normalised_least", value=round(self.least, 6)),
            Fact(name="new_round", value=float(self.rotated)),
        )
        return (Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=self.draft.request.snapshot.cluster, facts=facts),)


def apart(draft: Draft) -> list[tuple[Need, TrainingJob]]:
    """Let jobs stay that stand beside services; those that may train on devices of their own."""
    jobs = {WorkloadId(job.id): job for job in draft.case.snapshot.jobs}
    each = []
    for need in draft.case.needs:
        if need.kind is not WorkloadKind.JOB or need.refusal is not None:
            continue
        standing = draft.case.standing.get(need.workload, [])
        device = draft.fleet.index.get(standing[0].device) if standing else None
        stayed = None
        if device is not None and draft.fleet.occupants[device]:
            stayed = stay(draft.fleet, need, jobs[need.workload], standing)
        if stayed is not None:
            draft.open(need).add(stayed)
        else:
            each.append((need, jobs[need.workload]))
    return each


@dataclass(slots=True, kw_only=True)
class CrewSeats:
    """Crews on devices: where they stand, else where one of them stands, else anywhere of the kind."""

    draft: Draft
    read: Jobs
    free: dict[str, list[int]] = field(default_factory=dict)

    def seat(self, crews: list[JobCrew]) -> None:
        """All of them, those who stay first. Who finds no room waits with the others."""
        self.free = {kind: list(devices) for kind, devices in self.read.devices.items()}
        left = crews
        for homes in (self._all_home, self._homes, lambda crew: list(self.free.get(crew.kind, ()))):
            left = [crew for crew in left if not any(self._put(crew, device) for device in homes(crew))]

    def _homes(self, crew: JobCrew) -> list[int]:
        standing = [self.draft.case.standing.get(job, []) for job in crew.jobs]
        places = [self.draft.fleet.index.get(items[0].device, -1) if items else -1 for items in standing]
        return [device for device in places if device in self.free.get(crew.kind, ())]

    def _all_home(self, crew: JobCrew) -> list[int]:
        homes = self._homes(crew)
        return homes[:1] if len(homes) == len(crew.jobs) and len(set(homes)) == 1 else []

    def _put(self, crew: JobCrew, device: int) -> bool:
        each = job_of(self.read)
        members = [each[job] for job in crew.jobs]
        seats: list[tuple[Need, Placed]] = []
        for (need, job), share_pct in zip(members, _divided([job for _, job in members]), strict=True):
            placed = self._placed(need, job, device, share_pct)
            if placed is None:
                for _, item in seats:
                    self.draft.fleet.lift(item.seat)
                return False
            self.draft.fleet.put(placed.seat)
            seats.append((need, placed))
        for need, item in seats:
            self.draft.fleet.lift(item.seat)
            self.draft.open(need).add(item)
        self.free[crew.kind].remove(device)
        return True

    def _placed(self, need: Need, job: TrainingJob, device: int, share_pct: int) -> Placed | None:
        fleet = self.draft.fleet
        if fleet.gpus(device, share_pct) > fleet.quota_left.get(need.project, math.inf) + 1e-9:
            return None
        seat = job_seat(fleet, need, job, device, share_pct)
        standing = next(iter(self.draft.case.standing.get(need.workload, [])), None)
        here = standing is not None and fleet.index.get(standing.device) == device
        return None if seat is None else placed_job(seat, job, standing if here else None)


def _divided(jobs: list[TrainingJob]) -> list[int]:
    """Shares of one device, as even as the owners' bounds allow."""
    if len(jobs) == 1:
        return [jobs[0].share_pct_sm_max]
    one, other = jobs
    first = min(max(50, one.share_pct_sm_min), one.share_pct_sm_max, 100 - other.share_pct_sm_min)
    second = min(max(100 - first, other.share_pct_sm_min), other.share_pct_sm_max)
    return [min(100 - second, one.share_pct_sm_max), second]


def packed() -> Gavel:
    return Gavel(name="gavel_packed", packed=True)


def pop() -> Gavel:
    return Gavel(name="pop", packed=True, parameters=GavelParameters(parts=POP_PARTS))
