"""Mudi's local coordinator: what the service on one device needs beside the jobs there.

Owns the order of the answers when a rate or the company changed: what runs if it is fast enough, else the same batch
with the least share that is, else what the tuner finds over all batches, else nothing: then a job has to go. Answers
are kept by what they depend on, so that a device like another costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from solvers.planners.seating import Placed
from solvers.policies.mudi.curves import Company
from solvers.policies.mudi.sharing import least_share, target_ms
from solvers.policies.mudi.sizing import Sizer
from solvers.problems.choice import Option
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedReplica:
    """A replica of a service on a device: one of so many among which its rate is divided."""

    need: Need
    placed: Placed
    replicas: int

    @property
    def rate_rps(self) -> float:
        """What comes to it."""
        return self.need.rate_rps / self.replicas


@dataclass(slots=True, kw_only=True)
class Coordinator:
    """Of all devices of one draft. `tunings` counts what was really worked out."""

    sizer: Sizer
    tunings: int = 0
    evaluations_most: int = 0
    _kept: dict[tuple[object, ...], Option | None] = field(default_factory=dict)

    def needed(self, host: CoordinatedReplica, company: Company, room_pct: float) -> Option | None:
        """What the replica should be beside these jobs with at most so much share; None where nothing is enough."""
        option = host.placed.option
        if option is None:
            return None
        key = (
            host.need.workload,
            host.need.rate_rps,
            host.replicas,
            option.device_class,
            option.batch,
            option.share_pct,
            company,
        )
        if key not in self._kept:
            self.tunings += 1
            self._kept[key] = self._tuned(host, option, company)
        found = self._kept[key]
        return found if found is not None and found.share_pct <= room_pct + 1e-9 else None

    def _tuned(self, host: CoordinatedReplica, option: Option, company: Company) -> Option | None:
        if not company or self._enough(host, option, company):
            return option
        sizer, number = self.sizer, option.device_class
        raised = sizer.raised(host.need, number, host.replicas, option.batch, company)
        if raised is not None:
            return raised.option
        tuned = sizer.size(host.need, number, host.replicas, option.batch, company)
        if tuned is None:
            return None
        self.evaluations_most = max(self.evaluations_most, tuned.evaluations)
        return tuned.option

    def _enough(self, host: CoordinatedReplica, option: Option, company: Company) -> bool:
        """Whether it is fast enough as it is by the curve beside these jobs."""
        curve = self.sizer.curves.beside(host.need, option.device_class, company).get(option.batch)
        if curve is None:
            return False
        limit_ms = math.inf if host.need.limit_ms is None else host.need.limit_ms
        target = target_ms(limit_ms, host.rate_rps, option.batch, self.sizer.parameters)
        share = least_share(curve, target, self.sizer.parameters)
        return share is not None and 100.0 * share <= option.share_pct + 1e-6
