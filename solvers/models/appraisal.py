"""What replicas that stand somewhere can be shown to do beside their very neighbours, by what is believed today.

A standing configuration is read as latency at its share on the chord between the measured shares of its batch (the next
larger one that was measured), at the highest measured clock not above the one it runs at, slowed by the known pressures
of the replicas on its device, and by the policy's margin where a pressure is not known. Tables and look-ups are kept,
so that a hundred thousand replicas are judged in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import Policy
from solvers.domain.profile import Interference, Profile
from solvers.domain.workload import WorkloadKind
from solvers.models.serving.token_plans import standing_serving
from solvers.models.table import Grid, Key, Tables
from solvers.problems.fleet import DeviceClass, Fleet
from solvers.problems.needs import Need, utilisation_open
from solvers.problems.patterns import between
from solvers.problems.promise import Promise, settle

SHARE_DUST = 1e-9
CLAIM_DUST = 1e-3
"""A claim is above the margin where it is so much above what the margin allows."""


@dataclass(frozen=True, slots=True)
class ShareReading:
    """One model on one kind of device at one clock and share, by the batches that were measured."""

    batches: list[int]
    mean_ms: list[float]
    tail_ms: list[float]
    memory_mib: list[float]

    def column(self, batch: int) -> int | None:
        """The first measured batch not below this one."""
        at = bisect_left(self.batches, batch)
        return at if at < len(self.batches) else None


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
    profiles: Mapping[Key, Profile]
    settings: Mapping[DeviceId, DeviceSetting]
    tables: Tables
    company: dict[DeviceId, DeviceLoad] = field(default_factory=dict)
    _readings: dict[tuple[Key, int, float], ShareReading | None] = field(default_factory=dict)

    @staticmethod
    def of(
        fleet: Fleet,
        profiles: Mapping[Key, Profile],
        policy: Policy,
        assignments: Iterable[Assignment],
        settings: Mapping[DeviceId, DeviceSetting],
    ) -> Appraisal:
        made = Appraisal(policy=policy, fleet=fleet, profiles=profiles, settings=settings, tables=Tables(profiles))
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
        of its envelope: its largest batch at its lowest clock.
        """
        kind = self._kind(item)
        clock = self.running(item.device)
        wrong = item.model != need.model and item.model not in need.alternatives
        low_mhz = item.envelope.clock_mhz_sm_min
        inside = low_mhz <= clock <= item.envelope.clock_mhz_sm_max
        cramped = (need.affinity.dedicated or kind.exclusive) and item.share_pct_sm < 100
        if need.refusal is not None or wrong or not inside or cramped:
            return None
        reading, slowest = (
            self._reading(item.model, kind.gpu_type, mhz, item.share_pct_sm * kind.sm_part) for mhz in (clock, low_mhz)
        )
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
        profile = self.profiles.get((item.model, kind.gpu_type))
        return None if profile is None else profile.pressing(kind.unlimited)

    def _pressure(self, item: Assignment, known: Interference) -> float:
        return known.pressure_at(max(0.0, item.share_pct_sm * self._kind(item).sm_part))

    def _reading(
        self, model: ModelName, gpu_type: GpuTypeName, clock_mhz: int, share_of_gpu_pct: float
    ) -> ShareReading | None:
        asked = ((model, gpu_type), clock_mhz, share_of_gpu_pct)
        if asked not in self._readings:
            grid = self.tables.grid_at(model, gpu_type, clock_mhz)
            self._readings[asked] = None if grid is None else _read(grid, share_of_gpu_pct)
        return self._readings[asked]


def _read(grid: Grid, share_pct: float) -> ShareReading | None:
    if grid.measured.all():
        high = int(np.searchsorted(grid.shares_pct, share_pct - SHARE_DUST))
        at = min(high, len(grid.shares_pct) - 1)
        if high == 0 and grid.shares_pct[0] > share_pct + SHARE_DUST:
            return None
        low = max(0, at - 1)
        span = float(grid.shares_pct[at] - grid.shares_pct[low])
        weight = min(1.0, (share_pct - float(grid.shares_pct[low])) / span) if span > 0 else 1.0
        mean, tail = (between(cells[low], cells[at], weight) for cells in (grid.latency_ms_mean, grid.latency_ms_tail))
        columns = np.arange(len(grid.batches))
    else:
        mean, tail = (_by_batch(grid, cells, share_pct) for cells in (grid.latency_ms_mean, grid.latency_ms_tail))
        columns = np.flatnonzero(np.isfinite(mean))
        if not len(columns):
            return None
    return ShareReading(
        batches=grid.batches[columns].tolist(),
        mean_ms=mean[columns].tolist(),
        tail_ms=tail[columns].tolist(),
        memory_mib=grid.memory_mib[columns].tolist(),
    )


def _by_batch(grid: Grid, cells: Floats, share_pct: float) -> Floats:
    """Each batch by its own measured shares; infinite where none is low enough."""
    found = np.full(len(grid.batches), np.inf)
    for column in range(len(grid.batches)):
        rows = np.flatnonzero(grid.measured[:, column])
        if len(rows) and grid.shares_pct[rows[0]] <= share_pct + SHARE_DUST:
            # The rate is read between the shares: see `patterns.between`.
            found[column] = 1 / np.interp(share_pct, grid.shares_pct[rows], 1 / cells[rows, column])
    return found
