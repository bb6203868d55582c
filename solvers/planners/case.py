"""One planning request, prepared for planners that settle workload after workload on the fleet's books.

What stands (pinned or movable), what each workload can choose from, and which standing replicas may stay where they
are: those that keep their promise and fit, and, for a workload that is short, whatever else of it fits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from solvers.domain.evidence import Reason
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.options import NEIGHBOURS_BORNE, Beliefs
from solvers.models.worth import pinned_settings
from solvers.planners.base import PlanRequest
from solvers.planners.seating import Placed, Settled, search_of, seat_of, standing_seat
from solvers.problems.choice import Option, Options, Press
from solvers.problems.fleet import Fleet, Seat, open_fleet
from solvers.problems.jobs import JobWorth, job_worth, must_run
from solvers.problems.needs import Need, needs_of, pinned_assignments

CAPACITY_DUST = 1e-5
"""Planned rates are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """What a need can choose from, and the devices where it would rather be (where its replicas stand)."""

    options: Options
    refusals: dict[int, Reason]
    familiar: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Case:
    """One request, prepared once for all packings of it."""

    snapshot: Snapshot
    movable: tuple[WorkloadId, ...]
    beliefs: Beliefs
    needs: tuple[Need, ...]
    held: dict[DeviceId, DeviceSetting]
    """Settings that stay: all of devices with pinned replicas, and the clocks that stand."""
    pinned: tuple[Assignment, ...]
    standing: dict[WorkloadId, list[Assignment]]
    appraisal: Appraisal
    """Of what stands, all together."""
    menus: dict[WorkloadId, Menu]

    @staticmethod
    def of(
        request: PlanRequest, own: Mapping[DeviceId, DeviceSetting] | None = None, neighbours: int = NEIGHBOURS_BORNE
    ) -> Case:
        """Split the standing target into pinned and movable and list every workload's options. `own`: settings of
        planners that make them, for the devices where they may; `neighbours`: so many a replica may get where shares
        are not limited.
        """
        snapshot = request.snapshot.with_offers()
        held = {**_held(snapshot, request.movable), **(own or {})}
        fleet = open_fleet(snapshot, held)
        beliefs = Beliefs.of(snapshot, fleet.classes, neighbours)
        movable = set(request.movable)
        stood = sorted(snapshot.target.assignments, key=lambda item: item.replica)
        standing = grouped((item for item in stood if item.workload in movable), lambda item: item.workload)
        pinned = tuple(item for item in pinned_assignments(snapshot, request.movable) if item.device in fleet.index)
        needs: list[Need] = []
        menus: dict[WorkloadId, Menu] = {}
        for need in needs_of(snapshot, request.movable):
            needs.append(need)
            if need.kind is not WorkloadKind.JOB:
                options, refusals = beliefs.options(need)
                needs[-1] = replace(need, domains_there=fleet.domains_open(need, options.device_class))
                places = (fleet.index.get(item.device) for item in standing[need.workload])
                familiar = tuple(place for place in places if place is not None)
                menus[need.workload] = Menu(options=options, refusals=refusals, familiar=familiar)
        return Case(
            snapshot=snapshot,
            movable=request.movable,
            beliefs=beliefs,
            needs=tuple(needs),
            held=held,
            pinned=pinned,
            standing=standing,
            appraisal=Appraisal.of(fleet, beliefs.tables, snapshot.policy, snapshot.target.assignments, held),
            menus=menus,
        )

    def worth_of_job(self, fleet: Fleet, need: Need, job: TrainingJob) -> JobWorth | None:
        """What it is worth to run it; None where it must run."""
        return None if must_run(self.snapshot.policy) else job_worth(self.snapshot, fleet, need, job)

    def assess(self, fleet: Fleet, need: Need, standing: Assignment) -> tuple[Option | None, bool]:
        """A standing replica by today's beliefs, and whether that holds only while it has its device to itself. Where
        the careful reading of `options` shows less than was planned, what it does beside its very neighbours counts.
        """
        class_index = int(fleet.class_of[fleet.index[standing.device]])
        option = self.beliefs.assess(need, class_index, standing)
        planned_rps = standing.capacity_rps
        if option is not None and option.capacity_rps >= planned_rps * (1 - CAPACITY_DUST):
            return option, False
        shown_rps = self.appraisal.capacities_rps(need, [standing])[0]
        if shown_rps is None or standing.model != need.model:
            return option, False
        if option is not None and option.capacity_rps >= shown_rps * (1 - CAPACITY_DUST):
            return option, False
        slowdown = self.appraisal.slowdown(standing)
        made = self.beliefs.as_it_stands(
            need, class_index, standing, capacity_rps=min(planned_rps, shown_rps), slowdown=slowdown
        )
        careful = self.beliefs.factor(need, fleet.classes[class_index], standing.share_pct_sm)
        return made, made.press.pressure is None and slowdown < careful


