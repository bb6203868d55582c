"""What documents say about each other: a service names a model, a device names a node, and neither may point at
nothing; and what a document must say to be planned, which those stored earlier need not.

Owns the checks before a put (every dangling name is a fault with its pointer) and before a delete (what is still used
stays). The database's foreign keys stand behind the ones that it can express.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy.orm import Session

from app.errors import FieldFault, FieldsError, ReferencedError
from app.services.contradictions import Fault, fleet_faults, policy_faults, workload_faults
from app.store import documents, pair_points, profiles, progress, targets, tokens
from app.store.documents import Key, Kind
from solvers.control import registry as controllers
from solvers.domain.device import Device, Node, PowerCap, PowerScope
from solvers.domain.policy import Policy
from solvers.domain.workload import OfflineTask, Service, SloKind, TrainingJob, WorkloadKind
from solvers.errors import FieldError, StateError
from solvers.planners import registry

DEFAULT = "default"
"""Name of the project and the policy that are always there."""

PAGE = 500
_WORKLOADS = (Kind.SERVICE, Kind.JOB, Kind.TASK)
_WORDS = {
    Kind.GPU_TYPE: "GPU type",
    Kind.MODEL: "model",
    Kind.POLICY: "policy",
    Kind.PROJECT: "project",
    Kind.NODE: "node",
    Kind.DEVICE: "device",
}


class _Faults:
    """Collects names that point at nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._faults: list[FieldFault] = []

    def need(self, kind: Kind, name: str, pointer: str) -> None:
        if documents.find(self._session, kind, (name,)) is None:
            self.add(pointer, f"there is no {_WORDS[kind]} {name}")

    def need_all(self, kind: Kind, names: Iterable[str], pointer: str) -> None:
        for index, name in enumerate(names):
            self.need(kind, name, f"{pointer}/{index}")

    def add(self, pointer: str, detail: str, code: str = "reference-unknown") -> None:
        self._faults.append(FieldFault(pointer=pointer, code=code, detail=detail))

    def contradicted(self, found: Iterable[Fault]) -> None:
        for pointer, detail in found:
            self.add(pointer, detail, "contradiction")

    def settle(self) -> None:
        if self._faults:
            raise FieldsError(tuple(self._faults))


def check(session: Session, value: object, cluster: str) -> None:
    """Raise FieldsError when a document names something that does not exist."""
    faults = _Faults(session)
    match value:
        case Device():
            faults.need(Kind.NODE, value.node, "/node")
            faults.need(Kind.GPU_TYPE, value.gpu_type, "/gpu_type")
            faults.contradicted(fleet_faults(session, value))
        case Node():
            faults.contradicted(fleet_faults(session, value))
        case Service() | TrainingJob() | OfflineTask():
            _check_workload(faults, value)
            faults.contradicted(workload_faults(session, value))
        case PowerCap():
            _check_power_cap(faults, value, cluster)
        case Policy():
            _check_planners(faults, value)
            _check_governor(faults, value)
            faults.contradicted(policy_faults(session, value))
    faults.settle()


def _check_workload(faults: _Faults, value: Service | TrainingJob | OfflineTask) -> None:
    faults.need(Kind.PROJECT, value.project, "/project")
    faults.need(Kind.MODEL, value.model, "/model")
    faults.need_all(Kind.GPU_TYPE, value.gpu_types_allowed, "/gpu_types_allowed")
    if value.policy is not None and value.policy != DEFAULT:
        faults.need(Kind.POLICY, value.policy, "/policy")
    if isinstance(value, Service):
        faults.need_all(Kind.MODEL, value.alternatives, "/alternatives")
        if value.slo.kind is SloKind.TOKENS and value.tokens is None:
            # Checked here and not by the value: older documents have none, and are still to be read.
            faults.add(
                "/tokens", "a service with an SLO of kind tokens says how long its requests are", "value-invalid"
            )
    if isinstance(value, TrainingJob):
        faults.need(Kind.GPU_TYPE, value.gpu_type_reference, "/gpu_type_reference")


def _check_power_cap(faults: _Faults, value: PowerCap, cluster: str) -> None:
    if value.scope is PowerScope.NODE:
        faults.need(Kind.NODE, value.subject, "/subject")
    elif value.scope is PowerScope.DEVICE:
        faults.need(Kind.DEVICE, value.subject, "/subject")
    elif value.scope is PowerScope.CLUSTER and value.subject != cluster:
        faults.add("/subject", f"this cluster is called {cluster}")


