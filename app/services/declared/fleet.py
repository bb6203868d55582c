"""The fleet as use cases: what a new cluster starts with, agents that join, what a node must hold, whether this
process can serve.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from sqlalchemy.orm import Session

from agents.wire import PROTOCOL_VERSION, DeviceInventory, Join, NodeTarget, encode
from app import kinds, library
from app.authority import Presented
from app.clock import new_id, new_secret
from app.errors import (
    CertificateError,
    Fault,
    FieldsError,
    ForbiddenError,
    JoinTokenUsedError,
    NodeRevokedError,
    NodeTakenError,
    UnauthenticatedError,
)
from app.records import record_of
from app.services.declared.documents import put_audited
from app.services.declared.identity import Certified, NodeTls, bind
from app.services.declared.tokens import SECRET_PREFIX, Actor, Deed, note_refusal, note_token
from app.store import documents, migrate, nodes, replica, targets, tokens
from app.store import documents as built_in_store
from app.store.documents import Precondition
from app.store.engine import Database
from app.store.ingest import ALIVE_S
from app.store.nodes import NodeState
from app.store.targets import Standing
from app.store.tokens import Purpose, Role, TokenDraft
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.device import Device, MigSlice, Node, Taint
from solvers.domain.ids import DeviceId, NodeId, PolicyName, ProjectName
from solvers.domain.policy import Policy
from solvers.domain.workload import Project
from solvers.errors import FieldError, did_you_mean

REPEAT_S = 60.0
JOINED_KEPT_MAX = 20_000
VANISHED = Taint(key="vanished")
"""On a device that its node does not have any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a join led to: documents, live state, billing and the node's own token, in one transaction.

    `secret` is None when the agent came with its node's token, which stays valid.
    """

    secret: str | None
    standing: Standing
    certified: Certified | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What lets nodes in, and what this one showed at its connection."""

    cluster: str
    tls: NodeTls
    presented: Presented | None = None


def join(session: Session, request: Join, actor: Actor, deed: Deed, gate: Gate) -> Admission:
    """Admit an agent. Raises NodeTakenError while another agent lives under the name, FieldsError for devices of
    unknown types, ForbiddenError when the token is for another node.
    """
    _check_request(request, actor)
    _check_types(session, request)
    _put_node(session, request, deed)
    _check_alone(nodes.find(session, request.node), request, actor)
    nodes.join(session, request)
    for index, inventory in enumerate(request.devices):
        _put_device(session, request.node, inventory, f"/devices/{index}", deed)
    _taint_vanished(session, request, deed)
    return _let_in(session, request, actor, deed, gate)


def _repeats(session: Session, request: Join, actor: Actor) -> bool:
    """Whether a node that joins as it did says so again, since the answer was lost, and all stands as that left it.
    Raises as `join` does.
    """
    _check_request(request, actor)
    # The document first, as whoever joins anew does: each would wait for the other.
    documents.find(session, kinds.NODE, (request.node,), lock=True)
    state = nodes.find(session, request.node)
    _check_alone(state, request, actor)
    return state is not None and state.boot_id == request.boot_id and state.joined_s < REPEAT_S


def _let_in(session: Session, request: Join, actor: Actor, deed: Deed, gate: Gate) -> Admission:
    secret, certified = None, None
    standing = targets.standing(session, gate.cluster)
    if actor.purpose is not Purpose.NODE:
        secret = _issue(session, request.node, deed)
        certified = bind(session, request, gate.tls, gate.presented, standing.cluster_id)
    facts: dict[str, Plain] = {"devices": len(request.devices), "version": request.agent_version}
    deed.note(session, "node.joined", f"nodes/{request.node}", facts)
    return Admission(secret=secret, standing=standing, certified=certified)


def _use_token(session: Session, request: Join, actor: Actor, gate: Gate) -> None:
    """Count the node where its join token is counted. Whoever asks again with the same key, or without any as the same
    boot, was counted. Raises JoinTokenUsedError, UnauthenticatedError where the token ended meanwhile.
    """
    if actor.uses_max is None:
        return
    key = gate.tls.key_of(request, gate.presented)
    bound = f"boot:{request.boot_id}" if key is None else f"key:{key}"
    why = tokens.use(session, actor.token_id, request.node, bound)
    if why == "ended":
        raise UnauthenticatedError("the token is unknown, expired or revoked")
    if why is not None:
        raise JoinTokenUsedError(f"{actor.uses_max} joined with this token already, which is all it is for")


