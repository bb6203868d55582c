"""Where requests may go: of every service, the replica processes that are ready, where they answer, and their weights.

Of a node, whatever was observed last speaks: its newest read-back, which comes as soon as a process becomes ready or
stops being it, or its newest report. A process that is draining, starting or failed is never named, nor any of a node
that is silent. What changes without a notification (reports, silence, deleted services) is found by asking in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from app import kinds
from app.records import record, record_of
from app.store import documents, nodes, targets, telemetry
from app.store.engine import Database, notified
from app.store.nodes import NodeReadBack, ReadBackRow, ReportHead
from app.store.telemetry import ReplicaRow
from solvers.domain.change import Target
from solvers.domain.grouping import grouped
from solvers.domain.ids import ReplicaId
from solvers.domain.plan import Assignment
from solvers.domain.workload import WorkloadKind
from solvers.errors import NotFoundError

ROUTE_SILENT_S = 20.0
"""A replica whose node said nothing for this long gets no more traffic."""
READY: Literal["ready"] = "ready"
LEAVING: Literal["leaving"] = "leaving"
"""Ready, but not as planned: it serves until everything planned of its service is ready."""
TARGETS_KEPT = 3
_PORTS = {"http": 80, "https": 443}
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyProcess:
    replica: str
    kind: str
    workload: str
    uuid: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    endpoint: str | None = None
    """None: it cannot be reached."""


@record
class RouteReplica:
    """A ready process of a replica; without an endpoint it cannot be reached over HTTP. Weights are planned capacity,
    requests per second, or shares where a plan says nothing. A `leaving` process is not as planned any more and serves
    until what is planned is ready. `generation` is that of the target which the weight comes from.
    """

    replica: str
    endpoint: str | None
    host: str | None
    port: int | None
    weight: float
    state: Literal["ready", "leaving"]
    generation: int


@record
class Route:
    """Where a service's requests may go. `ready_path` answers 2xx on a replica that is ready, where the service names
    one.
    """

    service: str
    generation: int
    ready_path: str | None
    replicas: tuple[RouteReplica, ...]


@record
class Routes:
    """The routes of every service, also of those that nobody serves."""

    items: tuple[Route, ...]


class RouteTable:
    """Reads the routes of a moment; keeps nothing but the last targets, which never change."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster
        self._targets: dict[int, Target] = {}

    def every(self, project: str | None) -> Routes:
        """Routes of all services, or of one project's, by name; also of those that nobody serves."""
        prefix = "" if project is None else f"{project}/"
        return Routes(items=tuple(route for name, route in self.table().items() if name.startswith(prefix)))

    def one(self, project: str, name: str) -> Route:
        """Routes of one service. Raises NotFoundError when there is no such service."""
        found = self.table().get(f"{project}/{name}")
        if found is None:
            raise NotFoundError(f"there is no service {project}/{name}")
        return found

    def table(self) -> dict[str, Route]:
        with self._database.reading() as session:
            services = {"/".join(stored.key): stored.spec for stored in documents.all_specs(session, kinds.SERVICE)}
            target = self._target(session, targets.generation(session, self._cluster))
            processes = _ready(session, services.keys(), target.assignments)
            chosen = choose_routes(processes, target.assignments)
            earlier = Target()
            if target.generation > 1 and not all(chosen.values()):
                earlier = self._target(session, target.generation - 1)
        found: dict[str, list[tuple[ReadyProcess, int]]] = defaultdict(list)
        for process, as_planned in sorted(chosen.items(), key=lambda item: (item[0].replica, item[0].endpoint or "")):
            found[process.workload].append((process, target.generation if as_planned else earlier.generation))
        capacity_rps = {
            int(each.generation): {item.replica: item.capacity_rps for item in each.assignments}
            for each in (earlier, target)
        }
        return {
            service: Route(
                service=service,
                generation=target.generation,
                ready_path=(spec.get("worker") or {}).get("ready_path"),
                replicas=_replicas(found[service], capacity_rps, target.generation),
            )
            for service, spec in sorted(services.items())
        }

    def _target(self, session: Session, generation: int) -> Target:
        if generation == 0:
            return Target()
        target = self._targets.get(generation) or targets.at(session, generation)
        recent = {older: kept for older, kept in self._targets.items() if abs(older - generation) < TARGETS_KEPT}
        self._targets = {**recent, generation: target}
        return target


def _replicas(
    chosen: list[tuple[ReadyProcess, int]], capacity_rps: Mapping[int, Mapping[ReplicaId, float]], standing: int
) -> tuple[RouteReplica, ...]:
    """The routes' replicas; weighed by planned requests per second, or where a plan has none of one, by told share."""
    latest = capacity_rps[standing]
    planned = [
        capacity_rps[generation].get(ReplicaId(each.replica)) or latest.get(ReplicaId(each.replica)) or 0.0
        for each, generation in chosen
    ]
    weights = planned if all(planned) else [float(each.share_pct_sm) for each, _ in chosen]
    return tuple(
        RouteReplica(
            replica=each.replica,
            endpoint=each.endpoint,
            **_address(each.endpoint),
            weight=weight,
            state=READY if generation == standing else LEAVING,
            generation=generation,
        )
        for (each, generation), weight in zip(chosen, weights, strict=True)
    )


