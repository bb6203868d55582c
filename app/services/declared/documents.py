"""Declarative documents as use cases: read, put and delete any kind, each write in one transaction with its checks and
its audit event.

Before a put every dangling name is a fault with its pointer, and so is what a document must say to be planned, which
those stored earlier need not; before a delete what is still used stays. The database's foreign keys stand behind the
references that it can express. What a document means is the domain's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy.orm import Session

from agents.wire import steers
from app import kinds
from app.errors import Fault, Faults, FieldsError, PreconditionError, ReferencedError
from app.kinds import Kind
from app.records import record
from app.services.beliefs.beliefs import Beliefs
from app.services.declared.doubts import doubts
from app.services.declared.ownership import (
    Contradiction,
    Estates,
    fleet_faults,
    note_moves,
    policy_faults,
    read_estate,
    workload_faults,
    works_of,
)
from app.services.declared.tokens import Deed
from app.store import documents, events, profiles, targets, tasks, tokens
from app.store.documents import Key, Precondition, PutResult, Stored
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.sql import database_now
from solvers.control import controllers
from solvers.domain.bounds import exceeded
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.device import Device, Node, PowerCap, PowerScope
from solvers.domain.policy import Policy
from solvers.domain.value import overlong
from solvers.domain.webhook import Webhook
from solvers.domain.workload import (
    OfflineTask,
    Project,
    Service,
    TrainingJob,
    Work,
    WorkloadKind,
    unlike_older,
)
from solvers.errors import FieldError, StateError, TransientError, did_you_mean
from solvers.planners import registry

_POOLED = (kinds.POLICY, kinds.NODE, kinds.DEVICE)
"""What says which pool a GPU is in."""


@record
class FieldDifference:
    """A field that a put changes: null before or after where it is not said there."""

    pointer: str
    before: Any
    after: Any


def differences(before: object, after: object, pointer: str = "") -> Iterator[FieldDifference]:
    """Where two plain values differ, the innermost fields of objects; lists differ as a whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from differences(before.get(name), after.get(name), f"{pointer}/{name}")
    elif before != after:
        yield FieldDifference(pointer=pointer, before=before, after=after)


PATCH_TRIES = 5
CHANGES_TOLD_MAX, VALUE_LENGTH_MAX, UNTOLD = 40, 400, "..."
NAMED_MAX = 256
"""So many names of a list are looked up in a document that is wrong anyway."""
BEYOND = "bound-exceeded"
"""Code of a fault, and of the audit's event, where a workload asks for more than its project may."""


class _Faults(Faults):
    """Names that point at nothing, and what contradicts something else."""

    def __init__(self, session: Session, refused: Container[tuple[Kind, Key]] = ()) -> None:
        super().__init__()
        self._session = session
        self._refused = refused
        """What would be there, were it not wrong itself, which is said elsewhere."""

    def need(self, kind: Kind, name: str, pointer: str) -> None:
        is_refused = not name.isprintable() or (kind, (name,)) in self._refused
        if not is_refused and documents.find(self._session, kind, (name,)) is None:
            known = documents.names(self._session, kind)
            self.unknown(pointer, f"there is no {kind.words} {name}{did_you_mean(name, known)}")

    def unknown(self, pointer: str, detail: str) -> None:
        self.add(pointer, detail, "reference-unknown")

    def contradicted(self, found: Iterable[Contradiction]) -> None:
        for pointer, detail in found:
            self.add(pointer, detail, "contradiction")


def check_references(
    estates: Estates, kind: Kind, value: object, cluster: str, refused: Container[tuple[Kind, Key]] = ()
) -> None:
    """Raise FieldsError when a document names something that does not exist."""
    session = estates.session
    faults = _Faults(session, refused)
    for error in overlong(value):
        faults.add(f"/{error.field}", error.message)
    # Whatever else is wrong with endless lists, nobody looks for it.
    faults.settle()
    for error in unlike_older(value):
        faults.add(f"/{error.field}", error.message)
    for named, name, pointer in kind.named_in(value):
        faults.need(named, name, pointer)
    match value:
        case Device() | Node():
            faults.contradicted(fleet_faults(estates, value))
        case Service() | TrainingJob() | OfflineTask():
            faults.contradicted(_namesakes(session, kind, value))
            faults.contradicted(workload_faults(estates, value))
            for field, detail in _beyond(estates, value):
                faults.add(f"/{field}", detail, BEYOND)
        case PowerCap():
            _check_power_cap(faults, value, cluster)
        case Webhook():
            _check_events(faults, value)
        case Policy():
            _check_names(faults, value)
            faults.contradicted(policy_faults(session, value))
    faults.settle()


