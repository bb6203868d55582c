"""What happened, read back: targets, receipts, cycles, audit events. Nothing here writes."""

from __future__ import annotations

from app.records import with_more
from app.store import cycles, events, receipts, targets
from app.store.cycles import CycleState, CycleSummary, StoredCycle
from app.store.engine import Database
from app.store.events import EventLine
from app.store.pages import StoredPage
from app.store.receipts import ReceiptLine
from app.store.targets import TargetLine
from solvers.cycle.record import Lane
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

    def targets(self, limit: int, cursor: str | None) -> StoredPage[TargetLine]:
        """Generations, newest first."""
        with self._database.reading() as session:
            return targets.page(session, limit=limit, cursor=cursor)

    def receipts(
        self, limit: int, cursor: str | None, node: str | None, generation: int | None
    ) -> StoredPage[ReceiptLine]:
        """Receipts, newest first."""
        with self._database.reading() as session:
            return receipts.page(session, limit=limit, cursor=cursor, node=node, generation=generation)

    def cycles(
        self, limit: int, cursor: str | None, lane: Lane | None, state: CycleState | None
    ) -> StoredPage[CycleSummary]:
        """Cycles, newest first."""
        with self._database.reading() as session:
            return cycles.page(session, limit=limit, cursor=cursor, lane=lane, state=state)

    def cycle(self, cycle_id: str) -> StoredCycle:
        """A cycle and its record; None for a record that was never drafted. Raises NotFoundError."""
        with self._database.reading() as session:
            summary = cycles.get(session, cycle_id)
            try:
                return with_more(StoredCycle, summary, record=cycles.load(session, cycle_id))
            except StateError:
                return with_more(StoredCycle, summary, record=None)

    def events(self, limit: int, cursor: str | None, subject: str | None, project: str | None) -> StoredPage[EventLine]:
        """Audit events, newest first."""
        with self._database.reading() as session:
            return events.page(session, limit=limit, cursor=cursor, subject=subject, project=project)
