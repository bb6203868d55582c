"""What agents and gateways deliver: reports, offered load, receipts; and stored telemetry read back as series.

Here stand the checks that need the clock or the registry (times from the future, devices of other nodes) and the group
commit through which many nodes share one transaction. A report is acknowledged only after its transaction has
committed; a repeat is acknowledged and not stored again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import TypeVar
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from agents.wire import EdgeReport, NodeReceipt, ReplicaReadBack, ReplicaReport, Report
from app import kinds
from app.errors import ClockBackwardsError, FieldsError
from app.records import record, record_of
from app.store import documents, events, ingest, nodes, targets, telemetry
from app.store.engine import Database
from app.store.events import Event
from app.store.grouped import GroupCommit
from app.store.ingest import OutcomeKind, RefusalCode, ReportOutcome
from app.store.replica import Reads
from app.store.targets import Standing
from app.store.telemetry import DevicePoint, ServicePoint, TelemetryWindow
from solvers.cycle.ports import Clock
from solvers.domain.change import ReceiptOutcome
from solvers.domain.codec import Plain
from solvers.errors import HeadroomError, NotFoundError

R = TypeVar("R", Report, EdgeReport)

LINGER_S_MAX = 0.2
LINGER_S_PER_NODE = 0.001
CLOCK_AHEAD = "node.clock_ahead"
AHEAD_S_MAX = 1e9
"""Told of a clock; a number as large as one may write is none that JSON keeps."""
IN_FUTURE = "time-in-future"
FOREIGN = "node.spoke_of_others"
FOREIGN_EVERY_S = 3600.0
FOREIGN_NAMED_MAX = 8
UNKNOWN_TOLD_MAX = 100


REPORTS_PER_CALL_MAX = 720
APPLIED, REFUSED = ReceiptOutcome.APPLIED.value, ReceiptOutcome.REFUSED.value
REGISTRY_TTL_MS = 60_000.0
REGISTRY_SIZE_MAX = 50_000
ALONG_MAX = 64


Heard = Callable[[Sequence[tuple[int, ReportOutcome]]], None]
"""Hears of one commit, for metrics: rows and outcome of every report in it."""


@record
class Acknowledged:
    """Everything sent is stored: so many for the first time, so many already were."""

    accepted: int
    duplicates: int


@record
class OfferedAcknowledged(Acknowledged):
    unknown: tuple[str, ...]
    """Services that nobody declared, a hundred at most: what was asked of them counts once somebody does."""


@record
class DeviceSeries:
    """A device in even steps; steps without a report are left out."""

    uuid: str
    start: datetime
    end: datetime
    step_s: float
    items: tuple[DevicePoint, ...]


@record
class ServiceSeries:
    """A service in even steps; steps without a report are left out."""

    service: str
    start: datetime
    end: datetime
    step_s: float
    items: tuple[ServicePoint, ...]


_NAMED = attrgetter("uuid", "replica", "kind", "workload", "project")
_WHOLE = attrgetter("uuid", "replica", "kind", "workload", "project", "model", "share_pct_sm", "memory_mib_limit")
_PLACED = attrgetter("uuid", "replica")
_SIZED = attrgetter("uuid", "replica", "share_pct_sm", "memory_mib_limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """What a node may speak of: its devices, processes that it was told to hold, generations that were promoted."""

    devices: frozenset[str]
    told: frozenset[tuple[object, ...]]
    standing: Standing

    def covers(self, generation: int, items: Iterable[ReplicaReport | ReplicaReadBack]) -> bool:
        return generation <= self.standing.generation and all(map(self.told_of, items))

    def told_of(self, item: ReplicaReport | ReplicaReadBack) -> bool:
        """Whether this is a process that the node was told to hold, of that size, and of that work where it says so."""
        if isinstance(item, ReplicaReadBack):
            return _SIZED(item) in self.told or _PLACED(item) in self.told
        return _WHOLE(item) in self.told or _NAMED(item) in self.told


def _assigned(session: Session, names: Sequence[str], cluster: str) -> tuple[Assigned, ...]:
    told: defaultdict[str, set[tuple[object, ...]]] = defaultdict(set)
    for each in targets.told_to(session, names):
        place, project = (each.uuid, each.replica), each.workload.partition("/")[0]
        size = () if each.share_pct_sm is None else (each.share_pct_sm, each.memory_mib_limit)
        model = () if each.model is None else (each.model,)
        told[each.node_id].add((*place, *size))
        told[each.node_id].add((*place, each.kind, each.workload, project, *model, *size))
    devices, standing = nodes.devices_of_nodes(session, names), targets.standing(session, cluster)
    return tuple(
        Assigned(devices=frozenset(devices.get(name, ())), told=frozenset(told[name]), standing=standing)
        for name in names
    )


@dataclass(slots=True)
class _Known:
    """What may be said, until when that is remembered, and when it was asked for."""

    assigned: Assigned
    until_ms: float
    used_ms: float


class NodeRegistry:
    """What each node may speak of, remembered for some seconds: every report asks. Whoever asks the database asks for
    others along, whose time is half over and who speak, too.
    """

    def __init__(self, database: Database, clock: Clock, cluster: str) -> None:
        self._database = database
        self._clock = clock
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        """Whose time is over first comes first."""
        self._asking: GroupCommit[str, Assigned] = GroupCommit(self._ask)

    def __len__(self) -> int:
        return len(self._known)

    def remembered(self, node: str, enough: Callable[[Assigned], bool]) -> Assigned | None:
        """What is remembered of a node, if it is enough."""
        now_ms = self._clock.elapsed_ms()
        with self._lock:
            known = self._known.get(node)
        if known is None:
            return None
        known.used_ms = now_ms
        return known.assigned if now_ms < known.until_ms and enough(known.assigned) else None

    def of(self, node: str, enough: Callable[[Assigned], bool]) -> Assigned:
        """What a node may speak of, as it is now unless what is remembered is enough."""
        known = self.remembered(node, enough)
        return self._ask((node,))[0] if known is None else known

    async def asked(self, node: str) -> Assigned:
        """What a node may speak of as it is now, asked together with whoever else is asked about."""
        return await self._asking.submit(node)

    def _ask(self, names: Sequence[str]) -> Sequence[Assigned]:
        now_ms = self._clock.elapsed_ms()
        along = self._due(now_ms, set(names))
        found = self._database.read(_assigned, (*names, *along), self._cluster)
        with self._lock:
            for node, assigned in zip((*names, *along), found, strict=True):
                # Not of those that were asked for or forgotten meanwhile.
                if node not in along or self._known.get(node) is along[node]:
                    self._known[node] = _Known(assigned, now_ms + REGISTRY_TTL_MS, now_ms)
                    self._known.move_to_end(node)
            while len(self._known) > REGISTRY_SIZE_MAX:
                self._known.popitem(last=False)
        return found[: len(names)]

    def _due(self, now_ms: float, asked: Container[str]) -> dict[str, _Known]:
        """Who will ask soon; those who speak no more are forgotten."""
        soon_ms, spoke_ms = now_ms + REGISTRY_TTL_MS / 2, now_ms - REGISTRY_TTL_MS / 2
        with self._lock:
            first = list(islice(self._known.items(), ALONG_MAX))
            for node, known in first:
                if known.used_ms < spoke_ms and known.until_ms < now_ms:
                    del self._known[node]
        return {
            node: known
            for node, known in first
            if known.used_ms >= spoke_ms and known.until_ms < soon_ms and node not in asked
        }

    def forget(self, node: str) -> None:
        """Ask again next time."""
        with self._lock:
            self._known.pop(node, None)


Grouped = GroupCommit[tuple[R, ...], tuple[ReportOutcome, ...]]


class Telemetry:
    def __init__(
        self, database: Database, clock: Clock, cluster: str, skew_s: float, heard: Heard, reads: Reads
    ) -> None:
        self._reads = reads
        self._database = database
        self._clock = clock
        self._skew_s = skew_s
        self._heard = heard
        self.registry = NodeRegistry(database, clock, cluster)
        # In a large fleet somebody else's report is never far; in a small one nobody waits.
        self._reports: Grouped[Report] = self._grouped(
            lambda report: len(report.devices) + len(report.replicas),
            lambda: min(LINGER_S_MAX, LINGER_S_PER_NODE * len(self.registry)),
        )
        self._edges: Grouped[EdgeReport] = self._grouped(lambda report: len(report.samples), lambda: 0.0)

    async def accept_reports(self, reports: tuple[Report, ...], many: bool) -> Acknowledged:
        """Store a node's reports, oldest first, without what the node was never told to hold. Raises FieldsError for
        times from the future and devices that are not the node's, ClockBackwardsError, NotFoundError when the node
        never joined. Reports before the faulty one are stored.
        """
        prefixes = _prefixes(len(reports), many)
        ahead_s = max(report.observed_at_s for report in reports) - self._clock.now_s()
        if ahead_s > self._skew_s:
            facts: dict[str, Plain] = {"code": IN_FUTURE, "ahead_s": round(min(ahead_s, AHEAD_S_MAX))}
            event = Event(name=CLOCK_AHEAD, **_by(reports[0].node), facts=facts)
            await asyncio.to_thread(self._note, event, nodes.CLOCK_EVERY_S)
        for prefix, report in zip(prefixes, reports, strict=True):
            self._check_time(prefix, report.observed_at_s)
        own = [await self._own(prefix, report) for prefix, report in zip(prefixes, reports, strict=True)]
        return _acknowledge(await self._reports.submit(tuple(own)), prefixes)

    async def accept_edge_reports(self, reports: tuple[EdgeReport, ...], many: bool) -> OfferedAcknowledged:
        """Store a gateway's reports, oldest first. Raises as `accept_reports` does."""
        prefixes = _prefixes(len(reports), many)
        for prefix, report in zip(prefixes, reports, strict=True):
            self._check_time(prefix, report.observed_at_s)
        done = _acknowledge(await self._edges.submit(reports), prefixes)
        told = {each.service for report in reports for each in report.samples}
        unknown = await asyncio.to_thread(self._undeclared, told)
        return record_of(OfferedAcknowledged, done, unknown=tuple(unknown[:UNKNOWN_TOLD_MAX]))

    def _undeclared(self, services: set[str]) -> list[str]:
        with self._database.reading() as session:
            return sorted(services.difference(map("/".join, documents.saying(session, kinds.SERVICE))))

    def accept_receipt(self, receipt: NodeReceipt, peer: str) -> bool:
        """Keep what a node read back of what it was told to hold; tells whether it was new. `peer`: whence it came.
        Of a node that holds another history, only the refusal is kept. Raises FieldsError for times from the future,
        histories and generations that are not this cluster's and addresses that are not the node's.
        """
        self._check_time("", receipt.observed_at_s)

        def covered(known: Assigned) -> bool:
            return known.standing.covers(receipt) and known.covers(receipt.generation, receipt.replicas)

        known = self.registry.of(receipt.node, covered)
        standing, own = known.standing, known.standing.covers(receipt)
        if not own:
            refusal = self._foreign_history("", receipt, standing)
            if receipt.outcome != REFUSED:
                raise refusal
            receipt = replace(receipt, replicas=())
        if receipt.generation > standing.generation:
            self.note_foreign(receipt.node, "generation-unknown", [str(receipt.generation)])
            raise FieldsError.of("/generation", f"{standing.generation} is the newest generation", "generation-unknown")
        self._check_endpoints(receipt, peer)
        kept = tuple(filter(known.told_of, receipt.replicas))
        if len(kept) < len(receipt.replicas):
            untold = [item.replica for item in receipt.replicas if not known.told_of(item)]
            self.note_foreign(receipt.node, "replica-not-told", untold)
            receipt = replace(receipt, replicas=kept)
        with self._database.transaction() as session:
            new = nodes.put_receipt(session, receipt)
            if own:
                nodes.keep_read_back(session, receipt)
            if receipt.outcome == APPLIED:
                nodes.raise_generation(session, receipt.node, receipt.boot_id, receipt.generation)
        return new

    def device_series(self, uuid: str, window: TelemetryWindow) -> DeviceSeries:
        items = self._reads.read(telemetry.device_series, uuid, window)
        return DeviceSeries(uuid=uuid, start=window.since, end=window.until, step_s=window.step_s, items=items)

    def service_series(self, service: str, window: TelemetryWindow) -> ServiceSeries:
        items = self._reads.read(telemetry.service_series, service, window)
        return ServiceSeries(service=service, start=window.since, end=window.until, step_s=window.step_s, items=items)

    def _check_time(self, prefix: str, observed_at_s: float) -> None:
        ahead_s = observed_at_s - self._clock.now_s()
        if ahead_s > self._skew_s:
            told = f"this lies {ahead_s:.0f} s in the future of the server's clock; {self._skew_s:g} s are allowed"
            raise FieldsError.of(f"{prefix}/observed_at_s", told, IN_FUTURE)

    async def _own(self, prefix: str, report: Report) -> Report:
        """The report without what its node was never told. Raises FieldsError for devices that are not the node's."""
        _check_distinct(prefix, report)
        named = {device.uuid for device in report.devices} | {replica.uuid for replica in report.replicas}

        def covered(known: Assigned) -> bool:
            own = named <= known.devices and known.standing.covers(report)
            return own and known.covers(report.generation_applied, report.replicas)

        if self.registry.remembered(report.node, covered) is not None:
            return report
        known = await self.registry.asked(report.node)
        return report if covered(known) else await asyncio.to_thread(self._cut, prefix, report, known)

    def _cut(self, prefix: str, report: Report, known: Assigned) -> Report:
        """Its devices held and used whatever history says of plans: of an epoch that is over, all but the generation
        counts.
        """
        if not known.standing.follows(report):
            raise self._foreign_history(prefix, report, known.standing)
        named_at = [(f"/devices/{index}", device.uuid) for index, device in enumerate(report.devices)]
        named_at += [(f"/replicas/{index}", replica.uuid) for index, replica in enumerate(report.replicas)]
        for place, uuid in named_at:
            if uuid not in known.devices:
                detail = f"{uuid} is no registered device of node {report.node}"
                raise FieldsError.unknown(f"{prefix}{place}/uuid", detail)
        untold = [item.replica for item in report.replicas if not known.told_of(item)]
        if untold:
            self.note_foreign(report.node, "replica-not-told", untold)
        applied = report.generation_applied if known.standing.covers(report) else 0
        if applied > known.standing.generation:
            self.note_foreign(report.node, "generation-unknown", [str(applied)])
            applied = 0
        return replace(report, generation_applied=applied, replicas=tuple(filter(known.told_of, report.replicas)))

    def _foreign_history(self, prefix: str, said: NodeReceipt | Report, standing: Standing) -> FieldsError:
        """What to answer to it, once that is noted."""
        self.note_foreign(said.node, "history-foreign", [f"{said.cluster_id}, epoch {said.epoch}"])
        detail = f"here stands epoch {standing.epoch} of cluster {standing.cluster_id}"
        return FieldsError.of(f"{prefix}/epoch", detail, "history-foreign")

    def _check_endpoints(self, receipt: NodeReceipt, peer: str) -> None:
        """Processes answer where their node does, where it said at joining that they would, or whence it calls."""
        told = {item.endpoint for item in receipt.replicas if item.endpoint is not None}
        if not told:
            return
        state = self._database.read(nodes.get, receipt.node)
        hosts = {peer, state.worker_host, None if state.endpoint is None else urlsplit(state.endpoint).hostname}
        for index, item in enumerate(receipt.replicas):
            if item.endpoint is not None and urlsplit(item.endpoint).hostname not in hosts:
                self.note_foreign(receipt.node, "endpoint-foreign", [item.endpoint])
                detail = f"node {receipt.node} said nothing of {item.endpoint} when it joined"
                raise FieldsError.of(f"/replicas/{index}/endpoint", detail, "endpoint-foreign")

    def note_foreign(self, node: str, code: str, named: Sequence[str]) -> None:
        """Leave an audit event, one an hour for each node and code: agents repeat themselves."""
        facts: dict[str, Plain] = {"code": code, "named": list(named[:FOREIGN_NAMED_MAX])}
        self._note(Event(name=FOREIGN, **_by(node), facts=facts), FOREIGN_EVERY_S)

    def _note(self, event: Event, every_s: float) -> None:
        with self._database.transaction() as session:
            events.append_rarely(session, event, every_s)

    def _grouped(self, rows_of: Callable[[R], int], linger_s: Callable[[], float]) -> Grouped[R]:
        """Many senders' reports in one transaction, each sender's in its order."""

        def store(batch: Sequence[tuple[R, ...]]) -> list[tuple[ReportOutcome, ...]]:
            flat = [report for reports in batch for report in reports]
            with self._database.raw() as connection:
                outcomes = ingest.ingest(connection, flat)
            self._heard(list(zip(map(rows_of, flat), outcomes, strict=True)))
            parts = iter(outcomes)
            return [tuple(next(parts) for _ in reports) for reports in batch]

        # Whoever was cut off brings fifty reports at once, and gives up after ten seconds.
        return GroupCommit(store, linger_s=linger_s, size_of=len)


