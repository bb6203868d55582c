"""Values that the store's tests put in: small, valid, and different only where a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from agents.wire import DeviceReport, EdgeReport, Join, RateSample, ReplicaReport, Report
from app import kinds
from app.kinds import Kind
from app.store import documents, nodes
from app.store.binary import Packed
from app.store.ingest import SAMPLE_TYPES, SHAPE_TYPES, sample_rows
from app.store.tables import job_progress, told_replicas
from solvers.domain.codec import Plain, to_plain
from solvers.domain.device import Device, GpuType, Node
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, NodeId, ProjectName
from solvers.domain.workload import OfflineTask, Project, Service, Slo, SloKind, TrainingJob, WorkloadKind


def spec_of(item: object) -> dict[str, Plain]:
    """A domain value as documents store it."""
    plain = to_plain(item)
    assert isinstance(plain, dict)
    return plain


def gpu_type(name: str = "t4") -> GpuType:
    """A GPU type."""
    return GpuType(
        name=GpuTypeName(name), product="T4", sm_count=40, memory_mib=15_360, tdp_w=70.0,
        idle_w=10.0, power_limit_w_min=60.0, power_limit_w_max=70.0, memory_bandwidth_gb_per_s=320.0,
        pcie_bandwidth_gb_per_s=16.0, fp32_tflops=8.1, fp16_tflops=65.0, clocks_mhz_sm=(585, 1590),
    )  # fmt: skip


def device(uuid: str, node: str, of_type: str = "t4") -> Device:
    """A device."""
    return Device(
        id=DeviceId(uuid), node=NodeId(node), gpu_type=GpuTypeName(of_type), index=0, memory_mib=15_360, sm_count=40
    )


def service(name: str, project: str = "vision", rate_rps: float = 10.0) -> Service:
    """A service."""
    return Service(
        project=ProjectName(project),
        name=name,
        model=ModelName("resnet"),
        slo=Slo(latency_ms=100.0),
        rate_rps_declared=rate_rps,
    )


def job(name: str, project: str = "vision") -> TrainingJob:
    """A training job."""
    return TrainingJob(
        project=ProjectName(project),
        name=name,
        model=ModelName("resnet"),
        iterations_total=1_000,
        iteration_ms_reference=100.0,
        gpu_type_reference=GpuTypeName("t4"),
        memory_mib=2_000,
    )


def task(name: str, project: str = "vision") -> OfflineTask:
    """An offline task."""
    return OfflineTask(
        project=ProjectName(project),
        name=name,
        model=ModelName("resnet"),
        inputs_total=10,
        slo=Slo(kind=SloKind.DEADLINE, deadline_s=3600.0),
    )


def put(session: Session, kind: Kind, item: object) -> documents.Stored:
    """Store a domain value as a document."""
    return documents.put(session, kind, spec_of(item)).stored


def put_project(session: Session, name: str = "vision") -> None:
    """Store a project."""
    put(session, kinds.PROJECT, Project(name=ProjectName(name)))


def put_node(session: Session, name: str, boot_id: str = "boot-a") -> None:
    """Store a node that has joined."""
    put(session, kinds.NODE, Node(id=NodeId(name)))
    nodes.join(session, joining(name, boot_id))


def joining(name: str, boot_id: str = "boot-a", **changes: Any) -> Join:
    """What an agent without devices says first."""
    message = Join(
        node=name, boot_id=boot_id, agent_version="1", protocol_version=1, rack="rack-0", failure_domain="zone-0",
        region="default", endpoint=None, devices=(),
    )  # fmt: skip
    return replace(message, **changes)


TOLD = ("uuid", "replica", "kind", "workload", "model", "share_pct_sm", "memory_mib_limit")


def tell(session: Session, node: str, *replicas: ReplicaReport) -> None:
    """Have a node told to hold what it is going to report, as a promotion would."""
    rows = [{"node_id": node, **{name: getattr(each, name) for name in TOLD}} for each in replicas]
    session.execute(insert(told_replicas).values(rows).on_conflict_do_nothing())


def device_report(uuid: str, power_w: float = 50.0) -> DeviceReport:
    """A device over five seconds."""
    return DeviceReport(
        uuid=uuid,
        power_w=power_w,
        energy_j=power_w * 5.0,
        utilisation_pct=40.0,
        memory_mib_used=4_000.5,
        clock_mhz_sm=1590,
        temperature_c=None,
        share_pct_sm_total=30,
    )


def replica_report(replica: str, uuid: str, *, kind: str = "service", **changes: object) -> ReplicaReport:
    """A replica over five seconds."""
    workload = replica.partition("#")[0]
    values: dict[str, object] = {
        "replica": replica, "kind": kind, "workload": workload, "project": workload.partition("/")[0],
        "model": "resnet", "uuid": uuid, "state": "ready", "share_pct_sm": 30, "sm_count": 12,
        "memory_mib_limit": 4_000, "memory_mib_used": 3_000.5, "batch": 8, "held_s": 5.0, "arrived": 50.0,
        "completed": 50.0, "violated": 1.0, "dropped": 0.0, "queue_length": 2.0, "batch_mean": 6.5,
        "latency_ms_p50": 20.0, "latency_ms_p95": 40.0, "latency_ms_p99": 60.0, "energy_j": 100.0,
    }  # fmt: skip
    return ReplicaReport(**{**values, **changes})  # type: ignore[arg-type]


def report(
    node: str,
    sequence: int,
    *,
    boot_id: str = "boot-a",
    observed_at_s: float | None = None,
    generation: int = 0,
    devices: Sequence[DeviceReport] = (),
    replicas: Sequence[ReplicaReport] = (),
) -> Report:
    """A node's report; the sequence number tells the time unless a test does."""
    return Report(
        node=node,
        boot_id=boot_id,
        sequence=sequence,
        observed_at_s=1_000_000.0 + 5.0 * sequence if observed_at_s is None else observed_at_s,
        interval_s=5.0,
        generation_applied=generation,
        devices=tuple(devices),
        replicas=tuple(replicas),
    )


