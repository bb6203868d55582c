"""Taking in telemetry: many reports in one transaction, through COPY, each stored exactly once.

A report is judged against the newest one of its source (repeats are acknowledged but not stored again, clocks that run
backwards are refused, unless they were ahead), and the live state that it carries is brought up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter
from typing import Any
from uuid import UUID

import psycopg
from psycopg.errors import UniqueViolation
from sqlalchemy import BigInteger, Boolean, DateTime, Double, Integer, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from agents.wire import DeviceReport, EdgeReport, ReplicaReport, Report
from app.store.binary import UNFIT, Packed, Row
from app.store.sql import driven, named
from app.store.tables import node_samples, rate_samples, report_log, sample_shapes
from solvers.errors import TransientError

# --- Rows of telemetry as binary COPY takes them: columns with their types, and the values of a report in that order


_COPY_TYPES = {
    Text: "text",
    Double: "float8",
    Integer: "int4",
    BigInteger: "int8",
    Boolean: "bool",
    DateTime: "timestamptz",
    UUID_TYPE: "uuid",
}


def _copy_type(kind: Any) -> str:
    return f"{_copy_type(kind.item_type)}[]" if isinstance(kind, ARRAY) else _COPY_TYPES[type(kind)]


def _types(table: Table) -> dict[str, str]:
    """Columns that a report fills, with their types."""
    known = ("received_at", "shaped_at")
    return {column.name: _copy_type(column.type) for column in table.c if column.name not in known}


SHAPE_TYPES = _types(sample_shapes)
SAMPLE_TYPES = _types(node_samples)
LOG_TYPES = _types(report_log)
SHAPES, SAMPLES = Packed("sample_shapes", SHAPE_TYPES), Packed("node_samples", SAMPLE_TYPES)
RATES, LOG = Packed("rate_samples", _types(rate_samples)), Packed("report_log", LOG_TYPES)


def _of(types: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The columns along devices or processes."""
    return {name: kind for name, kind in types.items() if name.startswith(prefix)}


MESSAGE_NAMES = {"replica_name": "replica"}
"""Fields of reports whose columns are called otherwise."""


class _Along:
    """Arrays along the devices or the processes of a report: what they are called, and what was read of them. One that
    says of all what is so common that it need not be stored is none.
    """

    def __init__(self, prefix: str, common: Mapping[str, object]) -> None:
        names, numbers = _of(SHAPE_TYPES, prefix), _of(SAMPLE_TYPES, prefix)
        self._values = attrgetter(*(MESSAGE_NAMES.get(name, name.removeprefix(prefix)) for name in (*names, *numbers)))
        self._named, self._width = len(names), len(names) + len(numbers)
        self._common = [
            (index, common.get(name)) for index, name in enumerate(numbers, len(names)) if node_samples.c[name].nullable
        ]

    def arrays(self, items: Sequence[DeviceReport] | Sequence[ReplicaReport]) -> tuple[Row, Row]:
        columns: list[Any] = list(map(list, zip(*map(self._values, items), strict=True)))
        columns = columns or [[] for _ in range(self._width)]
        for index, value in self._common:
            if columns[index].count(value) == len(items):
                columns[index] = None
        return tuple(columns[: self._named]), tuple(columns[self._named :])


_DEVICES = _Along("device_", {"device_throttle": "", "device_healthy": True})
_REPLICAS = _Along("replica_", {"replica_state": "ready"})


def sample_rows(report: Report) -> tuple[Row, Row]:
    """Rows of `sample_shapes` and `node_samples`: what a report names, under the digest of it, and what it read."""
    device_names, device_numbers = _DEVICES.arrays(report.devices)
    replica_names, replica_numbers = _REPLICAS.arrays(report.replicas)
    names = (report.node, *device_names, *replica_names)
    shape = UUID(bytes=blake2b(repr(names).encode(), digest_size=16).digest())
    observed_at = datetime.fromtimestamp(report.observed_at_s, UTC)
    which = (report.node, report.boot_id, report.sequence, report.interval_s)
    return (shape, *names), (shape, observed_at, *which, *device_numbers, *replica_numbers)


OBSERVED_AT_S_MAX = 4_102_444_800.0
"""The year 2100: later times cannot be meant."""
ALIVE_S = 30.0
"""Who reported within this time holds its node's name."""
LATE_S_MAX = 86_400.0
"""Reports are stored when they come later than newer ones by so much; the log, which knows repeats, is kept longer."""
CLOCK_TOLERANCE_S = 0.001
"""Times are stored in whole microseconds, so equal ones may differ by less than this."""


