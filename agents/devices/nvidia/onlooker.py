"""Setters of an agent that only looks: every write is refused.

Owns nothing; it exists so that a rehearsal cannot touch a device even by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.devices.parts import ComputeMode
from agents.errors import NoPermissionError


class Onlooker:
    """See `Setters`."""

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """Refused."""
        self._refuse(f"{uuid}: clock {clock_mhz_sm}")

    def lock_memory_clock(self, uuid: str, clock_mhz_memory: int | None) -> None:
        """Refused."""
        self._refuse(f"{uuid}: memory clock {clock_mhz_memory}")

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        """Refused."""
        self._refuse(f"{uuid}: power limit {power_limit_w}")

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Refused."""
        self._refuse(f"{uuid}: compute mode {mode}")

    def set_persistence(self, uuid: str, on: bool) -> None:
        """Refused."""
        self._refuse(f"{uuid}: persistence {on}")

    def refusals(self) -> Mapping[str, str]:
        """What the host itself could not do is not looked for."""
        return {}

    @staticmethod
    def _refuse(what: str) -> None:
        raise NoPermissionError(f"{what} is not set: this agent only looks")
