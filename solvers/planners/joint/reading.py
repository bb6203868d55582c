"""From a snapshot to the joint problem, and the way back to names.

Owns what is planned and what is left alone. Pinned replicas stay, and with them everything that keeps its promise on
their devices: those devices are in no pool, and what stays there is taken off what is asked. A job that was evicted as
often as it bears stays as if it were pinned. A workload that nothing can serve is no part of the problem; why, is said
for every GPU type. Everything is read carefully, as `reading_tables` and `reading_pools` say. It refuses to choose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.evidence import Reason
from solvers.domain.ids import DeviceId, GpuTypeName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.options import Beliefs
from solvers.models.worth import pinned_settings
from solvers.planners.joint.reading_pools import Pools, pools_of
from solvers.planners.joint.reading_problem import assemble
from solvers.planners.joint.reading_work import Left, left_of
from solvers.planners.seating import standing_seat
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.joint import JointProblem
from solvers.problems.layout import Standing
from solvers.problems.needs import Need, needs_of, pinned_assignments
from solvers.problems.patterns import judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """A movable replica that stands on a device of a pool; no variant when its network may not serve any more."""

    assignment: Assignment
    variant: int | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """See the module."""

    snapshot: Snapshot
    """With its offers standing ready."""
    problem: JointProblem
    pool_devices: tuple[tuple[DeviceId, ...], ...]
    """The devices of each pool, by id."""
    needs: tuple[Need, ...]
    """Of all movable workloads, also those that are no part of the problem."""
    pinned: tuple[Assignment, ...]
    """Stay as they are, exhausted jobs included."""
    kept: tuple[Assignment, ...]
    """Movable, but beside pinned replicas, and good as they are: they stay too."""
    standing: Mapping[DeviceId, tuple[Stands, ...]]
    """By device of a pool, replicas by id."""
    refusals: Mapping[tuple[WorkloadId, GpuTypeName], Reason]
    """Why a workload can have no replica on any device of a type, however much were free."""

    def standing_patterns(self) -> tuple[Standing, ...]:
        """What stands on pools as patterns, as far as it is lawful and keeps its promises, at the clocks that stand."""
        clocks = {item.device: item.clock_mhz_sm for item in self.snapshot.target.settings}
        found: Counter[tuple[int, tuple[int, ...], tuple[int, ...]]] = Counter()
        for pool, devices in enumerate(self.pool_devices):
            kinds = np.flatnonzero(self.problem.kind_pool == pool)
            for device in devices:
                stands = self.standing.get(device, ())
                members = sorted(
                    (item.variant, item.assignment.share_pct_sm) for item in stands if item.variant is not None
                )
                clock = clocks.get(device)
                kind = next((int(k) for k in kinds if self.problem.kind_clock_mhz[k] == clock), int(kinds[-1]))
                if members and len(members) == len(stands):
                    found[kind, tuple(item for item, _ in members), tuple(share for _, share in members)] += 1
        judged = ((judge(self.problem, *key), count) for key, count in sorted(found.items()))
        return tuple(Standing(pattern=pattern, devices=count) for pattern, count in judged if pattern is not None)


def read(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> Reading:
    """Read a snapshot of which these workloads may move."""
    picture = snapshot.with_offers()
    needs = needs_of(picture, movable)
    pinned = _pinned(picture, movable, needs)
    settings = pinned_settings(picture, movable)
    fleet = open_fleet(picture, settings)
    held = {item.device for item in pinned}
    _put(picture, fleet, pinned)
    kept, left = _kept(picture, fleet, needs, pinned)
    spread = any(need.affinity.failure_domains_min > 1 for need in needs)
    pools = pools_of(picture, fleet, held, by_failure_domain=spread)
    problem, refusals = assemble(picture, fleet, pools, tuple(item for item in left if item.wanted))
    hopeless = {
        (need.workload, item.name): need.refusal
        for need in needs
        if need.refusal is not None
        for item in picture.gpu_types
    }
    return Reading(
        snapshot=picture,
        problem=problem,
        pool_devices=pools.devices,
        needs=needs,
        pinned=pinned,
        kept=kept,
        standing=_standing(picture, pools, problem, set(movable)),
        refusals=refusals | hopeless,
    )


def _pinned(picture: Snapshot, movable: tuple[WorkloadId, ...], needs: tuple[Need, ...]) -> tuple[Assignment, ...]:
    """Replicas of workloads that may not move, and jobs that may not be evicted again."""
    bears = {WorkloadId(job.id): job.evictions_max for job in picture.jobs}
    asked = {need.workload for need in needs if need.kind is WorkloadKind.JOB and need.refusal is None}
    exhausted = {
        status.workload
        for status in picture.job_statuses
        if status.workload in asked and status.evictions >= bears[status.workload]
    }
    devices = {device.id for device in picture.devices}
    standing = (item for item in picture.target.assignments if item.workload in exhausted and item.device in devices)
    return tuple(sorted((*pinned_assignments(picture, movable), *standing), key=lambda item: item.replica))


def _put(picture: Snapshot, fleet: Fleet, items: Iterable[Assignment]) -> None:
    """Take what stays onto the fleet's books, for its power, share and quota."""
    dedicated: set[str] = {item.id for item in picture.services if item.affinity.dedicated}
    for item in items:
        alone = item.workload in dedicated
        seat = standing_seat(fleet, item, dedicated=alone, power_w=item.power_w_planned)
        if seat is not None:
            fleet.put(seat)