def _address(endpoint: str | None) -> Plain:
    if endpoint is None:
        return {"host": None, "port": None}
    parts = urlsplit(endpoint)
    try:
        port = parts.port
    except ValueError:
        return {"host": None, "port": None}
    return {"host": parts.hostname, "port": port or _PORTS.get(parts.scheme)}


def choose_routes(ready: Iterable[ReadyProcess], planned: Iterable[Assignment]) -> dict[ReadyProcess, bool]:
    """The ready replica processes that shall get traffic, and whether each is as planned. A process that is not as
    planned (elsewhere, of another size, or of a replica that is on its way out) is used only until everything planned
    of its service is ready: the old serves until the new can.
    """
    wanted = {item.replica: item for item in planned if item.kind is WorkloadKind.SERVICE}
    services = [process for process in ready if process.kind == WorkloadKind.SERVICE.value]
    chosen = {process: True for process in services if _is_planned(process, wanted.get(ReplicaId(process.replica)))}
    arrived = {process.replica for process in chosen}
    awaited = {item.workload for item in wanted.values() if item.replica not in arrived}
    for process in services:
        if process.replica not in arrived and process.workload in awaited:
            arrived.add(process.replica)
            chosen[process] = False
    return chosen


def _is_planned(process: ReadyProcess, item: Assignment | None) -> bool:
    held = (process.uuid, process.share_pct_sm, process.memory_mib_limit)
    return item is not None and held == (item.device, item.share_pct_sm, item.memory_mib_limit)


def _ready(session: Session, services: Iterable[str], planned: Iterable[Assignment]) -> list[ReadyProcess]:
    """Every process that its node found ready when it was last heard of."""
    states = {state.node_id: state for state in nodes.all_states(session)}
    homes = documents.by_name(session, kinds.DEVICE, "node")
    heads = nodes.report_heads(session)
    kept = {item.node_id: item for item in nodes.read_backs(session) if item.node_id in states}
    reported = grouped(telemetry.replicas(session, ROUTE_SILENT_S), lambda row: homes.get(row.uuid, ""))
    kind_of = dict.fromkeys(services, WorkloadKind.SERVICE.value)
    kind_of |= {item.replica: item.kind.value for item in planned}
    found: list[ReadyProcess] = []
    for node, state in states.items():
        read_back = kept.get(node)
        if read_back is not None and speaks(read_back, heads.get(node), state.boot_id):
            if read_back.age_s <= ROUTE_SILENT_S:
                found += _from_read_back(read_back, kind_of, state.endpoint)
        else:
            found += from_report(reported[node], read_back, state.endpoint)
    return found


def speaks(read_back: NodeReadBack, head: ReportHead | None, boot_id: str) -> bool:
    """Whether a node's read-back is newer than its newest report. Times compare within a boot only."""
    if head is None or head.boot_id == read_back.boot_id:
        return head is None or read_back.observed_at_s >= head.observed_at_s
    return read_back.boot_id == boot_id


def _from_read_back(
    read_back: NodeReadBack, kind_of: Mapping[str, str], node_endpoint: str | None
) -> list[ReadyProcess]:
    found = []
    for item in read_back.replicas:
        workload, endpoint = item.replica.rpartition("#")[0], item.endpoint or node_endpoint
        kind = kind_of.get(item.replica, kind_of.get(workload, ""))
        if item.ready:
            found.append(record_of(ReadyProcess, item, kind=kind, workload=workload, endpoint=endpoint))
    return found


def from_report(
    rows: Iterable[ReplicaRow], read_back: NodeReadBack | None, node_endpoint: str | None
) -> list[ReadyProcess]:
    """Ready processes of a report. Reports do not say where a process answers; the read-back that names it does."""
    known = list(read_back.replicas) if read_back is not None else []
    # Where processes answer for themselves, one that was not read back yet might be anywhere: it has to wait.
    for_themselves = any(item.endpoint is not None for item in known)
    found = []
    for row in rows:
        match = _match(row, known)
        measured = row.replica.rpartition("#")[0] != row.workload
        if row.state != READY or measured or (match is None and for_themselves):
            continue
        if match is not None:
            known.remove(match)
        endpoint = match.endpoint if match is not None and match.endpoint is not None else node_endpoint
        found.append(record_of(ReadyProcess, row, endpoint=endpoint))
    return found


def _match(row: ReplicaRow, known: Iterable[ReadBackRow]) -> ReadBackRow | None:
    """The read-back of a reported process: ready ones and ones of the same batch first."""
    held = (row.replica, row.uuid, row.share_pct_sm, row.memory_mib_limit)
    same = [item for item in known if (item.replica, item.uuid, item.share_pct_sm, item.memory_mib_limit) == held]
    return max(same, key=lambda item: (item.batch == row.batch, item.ready), default=None)


Changed = Callable[[float], bool]
"""Waits so many seconds at most; tells whether anything was announced."""


@contextmanager
def route_changes(database: Database) -> Iterator[Changed]:
    """Listen. Raises TransientError when the database goes away."""
    with database.listening(nodes.ROUTES_CHANNEL, targets.CHANNEL) as connection:
        yield lambda timeout_s: any(True for _ in notified(connection, timeout_s))
