"""Everything that one GPU may hold, and what it serves and costs then.

Owns the enumeration for the oracle: every set of measured configurations that fits a device by every rule of its owner,
each judged beside its very neighbours, by the same appraisal that judges any finished plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from solvers.domain.ids import ReplicaId
from solvers.domain.plan import Assignment
from solvers.models.appraisal import Appraisal
from solvers.models.options import Beliefs
from solvers.models.worth import cost_by_device
from solvers.planners.case import search_of
from solvers.planners.draft import Draft
from solvers.planners.facts import rounded_rps
from solvers.planners.seating import seat_of
from solvers.planners.writer import replica_of
from solvers.problems.choice import Option
from solvers.problems.company import UNKNOWN
from solvers.problems.needs import Need


class TooManyError(Exception):
    """There is more to look at than was allowed. Never leaves the oracle."""


@dataclass(frozen=True, slots=True)
class FillingCandidate:
    """One measured configuration of one need, by its number; `latency_ms` and rate are those of a device alone."""

    need: int
    option: Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a device holds. Rates by need, requests/s."""

    held: tuple[tuple[FillingCandidate, float, float], ...]
    """Each with the rate it serves here and how many times its latency alone it takes."""
    rates_rps: tuple[float, ...]
    counts: tuple[int, ...]
    usd_per_h: float


@dataclass(slots=True, kw_only=True)
class Fillings:
    """The enumeration for one request."""

    draft: Draft
    needs: list[Need]
    at_most: int
    looked_at: int = 0
    _candidates: dict[int, list[FillingCandidate]] = field(default_factory=dict)
    _appraisal: Appraisal | None = None

    @staticmethod
    def of(draft: Draft, needs: list[Need], at_most: int) -> Fillings:
        """With the candidates of every class of devices: all that keeps its promise alone."""
        made = Fillings(draft=draft, needs=needs, at_most=at_most)
        snapshot = draft.case.snapshot
        # Without margin and interference an option is what it is alone; neighbours are reckoned with where they are.
        alone = replace(
            snapshot,
            policy=replace(snapshot.policy, interference_margin=1.0),
            profiles=tuple(replace(item, interference=None) for item in snapshot.profiles),
        )
        beliefs = Beliefs.of(alone, draft.fleet.classes)
        for number, need in enumerate(needs):
            options, _ = beliefs.options(need)
            for index in range(len(options)):
                option = beliefs.option(need, options, index)
                own = replace(option, batch_min=option.batch, batch_max=option.batch, press=UNKNOWN)
                made._candidates.setdefault(option.device_class, []).append(FillingCandidate(number, own))
        return made

    def on(self, device: int) -> list[Filling]:
        """All fillings of a device, the empty one first. Raises TooManyError."""
        kinds = self._candidates.get(int(self.draft.fleet.class_of[device]), [])
        nothing = Filling(held=(), rates_rps=(0.0,) * len(self.needs), counts=(0,) * len(self.needs), usd_per_h=0.0)
        return [nothing, *self._more(device, kinds, 0, [])]

    def _more(
        self, device: int, kinds: list[FillingCandidate], start: int, held: list[FillingCandidate]
    ) -> Iterator[Filling]:
        fleet = self.draft.fleet
        for at in range(start, len(kinds)):
            candidate = kinds[at]
            need = self.needs[candidate.need]
            seat = seat_of(need, candidate.option, device)
            if not fleet.fits(search_of(need, seat), device):
                continue
            self.looked_at += 1
            if self.looked_at > self.at_most:
                raise TooManyError
            together = [*held, candidate]
            judged = self._judged(device, together)
            # More neighbours only slow: what breaks a promise now breaks it in every larger set.
            if judged is None:
                continue
            yield judged
            fleet.put(seat)
            try:
                yield from self._more(device, kinds, at, together)
            finally:
                fleet.lift(seat)

    def _judged(self, device: int, held: list[FillingCandidate]) -> Filling | None:
        """What these serve together; None when one of them breaks its promise."""
        case, fleet = self.draft.case, self.draft.fleet
        items = [
            assignment_on(self.draft, self.needs[each.need], each.option, device, n) for n, each in enumerate(held)
        ]
        fresh = Appraisal.of(fleet, case.beliefs.profiles, case.snapshot.policy, items, {})
        if self._appraisal is None:
            self._appraisal = fresh
        appraisal = replace(self._appraisal, company=fresh.company)
        rates, counts = [0.0] * len(self.needs), [0] * len(self.needs)
        found: list[tuple[FillingCandidate, float, float]] = []
        for candidate, item in zip(held, items, strict=True):
            (shown,) = appraisal.capacities_rps(self.needs[candidate.need], [item])
            if shown is None or shown <= 0:
                return None
            rates[candidate.need] += rounded_rps(shown)
            counts[candidate.need] += 1
            found.append((candidate, rounded_rps(shown), appraisal.slowdown(item)))
        cost = sum(cost_by_device(case.snapshot, fleet, tuple(items), {}).values())
        return Filling(held=tuple(found), rates_rps=tuple(rates), counts=tuple(counts), usd_per_h=cost)


def assignment_on(draft: Draft, need: Need, option: Option, device: int, number: int) -> Assignment:
    """A replica as it would stand in a plan, at one batch: envelopes are not searched."""
    fixed = replace(option, batch_min=option.batch, batch_max=option.batch)
    return replica_of(need, fixed, draft.fleet.devices[device].id).named(ReplicaId(f"{need.workload}#{number}"))
