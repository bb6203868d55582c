"""The target: which plan the fleet must hold, as a generation that rises by exactly one; and the lease of whoever may
change it.

Promotion is the one write that everything else serves: compare-and-set on the parent generation under a fencing token,
together with what every node must hold, the plan's state, the audit event and the notification, and never half of that.
The token rises at every change of holder, also when a holder comes back after its lease ran out, and never falls, since
a lease's row outlives every release. Leases end by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Float, cast, delete, func, null, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from agents.wire import NodeReceipt, NodeTarget, Report
from app.records import record
from app.store import events, plans, tokens
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, named, one, put_over, records
from app.store.tables import cluster_state, leases, node_targets, target_history, told_replicas
from solvers.domain.change import Target
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.ids import Digest, Generation
from solvers.domain.plan import Unplaced
from solvers.errors import LeaseLostError, NotFoundError, StateError, SupersededError

CHANNEL = "headroom_generation"
PLANNER = "planner"
"""Name of the lease whose holder may promote."""
TOLD_KEPT_S = float(DAY_S)
"""A node may speak for so long of what it is not told any more; agents keep reports for an hour or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as it stands.

    `holder` is None after a release; `held` says whether it has neither ended nor been released.
    """

    name: str
    holder: str | None
    token: int
    acquired_at: datetime
    expires_at: datetime
    left_s: float
    """Until it ends, by the database's clock."""
    held: bool


def acquire_lease(session: Session, name: str, holder: str, ttl_s: float) -> Lease | None:
    """Take or renew the lease; None while somebody else holds it."""
    wanted = {"name": name, "holder": holder, "ttl_s": ttl_s}
    has_it = session.execute(named("acquire_lease"), wanted).scalar_one_or_none()
    return read_lease(session, name) if has_it == holder else None


def release_lease(session: Session, name: str, holder: str) -> bool:
    """Give the lease back, if `holder` has it; the token stays."""
    statement = update(leases).where(leases.c.name == name, leases.c.holder == holder)
    return changed(session, statement.values(holder=None, expires_at=func.now())) > 0


def read_lease(session: Session, name: str) -> Lease | None:
    """The lease as it stands; None when nobody ever held it."""
    held = (leases.c.holder.is_not(None) & (leases.c.expires_at > func.clock_timestamp())).label("held")
    left_s = func.date_part("epoch", leases.c.expires_at - func.clock_timestamp()).label("left_s")
    return one(session, Lease, select(leases, left_s, held).where(leases.c.name == name))


def require_token(session: Session, name: str, token: int) -> None:
    """Raise LeaseLostError when a newer holder is known."""
    lease = read_lease(session, name)
    if lease is not None and token < lease.token:
        raise LeaseLostError(f"a newer leader holds token {lease.token}, this writer had {token}", token=lease.token)


def leaderless(session: Session, since: datetime, seconds: float) -> bool:
    """Whether no planner has led for so long, nor since a moment; or ever."""
    values = {"name": PLANNER, "since": since, "seconds": seconds}
    return bool(session.execute(named("leaderless"), values).scalar_one())


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
    lease: str = PLANNER
    parent_plan: str | None = None
    """What stands by the picture that this was made from; None: whatever does."""
    again: bool = False
    """The plan was promoted before."""
    request_id: str | None = None
    comment: str | None = None
    hold_s: float | None = None
    """For how long nobody but people may promote afterwards."""


@record
class Hold:
    """Planning by itself is held: until when, by whom and why."""

    until: datetime
    by: str
    by_name: str = ""
    """The name of that token."""
    reason: str


@record
class TargetLine:
    """One generation."""

    generation: int
    plan_id: str
    parent_generation: int
    promoted_at: datetime
    promoted_by: str
    fencing_token: int | None


