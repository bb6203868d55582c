"""What Mudi's selector ranks and divides by: slopes of all devices, the best co-location, shares and memory of jobs.

The slopes of all devices at once, for one job, are arrays over replicas: targets are worked out once, curves once for
each service's network, company of jobs and network that comes. The best co-location there is, for few jobs, is what the
selector is held against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import ModelName
from solvers.planners.traits import limit_ms
from solvers.policies.mudi.curves import Company, MudiCurves, MudiParameters, targets_ms
from solvers.policies.mudi.sizing import CoordinatedReplica
from solvers.problems.fleet import Places
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """Replicas of services, one per row, and what does not change about them while jobs come and go."""

    device: Places
    family: Places
    """Of those with the same curves: the same network on a class of devices."""
    target_ms: Floats
    """By replica and batch; without meaning where a family has fewer batches than another."""
    families: tuple[tuple[Need, int], ...]
    batches: Floats
    """So many each family has."""


@dataclass(slots=True, kw_only=True)
class Scores:
    """Of one draft. Services have their devices before the first slope is asked for; afterwards who changes the jobs of
    a device says so.
    """

    curves: MudiCurves
    parameters: MudiParameters
    class_of: Places
    hosts: Mapping[int, Sequence[CoordinatedReplica]]
    company_of: Callable[[int], Company]
    company: Places
    """Number of the company by device; below 0: not looked at yet."""
    _numbers: dict[Company, int] = field(default_factory=dict)
    _lines: dict[tuple[int, int, ModelName], Floats] = field(default_factory=dict)
    """By family, company and another network: k1, k2 and l0 of every batch."""
    _hosted: Hosted | None = None

    def changed(self, device: int) -> None:
        self.company[device] = -1

    def slopes(self, places: Places, model: ModelName) -> Floats:
        """What a whole device of share would change the latency of each device's services, beside this network too, in
        ms: the mean over batches of the slope of the segment that the target lies on.
        """
        if self._hosted is None:
            self._hosted = self._host()
        hosted = self._hosted
        for device in places[self.company[places] < 0]:
            present = self.company_of(int(device))
            self.company[device] = self._numbers.setdefault(present, len(self._numbers))
        asked = np.zeros(len(self.company), dtype=np.bool_)
        asked[places] = True
        rows = np.flatnonzero(asked[hosted.device])
        device, family = hosted.device[rows], hosted.family[rows]
        codes, position = np.unique(family * (len(self._numbers) + 1) + self.company[device], return_inverse=True)
        pairs = [divmod(int(code), len(self._numbers) + 1) for code in codes]
        lines = self._beside(pairs, model, hosted)[position]
        steep = np.abs(np.where(hosted.target_ms[rows] >= lines[:, 2], lines[:, 0], lines[:, 1]))
        total = np.zeros(len(rows))
        for column in steep.T:
            total += column
        flatness = total / np.maximum(hosted.batches[family], 1.0)
        return np.asarray(np.bincount(device, weights=flatness, minlength=len(self.company))[places], dtype=np.float64)

    def _host(self) -> Hosted:
        rows = [(device, host) for device in sorted(self.hosts) for host in self.hosts[device]]
        device = np.array([at for at, _ in rows], dtype=np.intp)
        known: dict[tuple[ModelName, int], int] = {}
        families, family = list[tuple[Need, int]](), np.zeros(len(rows), dtype=np.intp)
        for row, (at, host) in enumerate(rows):
            key = (host.need.model, int(self.class_of[at]))
            if key not in known:
                known[key] = len(families)
                families.append((host.need, key[1]))
            family[row] = known[key]
        sizes = [list(self.curves.beside(need, kind, ())) for need, kind in families]
        most = max(map(len, sizes), default=0)
        inputs = np.array([[*some, *[math.inf] * (most - len(some))] for some in sizes]).reshape(len(sizes), most)
        limit = np.array([limit_ms(host.need) for _, host in rows])[:, None]
        rate = np.array([host.rate_rps for _, host in rows])[:, None]
        target = targets_ms(limit, rate, inputs[family], self.parameters)
        batches = np.array([len(some) for some in sizes], dtype=np.float64)
        return Hosted(device=device, family=family, target_ms=target, families=tuple(families), batches=batches)

    def _beside(self, pairs: Sequence[tuple[int, int]], model: ModelName, hosted: Hosted) -> Floats:
        """By family and company: k1, k2 and l0 of all batches beside these jobs and one of this network."""
        present = list(self._numbers)
        missing = [pair for pair in pairs if (*pair, model) not in self._lines]
        wanted = [(*hosted.families[one], tuple(sorted((*present[number], model)))) for one, number in missing]
        self.curves.know(wanted)
        for pair, (need, kind, company) in zip(missing, wanted, strict=True):
            lines = np.zeros((3, hosted.target_ms.shape[1]))
            some = self.curves.beside(need, kind, company).values()
            lines[:, : len(some)] = np.array([(each.k1, each.k2, each.l0) for each in some]).reshape(-1, 3).T
            self._lines[*pair, model] = lines
        shape = (len(pairs), 3, hosted.target_ms.shape[1])
        return np.array([self._lines[*pair, model] for pair in pairs]).reshape(shape)


Way = tuple[float, tuple[tuple[int, int], ...]]
"""What it costs, and which jobs (as a mask) each device takes."""
Cost = Callable[[int, tuple[int, ...]], float | None]
"""What a device's whole company costs with these jobs (by number) added; None where they cannot go there."""


