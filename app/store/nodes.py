"""The live side of nodes and devices: who joined, what each node read back after applying a target, what its
controllers ask for, when a device costs money.

What people declare about nodes and devices is a document. Receipts are history, each stored once; the read-back is the
newest of them, and nothing in it is older than the agent that runs now, unless that has not said anything yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from agents.wire import Join, NodeReceipt, RepartitionReport, encode
from app.records import record, record_of
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, named, one, records
from app.store.tables import devices, node_keys, node_read_backs, node_states, receipts
from solvers.errors import NotFoundError

ROUTES_CHANNEL = "headroom_routes"
"""Notified of every new read-back, for whoever serves routes."""
CLOCK_EVERY_S = 600.0
"""Of a clock that is ahead an event so often at most; what nobody repeats for twice as long is over."""
BOOTS_KEPT = 8
"""So many boots of a node are told apart by when they joined; reports of older ones are late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Devices of one type: how many GPUs they are, and what they draw idle all together."""

    gpu_type: str
    gpus: float
    idle_w: float
    memory_mib_max: float


def fleet_parts(
    session: Session, *, node: str | None = None, rack: str | None = None, device: str | None = None
) -> tuple[FleetPart, ...]:
    """The devices of the fleet, or of a part of it, by type."""
    return records(session, FleetPart, named("fleet_parts"), node=node, rack=rack, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node that joined.

    `age_s` is the seconds since its last report by the database's clock, None before the first; `joined_s` since it
    joined.
    """

    node_id: str
    boot_id: str
    boots: tuple[str, ...]
    """The newest first."""
    endpoint: str | None
    worker_host: str | None
    agent_version: str
    joined_at: datetime
    last_report_at: datetime | None
    generation_applied: int
    age_s: float | None
    joined_s: float
    revoked_at: datetime | None
    """Turned out, and not let in again since."""


def join(session: Session, request: Join) -> NodeState:
    """Remember that an agent started on a node; its applied generation starts over with the boot."""
    fresh = {name: getattr(request, name) for name in ("boot_id", "endpoint", "worker_host", "agent_version")}
    session.execute(named("join_node"), {"node": request.node, "earlier": BOOTS_KEPT - 1, **fresh})
    return get(session, request.node)


def find(session: Session, node_id: str) -> NodeState | None:
    """A node's live state; None when it never joined."""
    return one(session, NodeState, named("node_state"), node=node_id)


def get(session: Session, node_id: str) -> NodeState:
    """A node's live state. Raises NotFoundError when it never joined."""
    found = find(session, node_id)
    if found is None:
        raise NotFoundError(f"node {node_id} has not joined", node=node_id)
    return found


def all_states(session: Session) -> tuple[NodeState, ...]:
    """Live state of every node that joined, by id."""
    return records(session, NodeState, named("node_states"))


def raise_generation(session: Session, node_id: str, boot_id: str, generation: int) -> bool:
    """Note that a node applied a generation; False when the boot is not its current one or it got further already."""
    statement = update(node_states).where(
        node_states.c.node_id == node_id,
        node_states.c.boot_id == boot_id,
        node_states.c.generation_applied < generation,
    )
    return changed(session, statement.values(generation_applied=generation)) > 0


def devices_of_nodes(session: Session, names: Sequence[str]) -> dict[str, list[str]]:
    """Which devices each node has; without nodes that have none."""
    found: dict[str, list[str]] = {}
    for row in session.execute(named("devices_of_nodes"), {"nodes": list(names)}):
        found.setdefault(row.node_id, []).append(row.uuid)
    return found


def devices_of(session: Session, node_id: str) -> tuple[str, ...]:
    query = select(devices.c.uuid).where(devices.c.node_id == node_id).order_by(devices.c.uuid)
    return tuple(session.execute(query).scalars())


