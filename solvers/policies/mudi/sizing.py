"""How many replicas of a service, with which batch and share: Mudi's tuner over the profile as referee.

For so many replicas on one class of devices every batch gets its least share; the referee raises it to the first
measured share at which the promise holds for that rate; the tuner takes the batch that leaves training the most, by a
Gaussian process over candidate batches that is asked by its lower confidence bound (deterministic: of equal bounds the
smaller batch is tried). Replicas are counted up from what the rate needs at least, while fewer shares are needed in
all. Remembered is, of every service and batch, how much of what it ran was late: a reading counts for the batch that
was planned, weighted against what was remembered; services that are gone are forgotten.

The local coordinator says what the service on one device needs beside the jobs there when a rate or the company
changed: what runs if it is fast enough, else the same batch with the least share that is, else what the tuner finds
over all batches, else nothing: then a job has to go. Answers are kept by what they depend on, so that a device like
another costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.planners.base import recalled
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.planners.traits import limit_ms
from solvers.policies.mudi.curves import Company, MudiCurves, MudiParameters, least_share, targets_ms
from solvers.problems.choice import Option, Options
from solvers.problems.needs import Need

# --- What the tuner remembers


FORM = "mudi-1"
DUST = 1e-4


@value
class LateReading:
    """Part of a service's requests that were late while it ran with a batch."""

    workload: WorkloadId
    batch: int
    late: float


@value
class MudiMemory:
    """All readings, by service and batch."""

    form: str = FORM
    readings: tuple[LateReading, ...] = ()

    @staticmethod
    def of(state: bytes) -> MudiMemory:
        """What was kept; nothing where these bytes are of another kind."""
        return recalled(MudiMemory, state) or MudiMemory()

    def late(self, workload: WorkloadId) -> dict[int, float]:
        return {item.batch: item.late for item in self.readings if item.workload == workload}

    def heard(self, snapshot: Snapshot, heed: float) -> MudiMemory:
        services: set[str] = {service.id for service in snapshot.services}
        known = {(item.workload, item.batch): item.late for item in self.readings if item.workload in services}
        standing = {item.replica: item for item in snapshot.target.assignments if item.workload in services}
        worst: dict[tuple[WorkloadId, int], float] = {}
        for seen in sorted(snapshot.replica_telemetry, key=lambda item: item.replica):
            item = standing.get(seen.replica)
            if item is not None:
                key = (item.workload, item.batch)
                worst[key] = max(worst.get(key, 0.0), seen.violation_fraction)
        for key, late in worst.items():
            known[key] = (1.0 - heed) * known.get(key, 0.0) + heed * late
        kept = (LateReading(workload=key[0], batch=key[1], late=round(known[key], 6)) for key in sorted(known))
        return MudiMemory(readings=tuple(item for item in kept if item.late >= DUST))


# --- Sizes


LENGTH = 1.5
"""Of the kernel, in doublings of the batch."""
NOISE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    batch: int
    value: float
    evaluations: int


def tune(batches: Sequence[int], evaluate: Callable[[int], float], first: int, parameters: MudiParameters) -> Tuned:
    """The batch of the lowest value found, beginning with `first`."""
    places = np.log2(np.array(batches, dtype=np.float64))
    seen: dict[int, float] = {}
    at = batches.index(first)
    for number in range(1, min(parameters.iterations, len(batches)) + 1):
        seen[at] = evaluate(batches[at])
        low = bounds(places, seen, beta(len(batches), number, parameters.delta))
        untried = [index for index in range(len(batches)) if index not in seen]
        best = min(seen.values())
        if not untried:
            break
        at = min(untried, key=lambda index: (float(low[index]), batches[index]))
        if low[at] > best - parameters.gain_least * abs(best):
            break
    chosen = min(seen, key=lambda index: (seen[index], batches[index]))
    return Tuned(batch=batches[chosen], value=seen[chosen], evaluations=len(seen))


def beta(candidates: int, number: int, delta: float) -> float:
    """How wide the bound is after so many evaluations."""
    return 2.0 * math.log(candidates * number**2 * math.pi**2 / (6.0 * delta))


def bounds(places: Floats, seen: dict[int, float], width: float) -> Floats:
    """Lower confidence bounds of all candidates: mean - sqrt(beta variance)."""
    rows = np.array(sorted(seen), dtype=np.intp)
    values = np.array([seen[int(row)] for row in rows])
    centre = float(values.mean())
    spread = float(values.std()) or max(abs(centre), 1e-9) * 0.1
    known = _kernel(places[rows], places[rows]) + NOISE * np.eye(len(rows))
    across = _kernel(places, places[rows])
    weights = np.linalg.solve(known, across.T)
    mean = weights.T @ ((values - centre) / spread)
    variance = np.maximum(1.0 - np.einsum("ij,ji->i", across, weights), 0.0)
    return np.asarray(centre + spread * (mean - np.sqrt(width * variance)))


