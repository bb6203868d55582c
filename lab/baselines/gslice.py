"""GSLICE: shares and batches that follow what was measured, with no model of neighbours.

Owns the published feedback on residual latency and residual throughput, its clamps, and shares given by max-min
fairness: on a GPU whose residents wish for more than there is, nobody gets more than the largest level that fits. A
step is taken in place where the device has room, else on another. Wishes are remembered unrounded, so that small steps
add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept, recalled
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.planners.traits import Counting, Traits, limit_ms, roomy
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.choice import Option
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="gslice",
    about="shares and batches by feedback on latency and throughput",
    version="1",
    knobs=(Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
FORM = "gslice-1"
WHOLE_PCT = 100.0


@value
class GsliceParameters(TunedRecord):
    band: Annotated[float, Tune("residuals from 0 to this change nothing", 0, 1)] = 0.05
    batch_max: Annotated[int, Tune("largest batch", 1, 65536)] = 32
    share_pct_first: Annotated[float, Tune("share with which a service begins", 1, 100)] = 30.0
    share_pct_least: Annotated[float, Tune("least share that is wished for", 1, 100)] = 5.0
    counting: Annotated[Counting, Tune("what a replica is counted to serve: proven, or busy as printed")] = (
        Counting.PROVEN
    )


@value
class GsliceWish:
    """What a service should have by the feedback, unrounded."""

    workload: WorkloadId
    share_pct: float
    batch: float
    replicas: int


@value
class GsliceMemory:
    form: str = FORM
    wishes: tuple[GsliceWish, ...] = ()


def stepped(
    share_pct: float, batch: float, residuals: tuple[float, float], parameters: GsliceParameters
) -> tuple[float, float]:
    """The next share and batch by residual latency and residual throughput."""
    latency, throughput = residuals
    if all(0 < item < parameters.band for item in residuals):
        return share_pct, batch
    factor = max(abs(latency), abs(throughput))
    factor = factor if latency <= 0 or throughput <= 0 else -min(factor, 1.0)
    share = min(WHOLE_PCT, max(parameters.share_pct_least, share_pct * (1 + factor)))
    return share, min(float(parameters.batch_max), max(1.0, batch * (1 + max(latency, -1.0))))


@dataclass(frozen=True, slots=True, kw_only=True)
class GSlice(Recalling):
    parameters: GsliceParameters = field(default_factory=GsliceParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan after one step of feedback, and the wishes to remember."""
        before = {item.workload: item for item in (recalled(GsliceMemory, state) or GsliceMemory()).wishes}
        draft = Draft.of(request)
        standing = draft.stand()
        wishes = [self._wish(draft, need, standing[need.workload], before.get(need.workload)) for need in draft.needs]
        fair = sorted(zip(draft.needs, wishes, strict=True), key=lambda pair: (pair[1].share_pct, pair[0].workload))
        for need in draft.needs:
            draft.keep(need, standing[need.workload], [])
        levels = levels_pct(draft, [(wish, standing[need.workload]) for need, wish in fair])
        homeless = [
            (need, wish, home)
            for need, wish in fair
            for home in self._in_place(draft, need, wish, standing[need.workload], levels)
        ]
        for need, wish, home in homeless:
            self._anywhere(draft, need, self._kinds(draft, need, wish.share_pct, wish.batch), home)
        for need, wish in fair:
            settled = draft.open(need)
            if len(draft.options(need)) and len(settled.placed) < wish.replicas and not settled.blockers:
                kinds = self._kinds(draft, need, wish.share_pct, wish.batch)
                draft.block(settled, ReasonCode.NO_SHARE_LEFT, kinds[0])
        reporter.event("gslice.stepped", services=float(len(wishes)))
        reasons = tuple(_reason(item) for item in sorted(wishes, key=lambda item: item.workload))
        ordered = tuple(sorted(wishes, key=lambda item: item.workload))
        return Thought(proposal=draft.proposal(SPEC, reasons), state=kept(GsliceMemory(wishes=ordered)))

    def _wish(self, draft: Draft, need: Need, running: list[Placed], before: GsliceWish | None) -> GsliceWish:
        parameters = self.parameters
        if not running or need.rate_rps_least <= 0:
            first, floor = parameters.share_pct_first, max(1 if need.rate_rps_least > 0 else 0, need.replicas_floor)
            return GsliceWish(
                workload=need.workload, share_pct=first, batch=float(parameters.batch_max), replicas=floor
            )
        at = max(running, key=lambda item: item.seat.share_pct)
        batch = float(max(item.option.batch for item in running if item.option is not None))
        share = float(at.seat.share_pct)
        # Wishes that the table rounded to what runs are gone on from.
        if before is not None and self._rounded(draft, need, at, before.share_pct) == at.seat.share_pct:
            share = before.share_pct
            batch = before.batch if self._rounded_batch(draft, need, at, before.batch) == batch else batch
        traits = Traits(case=draft.case, counting=parameters.counting)
        counted = (item.option for item in running if item.option is not None)
        limit, capacity_rps = limit_ms(need), sum(traits.throughput_rps(need, option) for option in counted)
        latency = 1.0 if limit == float("inf") else (limit - _latency_ms(draft, running)) / limit
        throughput = (capacity_rps - need.rate_rps_least) / need.rate_rps_least
        after, size = stepped(share, batch, (latency, throughput), parameters)
        count = len(running)
        if throughput <= 0 and share >= WHOLE_PCT:
            count += 1
        elif after <= parameters.share_pct_least and throughput > 1 and count > max(1, need.replicas_floor):
            count -= 1
        count = min(max(count, need.replicas_floor), need.replicas_max)
        return GsliceWish(workload=need.workload, share_pct=after, batch=size, replicas=count)

    @staticmethod
    def _rounded(draft: Draft, need: Need, at: Placed, share_pct: float) -> int:
        options = draft.options(need)
        mine = options.share_pct[options.device_class == draft.fleet.class_of[at.seat.device]]
        enough = mine[mine >= share_pct - 1e-9]
        return int(enough.min()) if len(enough) else int(mine.max(initial=0))

    @staticmethod
    def _rounded_batch(draft: Draft, need: Need, at: Placed, batch: float) -> int:
        options = draft.options(need)
        mine = options.batch[
            (options.device_class == draft.fleet.class_of[at.seat.device]) & (options.share_pct == at.seat.share_pct)
        ]
        small = mine[mine <= batch + 1e-9]
        return int(small.max()) if len(small) else int(mine.min(initial=1))

    def _in_place(
        self, draft: Draft, need: Need, wish: GsliceWish, running: list[Placed], levels: dict[int, float]
    ) -> list[Placed | None]:
        """Give replicas what was wished where they run, up to the level of their device; who finds no place so."""
        if not len(draft.options(need)):
            draft.refuse(need)
            return []
        homes = sorted(running, key=lambda item: item.standing.replica if item.standing is not None else "")
        homes = homes[: wish.replicas]
        left: list[Placed | None] = []
        for home in homes:
            level_pct = levels[home.seat.device]
            kinds = self._kinds(draft, need, min(wish.share_pct, level_pct), wish.batch, level_pct)
            if not self._same_place(draft, need, kinds, home):
                left.append(home)
        return [*left, *[None] * (wish.replicas - len(homes))]

    def _kinds(self, draft: Draft, need: Need, share_pct: float, batch: float, over: float = WHOLE_PCT) -> list[Option]:
        """A wish on each class of devices, the cheapest first: the smallest share from the wished one on, the largest
        not `over` a level where that is above it; the largest batch up to the wished one.
        """
        options, found = draft.options(need), list[Option]()
        for number in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == number)
            shares = options.share_pct[mine]
            enough, within = shares[shares >= share_pct - 1e-9], shares[shares <= over + 1e-9]
            share = int(enough.min()) if len(enough) else int(shares.max())
            share = int(within.max()) if share > over + 1e-9 and len(within) else share
            mine = mine[shares == share]
            small = mine[options.batch[mine] <= batch + 1e-9]
            best = small[np.argmax(options.batch[small])] if len(small) else mine[np.argmin(options.batch[mine])]
            found.append(roomy(options, draft.option(need, int(best)), self.parameters.batch_max))
        return sorted(found, key=lambda item: (item.usd_per_h / item.capacity_rps, item.device_class))

    @staticmethod
    def _same_place(draft: Draft, need: Need, kinds: list[Option], home: Placed) -> bool:
        settled, device = draft.open(need), home.seat.device
        mine = [item for item in kinds if item.device_class == int(draft.fleet.class_of[device])]
        among = np.array([device], dtype=np.intp)
        return any(draft.put(settled, item, draft.best_fit, among) is None for item in mine)

    @staticmethod
    def _anywhere(draft: Draft, need: Need, kinds: list[Option], home: Placed | None) -> None:
        """On another device; else as it was."""
        settled, blocked = draft.open(need), None
        for item in kinds:
            blocked = draft.put(settled, item, draft.best_fit)
            if blocked is None:
                return
        if home is not None and home.option is not None:
            draft.put(settled, home.option, draft.best_fit, np.array([home.seat.device], dtype=np.intp))
        if blocked is not None:
            draft.block(settled, blocked, kinds[0])