def _check_request(request: Join, actor: Actor) -> None:
    if actor.subject is not None and actor.subject != request.node:
        raise ForbiddenError(f"this token is for node {actor.subject}")
    if request.protocol_version != PROTOCOL_VERSION:
        raise FieldsError.of("/protocol_version", f"this server speaks protocol version {PROTOCOL_VERSION}")
    seen: set[str] = set()
    for index, device in enumerate(request.devices):
        if device.uuid in seen:
            raise FieldsError.of(f"/devices/{index}/uuid", f"{device.uuid} stands twice", "key-repeated")
        seen.add(device.uuid)


def _check_types(session: Session, request: Join) -> None:
    known = sorted(documents.by_name(session, kinds.GPU_TYPE, "name"))
    faults = tuple(
        Fault(
            pointer=f"/devices/{index}/gpu_type",
            code="reference-unknown",
            detail=f"there is no GPU type {device.gpu_type}{did_you_mean(device.gpu_type, known, all_known=True)}",
        )
        for index, device in enumerate(request.devices)
        if device.gpu_type not in known
    )
    if faults:
        raise FieldsError(faults)


def _put_node(session: Session, request: Join, deed: Deed) -> None:
    """Make the node's document, or lock the one that stands: joins of one node take turns."""
    stored = documents.find(session, kinds.NODE, (request.node,))
    node = from_plain(Node, stored.spec) if stored is not None else record_of(Node, request, id=NodeId(request.node))
    put_audited(session, kinds.NODE, node, Precondition(), deed)


def _check_alone(state: NodeState | None, request: Join, actor: Actor) -> None:
    """Only the node's own token proves who is meant; whoever asks again since the answer was lost has not reported."""
    if state is None or actor.purpose is Purpose.NODE:
        return
    if state.revoked_at is not None:
        if actor.subject != request.node:
            raise NodeRevokedError(f"{request.node} was turned out; it comes back by a join token made for its name")
        return
    reported_s = math.inf if state.age_s is None else state.age_s
    heard_s = reported_s if state.boot_id == request.boot_id else min(reported_s, state.joined_s)
    if heard_s < ALIVE_S:
        raise NodeTakenError(
            f"an agent joined or reported as {request.node} {heard_s:.0f} s ago; "
            f"stop it, choose another name, or join with the node's own token"
        )


def _put_device(session: Session, node: str, inventory: DeviceInventory, pointer: str, deed: Deed) -> None:
    stored = documents.find(session, kinds.DEVICE, (inventory.uuid,))
    if stored is not None and stored.spec["node"] != node:
        other = nodes.find(session, stored.spec["node"])
        if other is not None and other.age_s is not None and other.age_s < ALIVE_S:
            raise NodeTakenError(f"device {inventory.uuid} is reported by the living node {other.node_id}")
    try:
        device = _device(node, inventory, from_plain(Device, stored.spec) if stored is not None else None)
    except FieldError as error:
        raise FieldsError.of(f"{pointer}/{error.field}", error.message) from None
    put_audited(session, kinds.DEVICE, device, Precondition(), deed)
    nodes.note_device(
        session, inventory.uuid, driver_version=inventory.driver_version, capabilities=inventory.capabilities or {}
    )


def _device(node: str, inventory: DeviceInventory, before: Device | None) -> Device:
    mig = (
        MigSlice(parent=DeviceId(inventory.parent_uuid), profile=inventory.mig_profile)
        if inventory.parent_uuid is not None and inventory.mig_profile is not None
        else None
    )
    found = record_of(Device, inventory, id=DeviceId(inventory.uuid), node=NodeId(node), mig=mig)
    if before is None:
        return found
    stays: dict[str, Any] = {name: getattr(before, name) for name in ("mode", "colocation", "schedulable")}
    return replace(found, **stays, taints=tuple(taint for taint in before.taints if taint.key != VANISHED.key))


def _taint_vanished(session: Session, request: Join, deed: Deed) -> None:
    present = {device.uuid for device in request.devices}
    for uuid in nodes.devices_of(session, request.node):
        if uuid in present:
            continue
        nodes.stop_billing(session, uuid)
        device = from_plain(Device, documents.get(session, kinds.DEVICE, (uuid,)).spec)
        taints = (*(taint for taint in device.taints if taint.key != VANISHED.key), VANISHED)
        put_audited(session, kinds.DEVICE, replace(device, taints=taints), Precondition(), deed)