class OutcomeKind(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class RefusalCode(StrEnum):
    UNKNOWN_NODE = "unknown-node"
    CLOCK_WENT_BACKWARDS = "clock-went-backwards"
    DATA_INVALID = "data-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOutcome:
    """What became of one report; `code` only when it was refused."""

    kind: OutcomeKind
    code: RefusalCode | None = None


ACCEPTED = ReportOutcome(kind=OutcomeKind.ACCEPTED)
DUPLICATE = ReportOutcome(kind=OutcomeKind.DUPLICATE)


@dataclass(slots=True)
class _Head:
    """The newest report of a source while a batch is judged; an empty boot id means that there is none yet."""

    boot_id: str
    sequence: int
    observed_at_s: float
    silent: bool = False
    age_s: float = 0.0
    now_s: float = 0.0
    behind_s: float | None = None
    """How far the server's clock is ahead of the node's."""
    moved: bool = False
    generation: int = 0

    def is_after(self, observed_at_s: float) -> bool:
        """Whether it was observed after that. One whose time is still to come was made by a clock that was ahead, and
        is not held against reports of the right time.
        """
        return observed_at_s < self.observed_at_s <= self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gain:
    """What one job or task got done by a report, in how many batches of how long together; `at_s`: when that was, by
    the server's clock.
    """

    kind: str
    project: str
    name: str
    at_s: float
    done: float
    executions: float
    executed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What is stored of a report."""

    log: bytes
    shape: Row | None = None
    samples: tuple[bytes, ...] = ()
    rates: tuple[bytes, ...] = ()


@dataclass(slots=True)
class _Batch:
    """Rows to copy and live state to write. `boots`: those that joined, the newest first, by their node's source."""

    heads: dict[str, _Head]
    boots: Mapping[str, Sequence[str]]
    stored: set[tuple[str, str, int]] = field(default_factory=set)
    logged: set[tuple[str, str, int]] = field(default_factory=set)
    shapes: dict[UUID, Row] = field(default_factory=dict)
    samples: list[bytes] = field(default_factory=list)
    rates: list[bytes] = field(default_factory=list)
    log: list[bytes] = field(default_factory=list)
    behind_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """How far the server's clock is ahead of each boot's, as these reports tell."""
    progress: list[_Gain] = field(default_factory=list)


def node_source(node: str) -> str:
    """Name of a node in `report_log` and `report_heads`."""
    return f"node/{node}"


def gateway_source(gateway: str) -> str:
    return f"gateway/{gateway}"


def source_of(report: Report | EdgeReport) -> str:
    """Who sent a report, as `report_log` and `report_heads` name it."""
    return gateway_source(report.gateway) if isinstance(report, EdgeReport) else node_source(report.node)


def ingest(connection: psycopg.Connection, reports: Sequence[Report | EdgeReport]) -> tuple[ReportOutcome, ...]:
    """Store reports in the caller's transaction; one outcome each, in order. One bad report costs only itself. A node
    must have joined; any gateway name is known.
    """
    made = list(map(_rows_of, reports))
    sound = [report for report, rows in zip(reports, made, strict=True) if rows is not None]
    nodes = sorted({report.node for report in sound if isinstance(report, Report)})
    joined = connection.execute(driven(named("boots_of_nodes")), {"nodes": nodes})
    known = {node_source(node): boots for node, boots in joined}
    gateways = {source_of(report) for report in sound if isinstance(report, EdgeReport)}
    batch = _Batch(_lock_heads(connection, sorted({*known, *gateways})), known)
    batch.logged = _logged(connection, batch.heads, sound)
    newest: dict[tuple[str, str], float] = {}
    for report in sound:
        name = (source_of(report), report.boot_id)
        newest[name] = max(newest.get(name, 0.0), report.observed_at_s)
    batch.behind_s = {
        (source, boot_id): _behind_s(batch.heads[source], boot_id, newest_s)
        for (source, boot_id), newest_s in newest.items()
        if source in batch.heads
    }
    outcomes = tuple(_take(batch, report, rows) for report, rows in zip(reports, made, strict=True))
    _write(connection, batch)
    _write_progress(connection, batch.progress)
    return outcomes


def _take(batch: _Batch, report: Report | EdgeReport, rows: _Rows | None) -> ReportOutcome:
    source = source_of(report)
    if rows is None:
        return ReportOutcome(kind=OutcomeKind.REFUSED, code=RefusalCode.DATA_INVALID)
    if source not in batch.heads:
        return ReportOutcome(kind=OutcomeKind.REFUSED, code=RefusalCode.UNKNOWN_NODE)
    outcome = _judge(batch, source, report)
    if outcome is ACCEPTED:
        batch.log.append(rows.log)
        batch.samples += rows.samples
        batch.rates += rows.rates
        if rows.shape is not None:
            batch.shapes[rows.shape[0]] = rows.shape
        if isinstance(report, Report):
            _note_progress(batch, source, report)
    return outcome


def _rows_of(report: Report | EdgeReport) -> _Rows | None:
    """None: it fits no columns."""
    if not 0 <= report.observed_at_s <= OBSERVED_AT_S_MAX:
        return None
    try:
        return _edge_rows(report) if isinstance(report, EdgeReport) else _node_rows(report)
    except UNFIT:
        return None


def _lock_heads(connection: psycopg.Connection, sources: Sequence[str]) -> dict[str, _Head]:
    """The heads of these sources, locked in one order by everybody so that two batches cannot deadlock."""
    heads = _select_heads(connection, sources)
    missing = [source for source in sources if source not in heads]
    if missing:
        connection.execute(driven(named("new_heads")), {"sources": missing})
        heads = _select_heads(connection, sources)
    return heads


def _select_heads(connection: psycopg.Connection, sources: Sequence[str]) -> dict[str, _Head]:
    found = connection.execute(driven(named("locked_heads")), {"alive_s": ALIVE_S, "sources": list(sources)})
    return {source: _Head(*columns) for source, *columns in found}


def _judge(batch: _Batch, source: str, report: Report | EdgeReport) -> ReportOutcome:
    """Whether a report is new, and whether it moves its source's head."""
    head = batch.heads[source]
    name = (source, report.boot_id, report.sequence)
    same_boot = report.boot_id == head.boot_id
    if (same_boot and report.sequence == head.sequence) or name in batch.stored:
        return DUPLICATE
    if same_boot and report.sequence > head.sequence:
        if head.is_after(report.observed_at_s + CLOCK_TOLERANCE_S):
            return ReportOutcome(kind=OutcomeKind.REFUSED, code=RefusalCode.CLOCK_WENT_BACKWARDS)
    elif same_boot or not _succeeds(batch.boots.get(source), head, report):
        # Sent late, after newer ones, or by somebody else: kept, but the head stays where it is.
        if head.is_after(report.observed_at_s + LATE_S_MAX) or name in batch.logged:
            return DUPLICATE
        batch.stored.add(name)
        return ACCEPTED
    elif name in batch.logged:
        return DUPLICATE
    batch.stored.add(name)
    head.behind_s = batch.behind_s[source, report.boot_id]
    head.boot_id, head.sequence, head.observed_at_s = report.boot_id, report.sequence, report.observed_at_s
    head.moved, head.silent = True, False
    return ACCEPTED


def _behind_s(head: _Head, boot_id: str, newest_s: float) -> float:
    """How far the server's clock is ahead of a boot's. While reports come as they are made the newest tells; what is
    resent after an outage comes faster, and was measured long before.
    """
    told_s = head.now_s - newest_s
    if boot_id != head.boot_id or head.behind_s is None:
        return told_s
    in_step = not head.silent and 0.0 < newest_s - head.observed_at_s <= 2.0 * head.age_s
    return told_s if in_step else min(told_s, head.behind_s)


def _succeeds(joined: Sequence[str] | None, head: _Head, report: Report | EdgeReport) -> bool:
    """Whether another boot's report becomes the head: a node's when it joined later than the head's, or when that fell
    silent and it goes on; a gateway's, which joins nothing, when it is newer or nobody else speaks.
    """
    # Where both are still to come, the server's clock is behind, and theirs tells which is newer.
    newer = report.observed_at_s > head.observed_at_s or report.observed_at_s <= head.now_s < head.observed_at_s
    if joined is None:
        return newer or head.silent or not head.boot_id
    if report.boot_id not in joined:
        return False
    later = head.boot_id not in joined or joined.index(report.boot_id) < joined.index(head.boot_id)
    return later or (head.silent and newer)


def _logged(
    connection: psycopg.Connection, heads: Mapping[str, _Head], reports: Sequence[Report | EdgeReport]
) -> set[tuple[str, str, int]]:
    """Which reports the log knows, of sources that sent one here which does not just follow their newest."""
    names = [(source_of(report), report.boot_id, report.sequence) for report in reports]
    odd = {
        source
        for source, boot_id, sequence in names
        if source in heads and not (boot_id == heads[source].boot_id and sequence >= heads[source].sequence)
    }
    asked = [name for name in names if name[0] in odd]
    columns = map(list, zip(*asked, strict=True)) if asked else ()
    wanted = dict(zip(("sources", "boots", "sequences"), columns, strict=False))
    return set(connection.execute(driven(named("logged_reports")), wanted)) if wanted else set()


_fit: set[UUID] = set()
"""Shapes that fit, by their digests: most come again and again."""
FIT_MAX = 100_000


def _node_rows(report: Report) -> _Rows:
    shape, sample = sample_rows(report)
    if shape[0] not in _fit:
        SHAPES.row(shape)
        if len(_fit) >= FIT_MAX:
            _fit.clear()
        _fit.add(shape[0])
    if not 0 <= report.generation_applied < 2**63:
        raise OverflowError("a generation fits in 64 bits")
    rows = len(report.devices) + len(report.replicas)
    source, observed_at = source_of(report), sample[1]
    log = LOG.row((source, report.boot_id, report.sequence, observed_at, report.interval_s, rows))
    return _Rows(log=log, shape=shape, samples=(SAMPLES.row(sample),))


def _edge_rows(report: EdgeReport) -> _Rows:
    observed_at = datetime.fromtimestamp(report.observed_at_s, UTC)
    stem = (observed_at, report.gateway, report.boot_id, report.sequence)
    rates = tuple(
        RATES.row((*stem, each.service, each.service.partition("/")[0], each.arrived, each.interval_s, each.unrouted))
        for each in report.samples
    )
    interval_s = max((sample.interval_s for sample in report.samples), default=0.0)
    source = source_of(report)
    log = LOG.row((source, report.boot_id, report.sequence, observed_at, interval_s, len(report.samples)))
    return _Rows(log=log, rates=rates)


def _note_progress(batch: _Batch, source: str, report: Report) -> None:
    head = batch.heads[source]
    if head.boot_id == report.boot_id and head.sequence == report.sequence:
        head.generation = report.generation_applied
    # Of another boot the living one's clock is the nearest that is known.
    behind_s = batch.behind_s[source, report.boot_id] if head.behind_s is None else head.behind_s
    for replica in report.replicas:
        done = replica.iterations_done if replica.kind != "service" else None
        if done:
            project, _, name = replica.workload.partition("/")
            mean_ms = replica.execution_ms_mean
            batch.progress.append(
                _Gain(
                    kind=replica.kind,
                    project=project,
                    name=name,
                    at_s=report.observed_at_s + behind_s,
                    done=done,
                    executions=0.0 if mean_ms is None else replica.executions,
                    executed_ms=0.0 if mean_ms is None else replica.executions * mean_ms,
                )
            )


def _write(connection: psycopg.Connection, batch: _Batch) -> None:
    _write_shapes(connection, batch.shapes)
    SAMPLES.copy(connection, batch.samples)
    RATES.copy(connection, batch.rates)
    LOG.copy(connection, batch.log)
    moved = {source: head for source, head in batch.heads.items() if head.moved}
    if moved:
        fresh = {
            "sources": list(moved),
            "boots": [head.boot_id for head in moved.values()],
            "sequences": [head.sequence for head in moved.values()],
            "times": [datetime.fromtimestamp(head.observed_at_s, UTC) for head in moved.values()],
            "nodes": [source.partition("/")[2] if source in batch.boots else None for source in moved],
            "generations": [head.generation for head in moved.values()],
            "behind_s": [head.behind_s for head in moved.values()],
        }
        connection.execute(driven(named("move_heads")), fresh)
    empty = [source for source, head in batch.heads.items() if not head.boot_id]
    if empty:
        connection.execute(driven(named("drop_empty_heads")), {"sources": empty})


def _write_shapes(connection: psycopg.Connection, shapes: Mapping[UUID, Row]) -> None:
    """Those that these three hours do not know yet. Nobody else brings them: a node's reports are taken one by one."""
    if not shapes:
        return
    known = {shape for (shape,) in connection.execute(driven(named("shapes_known")), {"shapes": list(shapes)})}
    try:
        SHAPES.copy(connection, [SHAPES.row(row) for shape, row in shapes.items() if shape not in known])
    except UniqueViolation as error:
        # Where a clock jumped, rows move to a partition of their own in the midst of this.
        raise TransientError("what reports name is being moved within the database") from error


def _write_progress(connection: psycopg.Connection, progress: Sequence[_Gain]) -> None:
    """Add what was done to the jobs and tasks that exist, and note when they began and ended."""
    if not progress:
        return
    found = {
        "kinds": [gain.kind for gain in progress],
        "projects": [gain.project for gain in progress],
        "names": [gain.name for gain in progress],
        "times": [datetime.fromtimestamp(gain.at_s, UTC) for gain in progress],
        "done": [float(gain.done) for gain in progress],
        "executions": [gain.executions for gain in progress],
        "executed_ms": [gain.executed_ms for gain in progress],
    }
    connection.execute(driven(named("add_progress")), found)
    connection.execute(driven(named("end_progress")), found)
