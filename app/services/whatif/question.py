"""A what-if question as a whole: changes, how to plan, and whether advice on capacity is wanted; and its answer.

Where the pictures come from (a file, a live fleet) and where planners run is the caller's. Advice says which GPU type
to add next: candidates are ranked by what the planner says one more is worth, else by an estimate from profiles, and as
no ranking is believed alone, the best few are planned for in earnest with so many more devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from app.records import record_of
from app.services.whatif.changes import Changes, NodesAdded, with_nodes
from app.services.whatif.made import Made, Wish, planned, planned_beside, request_of, standing_on
from app.services.whatif.outcome import Outcome, Simulation, compare, outcome_of, price_by_device, servings
from solvers.cycle.attempts import Asking
from solvers.domain.device import GpuType, PriceKind, PriceRow
from solvers.domain.evidence import Resource
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, Digest, GpuTypeName
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value, within
from solvers.errors import FieldError
from solvers.models.options import Beliefs
from solvers.models.worth import billed_part, worth_of
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import Need, needs_of

PREFIX = "advised"
_PREFERRED = (PriceKind.ON_DEMAND, PriceKind.RESERVED, PriceKind.OWNED, PriceKind.SPOT)
ADVISE_MAX = 8
DEVICES_MAX = 1000


@value
class WhatIfQuestion(Wish):
    """What is asked. `advise` types are tried with `devices` more each, in the fleet as changed; 0: no advice."""

    changes: Changes = Changes()
    advise: Annotated[int, within(0, ADVISE_MAX)] = 0
    devices: Annotated[int, within(1, DEVICES_MAX)] = 1

    def __post_init__(self) -> None:
        if not self.plans:
            raise FieldError("changes", "there is nothing to simulate: name changes, or ask for advice")

    @property
    def changed(self) -> bool:
        return self.changes != Changes()

    @property
    def plans(self) -> int:
        """How many plans have to be made; none when nothing is asked."""
        return 1 + self.changed + self.advise if self.changed or self.advise else 0


@value
class Advice:
    """One GPU type, planned for with so many more devices of it."""

    gpu_type: GpuTypeName
    devices: int
    price_kind: PriceKind
    price_usd_per_h: float
    """Of all of them, as whole devices around the clock."""
    shadow_usd_per_h: float | None
    """What the planner's shadow price says one more saves; None when it has none."""
    estimate_usd_per_h: float
    """What one more may save at best by its profiles, before anything was planned."""
    verified: bool
    plan: Digest | None
    planner: str | None
    as_before: bool
    """Nothing better was found than the plan without the new devices."""
    cost_usd_per_h: float
    bound_usd_per_h: float | None
    gap_pct: float | None
    saved_usd_per_h: float
    """How much less the plan costs, what it pays for the new devices included, and how much more its jobs are worth."""
    charged_usd_per_h: float
    """What the plan pays for the new devices."""
    breakeven_usd_per_h: float
    """All of them together may cost so much before they are not worth it."""
    payback: float | None
    """Breakeven over price: above 1, they earn more than they cost; None without a price."""
    rate_rps_gained: float
    unserved_gained: float
    devices_used: int


@value
class Advised:
    """The plan of the fleet as it is, and what more devices would change; the best first."""

    before: Outcome
    advice: tuple[Advice, ...]
    types_considered: int


