"""Who nodes are: keys that are bound to them when they join, certificates for those keys, and revocation.

A node's token is good together with a key of its own. Which keys those are is the database's to say, so that what is
revoked is so on every process of the API, and a certificate of another node or cluster proves nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from agents.wire import Join
from app.authority import Authority, Presented, node_address, request_digest
from app.errors import CertificateError
from app.records import record
from app.services.declared.tokens import Actor, Deed, note_refusal
from app.store import events, nodes, targets, tokens
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.tokens import Purpose
from solvers.errors import StateError

NODE_DAYS = 30.0
UNTRUSTED = "certificate.refused"
UNTRUSTED_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTls:
    """How nodes prove who they are to this process."""

    authority: Authority | None = None
    """Signs for them; None: certificates are others', or there are none."""
    is_on: bool = False
    is_required: bool = False
    life_s: float = NODE_DAYS * 86_400.0

    def key_of(self, request: Join, presented: Presented | None) -> str | None:
        """The key that a join is to bind. Raises FieldsError for a request that is none."""
        if request.csr is not None and self.authority is not None:
            return request_digest(request.csr)
        return presented.key if presented is not None else None


@record
class Certified:
    """A node's certificate, and every authority to trust from now on, the one that signs first."""

    certificate: str
    authorities: str
    certificate_s: float
    """Seconds until it ends; ask for the next when two thirds of them are over."""


@record
class TrustTold:
    """How nodes prove who they are here: `bearer`, by their token alone; `optional`, with their certificate where they
    have one; `required`, with it.
    """

    nodes: str
    signs: bool
    """A request for a certificate is answered with one."""
    authorities: str
    """Certificates (PEM) of this control plane's own authority, the one that signs first."""
    sha256: str | None
    """Of the one that signs."""


def bind(
    session: Session, request: Join, tls: NodeTls, presented: Presented | None, cluster_id: str | None
) -> Certified | None:
    """Bind a key to a node that was let in by a join token, and no other; its certificate where one was asked for.
    Raises CertificateError where a key is required and there is none.
    """
    if request.csr is not None and tls.authority is not None:
        return _certify(session, request.node, request.csr, tls, cluster_id, alone=True)
    if presented is not None and _names(presented, request.node, cluster_id):
        ends = datetime.fromtimestamp(presented.expires_at_s, UTC)
        _bind(session, request.node, nodes.NodeKey(key=presented.key, expires_at=ends), alone=True)
    elif tls.is_required:
        raise CertificateError("certificate-required", "this control plane takes nodes with certificates alone")
    else:
        nodes.forget_keys(session, request.node)
    return None


class Identities:
    def __init__(self, database: Database, cluster: str, tls: NodeTls) -> None:
        self._database = database
        self._cluster = cluster
        self._tls = tls

    def trust(self) -> TrustTold:
        authority = self._tls.authority
        how = "bearer" if not self._tls.is_on else "required" if self._tls.is_required else "optional"
        if authority is None:
            return TrustTold(nodes=how, signs=False, authorities="", sha256=None)
        return TrustTold(nodes=how, signs=True, authorities=authority.bundle, sha256=authority.fingerprint)

    def signer(self) -> str | None:
        """The authority that signs, by its fingerprint."""
        return self._tls.authority.fingerprint if self._tls.authority is not None else None

    def doubt(self, actor: Actor, presented: Presented | None, now_s: float) -> str | None:
        """Why a node's token is not enough as it came; None: it is."""
        if actor.keys is None:
            return "certificate-required" if self._tls.is_required else None
        if presented is None:
            return "certificate-required"
        if presented.key not in actor.keys:
            return "certificate-foreign"
        return "certificate-expired" if now_s >= presented.expires_at_s else None

    def certify(self, node: str, csr: str, deed: Deed) -> Certified:
        """Sign another key of a node, beside those it has. Raises FieldsError, StateError where nobody signs."""
        if self._tls.authority is None:
            raise StateError("nobody signs here: nodes' certificates come from elsewhere, if they have any")
        with self._database.transaction() as session:
            nodes.get(session, node)
            cluster_id = targets.standing(session, self._cluster).cluster_id
            made = _certify(session, node, csr, self._tls, cluster_id, alone=False)
            deed.note(session, "node.certified", f"nodes/{node}", {"certificate_s": made.certificate_s})
        return made

    def revoke(self, node: str, deed: Deed) -> None:
        """Turn a node out: its tokens and keys end, and it comes back by a join token alone that is made for its name
        afterwards. Raises NotFoundError for one that never joined.
        """
        with self._database.transaction() as session:
            nodes.get(session, node)
            nodes.revoke(session, node)
            ended = sum(tokens.revoke_of_subject(session, purpose, node) for purpose in (Purpose.NODE, Purpose.JOIN))
            deed.note(session, "node.revoked", f"nodes/{node}", {"tokens": ended})

    def page(self, order: PageOrder) -> StoredPage[nodes.NodeIdentity]:
        return self._database.read(nodes.identities, order)

    def note_refused(self, actor: Actor, code: str) -> None:
        """Leave an audit event that a token came without its key."""
        with self._database.transaction() as session:
            note_refusal(session, actor, actor.subject, code)

    def note_untrusted(self, peer: str, code: str) -> None:
        """Leave an audit event that a certificate was refused before anything was asked."""
        event = events.Event(name=UNTRUSTED, actor="system", subject="tls", facts={"code": code, "peer": peer})
        with self._database.transaction() as session:
            events.append_rarely(session, event, UNTRUSTED_EVERY_S)


def _certify(session: Session, node: str, csr: str, tls: NodeTls, cluster_id: str | None, *, alone: bool) -> Certified:
    assert tls.authority is not None
    signed = tls.authority.sign_node(csr, node, str(cluster_id), tls.life_s)
    signer = tls.authority.fingerprint
    _bind(session, node, nodes.NodeKey(key=signed.key, expires_at=signed.expires_at, authority=signer), alone=alone)
    left_s = (signed.expires_at - datetime.now(UTC)).total_seconds()
    return Certified(certificate=signed.certificate, authorities=tls.authority.bundle, certificate_s=round(left_s, 3))


def _bind(session: Session, node: str, key: nodes.NodeKey, *, alone: bool) -> None:
    if not nodes.bind_key(session, node, key, alone=alone):
        raise CertificateError("certificate-revoked", "this key was revoked; make another one")


def _names(presented: Presented, node: str, cluster_id: str | None) -> bool:
    """Whether a certificate is for a node: by the address that control planes write, else by a name."""
    if presented.address is not None:
        return presented.address == node_address(str(cluster_id), node)
    return node in presented.names