def _namesakes(session: Session, kind: Kind, work: Work) -> Iterator[Contradiction]:
    key = (work.project, work.name)
    taken = kinds.namesake(kind, (other for other in kinds.workloads() if documents.find(session, other, key)))
    if taken is not None:
        yield "/name", taken


def check_names(session: Session, kind: Kind, said: Mapping[str, object], refused: Container[tuple[Kind, Key]]) -> None:
    """Raise FieldsError when a document that is no value yet names something that does not exist."""
    faults = _Faults(session, refused)
    named = {
        item.field: tuple(found[:NAMED_MAX]) if isinstance(found := said.get(item.field), list) else found
        for item in kind.references
    }
    for other, name, pointer in kind.named_in(SimpleNamespace(**named)):
        if isinstance(name, str):
            faults.need(other, name, pointer)
    faults.settle()


def with_names(
    session: Session,
    kind: Kind,
    said: Mapping[str, object],
    faults: tuple[Fault, ...],
    refused: Container[tuple[Kind, Key]] = (),
) -> tuple[Fault, ...]:
    """What is wrong with a document's form, and the names in it that lead nowhere."""
    told = {fault.pointer for fault in faults}
    try:
        check_names(session, kind, said, refused)
    except FieldsError as error:
        return (*faults, *(fault for fault in error.faults if fault.pointer not in told))
    return faults


def _check_power_cap(faults: _Faults, value: PowerCap, cluster: str) -> None:
    if value.scope is PowerScope.NODE:
        faults.need(kinds.NODE, value.subject, "/subject")
    elif value.scope is PowerScope.DEVICE:
        faults.need(kinds.DEVICE, value.subject, "/subject")
    elif value.scope is PowerScope.CLUSTER and value.subject != cluster:
        faults.unknown("/subject", f"this cluster is called {cluster}")


def _check_names(faults: _Faults, value: Policy) -> None:
    known, governors = registry.names(), controllers.names()
    if not value.planners:
        faults.unknown("/planners", f"name at least one planner; known are {', '.join(known)}")
    for index, planner in enumerate(value.planners):
        if planner not in known:
            near = did_you_mean(planner, known, all_known=True)
            faults.unknown(f"/planners/{index}", f"there is no planner {planner}{near}")
    try:
        registry.check_settings(value)
    except FieldError as error:
        faults.add(error.field, error.message)
    if value.governor not in governors:
        near = did_you_mean(value.governor, governors, all_known=True)
        faults.unknown("/governor", f"there is no controller {value.governor}{near}")


def _check_events(faults: _Faults, value: Webhook) -> None:
    """Checked here and not by the value: what was stored before is told of what there is."""
    known = events.names()
    wholes = {f"{name.partition('.')[0]}.*" for name in known}
    for index, name in enumerate(value.events):
        if name not in known | wholes:
            near = did_you_mean(name, known | wholes) or did_you_mean(name, wholes, all_known=True)
            faults.unknown(f"/events/{index}", f"there is no event {name}{near}")


def _beyond(estates: Estates, value: Work) -> Iterator[Contradiction]:
    """Fields of a new document by which its project would be further beyond its bounds than it is, and variables of its
    worker that its project may not set. Stored documents may have any: nodes judge for themselves.
    """
    session = estates.session
    stored = documents.find(session, kinds.PROJECT, (value.project,))
    if stored is None:
        return
    project = from_plain(Project, stored.spec)
    for at, item in enumerate(value.worker.environment if value.worker is not None else ()):
        if steers(item.name) and item.name not in project.environment_allowed:
            detail = f"{item.name} steers programs, and environment_allowed of project {project.name} does not list it"
            yield f"worker/environment/{at}/name", detail
    if project.bounded:
        # Whoever adds to a bounded sum waits for those who do.
        now = documents.find(session, kinds.PROJECT, (value.project,), lock=True) or stored
        yield from estates.standing(project.name).exceeded(from_plain(Project, now.spec), value)


def beyond_bounds(session: Session, name: str | None) -> tuple[str, ...]:
    """What stands beyond the bounds of its project, or of this one: they were lowered since."""
    projects = (item for item in documents.values(session, kinds.PROJECT, Project) if name in (None, item.name))
    bounded = [project for project in projects if project.bounded]
    return tuple(detail for project in bounded for _, detail in exceeded((project,), works_of(session, project.name)))


def check_unused(session: Session, kind: Kind, key: Key) -> None:
    """Raise ReferencedError while something uses the document, StateError for what must always be there."""
    name = key[-1]
    if kind.has_default and name == kinds.DEFAULT:
        raise StateError(f"the {kind.words} {name} cannot be deleted")
    user = next(iter(_users(session, kind, name)), None)
    if user is not None:
        raise ReferencedError(f"{kind.words} {name} is still used by {user}", used_by=user)