def _held(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> dict[DeviceId, DeviceSetting]:
    """This planner sets no clocks, so it lives with those that stand."""
    in_use = {item.device for item in snapshot.target.assignments}
    clocks = {
        item.device: DeviceSetting(device=item.device, clock_mhz_sm=item.clock_mhz_sm)
        for item in snapshot.target.settings
        if item.clock_mhz_sm is not None and item.device in in_use
    }
    return clocks | pinned_settings(snapshot, movable)


def put_pinned(case: Case, fleet: Fleet) -> None:
    dedicated: set[str] = {item.id for item in case.snapshot.services if item.affinity.dedicated}
    for assignment in case.pinned:
        alone = assignment.workload in dedicated
        seat = standing_seat(fleet, assignment, dedicated=alone, power_w=assignment.power_w_planned)
        if seat is not None:
            fleet.put(replace(seat, press=case.beliefs.press_of(assignment, fleet.class_at(seat.device))))


def take_standing(case: Case, fleet: Fleet, need: Need) -> list[Placed]:
    """Put every standing replica that keeps its promise and fits where it stands."""
    taken: list[Placed] = []
    for assignment in case.standing.get(need.workload, []):
        device = fleet.index.get(assignment.device)
        if device is None or len(taken) >= need.replicas_max:
            continue
        option, alone = case.assess(fleet, need, assignment)
        if option is None:
            continue
        seat = _standing_seat(need, option, device, alone=alone)
        if fleet.fits(search_of(need, seat), device):
            fleet.put(seat)
            taken.append(Placed(seat=seat, option=option, standing=assignment))
    return taken


def _standing_seat(need: Need, option: Option, device: int, *, alone: bool) -> Seat:
    seat = seat_of(need, option, device)
    return replace(seat, dedicated=True) if alone else seat


def affordable(settled: Settled, item: Placed) -> bool:
    need, fleet = settled.need, settled.fleet
    usd_per_h = fleet.class_at(item.seat.device).usd_per_h * item.seat.share_pct / 100
    within_budget = need.budget_usd_per_h is None or settled.usd_per_h + usd_per_h <= need.budget_usd_per_h + 1e-9
    quota_left = fleet.quota_left.get(need.project, float("inf"))
    return within_budget and fleet.gpus(item.seat.device, item.seat.share_pct) <= quota_left + 1e-9


def with_last_resort(case: Case, settled: Settled, let_go: Collection[ReplicaId] = ()) -> Settled:
    """A workload that is short keeps whatever else of it stands and fits: a slow answer is better than none, and the
    plan says so. `let_go`: replicas that were stopped on purpose.
    """
    fleet, need = settled.fleet, settled.need
    held = {item.standing.replica for item in settled.placed if item.standing is not None}
    for assignment in case.standing.get(need.workload, []):
        served = settled.rate_rps_short <= 0 and not settled.replicas_missing
        if served or len(settled.placed) >= need.replicas_max:
            break
        seat = standing_seat(fleet, assignment, dedicated=need.affinity.dedicated, power_w=assignment.power_w_planned)
        if seat is None or assignment.replica in held or assignment.replica in let_go:
            continue
        option, alone = case.assess(fleet, need, assignment)
        if option is None:
            # One that promises nothing bears anybody, and still slows its neighbours as much as it does.
            press = case.beliefs.press_of(assignment, fleet.class_at(seat.device))
            seat = replace(seat, press=Press(pressure=press.pressure))
        else:
            seat = _standing_seat(need, option, seat.device, alone=alone)
        item = Placed(seat=seat, option=option, standing=assignment)
        if fleet.fits(search_of(need, seat), seat.device) and affordable(settled, item):
            settled.add(item)
    return settled
