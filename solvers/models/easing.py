"""Promises that nothing known keeps, made so much easier that they can be planned.

A service that promises more than any GPU it may use is believed to do, alone and at hardly any load, would be given
nothing at all, and whoever calls it no answer. Its owner wants what comes nearest: it is planned by a promise so far
above the best that is believed that a replica has something to do, and devices that keep it could serve the whole rate,
were nobody else there. The picture holds both promises, so whoever plans,
verifies or judges by it agrees, and plans say of these replicas that they are the nearest known. What only lacks room,
or devices that are there but cannot be used by it, is short as ever.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solvers.domain.evidence import Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Eased, Snapshot
from solvers.domain.workload import SLO_MAX, Slo, SloKind, WorkloadKind
from solvers.models.options import Beliefs
from solvers.models.table import Tables
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import Need, limit_ms, needs_of

EASES = (1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
"""Times the best that is believed: the first with which devices could serve it together. At the best itself a replica
would have to idle nearly always."""
SPARE = 1.3
"""Times its rate that devices must serve before a service whose replicas stand is eased less than they were."""
TINY_MS = 1e-9
_KEPT = frozenset({ReasonCode.CHEAPEST_FEASIBLE, ReasonCode.KEPT_STANDING, ReasonCode.KEPT_AT_RISK})
"""What plans say of a replica that keeps the promise it was planned by."""


def eased(snapshot: Snapshot) -> Snapshot:
    """The picture with promises that can be kept where anything is known that comes near; those that it eased before
    are judged anew.
    """
    snapshot = snapshot.as_asked()
    look = _Look(snapshot)
    found = {item.service: item for item in map(look.eased, look.needs) if item is not None}
    if not found:
        return snapshot
    return replace(
        snapshot,
        services=tuple(
            replace(item, slo=found[item.id].planned) if item.id in found else item for item in snapshot.services
        ),
        eased=tuple(sorted(found.values(), key=lambda item: item.service)),
    )


def _easier(slo: Slo, nearest: Reason, times: float) -> Slo:
    """A promise of so many times what comes nearest, where it is missed."""
    best = {fact.name: times * _ms(fact.value) for fact in nearest.facts if fact.name.endswith("_best")}
    if slo.kind is SloKind.TOKENS:
        first_ms = max(slo.first_token_ms or 0.0, min(best["first_token_ms_best"], SLO_MAX))
        between_ms = max(slo.inter_token_ms or 0.0, min(best["inter_token_ms_best"], SLO_MAX))
        return replace(slo, first_token_ms=first_ms, inter_token_ms=between_ms)
    easy_ms = best["latency_ms_best"]
    if slo.kind is SloKind.DEADLINE:
        return replace(slo, deadline_s=min(easy_ms / 1000, SLO_MAX))
    return replace(slo, latency_ms=min(easy_ms, SLO_MAX))


def as_eased(snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan, saying of replicas of eased services that they keep no promise but come nearest."""
    nearest = {WorkloadId(item.service): item.nearest for item in snapshot.eased}
    if nearest.keys().isdisjoint(item.workload for item in plan.assignments):
        return plan
    return replace(plan, assignments=tuple(_retold(item, nearest.get(item.workload)) for item in plan.assignments))


def _retold(item: Assignment, nearest: Reason | None) -> Assignment:
    if nearest is None or item.kind is not WorkloadKind.SERVICE:
        return item
    told = (
        replace(why, code=ReasonCode.NEAREST_KNOWN, facts=nearest.facts) if why.code in _KEPT else why
        for why in item.reasons
    )
    return replace(item, reasons=tuple(told))


class _Look:
    """Which promises of a picture something known keeps."""

    def __init__(self, snapshot: Snapshot) -> None:
        picture = snapshot.with_offers()
        self.needs = needs_of(picture, tuple(WorkloadId(item.id) for item in picture.services))
        self._services = {WorkloadId(item.id): item for item in picture.services}
        self._owners, self._fleet = owners_of(snapshot), open_fleet(picture, {})
        tables = Tables.of(picture.profiles)
        self._beliefs = {
            policy.name: Beliefs(policy=policy, tables=tables, classes=self._fleet.classes)
            for policy in self._owners.policies
        }
        self._stands_ms: defaultdict[WorkloadId, float] = defaultdict(float)
        """By workload, the longest that was planned for a replica of it."""
        for item in snapshot.target.assignments:
            self._stands_ms[item.workload] = max(self._stands_ms[item.workload], item.latency_ms_planned or 0.0)
        decides = [self._owners.policy_at(item.id).name for item in self._fleet.devices]
        self._owned = {name: np.array([each == name for each in decides], dtype=bool) for name in self._beliefs}

    def eased(self, need: Need) -> Eased | None:
        """What comes nearest to the promise of a service; None where something keeps it, or nothing can be had."""
        missed: list[Reason] = []
        for rate_rps, reasons in self._near(need):
            if rate_rps > 0:
                return None
            missed += reasons
        if not missed:
            return None
        service, nearest = self._services[need.workload], min(missed, key=_times)
        easier = (_easier(service.slo, nearest, times) for times in EASES)
        most = [(slo, self._most_rps(need, slo)) for slo in easier]
        stands_ms = self._stands_ms[need.workload]
        enough = (
            (slo, most_rps)
            for slo, most_rps in most
            if most_rps >= need.rate_rps * (SPARE if (limit_ms(slo) or 0.0) < stands_ms else 1.0)
        )
        planned, most_rps = next(enough, most[-1])
        return Eased(service=service.id, asked=service.slo, planned=planned, nearest=nearest) if most_rps > 0 else None

    def _most_rps(self, need: Need, slo: Slo) -> float:
        """With another promise, of all devices together."""
        tokens = need.tokens and replace(need.tokens, inter_token_ms=slo.inter_token_ms or 0.0)
        return sum(rate_rps for rate_rps, _ in self._near(replace(need, limit_ms=limit_ms(slo), tokens=tokens)))

    def _near(self, need: Need) -> Iterator[tuple[float, list[Reason]]]:
        """By class of devices that the service may use, what they all serve at most, were nobody else there, and where
        that is nothing, what they come to.
        """
        name = self._owners.policy_for(need.workload).name
        places = self._fleet.class_of[self._fleet.eligible(need) & self._owned[name]]
        for number, devices in zip(*np.unique(places, return_counts=True), strict=True):
            found = [
                self._beliefs[name].near(replace(need, model=model), self._fleet.classes[number])
                for model in (need.model, *need.alternatives)
            ]
            yield devices * max(rate for rate, _ in found), [reason for _, reason in found if reason is not None]


def _times(miss: Reason) -> float:
    """How many times as long as promised the best takes."""
    facts = {fact.name: fact.value for fact in miss.facts}
    limits = [name.removesuffix("_limit") for name in facts if name.endswith("_limit")]
    return max(_ms(facts[f"{name}_best"]) / max(_ms(facts[f"{name}_limit"]), TINY_MS) for name in limits)


def _ms(told: float | str) -> float:
    return told if isinstance(told, float) else math.inf
