"""The target: which plan the fleet must hold, as a generation that rises by exactly one.

Owns promotion, the one write that everything else serves: compare-and-set on the parent generation under a fencing
token, together with what every node must hold, the plan's state, the audit event and the notification. It refuses half
of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.records import record
from app.store import events, leases, plans
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.sql import named
from app.store.tables.planning import cluster_state, node_targets, target_history
from solvers.domain.change import Target
from solvers.domain.codec import Plain
from solvers.domain.ids import Digest, Generation
from solvers.errors import LeaseLostError, NotFoundError, SupersededError

CHANNEL = "headroom_generation"
LISTING = "targets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A wish to make a plan the target. Without a fencing token it comes from a person, who holds no lease."""

    cluster: str
    plan_id: str
    parent_generation: int
    promoted_by: str
    node_documents: Mapping[str, Mapping[str, Plain]]
    """What each node must hold, as plain `NodeTarget`s of generation `parent_generation + 1`."""
    fencing_token: int | None = None
    lease: str = leases.PLANNER


@record
class TargetLine:
    """One generation."""

    generation: int
    plan_id: str
    parent_generation: int
    promoted_at: datetime
    promoted_by: str
    fencing_token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDocument:
    """What one node must hold; the document is a plain `NodeTarget`."""

    node_id: str
    generation: int
    document: dict[str, Plain]


def promote(session: Session, wish: Promotion) -> Generation:
    """Make a plan the target and return its generation.

    Raises SupersededError when the parent is no longer current, LeaseLostError when a newer leader is known, StateError
    when the plan is not open to promotion any more.
    """
    session.execute(insert(cluster_state).values(cluster=wish.cluster).on_conflict_do_nothing())
    standing = session.execute(
        select(cluster_state).where(cluster_state.c.cluster == wish.cluster).with_for_update()
    ).one()
    _check_fence(session, wish, standing.fencing_token)
    if standing.generation != wish.parent_generation:
        raise SupersededError(
            f"the plan was made for generation {wish.parent_generation}, but {standing.generation} stands",
            generation=standing.generation,
        )
    generation = Generation(wish.parent_generation + 1)
    plans.mark_promoted(session, wish.plan_id, generation, wish.promoted_by)
    session.execute(
        update(cluster_state)
        .where(cluster_state.c.cluster == wish.cluster)
        .values(
            generation=generation,
            plan_id=wish.plan_id,
            promoted_at=func.now(),
            fencing_token=standing.fencing_token if wish.fencing_token is None else wish.fencing_token,
        )
    )
    session.execute(
        insert(target_history).values(
            generation=generation,
            plan_id=wish.plan_id,
            parent_generation=wish.parent_generation,
            promoted_by=wish.promoted_by,
            fencing_token=wish.fencing_token,
        )
    )
    _write_node_documents(session, generation, wish.node_documents)
    events.append(
        session,
        events.Event(
            name="plan.promoted",
            actor=wish.promoted_by,
            subject=f"plans/{wish.plan_id}",
            facts={
                "generation": generation,
                "parent_generation": wish.parent_generation,
                "nodes": len(wish.node_documents),
            },
        ),
    )
    session.execute(select(func.pg_notify(CHANNEL, str(generation))))
    return generation


def _check_fence(session: Session, wish: Promotion, token_seen: int) -> None:
    if wish.fencing_token is None:
        return
    lease = leases.read(session, wish.lease)
    token_newest = max(token_seen, lease.token if lease is not None else 0)
    if wish.fencing_token < token_newest:
        raise LeaseLostError(
            f"a newer leader holds token {token_newest}, this writer had {wish.fencing_token}", token=token_newest
        )


def _write_node_documents(session: Session, generation: int, documents: Mapping[str, Mapping[str, Plain]]) -> None:
    if documents:
        statement = insert(node_targets).values(
            [
                {"node_id": node, "generation": generation, "document": dict(documents[node])}
                for node in sorted(documents)
            ]
        )
        fresh = {name: statement.excluded[name] for name in ("generation", "document")}
        session.execute(
            statement.on_conflict_do_update(index_elements=["node_id"], set_={**fresh, "updated_at": func.now()})
        )
    # Nodes that are gone hold nothing any more.
    session.execute(delete_from(node_targets).where(node_targets.c.generation < generation))


def generation(session: Session, cluster: str) -> Generation:
    """The standing generation; 0 before the first promotion."""
    found = session.execute(
        select(cluster_state.c.generation).where(cluster_state.c.cluster == cluster)
    ).scalar_one_or_none()
    return Generation(found or 0)


def current(session: Session, cluster: str) -> Target:
    """The standing target, whole; the empty one before the first promotion."""
    standing = generation(session, cluster)
    return Target() if standing == 0 else at(session, standing)


def at(session: Session, wanted: int) -> Target:
    """The target of a generation. Raises NotFoundError."""
    row = session.execute(select(target_history).where(target_history.c.generation == wanted)).one_or_none()
    if row is None:
        raise NotFoundError(f"no generation {wanted}", generation=wanted)
    plan = plans.load(session, row.plan_id)
    return Target(
        generation=Generation(wanted),
        plan=Digest(row.plan_id),
        promoted_at_s=row.promoted_at.timestamp(),
        assignments=plan.assignments,
        settings=plan.settings,
    )


def page(session: Session, *, limit: int, cursor: str | None = None) -> StoredPage[TargetLine]:
    """Generations, newest first."""
    query = select(target_history).order_by(target_history.c.generation.desc()).limit(limit + 1)
    if cursor is not None:
        (before,) = decode_cursor(LISTING, cursor, (int,))
        query = query.where(target_history.c.generation < before)
    found = [TargetLine(**row) for row in session.execute(query).mappings()]
    return cut(LISTING, found, limit, lambda promoted: (promoted.generation,))


def documents_with_retiring(session: Session) -> tuple[dict[str, Plain], ...]:
    """Standing node documents in which some replica is on its way out."""
    return tuple(session.execute(named("nodes_with_retiring")).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldWorkload:
    """What nodes were told of a standing workload beside where it stands. `worker` null: nothing of its process."""

    workload: str
    worker: Plain
    latency_ms_limit: Plain
    execution_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Governed:
    """A workload on a device, and the controller that the device's node was told."""

    workload: str
    device: str
    governor: str


def governors_told(session: Session) -> tuple[Governed, ...]:
    """Which controller every device with a workload was told."""
    return tuple(Governed(**row._mapping) for row in session.execute(named("told_governors")))


def workloads_told(session: Session) -> tuple[ToldWorkload, ...]:
    """What nodes were told of every workload that stands; one told differently on two nodes comes twice."""
    return tuple(ToldWorkload(**row._mapping) for row in session.execute(named("told_workloads")))


def node_document(session: Session, node_id: str) -> NodeDocument | None:
    """What a node must hold, as a plain `NodeTarget`; None when the standing target was made without it."""
    query = select(node_targets.c.node_id, node_targets.c.generation, node_targets.c.document)
    row = session.execute(query.where(node_targets.c.node_id == node_id)).one_or_none()
    return None if row is None else NodeDocument(**row._mapping)