def _by(node: str) -> dict[str, str]:
    """Of an event what says that a node is whom it is by and about."""
    return {"actor": f"node:{node}", "subject": f"nodes/{node}"}


def _check_distinct(prefix: str, report: Report) -> None:
    """A device twice in one report would count its energy twice. A replica may: beside its shadow."""
    seen: set[str] = set()
    for index, device in enumerate(report.devices):
        if device.uuid in seen:
            raise FieldsError.of(f"{prefix}/devices/{index}/uuid", f"{device.uuid} stands twice", "key-repeated")
        seen.add(device.uuid)


def _prefixes(count: int, many: bool) -> list[str]:
    if not 1 <= count <= REPORTS_PER_CALL_MAX:
        raise FieldsError.of("", f"send 1 to {REPORTS_PER_CALL_MAX} reports at once", "count-out-of-range")
    return [f"/{index}" if many else "" for index in range(count)]


def _acknowledge(outcomes: tuple[ReportOutcome, ...], prefixes: list[str]) -> Acknowledged:
    for prefix, outcome in zip(prefixes, outcomes, strict=True):
        if outcome.kind is OutcomeKind.REFUSED:
            raise _refusal(prefix, outcome.code)
    repeats = sum(outcome.kind is OutcomeKind.DUPLICATE for outcome in outcomes)
    return Acknowledged(accepted=len(outcomes) - repeats, duplicates=repeats)


def _refusal(prefix: str, code: RefusalCode | None) -> HeadroomError:
    if code is RefusalCode.CLOCK_WENT_BACKWARDS:
        return ClockBackwardsError(f"{prefix}/observed_at_s lies before that of an earlier report of this boot")
    if code is RefusalCode.UNKNOWN_NODE:
        return NotFoundError("this node has not joined")
    return FieldsError.of(prefix, "a value of this report cannot be stored")