def _users(session: Session, kind: Kind, name: str) -> Iterator[str]:
    """Documents that refer to the one of this name, then what else relies on it."""
    for other in kinds.KINDS:
        fields = [item.field for item in other.references if item.kind is kind and item.keeps]
        for stored in documents.all_specs(session, other) if fields else ():
            said = [stored.spec.get(field) for field in fields]
            if any(name in each if isinstance(each, list) else name == each for each in said):
                yield "/".join((other.plural, *stored.key)) if other.in_project else f"{other.words} {stored.key[-1]}"
    if kind in _OTHER_USERS:
        yield from _OTHER_USERS[kind](session, name)


def _profiles_of(field: str) -> Callable[[Session, str], Iterator[str]]:
    def found(session: Session, name: str) -> Iterator[str]:
        if profiles.count(session, **{field: name}) or profiles.count_pairs(session, **{field: name}):
            yield "its profiles; delete them first"

    return found


def _replicas_on_node(session: Session, name: str) -> Iterator[str]:
    target = targets.node_document(session, name)
    if target is None:
        return
    stands_s = (database_now(session) - targets.line(session, target.generation).promoted_at).total_seconds()
    plain: Any = target.document
    for replica in (replica for device in plain["devices"] for replica in device["replicas"]):
        # What was moved away goes on for a while, and stays written there until the next promotion.
        if (goes_on_s := replica.get("retire_after_s")) is None:
            yield f"replica {replica['replica']}, which the current target places there"
        elif stands_s < goes_on_s:
            yield f"replica {replica['replica']}, which goes on there for {goes_on_s - stands_s:.0f} s more"


_OTHER_USERS: Mapping[Kind, Callable[[Session, str], Iterator[str]]] = {
    kinds.GPU_TYPE: _profiles_of("gpu_type"),
    kinds.MODEL: _profiles_of("model"),
    kinds.PROJECT: lambda session, name: (f"the token {token}" for token in tokens.live_of_project(session, name)),
    kinds.NODE: _replicas_on_node,
}


def release(session: Session, kind: Kind, key: Key) -> None:
    """End what lives only through a document that is about to go: a node's tokens, a job's progress."""
    if kind is kinds.NODE:
        tokens.revoke_of_subject(session, tokens.Purpose.NODE, key[0])
    elif kind in (kinds.JOB, kinds.TASK):
        tasks.forget(session, WorkloadKind.JOB if kind is kinds.JOB else WorkloadKind.TASK, *key)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAnswer:
    """What a put left, and what to warn of."""

    stored: Stored
    created: bool
    warnings: tuple[Fault, ...]


