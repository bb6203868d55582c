"""What replicas that stand somewhere can be shown to do beside their very neighbours, by what is believed today.

A standing configuration is read as latency at its share on the chord between the measured shares of its batch (the next
larger one that was measured), at the highest measured clock not above the one it runs at, slowed by the known pressures
of the replicas on its device, and by the policy's margin where a pressure is not known. Tables and look-ups are kept,
so that a hundred thousand replicas are judged in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import Policy, governor_of
from solvers.domain.profile import Interference
from solvers.domain.workload import WorkloadKind
from solvers.models.serving.token_plans import standing_serving
from solvers.models.table import ShareReading, Tables
from solvers.problems.fleet import DeviceClass, Fleet
from solvers.problems.needs import Need, utilisation_open
from solvers.problems.promise import Promise, settle

CLAIM_DUST = 1e-3
"""A claim is above the margin where it is so much above what the margin allows."""


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """All that stands on one device: the sum of known pressures, of how many pressure is unknown, how many in all."""

    pressure: float
    unknown: int
    replicas: int


@dataclass(slots=True)
class Appraisal:
    """Replicas of one plan on one fleet."""

    policy: Policy
    fleet: Fleet
    tables: Tables
    settings: Mapping[DeviceId, DeviceSetting]
    company: dict[DeviceId, DeviceLoad] = field(default_factory=dict)

    @staticmethod
    def of(
        fleet: Fleet,
        tables: Tables,
        policy: Policy,
        assignments: Iterable[Assignment],
        settings: Mapping[DeviceId, DeviceSetting],
    ) -> Appraisal:
        made = Appraisal(policy=policy, fleet=fleet, tables=tables, settings=settings)
        there = (item for item in assignments if item.device in fleet.index)
        for device, items in grouped(there, lambda item: item.device).items():
            known = [made._interference(item) for item in items]
            pairs = zip(items, known, strict=True)
            made.company[device] = DeviceLoad(
                pressure=sum(made._pressure(item, each) for item, each in pairs if each is not None),
                unknown=known.count(None),
                replicas=len(items),
            )
        return made

    def capacities_rps(self, need: Need, items: list[Assignment]) -> list[float | None]:
        """Rate each replica keeps the promise at; None where it cannot be shown to keep it."""
        return [None if shown is None else shown[0] for shown in self.shown_rps(need, items)]

    def shown_rps(self, need: Need, items: list[Assignment]) -> list[tuple[float, float] | None]:
        """The same, each with what full batches of the replica would carry; of tokens both are one."""
        if need.tokens is not None:
            rates = [self._tokens_rps(need, item) for item in items]
            return [None if rate is None else (rate, rate) for rate in rates]
        found: list[tuple[float, float] | None] = [None] * len(items)
        readings = [self._asked(need, item) for item in items]
        rows = [
            (place, reading, column, corner, self.slowdown(items[place]))
            for place, read in enumerate(readings)
            if read is not None
            for reading, column, corner in (read,)
        ]
        if not rows:
            return found
        busy = 1.0 if need.kind is WorkloadKind.TASK else self.policy.utilisation_max
        promise = Promise(
            limit_ms=need.limit_ms, percentile=need.percentile, end_to_end=need.end_to_end, utilisation_max=busy
        )
        batch = np.array([[items[row[0]].batch, items[row[0]].envelope.batch_max] for row in rows], dtype=np.float64)
        mean = np.array([[row[1].mean_ms[row[2]], row[3][0]] for row in rows])
        tail = np.array([[row[1].tail_ms[row[2]], row[3][1]] for row in rows])
        factor = np.array([row[4] for row in rows])[:, None]
        outcome = settle(promise, batch, mean * factor, tail * factor)
        for row, (place, *_) in enumerate(rows):
            if outcome.feasible[row].all():
                full_rps = 1000 * batch[row, 0] / (mean[row, 0] * factor[row, 0])
                granted_rps = self._granted_rps(need, items[place], float(outcome.capacity_rps[row, 0]))
                found[place] = granted_rps, float(full_rps)
        return found

    def _granted_rps(self, need: Need, item: Assignment, capacity_rps: float) -> float:
        """What counts of a replica: of an open-ended service as much as was planned of it, where that is bearable."""
        if not need.open_ended or item.capacity_rps <= capacity_rps * (1 + CLAIM_DUST):
            return capacity_rps
        return min(item.capacity_rps, capacity_rps * utilisation_open(self.policy) / self.policy.utilisation_max)

    def _tokens_rps(self, need: Need, item: Assignment) -> float | None:
        """Of an LLM's replica, which must have its GPU to itself."""
        wrong = item.model != need.model and item.model not in need.alternatives
        kind = self._kind(item)
        moved = self.running(item.device) != kind.clock_mhz_sm
        if need.refusal is not None or wrong or moved or self.company[item.device].replicas > 1:
            return None
        shown = standing_serving(need, item, kind, self.policy)
        return None if shown is None else shown.rate_rps

    def slowdown(self, item: Assignment) -> float:
        """How many times as long as alone a replica executes beside what stands with it."""
        company = self.company[item.device]
        if company.replicas < 2:
            return 1.0
        margin = self.policy.interference_margin if company.unknown else 1.0
        if company.unknown and self._kind(item).unlimited:
            margin *= company.replicas
        known = self._interference(item)
        if known is None:
            return margin
        others = max(0.0, company.pressure - self._pressure(item, known))
        return margin * (1 + known.sensitivity * others)

    def running(self, device: DeviceId) -> int:
        setting = self.settings.get(device)
        clock = None if setting is None else setting.clock_mhz_sm
        return clock or self.fleet.class_at(self.fleet.index[device]).clock_mhz_sm

    def _asked(self, need: Need, item: Assignment) -> tuple[ShareReading, int, tuple[float, float]] | None:
        """What is known of a replica as it stands, with the column of its batch, and mean and tail in the worst corner
        of its envelope: its largest batch at its lowest clock, or at the planned one where the controller comes back to
        that for whoever is late.
        """
        kind = self._kind(item)
        clock = self.running(item.device)
        wrong = item.model != need.model and item.model not in need.alternatives
        low_mhz = item.envelope.clock_mhz_sm_min
        inside = low_mhz <= clock <= item.envelope.clock_mhz_sm_max
        cramped = (need.affinity.dedicated or kind.exclusive) and item.share_pct_sm < 100
        if need.refusal is not None or wrong or not inside or cramped:
            return None
        share_pct = item.share_pct_sm * kind.sm_part
        reading = self.tables.reading(item.model, kind.gpu_type, clock, share_pct)
        slowest = reading
        if low_mhz != clock and not governor_of(self.policy.governor).keeps_latency:
            slowest = self.tables.reading(item.model, kind.gpu_type, low_mhz, share_pct)
        if reading is None or slowest is None:
            return None
        column, widest = reading.column(item.batch), slowest.column(item.envelope.batch_max)
        if column is None or widest is None or item.memory_mib_limit < slowest.memory_mib[widest]:
            return None
        return reading, column, (float(slowest.mean_ms[widest]), float(slowest.tail_ms[widest]))

    def _kind(self, item: Assignment) -> DeviceClass:
        return self.fleet.class_at(self.fleet.index[item.device])

    def _interference(self, item: Assignment) -> Interference | None:
        """How a replica presses and suffers; it is not known of training jobs."""
        if item.kind is WorkloadKind.JOB:
            return None
        kind = self._kind(item)
        profile = self.tables.profiles.get((item.model, kind.gpu_type))
        return None if profile is None else profile.pressing(kind.unlimited)

    def _pressure(self, item: Assignment, known: Interference) -> float:
        return known.pressure_at(max(0.0, item.share_pct_sm * self._kind(item).sm_part))
