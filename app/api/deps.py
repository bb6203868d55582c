"""What the API needs from outside, handed in once by bootstrap, and how endpoints reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Protocol, cast

from fastapi import Depends, Request

from app.api.problems import request_id_of
from app.logs import EventLog
from app.settings import Settings
from app.store.engine import Database
from solvers.cycle.record import Lane


class Clock(Protocol):
    """Time as the shell has it."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        ...

    def elapsed_ms(self) -> float:
        """Monotonic milliseconds."""
        ...

    def now(self) -> datetime:
        """Now, in UTC."""
        ...


class PlanningPort(Protocol):
    """Planning on request. Both calls block until done and write their own audit events."""

    def propose(self, lane: Lane, actor: str) -> str:
        """Run one cycle of the lane that changes nothing; the id of the stored plan.

        Raises EngineError when no planner gave a plan, StateError when a lane has no workloads of its own.
        """
        ...

    def apply(self, plan_id: str, actor: str) -> int:
        """Make a stored plan the target; the new generation.

        Raises NotFoundError, SupersededError when its parent is no longer current, StateError when it may not be
        applied.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Everything `create_app` is given."""

    settings: Settings
    database: Database
    clock: Clock
    planning: PlanningPort
    log: EventLog = field(default_factory=lambda: EventLog("headroom.api"))


def context_of(request: Request) -> ApiContext:
    """The application's context."""
    return cast("ApiContext", request.app.state.context)


def request_id(request: Request) -> str:
    """The id the middleware gave this request."""
    return request_id_of(request.scope)


Context = Annotated[ApiContext, Depends(context_of)]
