"""iGniter: the least share that keeps half the promise alone, then the GPU where neighbours must grow least.

Owns the published rules: batch from the arrival rate and the transfer of inputs, least share from the table, placement
by falling least share on the GPU that needs the least extra share until everybody, slowed by L2 contention, scheduling
and the power cap, keeps half its promise; else a new GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from lab.beliefs.igniter_interference import (
    CACHE,
    CLOCK_MHZ_PER_W,
    CLOCK_RATIO_MIN,
    DELAY_MS_FURTHER,
    DELAY_MS_SECOND,
    KERNELS,
)
from solvers.domain.evidence import ReasonCode, Reporter
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.draft import Draft
from solvers.planners.traits import Counting, Traits, limit_ms
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.choice import Option, replicas_for
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="igniter",
    about="least share alone, then the GPU where neighbours must grow least",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
MS_PER_S = 1000.0
DUST = 1e-9


@value
class IgniterParameters(TunedRecord):
    input_mb: Annotated[float, Tune("megabytes that one request sends to the GPU", 0.000001, 100_000)] = 0.602
    """An image of 224 x 224 pixels in single precision."""
    counting: Annotated[Counting, Tune("what a replica is counted to serve: proven, or busy as printed")] = (
        Counting.PROVEN
    )


def batch_for(limit: float, rate_rps: float, bandwidth_gb_per_s: float, input_mb: float) -> int:
    """The batch that the arrivals fill within half the limit (ms), the transfer of inputs taken off."""
    bandwidth_mb_per_s = 1000 * bandwidth_gb_per_s
    part = bandwidth_mb_per_s / (bandwidth_mb_per_s + input_mb * rate_rps)
    return max(1, math.ceil(limit / 2 / MS_PER_S * rate_rps * part - DUST))


@dataclass(slots=True, kw_only=True)
class _Resident:
    """One replica on its way: its options by rising share, and which of them it has."""

    need: Need
    levels: tuple[Option, ...]
    level: int = 0

    @property
    def option(self) -> Option:
        return self.levels[self.level]


@dataclass(frozen=True, slots=True)
class IGniter(Stateless):
    parameters: IgniterParameters = field(default_factory=IgniterParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        draft = Draft.of(request)
        placing = _Placing(
            parameters=self.parameters, draft=draft, traits=Traits(case=draft.case, counting=self.parameters.counting)
        )
        wanted = [item for need in draft.needs for item in placing.replicas(need)]
        wanted.sort(key=lambda item: (item[0].need.kind, -item[0].option.share_pct, item[0].need.workload))
        for candidates in wanted:
            placing.place(candidates)
        placing.commit()
        reporter.event("igniter.placed", devices=float(len(placing.residents)))
        return draft.proposal(SPEC)


@dataclass(slots=True, kw_only=True)
class _Placing:
    """Who is where so far; the books learn of it at the end, because shares still grow."""

    parameters: IgniterParameters
    draft: Draft
    traits: Traits
    residents: dict[int, list[_Resident]] = field(default_factory=dict)

    def replicas(self, need: Need) -> list[list[_Resident]]:
        """Each replica with its candidates, one per class of devices, the cheapest class first."""
        options = self.draft.options(need)
        if not len(options):
            self.draft.refuse(need)
            return []
        largest_rps = self.largest_rps(need)
        count = max(int(replicas_for(need.rate_rps, np.array(largest_rps))), need.replicas_floor)
        count = min(count, need.replicas_max)
        if count == 0:
            return []
        found = [self.levels(need, int(number), need.rate_rps / count) for number in np.unique(options.device_class)]
        rate_rps = need.rate_rps / count * (1 - DUST)
        able = sorted(
            (item for item in found if item),
            key=lambda item: (self.carries_rps(need, item[0]) < rate_rps, item[0].usd_per_h, item[0].share_pct),
        )
        return [[_Resident(need=need, levels=levels) for levels in able] for _ in range(count)] if able else []

    def carries_rps(self, need: Need, option: Option) -> float:
        return self.traits.throughput_rps(need, option)

    def largest_rps(self, need: Need) -> float:
        options = self.draft.options(need)
        if self.parameters.counting is Counting.PROVEN:
            return float(options.capacity_rps.max())
        whole = np.flatnonzero(options.share_pct == options.share_pct.max())
        listed = [self.draft.option(need, int(at)) for at in whole]
        half_ms = limit_ms(need) / 2
        timely = [option for option in listed if self.traits.execution_ms(need, option) <= half_ms]
        return max(self.carries_rps(need, option) for option in timely or listed)

    def levels(self, need: Need, number: int, rate_rps: float) -> tuple[Option, ...]:
        """Options of a class by rising share, from the least that does alone; where none serves the rate, those that
        serve most.
        """
        options, kind = self.draft.options(need), self.draft.fleet.classes[number]
        mine = np.flatnonzero(options.device_class == number)
        bandwidth = self.draft.case.snapshot.gpu_types_by_name()[kind.gpu_type].pcie_bandwidth_gb_per_s
        limit = limit_ms(need)
        if math.isfinite(limit):
            batch = batch_for(limit, rate_rps, bandwidth, self.parameters.input_mb)
            larger = options.batch[mine][options.batch[mine] >= batch]
            mine = mine[options.batch[mine] <= (int(larger.min()) if len(larger) else batch)]
        chosen: list[Option] = []
        for share in np.unique(options.share_pct[mine]):
            best = self.best([self.draft.option(need, int(at)) for at in mine[options.share_pct[mine] == share]], need)
            enough = self.carries_rps(need, best) >= rate_rps * (1 - DUST)
            if enough and self.traits.execution_ms(need, best) <= limit / 2:
                chosen.append(best)
        if chosen or not len(mine):
            return tuple(chosen)
        return (self.draft.option(need, int(mine[np.argmax(options.capacity_rps[mine])])),)

    def best(self, listed: list[Option], need: Need) -> Option:
        """The batch that is counted to serve most, within half the promise where there is one."""
        half_ms = limit_ms(need) / 2
        busy = self.parameters.counting is Counting.BUSY
        timely = [option for option in listed if busy and self.traits.execution_ms(need, option) <= half_ms]
        return max(timely or listed, key=lambda option: self.carries_rps(need, option))

    def place(self, candidates: list[_Resident]) -> None:
        """On the device in use that needs the least extra share; else on an empty one of the cheapest class."""
        best: tuple[tuple[float, int], int, list[_Resident]] | None = None
        for candidate in candidates:
            for device in sorted(self.residents):
                grown = self.with_one_more(device, candidate)
                if grown is None:
                    continue
                extra = sum(item.option.share_pct for item in grown) - candidate.option.share_pct
                extra -= sum(item.option.share_pct for item in self.residents[device])
                if best is None or (extra, device) < best[0]:
                    best = ((extra, device), device, grown)
        if best is not None:
            self.residents[best[1]] = best[2]
            return
        for candidate in candidates:
            found = self.draft.fleet.room(self.draft.search(candidate.need, candidate.option))
            places = [] if isinstance(found, ReasonCode) else [int(at) for at in found if int(at) not in self.residents]
            if places:
                score = self.draft.at_home(candidate.need, self.draft.best_fit)
                at = np.array(places, dtype=np.intp)
                self.residents[int(at[np.argmin(score(at))])] = [candidate]
                return
        self.draft.block(self.draft.open(candidates[0].need), ReasonCode.NO_SHARE_LEFT, candidates[0].option)

    def with_one_more(self, device: int, candidate: _Resident) -> list[_Resident] | None:
        """Everybody on the device with the shares that keep all promises; None where there are none."""
        fleet, search = self.draft.fleet, self.draft.search(candidate.need, candidate.option)
        if candidate.option.device_class != int(fleet.class_of[device]) or not fleet.fits(search, device):
            return None
        if any(item.need.workload == candidate.need.workload for item in self.residents[device]):
            return None
        together = [replace(item) for item in (*self.residents[device], candidate)]
        while True:
            if sum(item.option.share_pct for item in together) > fleet.share_free[device] + DUST:
                return None
            late = [item for at, item in enumerate(together) if not self._in_time(at, together, device)]
            if not late:
                return together
            for item in late:
                if item.level + 1 >= len(item.levels):
                    return None
                item.level += 1

    def _in_time(self, at: int, together: list[_Resident], device: int) -> bool:
        item = together[at]
        alone_ms = self.traits.execution_ms(item.need, item.option)
        others = [other for number, other in enumerate(together) if number != at]
        delay = (DELAY_MS_SECOND + DELAY_MS_FURTHER * (len(others) - 1)) if others else 0.0
        pressure = sum(self.traits.use(other.need, other.option).l2 for other in others)
        kind = self.draft.fleet.class_at(device)
        beyond_w = max(0.0, kind.idle_w + sum(other.option.power_w for other in together) - kind.limit_w)
        clock = max(CLOCK_RATIO_MIN, 1 - CLOCK_MHZ_PER_W * beyond_w / kind.clock_mhz_sm)
        return (alone_ms * (1 + CACHE * pressure) + KERNELS * delay) / clock <= limit_ms(item.need) / 2

    def commit(self) -> None:
        """Write all places into the books; a rule that only they know may still forbid one."""
        for device in sorted(self.residents):
            for item in self.residents[device]:
                settled = self.draft.open(item.need)
                among = np.array([device], dtype=np.intp)
                blocked = self.draft.put(settled, item.option, self.draft.best_fit, among)
                if blocked is not None:
                    self.draft.block(settled, blocked, item.option)
