"""Housekeeping: accounts the minutes that have settled, keeps partitions ready, drops what has been kept long enough.

Owns the order and the bounds of that work, each part in a transaction of its own. It refuses to know what a minute or
a partition is: that is SQL behind `app.store`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.logs import EventLog
from app.services.planning.planning import Leader
from app.settings import Settings
from app.store import cycles, idempotency, ledger, nodes, plans, telemetry
from app.store.engine import Database

ACCOUNT_RUNS_MAX = 20
"""Runs of at most half an hour's minutes each that one wake-up may do to catch up."""
PARTITION_DAYS_AHEAD = 7
_log = EventLog("headroom.housekeeping")


class Housekeeping:
    """The loops that plan nothing."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def account(self, leader: Leader) -> None:  # noqa: ARG002 - every loop is told who leads
        """Bring the ledger up to the last settled minute."""
        for _ in range(ACCOUNT_RUNS_MAX):
            with self._database.transaction() as session:
                report = ledger.account(session, _now(session))
            if report.minutes_new or report.minutes_late:
                _log.info(
                    "minutes.accounted",
                    until=report.accounted_until.isoformat(),
                    minutes_new=report.minutes_new,
                    minutes_late=report.minutes_late,
                    rows=report.ledger_rows,
                )
            if not report.behind:
                return

    def retain(self, leader: Leader) -> None:  # noqa: ARG002 - every loop is told who leads
        """Make the partitions of the coming days and drop what is older than the settings keep."""
        settings = self._settings
        days = settings.retention_cycle_days
        # One transaction each: a step that must wait for a lock holds up no other.
        steps: dict[str, Callable[[Session], int]] = {
            "partitions_made": lambda session: telemetry.ensure_partitions(session, PARTITION_DAYS_AHEAD),
            "raw_dropped": lambda session: ledger.drop_raw_telemetry(
                session, _now(session), settings.retention_raw_days
            ),
            "minutes_dropped": lambda session: ledger.drop_minutes(
                session, _now(session), settings.retention_minute_days
            ),
            "cycles_deleted": lambda session: cycles.delete_older(session, days),
            "plans_deleted": lambda session: plans.delete_older(session, days),
            "receipts_deleted": lambda session: nodes.delete_older_receipts(session, days),
            "keys_deleted": lambda session: idempotency.delete_older(session, settings.idempotency_ttl_s),
        }
        done: dict[str, int] = {}
        for name, step in steps.items():
            with self._database.transaction() as session:
                done[name] = step(session)
        _log.info("retention.applied", **done)


def _now(session: Session) -> datetime:
    """The database's time: it stamped the rows that are judged here."""
    now: datetime = session.execute(select(func.now())).scalar_one()
    return now
