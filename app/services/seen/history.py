"""What happened, read back: targets, receipts, cycles, audit events. Nothing here writes."""

from __future__ import annotations

from app.store import cycles, events, receipts, targets
from app.store.cycles import CycleState, CycleSummary
from app.store.engine import Database
from app.store.events import StoredEvent
from app.store.pages import Page
from app.store.receipts import StoredReceipt
from app.store.targets import Promoted
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.change import Target
from solvers.errors import StateError


class History:
    """Reads what other rooms left."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster

    def target(self) -> Target:
        """The standing target, whole."""
        with self._database.reading() as session:
            return targets.current(session, self._cluster)

    def targets(self, limit: int, cursor: str | None) -> Page[Promoted]:
        """Generations, newest first."""
        with self._database.reading() as session:
            return targets.page(session, limit=limit, cursor=cursor)

    def receipts(self, limit: int, cursor: str | None, node: str | None, generation: int | None) -> Page[StoredReceipt]:
        """Receipts, newest first."""
        with self._database.reading() as session:
            return receipts.page(session, limit=limit, cursor=cursor, node=node, generation=generation)

    def cycles(self, limit: int, cursor: str | None, lane: Lane | None, state: CycleState | None) -> Page[CycleSummary]:
        """Cycles, newest first."""
        with self._database.reading() as session:
            return cycles.page(session, limit=limit, cursor=cursor, lane=lane, state=state)

    def cycle(self, cycle_id: str) -> tuple[CycleSummary, CycleRecord | None]:
        """A cycle and its record; None for a record that was never drafted. Raises NotFoundError."""
        with self._database.reading() as session:
            summary = cycles.get(session, cycle_id)
            try:
                return summary, cycles.load(session, cycle_id)
            except StateError:
                return summary, None

    def events(self, limit: int, cursor: str | None, subject: str | None, project: str | None) -> Page[StoredEvent]:
        """Audit events, newest first."""
        with self._database.reading() as session:
            return events.page(session, limit=limit, cursor=cursor, subject=subject, project=project)