def note_device(session: Session, uuid: str, *, driver_version: str, capabilities: Mapping[str, str]) -> None:
    """Remember what an agent found about a device. A device that came back is billed again, from now."""
    found = {"driver_version": driver_version, "capabilities": json.dumps(dict(capabilities))}
    session.execute(named("note_device"), {"uuid": uuid, **found})


def able(session: Session, capability: str) -> frozenset[str]:
    """Devices that have a capability, by their agents."""
    query = select(devices.c.uuid).where(devices.c.capabilities[capability].astext == "")
    return frozenset(session.execute(query).scalars())


def refuse(session: Session, capability: str, *, gpu_type: str | None = None, uuid: str | None = None) -> bool:
    """Whether there are devices of this type, or this one, and the agents of all of them say that they cannot."""
    said = devices.c.capabilities[capability].astext
    query = select(func.bool_and(func.coalesce(said, "") != "")).where(devices.c.billed_until.is_(None))
    which = devices.c.gpu_type == gpu_type if uuid is None else devices.c.uuid == uuid
    return bool(session.execute(query.where(which)).scalar())


def stop_billing(session: Session, uuid: str) -> bool:
    """Note that a device is gone as of now; False when it was gone already or is unknown."""
    statement = update(devices).where(devices.c.uuid == uuid, devices.c.billed_until.is_(None))
    return changed(session, statement.values(billed_until=func.now())) > 0


# --- Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKey:
    """A key that speaks for a node, by the SHA-256 of its public part; `authority` signed it, as a fingerprint."""

    key: str
    expires_at: datetime
    authority: str | None = None


@record
class NodeIdentity:
    """A key of a node that joined; without one the node is known by its token alone."""

    node_id: str
    key: str | None
    authority: str | None
    """Fingerprint of the authority that signed it, of this control plane's own."""
    issued_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    """When the key was revoked, or the node turned out."""


_IDENTITIES = (
    select(
        node_states.c.node_id,
        func.coalesce(node_keys.c.key, "").label("key"),
        *(node_keys.c[name] for name in ("authority", "issued_at", "expires_at")),
        func.coalesce(node_keys.c.revoked_at, node_states.c.revoked_at).label("revoked_at"),
    )
    .select_from(node_states.outerjoin(node_keys, node_keys.c.node_id == node_states.c.node_id))
    .subquery("identities")
)


def _identity(row: Any) -> NodeIdentity:
    return record_of(NodeIdentity, row._mapping, key=row.key or None)


_BY_KEY = Listing(name="identities", by=(_IDENTITIES.c.node_id, _IDENTITIES.c.key), made=_identity)


def identities(session: Session, order: PageOrder) -> StoredPage[NodeIdentity]:
    """Every node that joined with its keys, ended ones too."""
    return read_page(session, _BY_KEY, select(_IDENTITIES), order)


def bind_key(session: Session, node: str, key: NodeKey, *, alone: bool) -> bool:
    """Let a key speak for a node, and no other when `alone`; False when it was revoked."""
    if alone:
        session.execute(named("end_other_keys"), {"node": node, "key": key.key})
    return session.execute(named("bind_key"), {"node": node, **asdict(key)}).first() is not None


