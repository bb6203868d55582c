"""The live side of nodes and devices: who joined, how to reach them, what drivers allow, when a device costs money.

What people declare about nodes and devices is a document; this module refuses to touch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Double, case, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.tables.documents import devices, node_states
from solvers.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node that joined.

    `age_s` is the seconds since its last report by the database's clock; None before the first.
    """

    node_id: str
    boot_id: str
    endpoint: str | None
    agent_version: str
    joined_at: datetime
    last_report_at: datetime | None
    generation_applied: int
    age_s: float | None


_AGE_S = cast(func.extract("epoch", func.now() - node_states.c.last_report_at), Double).label("age_s")


def join(session: Session, node_id: str, boot_id: str, *, endpoint: str | None, agent_version: str) -> NodeState:
    """Remember that an agent started on a node; its applied generation starts over with the boot."""
    statement = insert(node_states).values(
        node_id=node_id, boot_id=boot_id, endpoint=endpoint, agent_version=agent_version
    )
    same_boot = node_states.c.boot_id == statement.excluded.boot_id
    fresh = {name: statement.excluded[name] for name in ("boot_id", "endpoint", "agent_version")}
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["node_id"],
            set_={
                **fresh,
                "joined_at": func.now(),
                "generation_applied": case((same_boot, node_states.c.generation_applied), else_=0),
            },
        )
    )
    return get(session, node_id)


def find(session: Session, node_id: str) -> NodeState | None:
    """A node's live state; None when it never joined."""
    row = session.execute(select(node_states, _AGE_S).where(node_states.c.node_id == node_id)).one_or_none()
    return None if row is None else NodeState(**row._mapping)


def get(session: Session, node_id: str) -> NodeState:
    """A node's live state. Raises NotFoundError when it never joined."""
    found = find(session, node_id)
    if found is None:
        raise NotFoundError(f"node {node_id} has not joined", node=node_id)
    return found


def all_states(session: Session) -> tuple[NodeState, ...]:
    """Live state of every node that joined, by id."""
    query = select(node_states, _AGE_S).order_by(node_states.c.node_id)
    return tuple(NodeState(**row) for row in session.execute(query).mappings())


def raise_generation(session: Session, node_id: str, boot_id: str, generation: int) -> bool:
    """Note that a node applied a generation; False when the boot is not its current one or it got further already."""
    statement = update(node_states).where(
        node_states.c.node_id == node_id,
        node_states.c.boot_id == boot_id,
        node_states.c.generation_applied < generation,
    )
    raised = session.execute(statement.values(generation_applied=generation).returning(node_states.c.node_id))
    return raised.one_or_none() is not None


def devices_of(session: Session, node_id: str) -> tuple[str, ...]:
    """UUIDs of a node's devices."""
    query = select(devices.c.uuid).where(devices.c.node_id == node_id).order_by(devices.c.uuid)
    return tuple(session.execute(query).scalars())


def note_device(session: Session, uuid: str, *, driver_version: str, capabilities: Mapping[str, str]) -> None:
    """Remember what an agent found about a device. A device that came back is billed again, from now."""
    statement = update(devices).where(devices.c.uuid == uuid)
    gone = devices.c.billed_until.is_not(None)
    session.execute(
        statement.values(
            driver_version=driver_version,
            capabilities=dict(capabilities),
            billed_from=case((gone, func.now()), else_=devices.c.billed_from),
            billed_until=None,
        )
    )


def stop_billing(session: Session, uuid: str) -> bool:
    """Note that a device is gone as of now; False when it was gone already or is unknown."""
    statement = update(devices).where(devices.c.uuid == uuid, devices.c.billed_until.is_(None))
    return (
        session.execute(statement.values(billed_until=func.now()).returning(devices.c.uuid)).one_or_none() is not None
    )