class Documents:
    def __init__(self, database: Database, cluster: str, beliefs: Beliefs) -> None:
        self._database = database
        self._cluster = cluster
        self._beliefs = beliefs

    def get(self, kind: Kind, key: Key) -> Stored:
        """One document. Raises NotFoundError."""
        return self._database.read(documents.get, kind, key)

    def require_project(self, project: str | None, *, there: bool) -> None:
        """Raise NotFoundError for a project of which nothing is there, where that neither is."""
        self._database.read(documents.require_project, project, there=there)

    def page(self, kind: Kind, order: PageOrder, project: str | None, labels: Sequence[str] = ()) -> StoredPage[Stored]:
        """A page of a kind. Raises FieldError for a foreign cursor."""
        return self._database.read(documents.page, kind, order, project, labels)

    def faults(self, kind: Kind, said: Mapping[str, object], faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Those of a document that is no value, with the names that lead nowhere."""
        return self._database.read(with_names, kind, said, faults)

    def put(
        self, kind: Kind, value: object, precondition: Precondition, deed: Deed, *, may_wait: bool = False
    ) -> PutAnswer:
        """Create or replace a document. Raises PreconditionError, or FieldsError for references to nothing. Who
        `may_wait` is warned by what is believed now, and is the one for whom a fresh process fetches it.

        What no two may have is looked at by one at a time: a name by whoever writes a workload of it, what pools hold
        by whoever writes a policy, a node or a device, who goes alone.
        """
        suite = self._beliefs.belief().suite if may_wait else self._beliefs.at_hand()
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=kind in _POOLED)
            if isinstance(value, Service | TrainingJob | OfflineTask):
                documents.lock_name(session, (value.project, value.name))
            check_references(Estates(session), kind, value, self._cluster)
            with _moves_noted(session, kind, value, deed):
                result = put_audited(session, kind, value, precondition, deed)
            warnings = doubts(session, value, suite) if result.changed else ()
        return PutAnswer(stored=result.stored, created=result.created, warnings=warnings)

    def patch(
        self,
        kind: Kind,
        key: Key,
        wish: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], object],
        precondition: Precondition,
        deed: Deed,
    ) -> PutAnswer:
        """Change what a merge patch (RFC 7396) says of a document; `read` makes its value. Whoever else writes
        meanwhile is not undone. Raises NotFoundError, PreconditionError, TransientError where others keep writing, and
        as `put` and `read` do.
        """
        for _ in range(PATCH_TRIES):
            before = self.get(kind, key)
            expected = before.version if precondition.version is None else precondition.version
            if expected != before.version:
                raise PreconditionError(f"{kind.plural} {'/'.join(key)}: the stored version is {before.version}")
            value = read(merged(before.spec, wish))
            try:
                return self.put(kind, value, Precondition(version=expected), deed)
            except PreconditionError:
                if precondition.version is not None:
                    raise
        raise TransientError(f"{kind.plural} {'/'.join(key)}: others keep changing it")

    @contextmanager
    def refusals_noted(self, kind: Kind, key: Key, deed: Deed) -> Iterator[None]:
        """Whoever asks for more than the bounds of a project leaves an event that tells for what."""
        try:
            yield
        except FieldsError as error:
            note_refusal(self._database, kind, key, deed, error.faults)
            raise

    def delete(self, kind: Kind, key: Key, precondition: Precondition, deed: Deed) -> None:
        """Delete a document. Raises NotFoundError, PreconditionError, ReferencedError."""
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=True)
            before = documents.get(session, kind, key)
            check_unused(session, kind, key)
            release(session, kind, key)
            with _moves_noted(session, kind, None, deed):
                documents.delete(session, kind, key, precondition)
            _note(session, kind, before.spec, "deleted", deed, {"version_before": before.version})


def note_refusal(database: Database, kind: Kind, key: Key, deed: Deed, faults: Iterable[Fault]) -> None:
    """Leave an event of a document that asks for more than the bounds of its project, with what for."""
    asked: list[Plain] = [fault.detail for fault in faults if fault.code == BEYOND]
    if asked:
        with database.transaction() as session:
            spec = dict(zip(kind.key, key, strict=True))
            _note(session, kind, spec, "refused", deed, {"code": BEYOND, "asked": asked})


@contextmanager
def _moves_noted(session: Session, kind: Kind, value: object, deed: Deed) -> Iterator[None]:
    """Whoever writes what may change owners leaves an event of who owned and who owns. A node that goes takes its
    devices along, and nobody owns those.
    """
    node = value.id if isinstance(value, Node) else None
    if kind is not kinds.POLICY and node is None:
        yield
        return
    before = read_estate(session, node=node)
    yield
    note_moves(session, before, read_estate(session, node=node), deed)


def put_audited(session: Session, kind: Kind, value: object, precondition: Precondition, deed: Deed) -> PutResult:
    """Store a document and its audit event; an equal document leaves neither."""
    spec: Any = to_plain(value)
    before = documents.find(session, kind, documents.key_of(kind, spec))
    result = documents.put(session, kind, spec, precondition)
    if result.changed:
        verb, stored = "created" if result.created else "updated", result.stored
        facts: dict[str, Plain] = {"version_before": None, "version_after": stored.version}
        if before is not None and not result.created:
            facts |= {"version_before": before.version, "changed": _changed(before.spec, stored.spec)}
        _note(session, kind, stored.spec, verb, deed, facts)
    return result


def merged(before: object, patch: object) -> Any:
    """What a merge patch (RFC 7396) makes of a plain value: null takes a field away, an object changes only what it
    names, and anything else stands in its place.
    """
    if not isinstance(patch, Mapping):
        return patch
    found = dict(before) if isinstance(before, Mapping) else {}
    for name, part in patch.items():
        if part is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), part)
    return found


def _changed(before: object, after: object) -> Plain:
    """From what to what, field by field: bounded, and without what may be a secret."""
    found = tuple(differences(before, after))
    told: dict[str, Plain] = {}
    for item in found[:CHANGES_TOLD_MAX]:
        hidden = item.pointer.startswith(("/worker", "/url"))
        pair = [UNTOLD if hidden or len(str(side)) > VALUE_LENGTH_MAX else side for side in (item.before, item.after)]
        told[item.pointer] = {"from": pair[0], "to": pair[1]}
    if len(found) > CHANGES_TOLD_MAX:
        told["more"] = len(found) - CHANGES_TOLD_MAX
    return told


def _note(
    session: Session, kind: Kind, spec: Mapping[str, Any], verb: str, deed: Deed, facts: Mapping[str, Plain]
) -> None:
    key = documents.key_of(kind, spec)
    project = (
        key[0] if kind is kinds.PROJECT else spec.get("project") if kind.in_project or kind is kinds.BUDGET else None
    )
    deed.note(session, f"{kind.noun}.{verb}", f"{kind.plural}/{'/'.join(key)}", facts, project)
