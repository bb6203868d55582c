"""Batches first: every standing replica's batch by bisection, where it stands, with the share and memory it has.

BDA finds the largest batch that keeps a replica's limits, and the time a batch may wait to fill that follows from it.
It is asked about InSS' latency beside the very neighbours and behind the queue that its node reports (Eq. 2), and the
memory the process holds. Of the answers comes the largest measured batch not above the one found that still serves the
replica's part of the rate, by InSS' own belief (1d); where none does, the one that serves most in time. What a queue
makes late at every size is late: it keeps the batch that is best once routers have dropped what is hopeless.

Replicas are sized by rising limits, each beside the batches found so far, in two passes at most: what an earlier one
gave back (power here, memory where a placement is worked out) the second pass hands on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, search_of
from solvers.planners.traits import limit_ms
from solvers.policies.inss.belief import InssBelief, Member
from solvers.problems.choice import Option
from solvers.problems.fleet import Seat
from solvers.problems.needs import Need

DUST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """A replica to size. The curves take a batch: `latency_ms` is the worst a task sees, waiting included,
    `execution_ms` that of one batch, `fits` whether its memory is there.
    """

    execution_ms: Callable[[int], float]
    latency_ms: Callable[[int], float]
    fits: Callable[[int], bool]
    latency_ms_limit: float
    rate_rps: float
    batch_min: int = 1
    batch_max: int = 32

    def throughput_rps(self, batch: int) -> float:
        """Requests a second when batch follows batch."""
        return 1000.0 * batch / self.execution_ms(batch)

    def holds(self, batch: int) -> bool:
        """Whether memory and latency limit are kept."""
        return self.fits(batch) and self.latency_ms(batch) <= self.latency_ms_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """What was found: None when no size keeps the limits and the rate. `timeout_ms` is how long a batch may wait to
    fill.
    """

    batch: int | None
    timeout_ms: float
    probes: tuple[int, ...]


def bisect_batch(question: BatchQuestion) -> BatchAnswer:
    """Search one replica's size; at most six probes in 1 to 32."""
    low, high, best = question.batch_min, question.batch_max, None
    probes: list[int] = []
    while low <= high:
        middle = (low + high) // 2
        probes.append(middle)
        enough = question.throughput_rps(middle) >= question.rate_rps
        if question.holds(middle):
            best = middle if enough else best
            low = middle + 1
        elif not enough:
            # Smaller batches are slower still, larger ones later still.
            break
        else:
            high = middle - 1
    # What the limit leaves for waiting once the batch itself is paid for.
    left_ms = 0.0 if best is None else max(0.0, question.latency_ms_limit - question.execution_ms(best))
    return BatchAnswer(batch=best, timeout_ms=left_ms, probes=tuple(probes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A batch for one replica; `option` is the best there is, None where none is in time, and `serves` tells whether it
    serves the rate in time, `rate_rps` how much of it once what waits is served or dropped.
    """

    option: Option | None
    serves: bool
    rate_rps: float
    answer: BatchAnswer

    def reason(self, need: Need, took: ReasonCode) -> Reason:
        """What was found, for a plan's reasons."""
        told = {"batch": float(self.answer.batch or 0), "probes": float(len(self.answer.probes))}
        if need.limit_ms is not None:
            told["timeout_ms"] = round(self.answer.timeout_ms, 3)
        facts = tuple(Fact(name=name, value=number) for name, number in told.items())
        return Reason(code=took, subject=need.workload, facts=facts)


PASSES_MAX = 2
Item = TypeVar("Item")


def in_passes(items: Sequence[Item], size_one: Callable[[Item], None], batches: Callable[[], list[int]]) -> None:
    """Size everybody in this order, and once more where that changed what the others were sized beside."""
    for _ in range(PASSES_MAX if len(items) > 1 else 1):
        before = batches()
        for item in items:
            size_one(item)
        if batches() == before:
            break


def size(
    belief: InssBelief,
    at: int,
    together: list[Member],
    rate_rps: float,
    choices: list[Option],
    waiting: float = 0.0,
) -> Sized:
    """One replica's batch among those it may have (by rising batch), beside the others of its device and behind so many
    requests.
    """
    need, option = together[at]
    beside = belief.beside(at, together)
    largest = max((choice.batch for choice in choices), default=0)
    question = BatchQuestion(
        execution_ms=lambda batch: beside.took_ms(belief.alone_ms(need, option, batch)),
        latency_ms=lambda batch: belief.latency_ms(need, option, batch, beside, rate_rps, waiting),
        fits=lambda batch: batch <= largest,
        latency_ms_limit=limit_ms(need),
        rate_rps=rate_rps,
        batch_max=max(1, largest),
    )
    answer = bisect_batch(question)
    reached = answer.batch or 0
    enough = rate_rps * (1 - DUST)
    serving = [item for item in choices if item.batch <= reached and question.throughput_rps(item.batch) >= enough]
    timely = serving or [item for item in choices if question.latency_ms(item.batch) <= question.latency_ms_limit]
    if waiting and not timely:
        emptied = size(belief, at, together, rate_rps, choices)
        return replace(emptied, serves=False)
    # What a plan must also prove, by the careful reading that is the same for all planners, comes first.
    proven = [item for item in timely if item.capacity_rps >= enough]
    best = max(proven or timely, key=lambda item: item.batch, default=None)
    most = 0.0 if best is None else question.throughput_rps(best.batch)
    return Sized(option=best, serves=bool(serving), rate_rps=min(rate_rps, most), answer=answer)


@dataclass(frozen=True, slots=True)
class _ReplicaPlace:
    """A workload's replica, by its number among those that stand."""

    need: Need
    at: int

    @property
    def key(self) -> tuple[WorkloadId, int]:
        return self.need.workload, self.at


@dataclass(slots=True, kw_only=True)
class Batching:
    """Case 1 of the two speeds, on what stands."""

    draft: Draft
    belief: InssBelief
    batch_max: int
    reasons: list[Reason]
    short_rps: float = 0.0
    """What is left unserved by InSS' belief."""
    _stood: dict[WorkloadId, list[Placed]] = field(default_factory=dict)
    _found: dict[tuple[WorkloadId, int], Sized] = field(default_factory=dict)

    def settle(self) -> bool:
        """Settle everybody where they stand, with new batches; whether nobody is left short or late."""
        draft = self.draft
        self._stood = draft.stand()
        needs = sorted(draft.needs, key=lambda need: (limit_ms(need), need.workload))
        places = [_ReplicaPlace(need, at) for need in needs for at in range(len(self._stood[need.workload]))]
        in_passes(places, self._size, lambda: [self._option(place).batch for place in places])
        served = True
        for need in draft.needs:
            items = self._stood[need.workload]
            sized = [self._found[need.workload, at] for at in range(len(items))]
            for each in sized:
                code = ReasonCode.KEPT_STANDING if each.serves else ReasonCode.SLO_UNREACHABLE
                self.reasons.append(each.reason(need, code))
            kept = [item for item, each in zip(items, sized, strict=True) if each.option is not None]
            settled = draft.keep(need, items, kept)
            short_rps = need.rate_rps_least - sum(each.rate_rps for each in sized)
            self.short_rps += max(0.0, short_rps)
            served = served and short_rps <= DUST * need.rate_rps_least and all(each.serves for each in sized)
            served = served and not settled.replicas_missing
            served = served and len(items) == len(draft.case.standing.get(need.workload, []))
        return served

    def _option(self, place: _ReplicaPlace) -> Option:
        option = self._stood[place.need.workload][place.at].option
        assert option is not None
        return option

    def _size(self, place: _ReplicaPlace) -> None:
        """Give one replica its batch beside what everybody has now."""
        need, draft = place.need, self.draft
        items = self._stood[need.workload]
        item, device = items[place.at], items[place.at].seat.device
        together: list[Member] = [
            (other, self._option(_ReplicaPlace(other, number)))
            for other in draft.needs
            for number, each in enumerate(self._stood[other.workload])
            if each.seat.device == device
        ]
        found = size(
            self.belief,
            together.index((need, self._option(place))),
            together,
            need.rate_rps_least / len(items),
            self._choices(need, item),
            0.0 if item.standing is None else self.belief.waiting(need, item.standing.replica),
        )
        self._found[place.key] = found
        if found.option is not None:
            items[place.at] = replace(item, seat=_drawing(item, found.option), option=found.option)
            draft.fleet.lift(item.seat)
            draft.fleet.put(items[place.at].seat)

    def _choices(self, need: Need, item: Placed) -> list[Option]:
        """What the replica can do with other batches, in its share and memory; as it is, it may always be."""
        now, draft = item.option, self.draft
        assert now is not None
        options = draft.options(need)
        mine = np.flatnonzero(
            (options.device_class == now.device_class)
            & (options.share_pct == now.share_pct)
            & (options.memory_mib <= now.memory_mib)
            & (options.batch != now.batch)
            & (options.batch <= self.batch_max)
        )
        others = [replace(draft.option(need, int(at)), memory_mib=now.memory_mib) for at in mine]
        able = [option for option in others if self._may(need, item, option)]
        return sorted([now, *able], key=lambda option: option.batch)

    def _may(self, need: Need, item: Placed, option: Option) -> bool:
        """Whether the device bears the replica with another batch: another batch draws other power."""
        fleet = self.draft.fleet
        if option.power_w <= item.seat.power_w and option.press == item.seat.press:
            return True
        fleet.lift(item.seat)
        search = search_of(need, _drawing(item, option))
        fits = fleet.fits(replace(search, press=option.press), item.seat.device)
        fleet.put(item.seat)
        return fits


def _drawing(item: Placed, option: Option) -> Seat:
    """The replica's seat with another batch."""
    return replace(item.seat, power_w=option.power_w, press=option.press)


def workloads_short(draft: Draft) -> tuple[WorkloadId, ...]:
    return tuple(
        need.workload
        for need in draft.needs
        if draft.open(need).rate_rps_short > 0 or draft.open(need).replicas_missing
    )