def keys_of(session: Session, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The keys that speak for each node; without nodes that never had any."""
    found: dict[str, tuple[str, ...]] = {}
    for row in session.execute(named("keys_of"), {"nodes": list(names)}):
        found[row.node_id] = found.get(row.node_id, ()) + ((row.key,) if row.is_good else ())
    return found


def forget_keys(session: Session, node: str) -> None:
    """Its token alone speaks for it."""
    session.execute(delete(node_keys).where(node_keys.c.node_id == node))


def revoke(session: Session, node: str) -> None:
    """End its keys, and remember that it was turned out."""
    session.execute(named("end_keys"), {"node": node})


# --- Receipts


@record
class ReceiptLine:
    """What a node read back; `document` is its NodeReceipt without the boot."""

    id: int
    node_id: str
    generation: int
    plan_id: str | None
    outcome: str
    observed_at: datetime
    received_at: datetime
    elapsed_ms: float
    problems: tuple[str, ...]
    document: dict[str, Any]


_LISTING = Listing(name="receipts", by=(receipts.c.id,), made=partial(from_row, ReceiptLine), newest_first=True)


def put_receipt(session: Session, receipt: NodeReceipt) -> bool:
    """Store a receipt; False when it was stored before."""
    same = {name: getattr(receipt, name) for name in ("boot_id", "generation", "outcome", "elapsed_ms")}
    statement = insert(receipts).values(
        node_id=receipt.node,
        plan_id=receipt.plan,
        observed_at=datetime.fromtimestamp(receipt.observed_at_s, UTC),
        problems=list(receipt.problems),
        document=encode(receipt),
        **same,
    )
    return changed(session, statement.on_conflict_do_nothing()) > 0


def receipts_page(
    session: Session, order: PageOrder, *, node: str | None = None, generation: int | None = None
) -> StoredPage[ReceiptLine]:
    """Receipts, newest first, of one node or generation where named."""
    where = {receipts.c.node_id: node, receipts.c.generation: generation}
    told = [column for column in receipts.c if column.name not in ("boot_id", "document")]
    shown = select(*told, receipts.c.document.op("-")("boot_id").label("document"))
    return read_page(session, _LISTING, shown, order, where)


def problems(session: Session, generation: int) -> dict[str, list[str]]:
    """What stands in the way of a generation, by node; a clock first, for then nothing newer is known."""
    found = session.execute(named("problems_told"), {"generation": generation})
    told: dict[str, list[str]] = {row.node_id: row.problems for row in found}
    for row in session.execute(named("clocks_ahead"), {"within_s": 2 * CLOCK_EVERY_S}):
        clock = f"its clock is {row.ahead_s:.0f} s ahead of the server's, so its reports are refused"
        told[row.node_id] = [clock, *told.get(row.node_id, ())]
    return told


def delete_older_receipts(session: Session, days: float) -> int:
    """Delete receipts that came in longer ago; returns how many."""
    return changed(session, delete(receipts).where(receipts.c.received_at < ago(days * DAY_S)))


# --- Read-backs


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
    node_id: str
    boot_id: str
    observed_at_s: float


def keep_read_back(session: Session, receipt: NodeReceipt) -> bool:
    """Keep what a receipt read back and tell of it; False when it is of another boot than the node's or not newer."""
    told = {
        "channel": ROUTES_CHANNEL,
        "node": receipt.node,
        "boot_id": receipt.boot_id,
        "generation": receipt.generation,
        "observed_at": datetime.fromtimestamp(receipt.observed_at_s, UTC),
        "replicas": json.dumps([asdict(record_of(ReadBackRow, replica)) for replica in receipt.replicas]),
        "wishes": json.dumps([asdict(wish) for wish in receipt.wishes]),
    }
    return session.execute(named("keep_read_back"), told).one_or_none() is not None


def read_backs(session: Session) -> tuple[NodeReadBack, ...]:
    """The newest read-back of every node that ever sent one, by node."""
    return tuple(
        record_of(NodeReadBack, row, replicas=tuple(ReadBackRow(**item) for item in row["replicas"]))
        for row in session.execute(named("read_backs")).mappings()
    )


def wishes(session: Session, generation: int) -> dict[str, RepartitionReport]:
    """What controllers ask for under a generation, by device: what they asked for before is answered by it."""
    query = select(node_read_backs.c.wishes).where(node_read_backs.c.generation == generation)
    found = (RepartitionReport(**item) for listed in session.execute(query).scalars() for item in listed)
    return {wish.uuid: wish for wish in found}


def report_heads(session: Session) -> dict[str, ReportHead]:
    """The newest report of each node that ever sent one, by node."""
    return {head.node_id: head for head in records(session, ReportHead, named("report_heads"))}