@value
class WhatIf:
    """The answer; the parts that were not asked for are None."""

    simulation: Simulation | None = None
    advised: Advised | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The fleet as it is and as it would be (the same where nothing changes), types that could be had, and the way to
    complete a picture with what is believed.
    """

    before: Snapshot
    after: Snapshot
    types: tuple[GpuType, ...]
    complete: Callable[[Snapshot], Snapshot]


def answer(
    question: WhatIfQuestion, pictures: Pictures, asking: Asking, known: Callable[[], Made] | None = None
) -> WhatIf:
    """Make the plans that the question needs, one after the other. `known` has that of the fleet as it is."""
    made, simulation = planned(pictures.before, question, asking) if known is None else known(), None
    if question.changed:
        made, simulation = compare(made, pictures.after, question, asking)
    if not question.advise:
        return WhatIf(simulation=simulation)
    advisor = _Advisor(made=made, before=outcome_of(made), question=question, pictures=pictures, asking=asking)
    return WhatIf(simulation=simulation, advised=advisor.advised())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A GPU type that could be added, at the price that a new device would have."""

    gpu_type: GpuType
    row: PriceRow
    shadow_usd_per_h: float | None
    gain_rps: float
    estimate_usd_per_h: float

    @property
    def rank(self) -> tuple[float, float, str]:
        worth = self.shadow_usd_per_h if self.shadow_usd_per_h is not None else self.estimate_usd_per_h
        return (-self.gain_rps, -worth, self.gpu_type.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Advisor:
    """Ranks the types of the pictures, then plans with the best few."""

    made: Made
    before: Outcome
    question: WhatIfQuestion
    pictures: Pictures
    asking: Asking

    def advised(self) -> Advised:
        candidates = self._candidates()
        ranked = sorted(candidates, key=lambda item: item.rank)[: self.question.advise]
        advice = [self._tried(item) for item in ranked]
        advice.sort(key=lambda item: (-item.unserved_gained, item.price_usd_per_h - item.breakeven_usd_per_h))
        return Advised(before=self.before, advice=tuple(advice), types_considered=len(candidates))

    def _candidates(self) -> list[_Candidate]:
        insight = self.made.insight
        prices = insight.prices if insight is not None else ()
        shadows = {item.subject: item.usd_per_h for item in prices if item.resource is Resource.GPU}
        rows = {item.name: row for item in self.pictures.types if (row := self._price(item)) is not None}
        types = [item for item in self.pictures.types if item.name in rows]
        potentials = self._potentials(types)
        return [
            _Candidate(
                gpu_type=item,
                row=rows[item.name],
                shadow_usd_per_h=shadows.get(item.name),
                gain_rps=potentials[item.name][0],
                estimate_usd_per_h=potentials[item.name][1] - rows[item.name].usd_per_h,
            )
            for item in types
            if item.name in potentials
        ]

    def _price(self, gpu_type: GpuType) -> PriceRow | None:
        """The price that a new device would have: the policy's kind, else the usual one first."""
        kind = self.made.picture.policy.price_kind
        kinds = (kind,) if kind is not None else _PREFERRED
        rows = (row for kind in kinds for row in gpu_type.prices if row.kind is kind and row.usd_per_h > 0)
        return next(rows, None)

    def _potentials(self, types: Iterable[GpuType]) -> dict[GpuTypeName, tuple[float, float]]:
        """For each type that can serve anything: requests/s that one device could serve of what is short, and what the
        service that gains most pays now for what one device could take over.
        """
        picture, plan = self.made.picture, self.made.plan
        every = picture
        for gpu_type in types:
            every = _with(every, gpu_type, PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=0.0), 1)
        every = self.pictures.complete(every)
        beliefs = Beliefs.of(every, open_fleet(every, {}).classes)
        paid = {key.workload: item.usd_per_h for key, item in servings(self.made).items()}
        short = {item.workload: item.rate_rps_short for item in plan.unplaced}
        found: dict[GpuTypeName, tuple[float, float]] = {}
        for need in needs_of(every, request_of(picture, self.question).movable):
            if need.rate_rps <= 0:
                continue
            for name, capacity_rps in _best_by_type(need, beliefs).items():
                gain, saving = found.get(name, (0.0, 0.0))
                taken_over = paid.get(need.workload, 0.0) * min(1.0, capacity_rps / need.rate_rps)
                found[name] = (max(gain, min(capacity_rps, short.get(need.workload, 0.0))), max(saving, taken_over))
        return found

    def _tried(self, candidate: _Candidate) -> Advice:
        row, devices, before = candidate.row, self.question.devices, self.before
        picture = self.made.picture
        grown = self.pictures.complete(_with(picture, candidate.gpu_type, row, devices))
        made = planned_beside(self.made.plan, standing_on(grown, self.made.plan), self.question, self.asking)
        after = outcome_of(made)
        charged, used = _charged_usd_per_h(made, {item.id for item in picture.devices})
        # What jobs leave undone is by the fastest GPU of a fleet: of both plans, by that of the grown one.
        asked, plan = request_of(grown, self.question), self.made.plan
        undone = worth_of(grown, asked.movable, plan.assignments, plan.settings).objective.waiting_usd_per_h
        saved = before.cost_usd_per_h + undone - after.cost_usd_per_h - after.waiting_usd_per_h
        price = row.usd_per_h * devices
        return record_of(
            Advice,
            after,
            gpu_type=candidate.gpu_type.name,
            devices=devices,
            price_kind=row.kind,
            price_usd_per_h=price,
            shadow_usd_per_h=candidate.shadow_usd_per_h,
            estimate_usd_per_h=candidate.estimate_usd_per_h,
            saved_usd_per_h=saved,
            charged_usd_per_h=charged,
            breakeven_usd_per_h=saved + charged,
            payback=(saved + charged) / price if price > 0 else None,
            rate_rps_gained=before.rate_rps_short - after.rate_rps_short,
            unserved_gained=before.unserved - after.unserved,
            devices_used=used,
        )


def _with(picture: Snapshot, gpu_type: GpuType, row: PriceRow, devices: int) -> Snapshot:
    """The picture with devices of a type that it may not even know."""
    types = picture.gpu_types_by_name()
    if gpu_type.name not in types:
        types[gpu_type.name] = gpu_type
        picture = replace(picture, gpu_types=tuple(types[name] for name in sorted(types)))
    wish = NodesAdded(gpu_type=gpu_type.name, gpus=devices, price_kind=row.kind, region=row.region, rack=PREFIX)
    return with_nodes(picture, wish, gpu_type, f"{PREFIX}-{gpu_type.name}"[:56].rstrip(".-_"))


def _best_by_type(need: Need, beliefs: Beliefs) -> dict[GpuTypeName, float]:
    """Most requests/s of a whole device, by type."""
    options, _ = beliefs.options(need)
    if not len(options):
        return {}
    per_gpu = options.capacity_rps / np.maximum(options.gpus, 1e-9)
    found: dict[GpuTypeName, float] = {}
    for index, device_class in enumerate(beliefs.classes):
        held = per_gpu[options.device_class == index]
        if len(held):
            found[device_class.gpu_type] = max(found.get(device_class.gpu_type, 0.0), float(held.max()))
    return found


def _charged_usd_per_h(made: Made, old: Collection[DeviceId]) -> tuple[float, int]:
    """What a plan pays for devices beside the old ones by the policy's cost basis, and how many of them it uses."""
    snapshot, plan = made.picture, made.plan
    prices, settings = price_by_device(snapshot), {item.device: item for item in plan.settings}
    used = grouped((item for item in plan.assignments if item.device not in old), lambda item: item.device)
    basis, profiles = snapshot.policy.cost_basis, snapshot.profiles_by_key()
    charged = sum(
        prices[item.id] * billed_part(item, settings.get(item.id), used[item.id], basis, profiles)
        for item in sorted(snapshot.devices, key=lambda item: item.id)
        if item.id in used
    )
    return charged, len(used)
