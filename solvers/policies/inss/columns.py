"""The columns of InSS' problem (1) for a draft: replicas, devices, shares and batches that keep their promise.

Owns the number of replicas of each service (so many that one column each can serve its part), the columns that meet
(1c) beside neighbours of usual appetite, and the second look at who really sits together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags
from solvers.domain.evidence import ReasonCode
from solvers.domain.plan import Assignment
from solvers.planners.draft import Draft
from solvers.planners.traits import limit_ms, roomy
from solvers.policies.inss.belief import InssBelief, Member
from solvers.policies.inss.parameters import InssParameters
from solvers.problems.choice import Option, replicas_for
from solvers.problems.knapsack import Knapsack
from solvers.problems.needs import Need

LEAST_PART = 0.8
"""How much what must be served counts, of the worth of serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackColumns:
    """The knapsack with what its columns stand for; models are `needs`, GPUs the fleet's devices."""

    needs: tuple[Need, ...]
    options: tuple[Option, ...]
    problem: Knapsack

    def members(self, chosen: Flags) -> dict[int, list[tuple[int, Member]]]:
        """Who sits together: columns with their member, by device."""
        found: dict[int, list[tuple[int, Member]]] = {}
        for column in np.flatnonzero(chosen):
            member = self.needs[int(self.problem.model[column])], self.options[column]
            found.setdefault(int(self.problem.gpu[column]), []).append((int(column), member))
        return found

    def rate_rps(self, model: int) -> float:
        """A replica's part of its service's rate."""
        return self.needs[model].rate_rps / max(1, int(self.problem.wanted[model]))

    def broken(self, chosen: Flags, belief: InssBelief) -> list[int]:
        """Columns that are late beside their very neighbours."""
        late: list[int] = []
        for together in self.members(chosen).values():
            members = [member for _, member in together]
            for at, (column, (need, option)) in enumerate(together):
                rate = self.rate_rps(int(self.problem.model[column]))
                if not belief.in_time(need, option, belief.slowdown(at, members), rate):
                    late.append(column)
        return late


def columns_of(draft: Draft, belief: InssBelief, parameters: InssParameters) -> KnapsackColumns:
    """All of a draft, in the order of the plain rule: the highest rate over limit first."""
    needs = sorted(
        (need for need in draft.needs if len(draft.options(need))),
        key=lambda need: (need.kind, -need.rate_rps / limit_ms(need), need.workload),
    )
    wanted: list[int] = []
    chosen: list[Option] = []
    places: list[tuple[int, int, float, float, float]] = []
    for model, need in enumerate(needs):
        count = _replicas(draft, belief, need)
        wanted.append(count)
        rates = need.rate_rps_least / max(1, count), need.rate_rps / max(1, count)
        standing = _standing(draft, need)
        for option in _listed(draft, belief, need, rates[1], parameters.batch_max):
            found = draft.places(draft.open(need), option)
            if isinstance(found, ReasonCode):
                continue
            each = belief.throughput_rps(need, option, belief.slowdown_borne(need, option))
            for device in map(int, found):
                stays = _kept(standing, option, device)
                chosen.append(option if stays is None else replace(option, memory_mib=stays.memory_mib_limit))
                bonus = parameters.stay_part * (stays is not None)
                places.append((model, device, each, _served(each, rates), bonus))
    table = np.array(places, dtype=np.float64).reshape(-1, 5)
    problem = Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=table[:, 1].astype(np.int64),
        share_pct=np.array([option.share_pct for option in chosen], dtype=np.float64),
        memory_mib=np.array([option.memory_mib for option in chosen], dtype=np.float64),
        throughput_rps=table[:, 2],
        served=table[:, 3],
        wanted=np.array(wanted, dtype=np.int64),
        share_room_pct=np.maximum(draft.fleet.share_free, 0.0),
        memory_room_mib=np.maximum(draft.fleet.memory_free, 0.0),
        staying_rps=table[:, 4] * table[:, 2],
    )
    return KnapsackColumns(needs=tuple(needs), options=tuple(chosen), problem=problem)


def _replicas(draft: Draft, belief: InssBelief, need: Need) -> int:
    """So many that the largest configuration serves its part of the rate."""
    if need.rate_rps <= 0:
        return min(need.replicas_floor, need.replicas_max)
    options = draft.options(need)
    able = [draft.option(need, int(at)) for at in np.flatnonzero(options.share_pct == options.share_pct.max())]
    largest = max(belief.throughput_rps(need, option, belief.slowdown_borne(need, option)) for option in able)
    return min(max(int(replicas_for(need.rate_rps, np.array(largest))), need.replicas_floor), need.replicas_max)


def staying(draft: Draft, need: Need, option: Option, device: int) -> Assignment | None:
    """The standing replica on a device that would be this one with another batch: no process has to start."""
    return _kept(_standing(draft, need), option, device)


def _standing(draft: Draft, need: Need) -> dict[tuple[int, int], Assignment]:
    """A need's standing replicas by device and share."""
    index = draft.fleet.index
    items = (item for item in draft.case.standing.get(need.workload, []) if item.model == need.model)
    return {(index[item.device], item.share_pct_sm): item for item in items if item.device in index}


def _kept(standing: dict[tuple[int, int], Assignment], option: Option, device: int) -> Assignment | None:
    item = standing.get((device, option.share_pct))
    return item if item is not None and item.memory_mib_limit >= option.memory_mib else None


def _served(each_rps: float, rates_rps: tuple[float, float]) -> float:
    """Part of its rate that a replica serves; what must be served counts before what capacity is sized for."""
    least, sized = (min(1.0, each_rps / rate) if rate > 0 else 1.0 for rate in rates_rps)
    return LEAST_PART * least + (1.0 - LEAST_PART) * sized


def _listed(draft: Draft, belief: InssBelief, need: Need, rate: float, batch_max: int) -> list[Option]:
    """For every class and share the batch with the highest throughput, of those in time."""
    options, found = draft.options(need), list[Option]()
    for number in np.unique(options.device_class):
        mine = np.flatnonzero((options.device_class == number) & (options.batch <= batch_max))
        for share in np.unique(options.share_pct[mine]):
            at_share = [draft.option(need, int(at)) for at in mine[options.share_pct[mine] == share]]
            timely = [o for o in at_share if belief.in_time(need, o, belief.slowdown_borne(need, o), rate)]
            # What a plan must also prove, by the careful reading that is the same for all planners, comes first.
            proven = [o for o in timely if o.capacity_rps >= rate]
            if timely:
                best = max(proven or timely, key=lambda o: (belief.throughput_rps(need, o, 1.0), -o.batch))
                found.append(roomy(options, best, batch_max))
    return found
