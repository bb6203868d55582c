"""gpulet: at most two partitions per GPU, of a few sizes, efficient ones first, neighbours checked for interference.

Owns the published heuristic: services by rising rate x SLO; whole partitions at the size whose last step gained most
throughput per share, the rest of the rate on the smallest partition that suffices; best fit; no pair whose linear
interference would break a promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from lab.beliefs.gpulet import PUBLISHED
from solvers.domain.evidence import ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.draft import Draft
from solvers.planners.seating import Settled
from solvers.planners.traits import Counting, Traits, limit_ms, roomy
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.choice import Option
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="gpulet",
    about="at most two partitions per GPU, of a few sizes",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
DUST = 1e-9
SIZES_PCT = (20, 40, 50, 60, 80, 100)
PartitionCounting = Annotated[Counting, Tune("what a partition is counted to serve: proven, or busy as printed")]


@value
class GpuletParameters(TunedRecord):
    sizes_pct: Annotated[tuple[int, ...], Tune("sizes of partitions in percent of a GPU", 1, 100)] = SIZES_PCT
    partitions_max: Annotated[int, Tune("partitions of a GPU", 1, 8)] = 2
    batch_max: Annotated[int, Tune("largest batch", 1, 65536)] = 32
    gain_min: Annotated[
        float, Tune("a step to a larger partition that gains less throughput than this part is ignored", 0, 1)
    ] = 0.05
    caution: Annotated[float, Tune("estimated latencies are taken so many times", 1, 10)] = 1.1
    counting: PartitionCounting = Counting.PROVEN


@dataclass(frozen=True, slots=True)
class GpuLet(Stateless):
    parameters: GpuletParameters = field(default_factory=GpuletParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        partitions = Partitions.of(request, self.parameters)
        reporter.event("gpulet.partitioned", partitions=float(sum(map(len, partitions.residents.values()))))
        return partitions.draft.proposal(SPEC)


@dataclass(slots=True, kw_only=True)
class Partitions:
    parameters: GpuletParameters
    draft: Draft
    traits: Traits
    residents: dict[int, list[tuple[Need, Option]]] = field(default_factory=dict)
    served_rps: dict[WorkloadId, float] = field(default_factory=dict)

    @staticmethod
    def of(request: PlanRequest, parameters: GpuletParameters) -> Partitions:
        draft = Draft.of(request)
        made = Partitions(
            parameters=parameters, draft=draft, traits=Traits(case=draft.case, counting=parameters.counting)
        )
        for need in sorted(draft.needs, key=lambda need: (need.kind, need.rate_rps * limit_ms(need), need.workload)):
            made.serve(need)
        return made

    def carries_rps(self, need: Need, option: Option) -> float:
        careful = self.parameters.caution if self.parameters.counting is Counting.BUSY else 1.0
        return self.traits.throughput_rps(need, option) / careful

    def wanting_rps(self, need: Need) -> float:
        missing = need.rate_rps - self.served_rps.get(need.workload, 0.0)
        return missing if missing > 1e-6 * max(1.0, need.rate_rps) else 0.0

    def serve(self, need: Need) -> None:
        """Efficient partitions as long as they are filled, then one for the rest."""
        settled, draft = self.draft.open(need), self.draft
        if not len(draft.options(need)):
            draft.refuse(need)
            return
        full = [self.sizes(need, number, math.inf) for number in np.unique(draft.options(need).device_class)]
        efficient = [best for sizes in full for best in (self.efficient(need, sizes),) if best is not None]
        efficient.sort(key=lambda option: (option.usd_per_h / self.carries_rps(need, option), option.share_pct))
        for option in efficient:
            carried_rps = self.carries_rps(need, option)
            while self.wanting_rps(need) >= carried_rps * (1 - DUST) and self.place(settled, option):
                pass
            if self.finish(settled, option.device_class):
                return
        if not efficient:
            draft.block(settled, ReasonCode.SLO_UNREACHABLE, draft.option(need, 0))

    def finish(self, settled: Settled, device_class: int) -> bool:
        """The rest of the rate on the smallest partitions that suffice; whether nothing is missing then."""
        need = settled.need
        while self.wanting_rps(need) > 0 or len(settled.placed) < need.replicas_floor:
            rate = self.wanting_rps(need)
            sizes = self.sizes(need, device_class, rate) or self.sizes(need, device_class, math.inf)
            enough = [option for option in sizes if self.carries_rps(need, option) >= rate * (1 - DUST)]
            # Where the smallest that suffices finds no place, smaller ones serve a part.
            tries = [*enough, *reversed([option for option in sizes if option not in enough])]
            if not any(self.place(settled, option) for option in tries):
                return False
        return True

    def sizes(self, need: Need, device_class: int, rate_rps: float) -> list[Option]:
        """The best batch for each size of partition on a class; with a rate, for one that serves no more."""
        options, found = self.draft.options(need), dict[int, Option]()
        mine = np.flatnonzero((options.device_class == device_class) & (options.batch <= self.parameters.batch_max))
        for size in self.parameters.sizes_pct:
            fitting = mine[options.share_pct[mine] <= size]
            if not len(fitting):
                continue
            share = int(options.share_pct[fitting].max())
            at_share = fitting[options.share_pct[fitting] == share]
            for index in at_share[np.argsort(-options.batch[at_share])]:
                option = self.draft.option(need, int(index))
                if self.in_time(need, option, 1.0, rate_rps):
                    found.setdefault(share, roomy(options, option, self.parameters.batch_max))
                    break
        return [found[share] for share in sorted(found)]

    def in_time(self, need: Need, option: Option, slowdown: float, rate_rps: float = math.inf) -> bool:
        """Twice the execution on a saturated partition; execution and the filling of the batch on one that is not."""
        took = self.parameters.caution * slowdown * self.traits.execution_ms(need, option)
        waits = took if math.isinf(rate_rps) or rate_rps <= 0 else min(took, 1000 * option.batch / rate_rps)
        return took + waits <= limit_ms(need)

    def efficient(self, need: Need, sizes: list[Option]) -> Option | None:
        """The size whose step gained most throughput per share."""
        best, gained, before, share = None, -math.inf, 0.0, 0
        for option in sizes:
            carried_rps = self.carries_rps(need, option)
            gain = carried_rps - before
            if before and gain < self.parameters.gain_min * before:
                continue
            if gain / (option.share_pct - share) > gained + DUST:
                best, gained = option, gain / (option.share_pct - share)
            before, share = carried_rps, option.share_pct
        return best

    def place(self, settled: Settled, option: Option) -> bool:
        """Best fit among the devices where nobody is disturbed too much."""
        draft, need = self.draft, settled.need
        found = draft.places(settled, option)
        if isinstance(found, ReasonCode):
            draft.block(settled, found, option)
            return False
        among = found[np.array([self.bears(int(device), need, option) for device in found], dtype=np.bool_)]
        if not len(among):
            draft.block(settled, ReasonCode.NEIGHBOURS_PRESSURE, option)
            return False
        if draft.put(settled, option, draft.at_home(need, draft.best_fit), among) is not None:
            return False
        served_rps = self.served_rps.get(need.workload, 0.0)
        self.served_rps[need.workload] = served_rps + self.carries_rps(need, option)
        self.residents.setdefault(settled.placed[-1].seat.device, []).append((need, option))
        return True

    def bears(self, device: int, need: Need, option: Option) -> bool:
        """Whether there is a partition left, and both neighbours keep their promise."""
        if self.draft.fleet.occupants[device] >= self.parameters.partitions_max:
            return False
        together = [*self.residents.get(device, []), (need, option)]
        return all(
            self.in_time(mine, chosen, self._slowdown(at, together))
            for at, (mine, chosen) in enumerate(together)
            if len(together) > 1
        )

    def _slowdown(self, at: int, together: list[tuple[Need, Option]]) -> float:
        own = self.traits.use(*together[at])
        others = [self.traits.use(*item) for number, item in enumerate(together) if number != at]
        terms = (own.l2, sum(item.l2 for item in others), own.dram, sum(item.dram for item in others), 1.0)
        return max(1.0, float(np.dot(PUBLISHED, terms)))