def best_spread(jobs: int, devices: Sequence[int], most: int, cost: Cost) -> list[int | None]:
    """A device for every job; None for those that have no place. At most `most` of them go to one device."""
    everybody = (1 << jobs) - 1
    best: dict[int, Way] = {0: (0.0, ())}
    for device in devices:
        best = _extended(best, device, _extras(jobs, device, most, cost))
    _, chosen = best[min(best, key=lambda mask: ((everybody ^ mask).bit_count(), best[mask][0], mask))]
    found: list[int | None] = [None] * jobs
    for device, extra in chosen:
        for number in range(jobs):
            if extra >> number & 1:
                found[number] = device
    return found


def _extended(best: dict[int, Way], device: int, extras: list[tuple[int, float]]) -> dict[int, Way]:
    """The best way for every set of placed jobs, when one more device may take some."""
    after = dict(best)
    for (mask, (value, chosen)), (extra, added) in product(best.items(), extras):
        if not mask & extra and value + added < after.get(mask | extra, (math.inf, ()))[0] - 1e-9:
            after[mask | extra] = (value + added, (*chosen, (device, extra)))
    return after


def _extras(jobs: int, device: int, most: int, cost: Cost) -> list[tuple[int, float]]:
    """Sets of jobs that a device takes, as masks, with what they add."""
    before = cost(device, ())
    if before is None:
        return []
    found = []
    for size in range(1, most + 1):
        for some in combinations(range(jobs), size):
            value = cost(device, some)
            if value is not None:
                found.append((sum(1 << number for number in some), value - before))
    return found


def even(room: int, least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Whole shares, as even as the bounds allow, of at most `room` together."""
    shares = list(least)
    left = room - sum(shares)
    while left > 0:
        low = [index for index, share in enumerate(shares) if share < most[index]]
        if not low:
            break
        index = min(low, key=lambda at: (shares[at], at))
        shares[index] += 1
        left -= 1
    return shares


def warmest_first(room_mib: int, bounds_mib: Sequence[tuple[int, int]], iteration_ms: Sequence[float]) -> list[int]:
    """Resident memory within bounds (least, all), of at most `room_mib` together where the least fits."""
    held = [least for least, _ in bounds_mib]
    left = room_mib - sum(held)
    for index in sorted(range(len(held)), key=lambda at: (iteration_ms[at], at)):
        more = max(0, min(left, bounds_mib[index][1] - held[index]))
        held[index] += more
        left -= more
    return held
