"""ParvaGPU: services cut into segments of their best efficiency, segments packed onto as few GPUs as hold them.

Owns its stages on MPS shares in steps of 10 %. Configuring: for each size the batch that serves most within half the
promise; as many segments of the most efficient size as the rate fills, and the smallest that serves the rest.
Allocating: larger segments first, each on the first GPU with room. Optimising: GPUs that are filled little are emptied
into smaller segments where these fit into the holes of others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.evidence import ReasonCode, Reporter
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, Settled
from solvers.planners.traits import Traits, limit_ms
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.choice import Option
from solvers.problems.fleet import Places
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="parvagpu",
    about="segments of the best efficiency, packed onto few GPUs",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
DUST = 1e-9


@value
class ParvagpuParameters(TunedRecord):
    step_pct: Annotated[int, Tune("sizes of segments are multiples of this", 1, 100)] = 10
    filled_little_pct: Annotated[float, Tune("GPUs filled to at most this are emptied into others", 0, 100)] = 50.0


@dataclass(frozen=True, slots=True)
class ParvaGpu(Stateless):
    parameters: ParvagpuParameters = field(default_factory=ParvagpuParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - stateless
        draft = Draft.of(request)
        stages = _Stages(parameters=self.parameters, draft=draft, traits=Traits(case=draft.case))
        segments = [(need, option) for need in draft.needs for option in stages.configured(need)]
        segments.sort(key=lambda item: (item[0].kind, -item[1].share_pct, item[0].workload))
        for need, option in segments:
            stages.allocate(need, option)
        moved = stages.optimise()
        for need in draft.needs:
            stages.complete(need)
        reporter.event("parvagpu.allocated", segments=float(len(segments)), emptied=float(moved))
        return draft.proposal(SPEC)


@dataclass(slots=True, kw_only=True)
class _Stages:
    parameters: ParvagpuParameters
    draft: Draft
    traits: Traits
    sizes: dict[str, list[Option]] = field(default_factory=dict)
    """By workload: the best option of each size on the type that it uses."""

    def configured(self, need: Need) -> list[Option]:
        options = self.draft.options(need)
        if not len(options):
            self.draft.refuse(need)
            return []
        by_class = [self._sizes(need, int(number)) for number in np.unique(options.device_class)]
        able = [sizes for sizes in by_class if sizes]
        if not able:
            self.draft.block(self.draft.open(need), ReasonCode.SLO_UNREACHABLE, self.draft.option(need, 0))
            return []
        sizes = min(able, key=lambda sizes: min(item.usd_per_h / item.capacity_rps for item in sizes))
        self.sizes[need.workload] = sizes
        best = max(sizes, key=lambda item: (item.capacity_rps / item.share_pct, item.share_pct))
        return segments(best, sizes, need)

    def _sizes(self, need: Need, number: int) -> list[Option]:
        """For each size the batch that serves most within half the promise."""
        options, step = self.draft.options(need), self.parameters.step_pct
        mine = np.flatnonzero((options.device_class == number) & (options.share_pct % step == 0))
        found: list[Option] = []
        for share in np.unique(options.share_pct[mine]):
            at_share = mine[options.share_pct[mine] == share]
            listed = [self.draft.option(need, int(index)) for index in at_share]
            fast = [item for item in listed if self.traits.execution_ms(need, item) <= limit_ms(need) / 2]
            if fast:
                found.append(max(fast, key=lambda item: (item.capacity_rps, -item.batch)))
        return found

    def allocate(self, need: Need, option: Option) -> None:
        """The first GPU with room, those in use before empty ones."""
        settled = self.draft.open(need)
        blocked = self.draft.put(settled, option, self._first)
        if blocked is not None:
            self.draft.block(settled, blocked, option)

    def complete(self, need: Need) -> None:
        """What found no room on its type, or only beside its own service, goes wherever a segment of any type fits."""
        options = self.draft.options(need)
        if len(options):
            self.draft.fill(self.draft.open(need), options.share_pct % self.parameters.step_pct == 0, self._first)

    def _first(self, places: Places) -> Floats:
        return np.asarray((self.draft.fleet.occupants[places] == 0) * 1e9 + places, dtype=np.float64)

    def optimise(self) -> int:
        """Empty what is filled little into the holes of other GPUs; how many GPUs became free."""
        fleet, emptied = self.draft.fleet, 0
        hosted: dict[int, list[tuple[Settled, Placed]]] = {}
        for settled in self.draft.settled.values():
            for item in settled.placed:
                hosted.setdefault(item.seat.device, []).append((settled, item))
        little = [at for at in hosted if 0 < 100 - fleet.share_free[at] <= self.parameters.filled_little_pct]
        for device in sorted(little, key=lambda at: (-fleet.share_free[at], at)):
            if all(item.option is not None and item.seat.workload in self.sizes for _, item in hosted[device]):
                emptied += self._emptied(device, hosted[device])
        return emptied

    def _emptied(self, device: int, hosted: list[tuple[Settled, Placed]]) -> bool:
        """Whether all of a GPU's segments found holes elsewhere; else everything is as it was."""
        before = [(settled, list(settled.placed)) for settled, _ in hosted]
        current = [item for settled, item in hosted if item in settled.placed]
        if len(current) < len(hosted) or self.draft.fleet.occupants[device] != len(hosted):
            return False
        for settled, item in hosted:
            self.draft.fleet.lift(item.seat)
            settled.placed.remove(item)
        if all(self._in_holes(device, settled) for settled, _ in hosted):
            return True
        for settled, placed in before:
            settled.clear()
            settled.placed[:] = placed
            settled.restore()
        return False

    def _in_holes(self, device: int, settled: Settled) -> bool:
        """Serve what is missing now by segments on other GPUs in use, the largest that fit first."""
        fleet = self.draft.fleet
        if settled.rate_rps_wanting <= 0 and len(settled.placed) >= settled.need.replicas_floor:
            return True
        missing = max(settled.rate_rps_wanting, DUST)
        largest_first = sorted(self.sizes[settled.need.workload], key=lambda option: -option.share_pct)
        for option in largest_first:
            while missing > 0 or len(settled.placed) < settled.need.replicas_floor:
                used = np.flatnonzero(fleet.occupants > 0)
                blocked = self.draft.put(settled, option, self._first, used[used != device])
                if blocked is not None:
                    break
                missing = settled.rate_rps_wanting
        return missing <= 0 and len(settled.placed) >= settled.need.replicas_floor


def segments(best: Option, sizes: list[Option], need: Need) -> list[Option]:
    """As many of the most efficient size as the rate fills, and the smallest that serves the rest; at least the floor,
    at most the ceiling.
    """
    full = math.floor(need.rate_rps / best.capacity_rps + DUST)
    rest = need.rate_rps - full * best.capacity_rps
    found = [best] * full
    if rest > DUST * max(1.0, need.rate_rps):
        enough = [item for item in sizes if item.capacity_rps >= rest * (1 - DUST)]
        found.append(min(enough, key=lambda item: item.share_pct) if enough else best)
    while len(found) < need.replicas_floor:
        found.append(min(sizes, key=lambda item: item.share_pct))
    if len(found) > need.replicas_max:
        largest = max(sizes, key=lambda item: item.capacity_rps)
        count = min(need.replicas_max, math.ceil(need.rate_rps / largest.capacity_rps - DUST))
        found = [largest] * max(count, need.replicas_floor)
    return found
