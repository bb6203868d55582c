"""Batches first: every standing replica's batch by bisection, where it stands, with the share and memory it has.

Owns the questions put to bisection (InSS' latency beside the very neighbours, Eq. 2, the memory the process holds) and
what comes of the answers: the largest measured batch not above the one found that still serves the replica's part of
the rate. It refuses to move or resize anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.control.bisect import BatchAnswer, BatchQuestion, bisect_batch
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.planners.baselines.traits import limit_ms
from solvers.planners.draft import Draft
from solvers.planners.inss.belief import InssBelief, Member
from solvers.planners.seating import Placed
from solvers.problems.choice import Option
from solvers.problems.needs import Need

DUST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A batch for one replica; `batch` None where none serves."""

    option: Option | None
    answer: BatchAnswer

    def reason(self, need: Need, took: ReasonCode) -> Reason:
        """What was found, for a plan's reasons."""
        told = {"batch": float(self.answer.batch or 0), "probes": float(len(self.answer.probes))}
        if need.limit_ms is not None:
            told["timeout_ms"] = round(self.answer.timeout_ms, 3)
        facts = tuple(Fact(name=name, value=number) for name, number in told.items())
        return Reason(code=took, subject=need.workload, facts=facts)


def size(belief: InssBelief, at: int, together: list[Member], rate_rps: float, choices: list[Option]) -> Sized:
    """One replica's batch among those it may have (by rising batch), beside the others of its device."""
    need, option = together[at]
    slowdown = belief.slowdown(at, together)
    largest = max((choice.batch for choice in choices), default=0)
    question = BatchQuestion(
        replica=need.workload,
        execution_ms=lambda batch: slowdown * belief.alone_ms(need, option, batch),
        latency_ms=lambda batch: belief.latency_ms(need, option, batch, (slowdown, rate_rps)),
        fits=lambda batch: batch <= largest,
        latency_ms_limit=limit_ms(need),
        rate_rps=rate_rps,
        batch_max=max(1, largest),
    )
    answer = bisect_batch(question)
    reached = answer.batch or 0
    serving = [item for item in choices if item.batch <= reached and item.capacity_rps >= rate_rps * (1 - DUST)]
    return Sized(option=max(serving, key=lambda item: item.batch, default=None), answer=answer)


@dataclass(slots=True, kw_only=True)
class Batching:
    """Case 1 of the two speeds, on what stands."""

    draft: Draft
    belief: InssBelief
    batch_max: int
    reasons: list[Reason]

    def settle(self) -> bool:
        """Settle everybody where they stand, with new batches; whether nobody is left short or late."""
        draft = self.draft
        stood = draft.stand()
        members: dict[int, list[Member]] = {}
        for need in draft.needs:
            for item in stood[need.workload]:
                if item.option is not None:
                    members.setdefault(item.seat.device, []).append((need, item.option))
        served = True
        for need in draft.needs:
            kept = self._sized(need, stood[need.workload], members)
            settled = draft.keep(need, stood[need.workload], kept)
            late = len(kept) < len(stood[need.workload])
            short = settled.rate_rps_short > 0 or settled.replicas_missing > 0
            served = served and not late and not short
            served = served and len(stood[need.workload]) == len(draft.case.standing.get(need.workload, []))
        return served

    def _sized(self, need: Need, items: list[Placed], members: dict[int, list[Member]]) -> list[Placed]:
        kept: list[Placed] = []
        for item in items:
            if item.option is None or item.standing is None:
                continue
            together = members[item.seat.device]
            at = next(number for number, member in enumerate(together) if member == (need, item.option))
            found = size(self.belief, at, together, need.rate_rps_least / len(items), self._choices(need, item))
            code = ReasonCode.SLO_UNREACHABLE if found.option is None else ReasonCode.KEPT_STANDING
            self.reasons.append(found.reason(need, code))
            if found.option is not None:
                kept.append(replace(item, option=found.option))
        return kept

    def _choices(self, need: Need, item: Placed) -> list[Option]:
        """What the replica can do with other batches, in its share and memory."""
        assert item.standing is not None
        draft = self.draft
        options, found = draft.options(need), list[Option]()
        for batch in sorted({int(size) for size in options.batch if size <= self.batch_max}):
            option, alone = draft.case.assess(draft.fleet, need, replace(item.standing, batch=batch))
            if option is not None and option.batch == batch and not alone and option.power_w <= item.seat.power_w:
                found.append(option)
        return found if item.option is None or found else [item.option]


def workloads_short(draft: Draft) -> tuple[WorkloadId, ...]:
    """Whom an attempt leaves short."""
    return tuple(
        need.workload
        for need in draft.needs
        if draft.open(need).rate_rps_short > 0 or draft.open(need).replicas_missing
    )
