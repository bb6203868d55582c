"""The devices behind a problem's pools: which they are, what stands on them, which power domains they share.

The named side of a joint problem as numbers: device `n` of the floor, pools in a row, each device with what stands on
it in the problem's terms and the watts that its power domains leave above idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.device import PowerScope
from solvers.domain.ids import DeviceId, ModelName, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.seating import standing_seat
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern

NO_DOMAIN = -1
_SCOPES = (PowerScope.NODE, PowerScope.RACK, PowerScope.CLUSTER)
"""A cap on one device is its power limit, which pools know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A standing replica of a workload that may move."""

    variant: int
    share_pct: int
    memory_mib: int
    launch_s: float
    capacity_rps: float
    """As it was planned."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """All devices of all pools, numbered pool by pool in the order of their ids."""

    problem: JointProblem
    names: tuple[DeviceId, ...]
    pool_of: Whole
    starts: Whole
    """First device of each pool, and the number of all."""
    held: Mapping[int, tuple[Held, ...]]
    """What stands, ordered by (variant, share); devices where nothing stands are left out."""
    domain_of: Whole
    """Device x scope: number of the power domain, or NO_DOMAIN."""
    room_w: Floats
    """Of each power domain: what the pools' devices in it may draw above their idle power."""

    @cached_property
    def judge(self) -> Judge:
        """For judging many patterns at once."""
        return Judge(self.problem)

    def devices(self, pool: int) -> range:
        """Device numbers of a pool."""
        return range(int(self.starts[pool]), int(self.starts[pool + 1]))

    def dynamic_w(self, pattern: Pattern) -> float:
        """What a device with this pattern draws above idle."""
        return pattern.draw_w - self.problem.pools[int(self.problem.kind_pool[pattern.kind])].idle_w


def floor_of(reading: Reading) -> Floor:
    """The floor of a reading."""
    problem, pools = reading.problem, reading.pool_devices
    names = tuple(name for pool in pools for name in pool)
    number = {name: index for index, name in enumerate(names)}
    held: dict[int, tuple[Held, ...]] = {}
    for device, stands in reading.standing.items():
        found = [
            Held(
                variant=int(problem.network[item.variant]),
                share_pct=item.assignment.share_pct_sm,
                memory_mib=item.assignment.memory_mib_limit,
                launch_s=problem.variants[item.variant].launch_s,
                capacity_rps=item.assignment.capacity_rps,
            )
            for item in stands
            if item.variant is not None
        ]
        if found:
            held[number[device]] = tuple(
                sorted(found, key=lambda item: (item.variant, item.share_pct, item.memory_mib))
            )
    domain_of, room_w = _domains(reading.snapshot, _outside(reading), number)
    return Floor(
        problem=problem,
        names=names,
        pool_of=np.repeat(np.arange(len(pools)), [len(pool) for pool in pools]),
        starts=np.concatenate([[0], np.cumsum([len(pool) for pool in pools])]).astype(np.int64),
        held=dict(sorted(held.items())),
        domain_of=domain_of,
        room_w=room_w,
    )


def _outside(reading: Reading) -> Fleet:
    """The fleet's books with all that stays outside the pools."""
    staying = (*reading.pinned, *reading.kept)
    beside = {item.device for item in staying}
    settings = {item.device: item for item in reading.snapshot.target.settings if item.device in beside}
    fleet = open_fleet(reading.snapshot, settings)
    for item in staying:
        taken = standing_seat(fleet, item, dedicated=False, power_w=item.power_w_planned)
        if taken is not None:
            fleet.put(taken)
    return fleet


def variant_numbers(problem: JointProblem) -> dict[tuple[WorkloadId, ModelName, str], int]:
    """Variants by workload, model and largest batch."""
    return {
        (problem.workloads[item.workload].id, item.model, str(item.batch_max)): number
        for number, item in enumerate(problem.variants)
    }


def _domains(snapshot: Snapshot, fleet: Fleet, number: Mapping[DeviceId, int]) -> tuple[Whole, Floats]:
    nodes = snapshot.nodes_by_id()
    caps = [cap for cap in snapshot.power_caps if cap.scope in _SCOPES]
    place = {(cap.scope, cap.subject): index for index, cap in enumerate(caps)}
    room_w = np.array([cap.limit_w for cap in caps], dtype=np.float64)
    domain_of = np.full((len(number), len(_SCOPES)), NO_DOMAIN, dtype=np.int64)
    for index, device in enumerate(fleet.devices):
        subjects = (device.node, nodes[device.node].rack, snapshot.cluster)
        drawn_w = float(min(fleet.limit_w[index], fleet.idle_w[index] + fleet.dynamic_w[index]))
        for column, (scope, subject) in enumerate(zip(_SCOPES, subjects, strict=True)):
            domain = place.get((scope, subject))
            if domain is None:
                continue
            room_w[domain] -= drawn_w
            if device.id in number:
                domain_of[number[device.id], column] = domain
    return domain_of, room_w
