"""Controllers by name: who may move batches and clocks inside their envelopes between plans.

Owns what a controller is and the table of names. Policies and scenarios choose by name; nodes and the simulated world
run what they get without asking which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from solvers.control.batchdvfs import BatchDvfs
from solvers.control.clipper import Clipper
from solvers.control.dfs import Dfs
from solvers.control.governor import MorakGovernor
from solvers.control.records import (
    BrokenLimit,
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    Setting,
)

DEFAULT = "morak"


class Controller(Protocol):
    """One device's feedback loop: pure, one decision a period."""

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Where it begins with what was planned."""
        ...

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """How it goes on under a new envelope."""
        ...

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        """Decide one period. `state` must be of this envelope: from `first`, `fitted` or an earlier decision."""
        ...


_FACTORIES: Mapping[str, Callable[[GovernorSettings], Controller]] = MappingProxyType(
    {
        "morak": lambda settings: MorakGovernor(settings=settings),
        "clipper_l": lambda settings: Clipper(by=BrokenLimit.LATENCY, settings=settings),
        "clipper_p": lambda settings: Clipper(by=BrokenLimit.POWER, settings=settings),
        "dfs": lambda settings: Dfs(settings=settings),
        "batchdvfs": lambda settings: BatchDvfs(settings=settings),
    }
)


def names() -> tuple[str, ...]:
    """All controllers that can be named."""
    return tuple(sorted(_FACTORIES))


def controller(name: str, settings: GovernorSettings | None = None) -> Controller:
    """A controller by name. Raises ValueError for an unknown one."""
    if name not in _FACTORIES:
        raise ValueError(f"no controller is called {name}; there are {', '.join(names())}")
    return _FACTORIES[name](GovernorSettings() if settings is None else settings)
