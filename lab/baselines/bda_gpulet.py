"""gpulet's partitions with InSS' batches: the same places and shares, every batch by bisection.

Owns the exchange of batches after gpulet has placed, and what the reasons tell of timers (the limit less the batch
itself). A batch that a rule of the device forbids stays as gpulet chose it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np

from lab.baselines.gpulet import GpuletParameters, PartitionCounting, Partitions
from solvers.domain.evidence import Reason, ReasonCode, Reporter
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.planners.base import PlannerSpec, PlanRequest, Stateless
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, Settled
from solvers.planners.traits import Counting
from solvers.planners.tuning import Tune, TunedRecord
from solvers.policies.inss.batching import size
from solvers.policies.inss.belief import InssBelief, Member
from solvers.policies.inss.planner import KNOBS, exchange
from solvers.problems.choice import Option

SPEC = PlannerSpec(name="bda_gpulet", about="gpulet's partitions with inss' batches", version="1", knobs=KNOBS)


@value
class BatchParameters(TunedRecord):
    batch_max: Annotated[int, Tune("largest batch", 1, 65536)] = 32
    counting: PartitionCounting = Counting.PROVEN


@dataclass(frozen=True, slots=True)
class BdaGpuLet(Stateless):
    parameters: BatchParameters = field(default_factory=BatchParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        partitions = Partitions.of(request, GpuletParameters(counting=self.parameters.counting))
        draft = partitions.draft
        reasons = self._batches(draft, partitions)
        reporter.event("bda_gpulet.batched", replicas=float(len(reasons)))
        return draft.proposal(SPEC, tuple(reasons))

    def _batches(self, draft: Draft, partitions: Partitions) -> list[Reason]:
        belief, reasons = InssBelief(case=draft.case, interference=True), list[Reason]()
        placed = [(draft.open(need), item) for need in draft.needs for item in tuple(draft.open(need).placed)]
        for settled, item in placed:
            if item.option is None:
                continue
            together: list[Member] = [
                (draft_settled.need, each.option)
                for draft_settled in (draft.open(need) for need in draft.needs)
                for each in draft_settled.placed
                if each.seat.device == item.seat.device and each.option is not None
            ]
            at = together.index((settled.need, item.option))
            carried_rps = partitions.carries_rps(settled.need, item.option)
            total_rps = partitions.served_rps[settled.need.workload]
            rate = min(carried_rps, settled.need.rate_rps * carried_rps / total_rps) if total_rps else 0.0
            found = size(belief, at, together, rate, self._choices(draft, settled, item))
            if found.option is not None and found.serves and exchange(draft, settled, item, found.option):
                reasons.append(found.reason(settled.need, ReasonCode.CHEAPEST_FEASIBLE))
        return reasons

    def _choices(self, draft: Draft, settled: Settled, item: Placed) -> list[Option]:
        """Other batches at the same share and in the same memory."""
        assert item.option is not None
        options, now = draft.options(settled.need), item.option
        mine = np.flatnonzero(
            (options.device_class == now.device_class)
            & (options.share_pct == now.share_pct)
            & (options.batch <= self.parameters.batch_max)
            & (options.memory_mib <= now.memory_mib)
        )
        listed = (draft.option(settled.need, int(at)) for at in mine[np.argsort(options.batch[mine])])
        return [replace(option, memory_mib=now.memory_mib) for option in listed]
