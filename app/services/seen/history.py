"""What happened, read back: targets, receipts, cycles, audit events and the ledger's costs; and generations of the
target as they are announced. Nothing here writes.
"""

from __future__ import annotations

import io
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from itertools import islice
from typing import IO, cast

import psycopg
from sqlalchemy.orm import Session

from app import kinds
from app.records import record, record_of
from app.services.declared.tokens import Tokens
from app.store import budgets, cycles, documents, events, ledger, logs, nodes, targets, webhooks
from app.store.budgets import BudgetForecast, SpendingSpan
from app.store.cycles import CycleState, CycleSummary, StoredCycle
from app.store.engine import Database, notified
from app.store.events import EventLine
from app.store.ledger import Accounting, CostBy, CostQuery, CostRow, HeldSpan
from app.store.nodes import ReceiptLine
from app.store.pages import PageOrder, StoredPage
from app.store.replica import Reads
from app.store.sql import database_now
from app.store.targets import TargetLine
from app.store.webhooks import Delivery
from solvers.cycle.ports import memory_key
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.change import Target
from solvers.errors import FieldError, HeadroomError, StateError

SPAN_DAYS_MAX = 3700
FOCUS_DAYS_MAX = 400
FOCUS_BYTES_IN_MEMORY = 8 * 2**20
DIGITS = 6
"""After the point, of US dollars and all else in a report."""


@record
class CostLine:
    """Cost of one group."""

    key: str
    usd: float
    usd_idle: float
    """Part of `usd` that nobody held."""
    usd_unobserved: float
    """Part of `usd` about which no report came."""
    usd_energy: float
    """Energy beside the price of the devices."""
    held_h: float
    share_gpu_h: float
    memory_gib_h: float
    energy_kwh: float


@record
class Costs:
    """A cost report from `start` up to `end`: what was asked for, to the minute; where minutes are not kept any more,
    of the whole hours around it.
    """

    by: CostBy
    accounting: Accounting
    start: datetime
    end: datetime
    project: str | None
    label: str | None
    """The key of the labels grouped by."""
    accounted_until: datetime | None
    """What came after this moment is not in it yet; null before the first minute was accounted."""
    usd: float
    items: tuple[CostLine, ...]


class CostReports:
    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def report(self, query: CostQuery) -> Costs:
        """Costs by one key. Raises FieldError for a span that is empty or longer than ten years, and for a label's key
        where another grouping is wanted, or none where that is.
        """
        check_span(query.start, query.end)
        if (query.by is CostBy.LABEL) != (query.label is not None):
            raise FieldError("query:label", "`label`, the key to group by, goes with by=label")
        report = self._reads.read(ledger.cost_report, query)
        items = tuple(_line(row) for row in report.rows)
        return record_of(Costs, report, usd=round(float(report.usd), DIGITS), items=items)

    def focus(self, start: datetime, end: datetime, project: str | None) -> IO[bytes]:
        """The hours that begin in the span in the columns of FOCUS, as CSV to read once. Raises FieldError for a span
        that is empty or longer than a year and a bit, NotFoundError for a project that neither is nor spent.
        """
        check_span(start, end, FOCUS_DAYS_MAX)
        found = tempfile.SpooledTemporaryFile(max_size=FOCUS_BYTES_IN_MEMORY)  # noqa: SIM115 - who answers closes it
        text = io.TextIOWrapper(cast("IO[bytes]", found), encoding="utf-8", newline="")
        self._reads.read(ledger.focus_csv, start, end, project, text)
        text.detach()
        found.seek(0)
        try:
            self._reads.read(documents.require_project, project, there=len(list(islice(found, 2))) > 1)
        except HeadroomError:
            found.close()
            raise
        found.seek(0)
        return cast("IO[bytes]", found)

    def held(self, uuids: Sequence[str], start: datetime, end: datetime) -> tuple[HeldSpan, ...]:
        """Who held these devices when."""
        return self._reads.read(ledger.held_spans, uuids, start, end)

    def budgets(self) -> tuple[BudgetForecast, ...]:
        """Every budget beside what this month has cost it and will."""
        return self._reads.read(lambda session: budgets.forecasts(session, database_now(session)))

    def spending_span(self, now: datetime) -> SpendingSpan:
        """The time that a rate of spending is of, as budgets have it."""
        return self._reads.read(budgets.spending_span, now)


def _line(row: CostRow) -> CostLine:
    """Rounded; the exact sums are in the database's views."""
    sums = {name: round(float(part), DIGITS) for name, part in asdict(row).items() if name != "key"}
    return CostLine(key=row.key, **sums)


