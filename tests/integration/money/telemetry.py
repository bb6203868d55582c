"""A fleet and its telemetry, written straight into the tables: what the money tests account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Table, insert, text
from sqlalchemy.orm import Session

from agents.wire import DeviceReport, ReplicaReport, Report
from app import kinds
from app.store.engine import Database
from app.store.ingest import gateway_source, node_source
from app.store.tables import TABLES, rate_samples, report_log
from app.store.tables import devices as devices_table
from solvers.domain.codec import to_plain
from solvers.domain.device import Device, DeviceMode, GpuType, MigSlice, Node, PriceKind, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, PolicyName
from solvers.domain.policy import Policy
from tests.integration.postgres import TEMPLATE, Server
from tests.integration.store.samples import put_samples

T0 = datetime(2026, 3, 2, 10, tzinfo=UTC)
"""A Monday, ten o'clock: where every story starts."""


def after(seconds: float, start: datetime = T0) -> datetime:
    """So many seconds after `T0`."""
    return start + timedelta(seconds=seconds)


@contextmanager
def migrated(server: Server, name: str) -> Iterator[Database]:
    """A database of this name for a while."""
    opened = Database(server.create(name, TEMPLATE))
    try:
        yield opened
    finally:
        opened.dispose()
        server.drop(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one replica reports over one interval; `held_s` None means all of it."""

    replica: str
    uuid: str
    share_pct_sm: int = 50
    memory_mib_used: float = 1024.0
    memory_mib_limit: int = 2048
    held_s: float | None = None
    kind: str = "service"
    model: str = "resnet50"
    energy_j: float = 0.0
    arrived: float = 0.0
    completed: float = 0.0
    violated: float = 0.0
    dropped: float = 0.0
    latency_ms_p50: float | None = None
    latency_ms_p95: float | None = None
    latency_ms_p99: float | None = None


def make_gpu_type(name: str, memory_mib: int, prices: Sequence[PriceRow]) -> GpuType:
    """A GPU product of which only memory and prices matter here."""
    return GpuType(
        name=GpuTypeName(name), product=name, sm_count=80, memory_mib=memory_mib, tdp_w=300.0,
        idle_w=30.0, power_limit_w_min=100.0, power_limit_w_max=300.0, memory_bandwidth_gb_per_s=900.0,
        pcie_bandwidth_gb_per_s=16.0, fp32_tflops=14.0, fp16_tflops=28.0, clocks_mhz_sm=(1000, 1500),
        prices=tuple(prices),
    )  # fmt: skip


class Fleet:
    """Writes documents and reports through one session."""

    def __init__(self, session: Session, store: Callable[[Session, Report, datetime], None] = put_samples) -> None:
        self._session = session
        self._store = store
        self._sequence = 0
        self._waiting: dict[Table, list[dict[str, Any]]] = {}
        self._reports: list[tuple[Report, datetime]] = []

    def gpu_type(self, name: str, memory_mib: int, *prices: PriceRow) -> None:
        """Declare a GPU type."""
        spec = to_plain(make_gpu_type(name, memory_mib, prices))
        self._session.execute(insert(TABLES[kinds.GPU_TYPE]).values(name=name, spec=spec))

    def policy(self, energy_usd_per_kwh: float, power_usage_effectiveness: float, **changes: Any) -> None:
        """Declare a policy's energy price; the default one's unless a name is given."""
        spec = {"name": PolicyName("default")} | changes
        policy = Policy(
            energy_usd_per_kwh=energy_usd_per_kwh, power_usage_effectiveness=power_usage_effectiveness, **spec
        )
        self._session.execute(insert(TABLES[kinds.POLICY]).values(name=policy.name, spec=to_plain(policy)))

    def node(self, node: str, *, price_kind: PriceKind = PriceKind.ON_DEMAND, region: str = "default") -> None:
        """Declare a host."""
        spec = to_plain(Node(id=NodeId(node), price_kind=price_kind, region=region))
        self._session.execute(insert(TABLES[kinds.NODE]).values(id=node, spec=spec))

    def device(
        self,
        uuid: str,
        *,
        node: str = "n1",
        gpu_type: str = "t4",
        memory_mib: int = 16384,
        billed: tuple[datetime, datetime | None] = (T0, None),
        parent: str | None = None,
        mode: DeviceMode = DeviceMode.MPS,
    ) -> None:
        """Declare a GPU or, with a parent, a slice of one."""
        spec = Device(
            id=DeviceId(uuid),
            node=NodeId(node),
            gpu_type=GpuTypeName(gpu_type),
            index=0,
            memory_mib=memory_mib,
            sm_count=40,
            mig=None if parent is None else MigSlice(parent=DeviceId(parent), profile="slice"),
            mode=mode,
        )
        values = {"uuid": uuid, "node_id": node, "gpu_type": gpu_type, "spec": to_plain(spec)}
        self._session.execute(insert(devices_table).values(billed_from=billed[0], billed_until=billed[1], **values))

    def report(
        self,
        node: str,
        received_at: datetime,
        energies_j: Mapping[str, float],
        holdings: Sequence[Holding] = (),
        *,
        interval_s: float = 5.0,
        observed_at: datetime | None = None,
        boot_id: str = "boot-1",
    ) -> None:
        """One report of a node: energy per device, and what its replicas held. Written with the next `write`."""
        rows = len(energies_j) + len(holdings)
        source = node_source(node)
        self._log(source, received_at, interval_s, rows=rows, observed_at=observed_at, boot_id=boot_id)
        said = Report(
            node=node,
            boot_id=boot_id,
            sequence=self._sequence,
            observed_at_s=(observed_at or received_at).timestamp(),
            interval_s=interval_s,
            generation_applied=0,
            devices=tuple(_device(uuid, energy_j, interval_s, holdings) for uuid, energy_j in energies_j.items()),
            replicas=tuple(_replica(holding, interval_s) for holding in holdings),
        )
        self._reports.append((said, received_at))

    def lose_report(self) -> None:
        """A report that was made and never arrives."""
        self._sequence += 1

    def edge(
        self, received_at: datetime, offered: Mapping[str, tuple[float, float]], *, interval_s: float = 5.0
    ) -> None:
        """One report of a gateway: arrived and unrouted requests per service. Written with the next `write`."""
        head = self._log(gateway_source("edge"), received_at, interval_s, rows=len(offered))
        head |= {"gateway": "edge", "interval_s": interval_s}
        for service, (arrived, unrouted) in offered.items():
            project = service.split("/", maxsplit=1)[0]
            row = {"service": service, "project": project, "arrived": arrived, "unrouted": unrouted}
            self._add(rate_samples, head | row)

    def write(self) -> None:
        """Send the waiting rows."""
        for said, received_at in self._reports:
            self._store(self._session, said, received_at)
        self._reports.clear()
        for table, rows in self._waiting.items():
            self._session.execute(insert(table), rows)
        self._waiting.clear()

    def _log(
        self,
        source: str,
        received_at: datetime,
        interval_s: float,
        *,
        rows: int,
        observed_at: datetime | None = None,
        boot_id: str = "boot-1",
    ) -> dict[str, Any]:
        self._sequence += 1
        head = {
            "received_at": received_at,
            "observed_at": observed_at or received_at,
            "boot_id": boot_id,
            "sequence": self._sequence,
        }
        self._add(report_log, head | {"source": source, "interval_s": interval_s, "rows": rows})
        return head

    def _add(self, table: Table, row: dict[str, Any]) -> None:
        self._waiting.setdefault(table, []).append(row)


def _device(uuid: str, energy_j: float, interval_s: float, holdings: Sequence[Holding]) -> DeviceReport:
    mine = [holding for holding in holdings if holding.uuid == uuid]
    return DeviceReport(
        uuid=uuid, power_w=energy_j / interval_s if interval_s else 0.0, energy_j=energy_j,
        utilisation_pct=50.0, memory_mib_used=sum(holding.memory_mib_used for holding in mine),
        clock_mhz_sm=1500, temperature_c=60.0, share_pct_sm_total=sum(holding.share_pct_sm for holding in mine),
    )  # fmt: skip


def _replica(holding: Holding, interval_s: float) -> ReplicaReport:
    workload = holding.replica.split("#", maxsplit=1)[0]
    return ReplicaReport(
        replica=holding.replica, kind=holding.kind, workload=workload,
        project=workload.split("/", maxsplit=1)[0], model=holding.model, uuid=holding.uuid, state="ready",
        share_pct_sm=holding.share_pct_sm, sm_count=40, memory_mib_limit=holding.memory_mib_limit,
        memory_mib_used=holding.memory_mib_used, batch=8,
        held_s=interval_s if holding.held_s is None else holding.held_s, arrived=holding.arrived,
        completed=holding.completed, violated=holding.violated, dropped=holding.dropped,
        queue_length=0.0, batch_mean=4.0, latency_ms_p50=holding.latency_ms_p50,
        latency_ms_p95=holding.latency_ms_p95, latency_ms_p99=holding.latency_ms_p99, energy_j=holding.energy_j,
    )  # fmt: skip


def account_again(session: Session, start: datetime, end: datetime, *, reprice: bool = False) -> None:
    """Correct what was closed, as the reference of the views tells operators to."""
    span = {"start": start, "end": end, "reprice": reprice}
    for statement in (
        "headroom_roll_minutes(:start, :end)",
        "headroom_account_minutes(:start, :end, p_force => true, p_reprice => :reprice)",
        "headroom_roll_hours(:start, :end)",
    ):
        session.execute(text(f"SELECT {statement}"), span)
