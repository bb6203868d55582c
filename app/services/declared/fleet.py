"""The fleet as use cases: what a new cluster starts with, agents that join, what a node must hold, whether this
process can serve.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from agents.wire import Join, NodeTarget, encode
from app import kinds, library
from app.services.declared import joining
from app.services.declared.actors import Actor, Deed
from app.services.declared.documents import put_audited
from app.services.declared.joining import Admission
from app.store import built_in as built_in_store
from app.store import documents, events, migrate, summaries, targets
from app.store.documents import Precondition
from app.store.engine import Database
from solvers.domain.codec import to_plain
from solvers.domain.ids import PolicyName, ProjectName
from solvers.domain.policy import Policy
from solvers.domain.workload import Project
from solvers.errors import TransientError


def ensure_defaults(session: Session) -> None:
    """Make the project and the policy called `default` unless they exist; for the first start of a cluster."""
    deed = Deed(actor="system")
    if documents.find(session, kinds.PROJECT, (kinds.DEFAULT,)) is None:
        put_audited(session, kinds.PROJECT, Project(name=ProjectName(kinds.DEFAULT)), Precondition(), deed)
    if documents.find(session, kinds.POLICY, (kinds.DEFAULT,)) is None:
        put_audited(session, kinds.POLICY, Policy(name=PolicyName(kinds.DEFAULT)), Precondition(), deed)


def offer_built_in(session: Session) -> None:
    """Make the built-in GPU types and models that were never offered before; what stands under a name stays, and what
    somebody deleted does not come back.
    """
    built_in = library.facts()
    documents.lock_references(session, exclusive=False)
    made = {
        kind.table: built_in_store.offer(session, kind, [_spec(item) for item in items])
        for kind, items in ((kinds.GPU_TYPE, built_in.gpu_types.values()), (kinds.MODEL, built_in.models.values()))
    }
    if any(made.values()):
        events.append(session, events.Event(name="library.loaded", actor="system", subject="library", facts=made))


def _spec(item: object) -> dict[str, Any]:
    plain: Any = to_plain(item)
    return dict(plain)


class Fleet:
    """Nodes of the cluster."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster
        self._schema_checked = False

    def prepare(self) -> None:
        """Make what every cluster starts with; for the start of a process."""
        with self._database.transaction() as session:
            ensure_defaults(session)
            offer_built_in(session)

    def require_ready(self) -> None:
        """Raise TransientError unless the database answers with the schema this release needs."""
        with self._database.reading() as session:
            if self._schema_checked:
                targets.generation(session, self._cluster)
                return
            found, needed = summaries.schema_revision(session), migrate.head()
        # Migrations only ever add, so a schema of a newer release will do.
        if found is None or found < needed:
            raise TransientError(f"the database schema is at {found or 'nothing'}, this release needs {needed}")
        self._schema_checked = True

    def join(self, request: Join, actor: Actor, deed: Deed) -> Admission:
        """Admit an agent; see `joining.join` for what it refuses."""
        with self._database.transaction() as session:
            return joining.join(session, request, actor, deed, self._cluster)

    def node_target(self, node: str) -> dict[str, Any]:
        """What a node must hold, as a plain `NodeTarget`; nothing when the standing target was made without it."""
        with self._database.reading() as session:
            stored = targets.node_document(session, node)
            if stored is not None:
                return dict(stored.document)
            generation = targets.generation(session, self._cluster)
        return encode(NodeTarget(node=node, generation=generation, plan=None, devices=()))