def put_samples(session: Session, said: Report, received_at: datetime) -> None:
    """Store what a report says of its devices and processes as if it had come then; nothing else of it."""
    shape, sample = sample_rows(said)
    shaped_at = received_at.replace(hour=received_at.hour // 3 * 3, minute=0, second=0, microsecond=0)
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    known = connection.execute(
        "SELECT FROM sample_shapes WHERE received_at = %s AND shape = %s", (shaped_at, shape[0])
    ).rowcount
    at = {"received_at": "timestamptz"}
    shapes = Packed("sample_shapes", at | SHAPE_TYPES)
    shapes.copy(connection, [shapes.row((shaped_at, *shape))] if not known else [])
    samples = Packed("node_samples", at | {"shaped_at": "timestamptz"} | SAMPLE_TYPES)
    samples.copy(connection, [samples.row((received_at, shaped_at, *sample))])


def put_rows(session: Session, said: Report, received_at: datetime) -> None:
    """The same as releases before stored it: a row for each device and each process."""
    head: dict[str, object] = {"received_at": received_at}
    head |= {"observed_at": datetime.fromtimestamp(said.observed_at_s, UTC)}
    head |= {"node_id": said.node, "boot_id": said.boot_id, "sequence": said.sequence, "interval_s": said.interval_s}
    for table, items in (("device_samples", said.devices), ("replica_samples", said.replicas)):
        for item in items:
            row = head | asdict(item)
            values = ", ".join(f":{name}" for name in row)
            session.execute(text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})"), row)


def edge_report(
    sequence: int, rates: dict[str, float], *, gateway: str = "edge", boot_id: str = "boot-a"
) -> EdgeReport:
    """Offered load over one second."""
    return EdgeReport(
        gateway=gateway,
        boot_id=boot_id,
        sequence=sequence,
        observed_at_s=1_000_000.0 + sequence,
        samples=tuple(RateSample(service=name, arrived=rate, interval_s=1.0) for name, rate in rates.items()),
    )


def count(connection: psycopg.Connection, table: str) -> int:
    """Rows of a table."""
    row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def progress_of(session: Session, kind: WorkloadKind, name: str) -> Any:
    """The row of a job or task of the project `vision`; None before it ever ran."""
    mine = (job_progress.c.kind == kind, job_progress.c.project == "vision", job_progress.c.name == name)
    return session.execute(select(job_progress).where(*mine)).one_or_none()
