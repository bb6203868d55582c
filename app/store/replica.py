"""Where history is read: a replica of the database while it follows closely, else the primary.

Reports, series and lists of what happened may be a moment old. What must be fresh (targets, routes, tokens, documents
with their versions) never comes by here. How old the picture was goes with the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from app.logs import EventLog
from app.store.engine import Database
from app.store.sql import named
from solvers.errors import StateError, TransientError

P = ParamSpec("P")
T = TypeVar("T")

MEASURE_EVERY_S = 1.0
LAGS_S: ContextVar[list[float] | None] = ContextVar("lags_s", default=None)
"""How old the pictures are that a request was answered from, where somebody asks."""
_log = EventLog("headroom.replica")


def require_primary(session: Session) -> None:
    """Raise TransientError where the address leads to a standby, as after a failover that left us behind."""
    if session.execute(named("is_standby")).scalar_one():
        raise TransientError("the database is a standby, which takes no writes")


class Reads:
    """Reads of what may be a moment old."""

    def __init__(self, primary: Database, replica: Database | None = None, lag_s_max: float = 0.0) -> None:
        self.passed_over = 0
        """Reads that the primary had to answer."""
        self._primary, self._replica, self._lag_s_max = primary, replica, lag_s_max
        self._used = True
        self._measured = (math.inf, time.monotonic())
        """How far it was behind, and when that was seen."""

    @property
    def lag_s(self) -> float:
        """How old the replica's picture is at most; infinite while it does not answer."""
        lag_s, at_s = self._measured
        return lag_s + time.monotonic() - at_s

    @property
    def has_replica(self) -> bool:
        return self._replica is not None

    def read(self, query: Callable[Concatenate[Session, P], T], *args: P.args, **more: P.kwargs) -> T:
        """What one query finds in a moment of its own, see `Database.read`."""
        lag_s, told = self.lag_s, LAGS_S.get()
        if self._replica is not None and lag_s <= self._lag_s_max:
            try:
                found = self._replica.read(query, *args, **more)
            except TransientError as error:
                self._judge(math.inf, error.message)
            else:
                if told is not None:
                    told.append(lag_s)
                return found
        if self._replica is not None:
            self.passed_over += 1
            if told is not None:
                told.append(0.0)
        return self._primary.read(query, *args, **more)

    def measure(self) -> None:
        """See how far the replica is. Raises TransientError when nobody tells, StateError when it is none."""
        if self._replica is None:
            return
        try:
            asked_s = time.monotonic()
            written = self._primary.read(lambda session: session.execute(named("written_up_to")).scalar_one())
            lag_s = self._replica.read(
                lambda session: session.execute(named("replica_lag"), {"written": written}).scalar_one()
            )
        except TransientError as error:
            self._judge(math.inf, error.message)
            raise
        if lag_s is None:
            self._judge(math.inf, "it is no replica")
            raise StateError("HEADROOM_DATABASE_READ_URL leads to a database that is no replica")
        self._judge(max(0.0, float(lag_s)), "it is too far behind", asked_s)

    def _judge(self, lag_s: float, why: str, at_s: float = 0.0) -> None:
        self._measured = (lag_s, at_s)
        used = lag_s <= self._lag_s_max
        if used != self._used:
            self._used = used
            if used:
                _log.info("replica.used", lag_s=round(lag_s, 1))
            else:
                _log.warning("replica.passed_over", why=why, lag_s=round(lag_s, 1) if lag_s < math.inf else None)

    def dispose(self) -> None:
        if self._replica is not None:
            self._replica.dispose()
