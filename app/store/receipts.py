"""What nodes read back after applying a target. Repeats of a receipt are stored once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from agents.wire import NodeReceipt, encode
from app.records import record
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.tables.planning import receipts

LISTING = "receipts"


@record
class ReceiptLine:
    """What a node read back; `document` is its NodeReceipt."""

    id: int
    node_id: str
    boot_id: str
    generation: int
    plan_id: str | None
    outcome: str
    observed_at: datetime
    received_at: datetime
    elapsed_ms: float
    problems: tuple[str, ...]
    document: dict[str, Any]


def put(session: Session, receipt: NodeReceipt) -> bool:
    """Store a receipt; False when it was stored before."""
    statement = insert(receipts).values(
        node_id=receipt.node,
        boot_id=receipt.boot_id,
        generation=receipt.generation,
        plan_id=receipt.plan,
        outcome=receipt.outcome,
        observed_at=datetime.fromtimestamp(receipt.observed_at_s, UTC),
        elapsed_ms=receipt.elapsed_ms,
        problems=list(receipt.problems),
        document=encode(receipt),
    )
    stored = session.execute(statement.on_conflict_do_nothing().returning(receipts.c.id))
    return stored.scalar_one_or_none() is not None


def page(
    session: Session,
    *,
    limit: int,
    cursor: str | None = None,
    node: str | None = None,
    generation: int | None = None,
) -> StoredPage[ReceiptLine]:
    """Receipts, newest first, of one node or generation where named."""
    query = select(receipts).order_by(receipts.c.id.desc()).limit(limit + 1)
    if node is not None:
        query = query.where(receipts.c.node_id == node)
    if generation is not None:
        query = query.where(receipts.c.generation == generation)
    if cursor is not None:
        (before,) = decode_cursor(LISTING, cursor, (int,))
        query = query.where(receipts.c.id < before)
    return cut(LISTING, [_stored(row) for row in session.execute(query)], limit, lambda receipt: (receipt.id,))


def delete_older(session: Session, days: float) -> int:
    """Delete receipts that came in longer ago; returns how many."""
    old = receipts.c.received_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, days * 86_400)
    return len(session.execute(delete_from(receipts).where(old).returning(receipts.c.id)).all())


def _stored(row: Row[Any]) -> ReceiptLine:
    return ReceiptLine(**{**row._mapping, "problems": tuple(row.problems)})
