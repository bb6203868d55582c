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
from solvers.control.governor import Morak
from solvers.control.records import Cause, Decision, DeviceEnvelope, DeviceReading, DeviceState, Setting, Settings

DEFAULT = "morak"


class Controller(Protocol):
    """One device's feedback loop: pure, one decision a period."""

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Where it begins with what was planned."""
        ...

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """How it goes on under a new envelope."""
        ...

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> Decision:
        """Decide one period. `state` must be of this envelope: from `first`, `fitted` or an earlier decision."""
        ...


_FACTORIES: Mapping[str, Callable[[Settings], Controller]] = MappingProxyType(
    {
        "morak": lambda settings: Morak(settings=settings),
        "clipper_l": lambda settings: Clipper(by=Cause.LATENCY, settings=settings),
        "clipper_p": lambda settings: Clipper(by=Cause.POWER, settings=settings),
        "dfs": lambda settings: Dfs(settings=settings),
        "batchdvfs": lambda settings: BatchDvfs(settings=settings),
    }
)


def names() -> tuple[str, ...]:
    """All controllers that can be named."""
    return tuple(sorted(_FACTORIES))


def controller(name: str, settings: Settings | None = None) -> Controller:
    """A controller by name. Raises ValueError for an unknown one."""
    if name not in _FACTORIES:
        raise ValueError(f"no controller is called {name}; there are {', '.join(names())}")
    return _FACTORIES[name](Settings() if settings is None else settings)