def check_span(start: datetime, end: datetime, days_max: int = SPAN_DAYS_MAX) -> None:
    """Raise FieldError unless the span has a length that makes sense."""
    if start >= end:
        raise FieldError("query:from", "`from` must lie before `to`")
    if (end - start).days > days_max:
        raise FieldError("query:from", f"a span may cover {days_max} days at most")


@record
class HandedState:
    """What a planner of a cycle was handed of what it had kept before."""

    policy: str
    planner: str
    version: str | None
    """Of the planner; null for a state that is not kept any more."""
    digest: str
    state: str | None
    """In Base64; null for a state that is not kept any more."""


@record
class HandedStates:
    """Of all planners of a cycle that were handed anything."""

    items: tuple[HandedState, ...]


class History:
    def __init__(self, database: Database, cluster: str, reads: Reads) -> None:
        self._database = database
        self._cluster = cluster
        self._reads = reads
        self._tokens = Tokens(database)

    def target(self) -> Target:
        """What stands; fresh."""
        return self._database.read(targets.current, self._cluster)

    def targets(self, order: PageOrder) -> StoredPage[TargetLine]:
        return self._reads.read(targets.page, order)

    def receipts(self, order: PageOrder, node: str | None, generation: int | None) -> StoredPage[ReceiptLine]:
        return self._reads.read(nodes.receipts_page, order, node=node, generation=generation)

    def cycles(self, order: PageOrder, lane: Lane | None, state: CycleState | None) -> StoredPage[CycleSummary]:
        return self._reads.read(cycles.page, order, lane=lane, state=state)

    def deliveries(self, webhook: str, order: PageOrder) -> StoredPage[Delivery]:
        """What a webhook was told or waits for. Raises NotFoundError."""

        def read(session: Session) -> StoredPage[Delivery]:
            documents.get(session, kinds.WEBHOOK, (webhook,))
            return webhooks.page(session, order, webhook)

        return self._reads.read(read)

    def cycle(self, cycle_id: str) -> StoredCycle:
        """A cycle and its record; None for a record that was never drafted. Raises NotFoundError."""
        return self._reads.read(_cycle, cycle_id)

    def states(self, cycle_id: str) -> HandedStates:
        """What the planners of a cycle were handed. Raises NotFoundError."""
        return self._reads.read(_states, cycle_id)

    def events(self, order: PageOrder, subject: str | None, project: str | None) -> StoredPage[EventLine]:
        found = self._reads.read(events.page, order, subject=subject, project=project)
        named = (replace(item, actor_name=self._tokens.name_of(item.actor)) for item in found.items)
        return replace(found, items=tuple(named))


def _cycle(session: Session, cycle_id: str) -> StoredCycle:
    summary = cycles.get(session, cycle_id)
    try:
        return record_of(StoredCycle, summary, record=cycles.load(session, cycle_id))
    except StateError:
        return record_of(StoredCycle, summary, record=None)


def _states(session: Session, cycle_id: str) -> HandedStates:
    found = _cycle(session, cycle_id).record
    return HandedStates(items=() if found is None else tuple(_handed(session, found)))


def _handed(session: Session, record: CycleRecord) -> Iterator[HandedState]:
    default = record.snapshot.policy.name
    for attempt in record.attempts:
        if attempt.state_digest is not None:
            policy = attempt.policy or default
            key = memory_key(default, policy, attempt.planner)
            kept = cycles.find_state(session, key, attempt.state_digest)
            yield HandedState(
                policy=policy,
                planner=attempt.planner,
                version=None if kept is None else kept.version,
                digest=attempt.state_digest,
                state=None if kept is None else b64encode(kept.state).decode(),
            )


CHANNEL = "headroom_generation"


class Announcements:
    """One live LISTEN session. Subscribed before it is asked for the current generation, so none is missed."""

    def __init__(self, database: Database, cluster: str, connection: psycopg.Connection) -> None:
        self._database = database
        self._cluster = cluster
        self._connection = connection

    def current(self) -> int:
        return self._database.read(targets.generation, self._cluster)

    def announced(self, timeout_s: float) -> Iterator[int | str]:
        """Generations, and names of nodes whose logs somebody wants to read."""
        for notification in notified(self._connection, timeout_s):
            if notification.channel == logs.CHANNEL:
                yield notification.payload
            elif notification.payload.isdigit():
                yield int(notification.payload)


@contextmanager
def announcements(database: Database, cluster: str) -> Iterator[Announcements]:
    """Listen for generations and readers. Raises TransientError when the database goes away."""
    with database.listening(CHANNEL, logs.CHANNEL) as connection:
        yield Announcements(database, cluster, connection)
