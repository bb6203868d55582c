"""The columns of InSS' problem (1) for a draft: replicas, devices, shares and batches that keep their promise.

Owns the number of replicas of each service (so many that one column each can serve its part), the columns that meet
(1c) beside neighbours of usual appetite, and the second look at who really sits together. It refuses to choose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.evidence import ReasonCode
from solvers.engines.base import Flags
from solvers.planners.baselines.traits import limit_ms
from solvers.planners.draft import Draft
from solvers.planners.inss.belief import InssBelief, Member
from solvers.planners.inss.parameters import Parameters
from solvers.problems.choice import Option, replicas_for
from solvers.problems.knapsack import Knapsack
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
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


def columns_of(draft: Draft, belief: InssBelief, parameters: Parameters) -> Columns:
    """All of a draft, in the order of the plain rule: the highest rate over limit first."""
    needs = sorted(
        (need for need in draft.needs if len(draft.options(need))),
        key=lambda need: (need.kind, -need.rate_rps / limit_ms(need), need.workload),
    )
    wanted = [_replicas(draft, need) for need in needs]
    chosen: list[Option] = []
    places: list[tuple[int, int, float, float]] = []
    for model, (need, count) in enumerate(zip(needs, wanted, strict=True)):
        rate = need.rate_rps / max(1, count)
        for option in _listed(draft, belief, need, (rate, parameters.batch_max)):
            found = draft.places(draft.open(need), option)
            if isinstance(found, ReasonCode):
                continue
            at, alone = (need, option), 1000.0 * option.batch / belief.alone_ms(need, option)
            served = min(1.0, option.capacity_rps / rate) if rate > 0 else 1.0
            places.extend((model, int(device), alone / belief.slowdown_borne(*at), served) for device in found)
            chosen.extend([option] * len(found))
    homes = [draft.case.menus[needs[model].workload].familiar for model, *_ in places]
    stays = np.array(
        [device in home for home, (_, device, *_rest) in zip(homes, places, strict=True)], dtype=np.float64
    )
    table = np.array(places, dtype=np.float64).reshape(-1, 4)
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
        staying_rps=parameters.stay_part * stays * table[:, 2],
    )
    return Columns(needs=tuple(needs), options=tuple(chosen), problem=problem)


def _replicas(draft: Draft, need: Need) -> int:
    largest = np.array(float(draft.options(need).capacity_rps.max()))
    count = int(replicas_for(need.rate_rps, largest)) if need.rate_rps > 0 else 0
    return min(max(count, need.replicas_floor), need.replicas_max)


def _listed(draft: Draft, belief: InssBelief, need: Need, bounds: tuple[float, int]) -> list[Option]:
    """For every class and share the batch that serves most, of those in time; where none is, that serves most."""
    rate, batch_max = bounds
    options, found = draft.options(need), list[Option]()
    for number in np.unique(options.device_class):
        mine = np.flatnonzero((options.device_class == number) & (options.batch <= batch_max))
        for share in np.unique(options.share_pct[mine]):
            at_share = mine[options.share_pct[mine] == share]
            order = at_share[np.lexsort((options.batch[at_share], -options.capacity_rps[at_share]))]
            listed = [draft.option(need, int(index)) for index in order]
            timely = (o for o in listed if belief.in_time(need, o, belief.slowdown_borne(need, o), rate))
            best = next(timely, None)
            if best is not None:
                found.append(best)
    return found
