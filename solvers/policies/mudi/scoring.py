"""What Mudi's selector ranks and divides by: slopes of all devices, the best co-location, shares and memory of jobs.

The slopes of all devices at once, for one job, go by load sets: devices of a class that carry the same services at the
same rates beside the same jobs are one, and its slope beside one more network is worked out once. The best co-location
there is, for few jobs, is what the selector is held against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import ModelName
from solvers.planners.traits import limit_ms
from solvers.policies.mudi.curves import Company, MudiCurves, MudiParameters, target_ms
from solvers.policies.mudi.sizing import CoordinatedReplica
from solvers.problems.fleet import Places

LoadSet = tuple[int, tuple[tuple[str, float], ...], Company]
"""Class of the device, services with the rate of a replica, networks of the jobs."""


@dataclass(slots=True, kw_only=True)
class Scores:
    """Of one draft. Every device has the number of its load set; who changes a device says so."""

    curves: MudiCurves
    parameters: MudiParameters
    load_of: Callable[[int], tuple[int, list[CoordinatedReplica], Company]]
    """Class, hosts and company of a device."""
    number_of: Places
    """Load set by device; below 0: not looked at yet."""
    _numbers: dict[LoadSet, int] = field(default_factory=dict)
    _loads: list[tuple[int, tuple[CoordinatedReplica, ...], Company]] = field(default_factory=list)
    """What each load set is, by its number."""
    _slopes: dict[tuple[int, ModelName], float] = field(default_factory=dict)

    def changed(self, device: int) -> None:
        self.number_of[device] = -1

    def slopes(self, places: Places, model: ModelName) -> Floats:
        """What a whole device of share would change the latency of each device's services, beside this network too, in
        ms.
        """
        for device in places[self.number_of[places] < 0]:
            self.number_of[device] = self._number(int(device))
        sets, position = np.unique(self.number_of[places], return_inverse=True)
        values = np.array([self._slope(int(number), model) for number in sets])
        return np.asarray(values[position])

    def _number(self, device: int) -> int:
        kind, hosts, company = self.load_of(device)
        key = (kind, tuple((str(host.need.workload), host.rate_rps) for host in hosts), company)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._loads.append((kind, tuple(hosts), company))
        return self._numbers[key]

    def _slope(self, number: int, model: ModelName) -> float:
        key = (number, model)
        if key not in self._slopes:
            kind, hosts, present = self._loads[number]
            company = tuple(sorted((*present, model)))
            self._slopes[key] = sum(self.flatness(host, kind, company) for host in hosts)
        return self._slopes[key]

    def flatness(self, host: CoordinatedReplica, kind: int, company: Company) -> float:
        """Mean over batches of the slope of the segment that the target lies on."""
        steep = []
        for batch, curve in self.curves.beside(host.need, kind, company).items():
            target = target_ms(limit_ms(host.need), host.rate_rps, batch, self.parameters)
            steep.append(abs(curve.k1 if target >= curve.l0 else curve.k2))
        return sum(steep) / len(steep) if steep else 0.0


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
