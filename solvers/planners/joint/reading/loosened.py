"""The problem that bounds are proven of: nothing in it is narrower than the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import pinned_settings
from solvers.planners.joint.reading.formulation import Reading, assemble
from solvers.planners.joint.reading.pools import pools_of
from solvers.planners.joint.reading.work import staying_of
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.needs import needs_of


@dataclass(frozen=True, kw_only=True)
class Loosened:
    """A problem of which every plan for a snapshot is a layout that costs no more than the plan without what is pinned:
    who stands beside pinned replicas may move, and what those leave of a device is open to all who fit.
    """

    snapshot: Snapshot
    fleet: Fleet
    problem: JointProblem
    pinned: tuple[Assignment, ...]
    room_pct: Floats
    """By pool: share that is not taken."""
    paid: Flags
    """By pool: whether something pinned stands on its devices, which cost nothing more then."""


def loosened(snapshot: Snapshot, movable: tuple[WorkloadId, ...], reading: Reading | None = None) -> Loosened:
    """See the class. `reading`: of the same, where it was read."""
    if reading is not None and not reading.pinned:
        count = len(reading.problem.pools)
        return Loosened(
            snapshot=reading.snapshot,
            fleet=reading.fleet,
            problem=reading.problem,
            pinned=(),
            room_pct=np.full(count, float(WHOLE_PCT)),
            paid=np.zeros(count, dtype=bool),
        )
    picture = snapshot.with_offers()
    needs = needs_of(picture, movable)
    fleet = open_fleet(picture, pinned_settings(picture, movable))
    staying = staying_of(picture, movable, needs, fleet, beside=False)
    pools = pools_of(picture, fleet, (), by_failure_domain=any(n.affinity.failure_domains_min > 1 for n in needs))
    first = [traits.first for traits in pools.traits]
    taken = np.array(fleet.occupants[first] > 0, dtype=bool)
    paid = taken & (picture.policy.cost_basis is CostBasis.DEVICE)
    opened = tuple(
        replace(pool, usd_per_h=0.0 if free else pool.usd_per_h, idle_w=0.0, limit_w=pool.limit_w - pool.idle_w)
        if rest
        else pool
        for pool, rest, free in zip(pools.pools, taken.tolist(), paid.tolist(), strict=True)
    )
    problem, _ = assemble(picture, fleet, replace(pools, pools=opened), staying.left)
    room_pct = np.asarray(fleet.share_free[first], dtype=np.float64)
    return Loosened(snapshot=picture, fleet=fleet, problem=problem, pinned=staying.pinned, room_pct=room_pct, paid=paid)
