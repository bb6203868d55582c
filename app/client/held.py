"""What a gateway believes of the routes that it is told.

When a service that was served is said to be served by nobody, that is believed only after a while: an API that was away
itself says so until its nodes have reported again. A service that was deleted is believed at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Generic, TypeVar

EMPTY_HOLD_S = 35.0
"""Agents that found nobody for long call again within half a minute of when somebody answers."""
R = TypeVar("R", bound=Sized)
"""Routes of one service, however they are written."""


class HeldRoutes(Generic[R]):
    """What to do of what was told. Not thread-safe."""

    def __init__(self) -> None:
        self._routes: dict[str, R] = {}
        self._empty_since_s: dict[str, float] = {}

    def believe(self, told: Mapping[str, R], now_s: float) -> Mapping[str, R]:
        believed = {}
        for service, routes in told.items():
            before = self._routes.get(service)
            if routes or not before:
                self._empty_since_s.pop(service, None)
                believed[service] = routes
                continue
            since_s = self._empty_since_s.setdefault(service, now_s)
            believed[service] = before if now_s - since_s < EMPTY_HOLD_S else routes
        self._empty_since_s = {name: since for name, since in self._empty_since_s.items() if name in told}
        self._routes = believed
        return believed
