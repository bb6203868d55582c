"""Cost reports as a use case: the ledger's hours, grouped, for the cluster or one project."""

from __future__ import annotations

from datetime import datetime

from app.store import ledger
from app.store.engine import Database
from app.store.ledger import CostQuery, CostReport
from solvers.errors import FieldError

SPAN_DAYS_MAX = 3700


class Costs:
    """Reads the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, query: CostQuery) -> CostReport:
        """Costs by one key. Raises FieldError for a span that is empty or longer than ten years."""
        check_span(query.start, query.end)
        with self._database.reading() as session:
            return ledger.cost_report(session, query)


def check_span(start: datetime, end: datetime) -> None:
    """Raise FieldError unless the span has a length that makes sense."""
    if start >= end:
        raise FieldError("query:from", "`from` must lie before `to`")
    if (end - start).days > SPAN_DAYS_MAX:
        raise FieldError("query:from", f"a span may cover {SPAN_DAYS_MAX} days at most")