def levels_pct(draft: Draft, wishes: list[tuple[GsliceWish, list[Placed]]]) -> dict[int, float]:
    """What nobody on a device may get more than, where its residents wish for more than it has; infinity elsewhere."""
    wished: dict[int, list[float]] = {}
    for wish, running in wishes:
        for item in running[: wish.replicas]:
            wished.setdefault(item.seat.device, []).append(wish.share_pct)
    return {device: fair_level(shares, float(draft.fleet.share_free[device])) for device, shares in wished.items()}


def fair_level(wished: list[float], room: float) -> float:
    """Max-min fairness: the level to which all wishes can be cut so that they fit; infinity where all fit."""
    if sum(wished) <= room:
        return math.inf
    left, level = room, 0.0
    for number, share in enumerate(sorted(wished)):
        level = left / (len(wished) - number)
        if share > level:
            break
        left -= share
    return level


def _latency_ms(draft: Draft, running: list[Placed]) -> float:
    """The worst that was measured of what runs; where nothing was, what was planned."""
    seen = {item.replica: item.latency_ms_p99 for item in draft.case.snapshot.replica_telemetry}
    measured = [seen.get(item.standing.replica) for item in running if item.standing is not None]
    known = [item for item in measured if item is not None]
    return max(known) if known else max(item.option.latency_ms for item in running if item.option is not None)


def _reason(wish: GsliceWish) -> Reason:
    facts = (
        Fact(name="share_pct_wished", value=round(wish.share_pct, 6)),
        Fact(name="batch_wished", value=round(wish.batch, 6)),
        Fact(name="replicas_wished", value=float(wish.replicas)),
    )
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=wish.workload, facts=facts)