def _kernel(left: Floats, right: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * ((left[:, None] - right[None, :]) / LENGTH) ** 2))


Rows = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
SPREAD = 3
"""So many replicas more than necessary are considered."""
IMPOSSIBLE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A service on devices of one class."""

    option: Option
    replicas: int
    least_pct: float
    """By the share programme alone; the referee may have raised it."""
    evaluations: int

    @property
    def usd_per_h(self) -> float:
        return self.option.usd_per_h * self.replicas

    @property
    def key(self) -> tuple[float, int]:
        """Cheapest first, then fewest."""
        return round(self.usd_per_h, 9), self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizer:
    """Sizes for the services of one draft."""

    draft: Draft
    curves: MudiCurves
    memory: MudiMemory
    parameters: MudiParameters

    def sizes(self, need: Need, first: int | None, company: Company = ()) -> list[Size]:
        """The best size on each class that can serve it beside these jobs, the cheapest first. `first`: the batch that
        runs.
        """
        options = self.draft.options(need)
        found = []
        for number in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == number)
            reach = float(options.capacity_rps[mine].max())
            least = max(1, need.replicas_floor, math.ceil(need.rate_rps / reach - 1e-9))
            tried = (self.size(need, int(number), count, first, company) for count in range(least, least + SPREAD + 1))
            able = [size for size in tried if size is not None and size.replicas <= need.replicas_max]
            if able:
                found.append(min(able, key=lambda size: size.key))
        return sorted(found, key=lambda size: (*size.key, size.option.device_class))

    def raised(self, need: Need, number: int, replicas: int, batch: int, company: Company) -> Size | None:
        """So many replicas with this very batch, and the least share that serves; None where none does."""
        options = self.draft.options(need)
        mine = np.flatnonzero((options.device_class == number) & (options.batch == batch))
        return self._sized(need, mine, replicas, batch, company) if len(mine) else None

    def size(self, need: Need, number: int, replicas: int, first: int | None, company: Company = ()) -> Size | None:
        """So many replicas on a class; None where no batch and share serve the rate."""
        mine = np.flatnonzero(self.draft.options(need).device_class == number)
        return self._sized(need, mine, replicas, first, company)

    def _sized(self, need: Need, mine: Rows, replicas: int, first: int | None, company: Company) -> Size | None:
        """The best of these options, all of one class."""
        options, rate_rps = self.draft.options(need), need.rate_rps / replicas
        number = int(options.device_class[mine[0]])
        curves = self.curves.beside(need, number, company)
        late = self.memory.late(need.workload)
        seen: dict[int, tuple[int, float]] = {}

        def evaluate(batch: int) -> float:
            curve = curves.get(batch)
            share = None if curve is None else least_share(curve, targets[batch], self.parameters)
            at = self._refereed(options, mine, batch, share, rate_rps)
            if at is None or share is None:
                return IMPOSSIBLE
            seen[batch] = at, share
            left = max(0.01, 1.0 - float(options.share_pct[at]) / 100.0)
            return 1.0 / left + self.parameters.penalty * late.get(batch, 0.0)

        batches = [int(batch) for batch in np.unique(options.batch[mine])]
        targets = dict(
            zip(batches, targets_ms(limit_ms(need), rate_rps, batches, self.parameters).tolist(), strict=True)
        )
        begin = first if first in batches else batches[len(batches) // 2]
        tuned = tune(batches, evaluate, int(begin), self.parameters)
        if tuned.batch not in seen:
            return None
        at, share = seen[tuned.batch]
        option = self.draft.option(need, at)
        return Size(option=option, replicas=replicas, least_pct=round(100.0 * share, 4), evaluations=tuned.evaluations)

    @staticmethod
    def _refereed(options: Options, mine: Rows, batch: int, share: float | None, rate_rps: float) -> int | None:
        """The smallest measured share from the least one on with which the batch keeps its promise at this rate."""
        if share is None:
            return None
        rows = mine[(options.batch[mine] == batch) & (options.capacity_rps[mine] >= rate_rps * (1 - 1e-9))]
        rows = rows[options.share_pct[rows] >= 100.0 * share - 1e-6]
        return int(rows[np.argmin(options.share_pct[rows])]) if len(rows) else None


# --- The local coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedReplica:
    """A replica of a service on a device: one of so many among which its rate is divided."""

    need: Need
    placed: Placed
    replicas: int

    @property
    def rate_rps(self) -> float:
        return self.need.rate_rps / self.replicas


@dataclass(slots=True, kw_only=True)
class Coordinator:
    sizer: Sizer
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
        target = targets_ms(limit_ms(host.need), host.rate_rps, option.batch, self.sizer.parameters)
        share = least_share(curve, float(target), self.sizer.parameters)
        return share is not None and 100.0 * share <= option.share_pct + 1e-6
