"""The slopes of all devices at once, for one job: what Mudi's device selector ranks by.

Owns load sets: devices of a class that carry the same services at the same rates beside the same jobs are one, and its
slope beside one more network is worked out once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import ModelName
from solvers.policies.mudi.coordinating import CoordinatedReplica
from solvers.policies.mudi.curves import Company, MudiCurves
from solvers.policies.mudi.parameters import MudiParameters
from solvers.policies.mudi.sharing import target_ms
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
        """This device carries something else now."""
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
        limit_ms = math.inf if host.need.limit_ms is None else host.need.limit_ms
        steep = []
        for batch, curve in self.curves.beside(host.need, kind, company).items():
            target = target_ms(limit_ms, host.rate_rps, batch, self.parameters)
            steep.append(abs(curve.k1 if target >= curve.l0 else curve.k2))
        return sum(steep) / len(steep) if steep else 0.0