def _issue(session: Session, node: str, deed: Deed) -> str:
    secret = new_secret(SECRET_PREFIX)
    token_id = new_id()
    draft = TokenDraft(
        id=token_id, name=f"node {node}", role=Role.AGENT, purpose=Purpose.NODE, subject=node, created_by=deed.actor
    )
    note_token(session, "token.created", tokens.create(session, draft, secret), deed)
    tokens.revoke_of_subject(session, Purpose.NODE, node, keep=token_id)
    return secret


def ensure_defaults(session: Session) -> None:
    """Make the project and the policy called `default` unless they exist; for the first start of a cluster."""
    for value in (Project(name=ProjectName(kinds.DEFAULT)), Policy(name=PolicyName(kinds.DEFAULT))):
        kind = kinds.PROJECT if isinstance(value, Project) else kinds.POLICY
        if documents.find(session, kind, (kinds.DEFAULT,)) is None:
            put_audited(session, kind, value, Precondition(), Deed(actor="system"))


def offer_built_in(session: Session) -> None:
    """Make the built-in GPU types and models that were never offered before; what stands under a name stays, and what
    somebody deleted does not come back.
    """
    built_in = library.facts()
    documents.lock_references(session, exclusive=False)
    made: dict[str, Plain] = {
        kind.table: built_in_store.offer(session, kind, [cast("documents.Spec", to_plain(item)) for item in items])
        for kind, items in ((kinds.GPU_TYPE, built_in.gpu_types.values()), (kinds.MODEL, built_in.models.values()))
    }
    if any(made.values()):
        Deed(actor="system").note(session, "library.loaded", "library", made)


class Fleet:
    def __init__(self, database: Database, cluster: str, tls: NodeTls | None = None) -> None:
        self._database = database
        self._cluster = cluster
        self._tls = tls or NodeTls()
        self._schema_checked = False
        self._joined: dict[str, bytes] = {}
        """What each node said when it joined here last, as a digest."""

    def prepare(self) -> None:
        """Make what every cluster starts with; for the start of a process."""
        with self._database.transaction() as session:
            targets.ensure_cluster(session, self._cluster)
            ensure_defaults(session)
            offer_built_in(session)

    def require_ready(self) -> None:
        """Raise TransientError unless the database answers with the schema this release needs, and takes writes."""
        with self._database.reading() as session:
            replica.require_primary(session)
            if self._schema_checked:
                targets.generation(session, self._cluster)
                return
            migrate.require_schema(session)
        self._schema_checked = True

    def join(self, request: Join, actor: Actor, deed: Deed, presented: Presented | None = None) -> Admission:
        """Admit an agent; see `join` for what it refuses. A repeat costs little: the node's token is made anew, for
        nobody knows the secret that was lost, but what was registered stands.
        """
        said = hashlib.sha256(repr(replace(request, csr=None)).encode()).digest()
        gate = Gate(cluster=self._cluster, tls=self._tls, presented=presented)
        try:
            with self._database.transaction() as session:
                _use_token(session, request, actor, gate)
                known = self._joined.get(request.node) == said and _repeats(session, request, actor)
                admission = (_let_in if known else join)(session, request, actor, deed, gate)
        except (JoinTokenUsedError, NodeRevokedError, CertificateError) as error:
            with self._database.transaction() as session:
                note_refusal(session, actor, request.node, error.code)
            raise
        if len(self._joined) > JOINED_KEPT_MAX:
            self._joined.clear()
        self._joined[request.node] = said
        return admission

    def node_target(self, node: str, history: bool) -> dict[str, Any]:
        """What a node must hold, as a plain `NodeTarget`, and of which `history` that is; nothing when the standing
        target was made without it.
        """
        with self._database.reading() as session:
            stored = targets.node_document(session, node)
            standing = targets.standing(session, self._cluster)
        empty = NodeTarget(node=node, generation=standing.generation, plan=None, devices=())
        told = encode(empty) if stored is None else stored.document
        return {**told, "cluster_id": standing.cluster_id, "epoch": standing.epoch} if history else dict(told)

    def begin_epoch(self, deed: Deed, *, force: bool) -> tuple[Standing, Standing]:
        """Have agents follow this database from where it stands, whatever they hold of its history; where it stood
        before and after. Raises StateError, unless forced, while processes use the database, TransientError where its
        schema is older than this software.
        """
        with self._database.transaction() as session:
            migrate.require_schema(session)
            if not force:
                targets.require_idle(session)
            targets.ensure_cluster(session, self._cluster)
            before = targets.standing(session, self._cluster)
            after = targets.begin_epoch(session, self._cluster)
            deed.note(session, "epoch.began", "cluster", {**asdict(after), "epoch_before": before.epoch})
        return before, after
