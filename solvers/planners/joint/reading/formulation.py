"""From a snapshot to the joint problem, and the way back to names.

What stays where it is (`staying`) is taken off what is asked, and its devices are in no pool. A workload that nothing
can serve is no part of the problem; why, is said for every GPU type. Everything is read carefully, as `tables` and
`pools` say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.evidence import Reason
from solvers.domain.ids import DeviceId, GpuTypeName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import pinned_settings
from solvers.planners.joint.reading.pools import Pools, pools_of
from solvers.planners.joint.reading.problem import Names, assemble
from solvers.planners.joint.reading.staying import staying_of, with_rests
from solvers.problems.fleet import open_fleet
from solvers.problems.joint import JointProblem
from solvers.problems.needs import Need, needs_of
from solvers.problems.patterns import Pattern, Standing, judge


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
        found: Counter[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = Counter()
        for pool, devices in enumerate(self.pool_devices):
            kinds = np.flatnonzero(self.problem.kind_pool == pool)
            for device in devices:
                stands = self.standing.get(device, ())
                members = sorted(
                    (item.variant, item.assignment.share_pct_sm) for item in stands if item.variant is not None
                )
                clock = clocks.get(device) or 0
                if clock not in self.problem.kind_clock_mhz[kinds]:
                    clock = int(self.problem.kind_clock_mhz[kinds[-1]])
                if members and len(members) == len(stands):
                    key = tuple(item for item, _ in members), tuple(share for _, share in members)
                    found[pool, clock, *key] += 1
        judged = ((self._judged(*key), count) for key, count in sorted(found.items()))
        return tuple(Standing(pattern=pattern, devices=count) for pattern, count in judged if pattern is not None)

    def _judged(self, pool: int, clock: int, variants: tuple[int, ...], shares: tuple[int, ...]) -> Pattern | None:
        """Of the kinds at this clock the first that bears it: those who are known bear each other best."""
        judged = (judge(self.problem, kind, variants, shares) for kind in self.problem.like(pool, clock))
        return next((pattern for pattern in judged if pattern is not None), None)


def read(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> Reading:
    """Read a snapshot of which these workloads may move."""
    picture = snapshot.with_offers()
    needs = needs_of(picture, movable)
    fleet = open_fleet(picture, pinned_settings(picture, movable))
    staying = staying_of(picture, movable, needs, fleet)
    spread = any(need.affinity.failure_domains_min > 1 for need in needs)
    pools = pools_of(picture, fleet, staying.devices, by_failure_domain=spread)
    stays = (*staying.pinned, *staying.kept)
    pools = with_rests(picture, fleet, pools, stays, [item.need for item in staying.left if item.wanted])
    problem, refusals = assemble(picture, fleet, pools, tuple(item for item in staying.left if item.wanted))
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
        pinned=staying.pinned,
        kept=staying.kept,
        standing=_standing(picture, pools, problem, set(movable), {item.replica for item in stays}),
        refusals=refusals | hopeless,
    )


def _standing(
    picture: Snapshot, pools: Pools, problem: JointProblem, movable: set[WorkloadId], stays: set[ReplicaId]
) -> dict[DeviceId, tuple[Stands, ...]]:
    pooled = {device for devices in pools.devices for device in devices}
    names = Names(problem)
    found: dict[DeviceId, list[Stands]] = defaultdict(list)
    for item in sorted(picture.target.assignments, key=lambda item: item.replica):
        if item.device in pooled and item.workload in movable and item.replica not in stays:
            variant = names.variant(item.workload, item.model, item.batch)
            found[item.device].append(Stands(assignment=item, variant=variant))
    return {device: tuple(items) for device, items in sorted(found.items())}