def _check_planners(faults: _Faults, value: Policy) -> None:
    known = registry.names()
    if not value.planners:
        faults.add("/planners", f"name at least one planner; known are {', '.join(known)}")
    for index, planner in enumerate(value.planners):
        if planner not in known:
            faults.add(f"/planners/{index}", f"there is no planner {planner}; known are {', '.join(known)}")
    try:
        registry.check_settings(value)
    except FieldError as error:
        faults.add(error.field, error.message, "value-invalid")


def _check_governor(faults: _Faults, value: Policy) -> None:
    known = controllers.names()
    if value.governor not in known:
        faults.add("/governor", f"there is no controller {value.governor}; known are {', '.join(known)}")


def check_unused(session: Session, kind: Kind, key: Key) -> None:
    """Raise ReferencedError while something uses the document, StateError for what must always be there."""
    name = key[-1]
    if kind in (Kind.POLICY, Kind.PROJECT) and name == DEFAULT:
        raise StateError(f"the {_WORDS[kind]} {DEFAULT} cannot be deleted")
    users = {
        Kind.GPU_TYPE: _users_of_gpu_type,
        Kind.MODEL: _users_of_model,
        Kind.POLICY: _users_of_policy,
        Kind.PROJECT: _users_of_project,
        Kind.NODE: _users_of_node,
    }.get(kind)
    user = next(iter(users(session, name)), None) if users is not None else None
    if user is not None:
        raise ReferencedError(f"{_WORDS[kind]} {name} is still used by {user}", used_by=user)


def _users_of_gpu_type(session: Session, name: str) -> Iterable[str]:
    for stored in documents.all_specs(session, Kind.DEVICE):
        if stored.spec["gpu_type"] == name:
            yield f"device {stored.key[0]}"
    for kind in _WORKLOADS:
        for stored in documents.all_specs(session, kind):
            if name in stored.spec["gpu_types_allowed"] or name == stored.spec.get("gpu_type_reference"):
                yield f"{kind.value}/{'/'.join(stored.key)}"
    if profiles.count(session, gpu_type=name) or pair_points.count(session, gpu_type=name):
        yield "its profiles; delete them first"


def _users_of_model(session: Session, name: str) -> Iterable[str]:
    for kind in _WORKLOADS:
        for stored in documents.all_specs(session, kind):
            if name == stored.spec["model"] or name in stored.spec.get("alternatives", ()):
                yield f"{kind.value}/{'/'.join(stored.key)}"
    if profiles.count(session, model=name) or pair_points.count(session, model=name):
        yield "its profiles; delete them first"


def _users_of_policy(session: Session, name: str) -> Iterable[str]:
    for kind in _WORKLOADS:
        for stored in documents.all_specs(session, kind):
            if stored.spec.get("policy") == name:
                yield f"{kind.value}/{'/'.join(stored.key)}"


def _users_of_project(session: Session, name: str) -> Iterable[str]:
    for kind in _WORKLOADS:
        for stored in documents.page(session, kind, limit=1, project=name).items:
            yield f"{kind.value}/{'/'.join(stored.key)}"
    cursor: str | None = None
    while True:
        page = tokens.page(session, limit=PAGE, cursor=cursor)
        for token in page.items:
            if token.project == name and token.revoked_at is None:
                yield f"the token {token.id}"
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def _users_of_node(session: Session, name: str) -> Iterable[str]:
    target = targets.node_document(session, name)
    plain: Any = target.document if target is not None else {"devices": ()}
    for device in plain["devices"]:
        for replica in device["replicas"]:
            yield f"replica {replica['replica']}, which the current target places there"


def release(session: Session, kind: Kind, key: Key) -> None:
    """End what lives only through a document that is about to go: a node's tokens, a job's progress."""
    if kind is Kind.NODE:
        tokens.revoke_of_subject(session, tokens.Purpose.NODE, key[0])
    elif kind in (Kind.JOB, Kind.TASK):
        progress.forget(session, WorkloadKind.JOB if kind is Kind.JOB else WorkloadKind.TASK, *key)
