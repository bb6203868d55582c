"""The newest read-back of every node: which replica processes it found, which of them are ready, where they answer.

Beside them stands what the controllers of its devices ask for. Owns which of two read-backs is newer and the
notification by which whoever serves routes hears of one. History is `receipts`; nothing here is older than the agent
that runs now, unless it has not said anything yet.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Double, cast, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from agents.wire import NodeReceipt, RepartitionReport
from app.store.sql import named
from app.store.tables.documents import node_states
from app.store.tables.planning import node_read_backs

CHANNEL = "headroom_routes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBackRow:
    """A process as its node last read it back."""

    replica: str
    uuid: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    ready: bool
    endpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReadBack:
    """What one node read back; `age_s` by the database's clock."""

    node_id: str
    boot_id: str
    generation: int
    observed_at_s: float
    age_s: float
    replicas: tuple[ReadBackRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHead:
    """The newest report of a node."""

    node_id: str
    boot_id: str
    observed_at_s: float


def keep(session: Session, receipt: NodeReceipt) -> bool:
    """Keep what a receipt read back and tell of it; False when it is of another boot than the node's or not newer."""
    current = select(node_states.c.boot_id).where(node_states.c.node_id == receipt.node)
    if session.execute(current).scalar_one_or_none() != receipt.boot_id:
        return False
    statement = insert(node_read_backs).values(
        node_id=receipt.node,
        boot_id=receipt.boot_id,
        generation=receipt.generation,
        observed_at=datetime.fromtimestamp(receipt.observed_at_s, UTC),
        replicas=[_kept(item) for item in (asdict(replica) for replica in receipt.replicas)],
        wishes=[asdict(wish) for wish in receipt.wishes],
    )
    fresh = {name: statement.excluded[name] for name in ("boot_id", "generation", "observed_at", "replicas", "wishes")}
    stored = session.execute(
        statement.on_conflict_do_update(
            index_elements=["node_id"],
            set_={**fresh, "received_at": func.now()},
            where=or_(
                node_read_backs.c.boot_id != statement.excluded.boot_id,
                node_read_backs.c.observed_at <= statement.excluded.observed_at,
            ),
        ).returning(node_read_backs.c.node_id)
    )
    if stored.one_or_none() is None:
        return False
    session.execute(select(func.pg_notify(CHANNEL, receipt.node)))
    return True


def _kept(replica: dict[str, Any]) -> dict[str, Any]:
    return {name: replica[name] for name in ReadBackRow.__dataclass_fields__}


def newest(session: Session) -> tuple[NodeReadBack, ...]:
    """The read-back of every node that ever sent one, by node."""
    kept = node_read_backs.c
    query = select(
        kept.node_id,
        kept.boot_id,
        kept.generation,
        cast(func.extract("epoch", kept.observed_at), Double).label("observed_at_s"),
        cast(func.extract("epoch", func.now() - kept.received_at), Double).label("age_s"),
        kept.replicas,
    ).order_by(kept.node_id)
    return tuple(
        NodeReadBack(**{**row, "replicas": tuple(ReadBackRow(**item) for item in row["replicas"])})
        for row in session.execute(query).mappings()
    )


def wishes(session: Session, generation: int) -> dict[str, RepartitionReport]:
    """What controllers ask for under a generation, by device: what they asked for before is answered by it."""
    query = select(node_read_backs.c.wishes).where(node_read_backs.c.generation == generation)
    found = (RepartitionReport(**item) for listed in session.execute(query).scalars() for item in listed)
    return {wish.uuid: wish for wish in found}


def report_heads(session: Session) -> dict[str, ReportHead]:
    """The newest report of each node that ever sent one, by node."""
    return {row["node_id"]: ReportHead(**row) for row in session.execute(named("report_heads")).mappings()}
