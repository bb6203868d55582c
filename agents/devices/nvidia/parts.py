"""What a real GPU host is made of, handed over as one.

Owns the record only; who opens the parts is `agents.opening`, and tests bring their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.devices.base import Mode
from agents.devices.parts import Boards, Crew, Setters, Sharing
from agents.journal import SettingsJournal
from agents.state import StateDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """The parts of a host."""

    boards: Boards
    setters: Setters
    mps: Sharing | None
    """None where there is no MPS; `mps_refusal` says why."""
    plain: Sharing
    """For devices that are not divided: every process has the whole."""
    crew: Crew
    state: StateDirectory
    journal: SettingsJournal
    now_s: Callable[[], float]
    mps_refusal: str = ""
    observing: bool = False
    """Only look: no daemon is started, no worker ended, nothing written."""
    let_go: Callable[[], None] = lambda: None
    """Called last when the host is closed."""

    def sharing(self, mode: Mode) -> Sharing:
        """Who divides a device in this mode."""
        return self.mps if mode is Mode.MPS and self.mps is not None else self.plain
