"""Joules of an interval from counters that may restart and from devices that have none.

Owns that arithmetic, pure: what is read and when are arguments. A counter that fell began anew with the driver; what
that interval took is then estimated from power, as it is for devices without a counter.
"""

from __future__ import annotations


class EnergyMeter:
    """One device's meter."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._energy_j_total: float | None = None
        self._power_w: float | None = None

    def advance(self, now_s: float, energy_j_total: float | None, power_w: float | None) -> float:
        """Joules since the last call, 0 at the first. Either may be None where the device cannot tell."""
        before_s, before_j, before_w = self._at_s, self._energy_j_total, self._power_w
        self._at_s, self._energy_j_total, self._power_w = now_s, energy_j_total, power_w
        if before_s is None:
            return 0.0
        if energy_j_total is not None and before_j is not None and energy_j_total >= before_j:
            return energy_j_total - before_j
        powers = [power for power in (before_w, power_w) if power is not None]
        if powers:
            return max(0.0, now_s - before_s) * sum(powers) / len(powers)
        return max(0.0, energy_j_total or 0.0) if before_j is not None else 0.0
