"""Who presses on whom: the neighbours' pressure on every device, and how much more each device bears.

Owns the books behind one rule: no replica is slowed by its neighbours more than it was planned to be. A replica of
known interference presses with so much and bears so much of the others'; beside one that presses nobody knows how, the
policy's margin takes its part of what it bears. A replica of unknown interference was planned with the margin and bears
anybody. It refuses to know devices, shares and latencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.domain.profile import Interference

DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """One replica: its pressure (None: nobody knows) and the most it bears of the others' together."""

    pressure: float | None = None
    bears: float = math.inf
    bears_beside_unknown: float = math.inf

    @staticmethod
    def of(known: Interference, share_of_gpu_pct: float, factor: float, margin: float) -> Press:
        """A replica planned with so many times its latency alone, where the margin stands for unknown neighbours."""
        return Press(
            pressure=known.pressure_at(share_of_gpu_pct),
            bears=_bears(known.sensitivity, factor),
            bears_beside_unknown=_bears(known.sensitivity, factor / margin),
        )


UNKNOWN = Press()


def _bears(sensitivity: float, factor: float) -> float:
    if factor < 1 - DUST:
        return -math.inf
    return math.inf if sensitivity <= 0 else max(0.0, factor - 1) / sensitivity


@dataclass(slots=True)
class CompanyBooks:
    """Books of all devices."""

    pressure: Floats
    unknown: NDArray[np.intp]
    most: Floats
    """Two rows: the highest sum of pressures that everybody present bears while all are known, and beside unknown ones.
    """
    members: dict[int, list[Press]] = field(default_factory=dict)

    @staticmethod
    def of(devices: int) -> CompanyBooks:
        """Of empty devices."""
        return CompanyBooks(np.zeros(devices), np.zeros(devices, dtype=np.intp), np.full((2, devices), math.inf))

    def book(self, device: int, press: Press, sign: int) -> None:
        """Someone comes (1) or goes (-1)."""
        present = self.members.setdefault(device, [])
        if sign > 0:
            present.append(press)
        else:
            present.remove(press)
        # Summed anew, so that what comes and goes leaves no dust.
        self.pressure[device] = math.fsum(item.pressure or 0.0 for item in present)
        self.unknown[device] = sum(item.pressure is None for item in present)
        known = [(item, item.pressure) for item in present if item.pressure is not None]
        self.most[0, device] = min((item.bears + own for item, own in known), default=math.inf)
        self.most[1, device] = min((item.bears_beside_unknown + own for item, own in known), default=math.inf)

    def bear(self, press: Press, places: NDArray[np.intp]) -> Flags:
        """At which of these devices it would slow nobody more than planned, nor be slowed so."""
        pressure, beside_unknown = self.pressure[places], self.unknown[places] > 0
        own = np.where(beside_unknown, press.bears_beside_unknown, press.bears)
        most = np.where(beside_unknown | (press.pressure is None), self.most[1, places], self.most[0, places])
        return np.asarray((pressure + (press.pressure or 0.0) <= most + DUST) & (pressure <= own + DUST))
