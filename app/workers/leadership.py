"""Keeps the cluster's lease in a thread of its own: who may plan, and with which fencing token.

Owns renewal every third of the lease's life and the local judgement of its end by this process's monotonic clock,
which starts before the database is asked, so that a slow answer can never make a lease look longer than it is. It
refuses to die: whatever goes wrong is logged and tried again, and meanwhile leadership runs out.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from app.logs import EventLog
from app.store import targets
from app.store.engine import Database
from solvers.cycle.ports import Clock
from solvers.errors import HeadroomError

_log = EventLog("headroom.leadership")


@dataclass(frozen=True, slots=True)
class LeaseTerm:
    """A fencing token and the monotonic moment until which this process may trust it."""

    token: int
    until_ms: float


class LeaseKeeper:
    """Takes the lease when it is free, renews it while it is ours, tells the token while it holds."""

    def __init__(self, database: Database, clock: Clock, holder: str, ttl_s: float) -> None:
        self.holder = holder
        self._database = database
        self._clock = clock
        self._ttl_s = ttl_s
        self._term: LeaseTerm | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def start(self) -> None:
        """Begin to compete for the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Stop competing and give the lease back, so that another need not wait for it to run out."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._term = None
        try:
            with self._database.transaction() as session:
                released = targets.release_lease(session, targets.PLANNER, self.holder)
        except HeadroomError as error:
            _log.warning("lease.left", error, holder=self.holder)
            return
        if released:
            _log.info("lease.released", holder=self.holder)

    def token(self) -> int | None:
        """The fencing token while this process leads; None otherwise."""
        term = self._term
        return term.token if term is not None and self._clock.elapsed_ms() < term.until_ms else None

    def _keep(self) -> None:
        while not self._ending.is_set():
            try:
                self._renew()
            except HeadroomError as error:
                _log.warning("lease.unreachable", error, holder=self.holder)
            except Exception as error:  # noqa: BLE001 - the keeper must outlive any surprise; leadership runs out meanwhile
                _log.error("lease.failed", error, holder=self.holder)
            self._ending.wait(self._ttl_s / 3)

    def _renew(self) -> None:
        asked_ms = self._clock.elapsed_ms()
        with self._database.transaction() as session:
            lease = targets.acquire_lease(session, targets.PLANNER, self.holder, self._ttl_s)
        before = self._term
        self._term = LeaseTerm(lease.token, asked_ms + self._ttl_s * 1000.0) if lease is not None else None
        if lease is None:
            if before is not None:
                _log.warning("lease.lost", holder=self.holder, fencing=before.token)
            return
        if before is None or before.token != lease.token:
            _log.info("lease.acquired", holder=self.holder, fencing=lease.token)