def _kept(
    picture: Snapshot, fleet: Fleet, needs: tuple[Need, ...], pinned: tuple[Assignment, ...]
) -> tuple[tuple[Assignment, ...], tuple[Left, ...]]:
    """What stands beside pinned replicas and keeps its promise, and what every other need, less that, still wants."""
    held = {item.device for item in pinned}
    stays = {item.replica for item in pinned}
    beside: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    for item in sorted(picture.target.assignments, key=lambda item: item.replica):
        if item.device in held and item.replica not in stays:
            beside[item.workload].append(item)
    beliefs = Beliefs.of(picture, fleet.classes)
    kept: list[Assignment] = []
    left: list[Left] = []
    settled = {item.workload for item in pinned}
    for need in needs:
        if need.refusal is not None or need.workload in settled:
            continue
        good = [
            (item, capacity_rps)
            for item in beside.get(need.workload, [])[: need.replicas_max]
            if (capacity_rps := _capacity_rps(fleet, beliefs, need, item)) is not None
        ]
        usd_per_h = sum(
            fleet.class_at(fleet.index[item.device]).usd_per_h * item.share_pct_sm / 100 for item, _ in good
        )
        kept.extend(item for item, _ in good)
        left.append(left_of(need, len(good), sum(capacity for _, capacity in good), usd_per_h))
    _put(picture, fleet, kept)
    return tuple(sorted(kept, key=lambda item: item.replica)), tuple(left)


def _capacity_rps(fleet: Fleet, beliefs: Beliefs, need: Need, item: Assignment) -> float | None:
    """What a standing replica can be shown to serve; None when it cannot stay."""
    device = fleet.index[item.device]
    if not fleet.usable[device]:
        return None
    if need.kind is WorkloadKind.JOB:
        return 0.0
    option = beliefs.assess(need, int(fleet.class_of[device]), item)
    return None if option is None else option.capacity_rps


def _standing(
    picture: Snapshot, pools: Pools, problem: JointProblem, movable: set[WorkloadId]
) -> dict[DeviceId, tuple[Stands, ...]]:
    pooled = {device for devices in pools.devices for device in devices}
    variants = {
        (problem.workloads[item.workload].id, item.model): number for number, item in enumerate(problem.variants)
    }
    found: dict[DeviceId, list[Stands]] = defaultdict(list)
    for item in sorted(picture.target.assignments, key=lambda item: item.replica):
        if item.device in pooled and item.workload in movable:
            stands = Stands(assignment=item, variant=variants.get((item.workload, item.model)))
            found[item.device].append(stands)
    return {device: tuple(items) for device, items in sorted(found.items())}