_LISTING = Listing(
    name="targets", by=(target_history.c.generation,), made=partial(from_row, TargetLine), newest_first=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDocument:
    """What one node must hold; the document is a plain `NodeTarget`."""

    node_id: str
    generation: int
    document: dict[str, Plain]


def promote(session: Session, wish: Promotion) -> Generation:
    """Make a plan the target and return its generation. Raises SupersededError when the parent is no longer current,
    or somebody holds planning, LeaseLostError when a newer leader is known, StateError when the plan is not open to
    promotion any more.
    """
    held = lock(session, wish.cluster)
    _check_fence(session, wish, held.fencing_token)
    if wish.fencing_token is not None and held_back(session, wish.cluster) is not None:
        raise SupersededError(f"{tokens.name_of(session, held.held_by)} holds planning: {held.held_for}")
    if held.generation != wish.parent_generation:
        raise SupersededError(
            f"the plan was made for generation {wish.parent_generation}, but {held.generation} stands",
            generation=held.generation,
        )
    if wish.parent_plan is not None and held.plan_id != wish.parent_plan:
        raise SupersededError(f"the plan was made beside {wish.parent_plan}, but {held.plan_id} stands")
    generation = Generation(wish.parent_generation + 1)
    plans.mark_promoted(session, wish.plan_id, generation, wish.promoted_by, wish.comment, again=wish.again)
    session.execute(
        update(cluster_state)
        .where(cluster_state.c.cluster == wish.cluster)
        .values(
            generation=generation,
            plan_id=wish.plan_id,
            promoted_at=func.now(),
            fencing_token=held.fencing_token if wish.fencing_token is None else wish.fencing_token,
            **dict.fromkeys(("short", "seen_usd_per_h", "seen_bound_usd_per_h", "seen_at"), null()),
        )
    )
    if wish.hold_s:
        hold(session, wish.cluster, wish.hold_s, wish.promoted_by, f"generation {held.generation} was rolled back")
    session.execute(
        insert(target_history).values(
            generation=generation,
            **{name: getattr(wish, name) for name in ("plan_id", "parent_generation", "promoted_by", "fencing_token")},
        )
    )
    _write_node_documents(session, generation, wish.node_documents)
    events.append(
        session,
        events.Event(
            name="plan.promoted",
            actor=wish.promoted_by,
            subject=f"plans/{wish.plan_id}",
            request_id=wish.request_id,
            facts={
                "generation": generation,
                "parent_generation": wish.parent_generation,
                "nodes": len(wish.node_documents),
                "changed": {"plan": {"from": held.plan_id, "to": wish.plan_id}},
                **({"comment": wish.comment} if wish.comment else {}),
                **({"again": True, "hold_s": wish.hold_s} if wish.again else {}),
            },
        ),
    )
    session.execute(select(func.pg_notify(CHANNEL, str(generation))))
    return generation


def _check_fence(session: Session, wish: Promotion, token_seen: int) -> None:
    if wish.fencing_token is None:
        return
    lease = read_lease(session, wish.lease)
    token_newest = max(token_seen, lease.token if lease is not None else 0)
    if wish.fencing_token < token_newest:
        raise LeaseLostError(
            f"a newer leader holds token {token_newest}, this writer had {wish.fencing_token}", token=token_newest
        )


def _write_node_documents(session: Session, generation: int, documents: Mapping[str, Mapping[str, Plain]]) -> None:
    if documents:
        rows = [
            {"node_id": node, "generation": generation, "document": dict(documents[node])} for node in sorted(documents)
        ]
        session.execute(put_over(node_targets, rows, ("node_id",), updated_at=func.now()))
    # Nodes that are gone hold nothing any more.
    session.execute(delete(node_targets).where(node_targets.c.generation < generation))
    session.execute(named("remember_told"))


def hold(session: Session, cluster: str, seconds: float, by: str, reason: str) -> None:
    """Let nobody but people promote for so long."""
    values = {"held_until": ago(-seconds), "held_by": by, "held_for": reason}
    session.execute(update(cluster_state).where(cluster_state.c.cluster == cluster).values(values))


def held_back(session: Session, cluster: str) -> Hold | None:
    """Who holds planning now, if anybody does."""
    columns = (cluster_state.c.held_until.label("until"), cluster_state.c.held_by.label("by"))
    query = select(*columns, cluster_state.c.held_for.label("reason"))
    held = one(session, Hold, query.where(cluster_state.c.cluster == cluster, cluster_state.c.held_until > func.now()))
    return held and replace(held, by_name=tokens.name_of(session, held.by))


def let_go(session: Session, cluster: str) -> Hold | None:
    """End a hold; what it was, if there was one."""
    before = held_back(session, cluster)
    session.execute(update(cluster_state).where(cluster_state.c.cluster == cluster).values(held_until=None))
    return before


def line(session: Session, wanted: int) -> TargetLine:
    """One generation of history. Raises NotFoundError."""
    found = one(session, TargetLine, select(target_history).where(target_history.c.generation == wanted))
    if found is None:
        raise NotFoundError(f"no generation {wanted}", generation=wanted)
    return found


def lock(session: Session, cluster: str) -> Row[Any]:
    """A cluster's row: nobody else promotes until the transaction ends."""
    ensure_cluster(session, cluster)
    return session.execute(select(cluster_state).where(cluster_state.c.cluster == cluster).with_for_update()).one()


def ensure_cluster(session: Session, cluster: str) -> None:
    """Give a new cluster its id, in its first epoch."""
    session.execute(insert(cluster_state).values(cluster=cluster).on_conflict_do_nothing())


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a cluster got: a generation, which counts within an epoch. Without an id before its first start."""

    generation: int = 0
    cluster_id: str | None = None
    epoch: int | None = None

    def covers(self, said: NodeReceipt | Report) -> bool:
        """Whether a receipt or report is of this history; one that does not say is believed."""
        return said.cluster_id in (None, self.cluster_id) and said.epoch in (None, self.epoch)

    def follows(self, said: NodeReceipt | Report | NodeTarget) -> bool:
        """Whether it is of this one, or of an epoch of this cluster that is over."""
        return said.cluster_id in (None, self.cluster_id) and (said.epoch or 0) <= (self.epoch or 0)

    def succeeds(self, held: NodeTarget) -> bool:
        """Whether a node that holds this target takes what stands here."""
        newer = (self.epoch or 0) > (held.epoch or 0)
        return self.follows(held) and (newer or self.generation >= held.generation)


def standing(session: Session, cluster: str) -> Standing:
    columns = (cluster_state.c[name] for name in Standing.__dataclass_fields__)
    return one(session, Standing, select(*columns).where(cluster_state.c.cluster == cluster)) or Standing()


def generation(session: Session, cluster: str) -> Generation:
    """The standing generation; 0 before the first promotion."""
    return Generation(standing(session, cluster).generation)


def note_short(session: Session, cluster: str, seen: Generation, found: Sequence[Unplaced]) -> None:
    """Remember what this generation leaves short now; nothing where another stands, or nothing else is known."""
    told = cast([to_plain(item) for item in found], JSONB)
    there = (cluster_state.c.cluster == cluster, cluster_state.c.generation == seen)
    known = func.coalesce(cluster_state.c.short, plans.short_of(cluster_state.c.plan_id))
    session.execute(update(cluster_state).where(*there, known.is_distinct_from(told)).values(short=told))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What the target costs now, $/h, and what serving as much costs at least; by whom it was left standing `at`."""

    usd_per_h: float | None
    bound_usd_per_h: float | None
    at: datetime | None


def note_proven(session: Session, cluster: str, seen: Generation, usd_per_h: float, bound_usd_per_h: float) -> None:
    """Remember what a cycle proved of this generation now; nothing where another stands."""
    there = (cluster_state.c.cluster == cluster, cluster_state.c.generation == seen)
    now = {"seen_usd_per_h": usd_per_h, "seen_bound_usd_per_h": bound_usd_per_h, "seen_at": func.now()}
    session.execute(update(cluster_state).where(*there).values(now))


def proven(session: Session, cluster: str) -> Proven | None:
    """What cycles proved of the target since it was planned, if any did."""
    state = cluster_state.c
    seen = (state.seen_usd_per_h.label("usd_per_h"), state.seen_bound_usd_per_h.label("bound_usd_per_h"))
    known = select(*seen, state.seen_at.label("at")).where(state.cluster == cluster, state.seen_at.is_not(None))
    return one(session, Proven, known)


def short(session: Session, cluster: str) -> tuple[Unplaced, ...]:
    """What the target leaves short, as far as is known now."""
    known = func.coalesce(cluster_state.c.short, plans.short_of(cluster_state.c.plan_id))
    found = session.execute(select(known).where(cluster_state.c.cluster == cluster)).scalar_one_or_none()
    return tuple(from_plain(Unplaced, item) for item in found or ())


def stands_s(session: Session, cluster: str) -> float | None:
    """For how long what stands does, by the clock that wrote it; None before the first promotion."""
    since = select(func.extract("epoch", func.now() - target_history.c.promoted_at).cast(Float))
    return session.execute(
        since.where(target_history.c.generation == generation(session, cluster))
    ).scalar_one_or_none()


def busy(session: Session) -> tuple[str, ...]:
    """Who plans or serves with this database now, in words."""
    return tuple(session.execute(named("busy_processes"), {"lease": PLANNER}).scalars())


def require_idle(session: Session) -> None:
    """Raise StateError while anybody plans or serves with this database."""
    if found := busy(session):
        raise StateError(f"{', '.join(found)}: stop planners and API first, or say --force")


def begin_epoch(session: Session, cluster: str) -> Standing:
    """Begin an epoch, whose number is above all that were begun from copies of this database; so are then versions of
    documents and leases' tokens.
    """
    session.execute(named("renumber_versions"))
    return records(session, Standing, named("begin_epoch"), cluster=cluster, lease=PLANNER)[0]


def current(session: Session, cluster: str) -> Target:
    """The standing target, whole; the empty one before the first promotion."""
    latest = generation(session, cluster)
    return Target() if latest == 0 else at(session, latest)


def at(session: Session, wanted: int) -> Target:
    """The target of a generation. Raises NotFoundError."""
    row = line(session, wanted)
    plan = plans.load(session, row.plan_id)
    return Target(
        generation=Generation(wanted),
        plan=Digest(row.plan_id),
        promoted_at_s=row.promoted_at.timestamp(),
        assignments=plan.assignments,
        settings=plan.settings,
    )


def page(session: Session, order: PageOrder) -> StoredPage[TargetLine]:
    return read_page(session, _LISTING, select(target_history), order)


def documents_with_retiring(session: Session) -> tuple[dict[str, Plain], ...]:
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
    return records(session, Governed, named("told_governors"))


def workloads_told(session: Session) -> tuple[ToldWorkload, ...]:
    """What nodes were told of every workload that stands; one told differently on two nodes comes twice."""
    return records(session, ToldWorkload, named("told_workloads"))


def terms_told(session: Session, workloads: Sequence[str]) -> tuple[dict[str, Plain], ...]:
    """Of these workloads and each of their models a replica that stands, as a plain `ReplicaTarget`."""
    return tuple(session.execute(named("told_terms"), {"workloads": list(workloads)}).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldReplica:
    """A process that a node may speak of."""

    node_id: str
    uuid: str
    replica: str
    kind: str
    workload: str
    model: str | None
    share_pct_sm: int | None
    memory_mib_limit: int | None


def told_to(session: Session, node_ids: Sequence[str]) -> tuple[ToldReplica, ...]:
    """What nodes were told to hold, now or of late."""
    return records(session, ToldReplica, named("told_to_nodes"), nodes=list(node_ids))


def forget_told(session: Session) -> int:
    """Forget what nodes have not been told for long; returns how many replicas."""
    return changed(session, delete(told_replicas).where(told_replicas.c.told_until < ago(TOLD_KEPT_S)))


def node_document(session: Session, node_id: str) -> NodeDocument | None:
    """What a node must hold, as a plain `NodeTarget`; None when the standing target was made without it."""
    query = select(node_targets.c.node_id, node_targets.c.generation, node_targets.c.document)
    return one(session, NodeDocument, query.where(node_targets.c.node_id == node_id))
