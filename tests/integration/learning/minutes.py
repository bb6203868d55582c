"""A device and its replicas over past minutes, written straight into the telemetry tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from agents.wire import DeviceReport, ReplicaReport, Report
from app import kinds
from app.services.beliefs.learning import SETTLED_S
from app.services.planning.planning import Leader
from app.store.engine import Database
from solvers.models.online.forecasts import Belief
from tests.integration.store.samples import device, gpu_type, put, put_node, put_samples
from tests.unit.solvers.models.told import Formula

LEADER = Leader(holder="me", fencing=7)
REPORTS = 4
"""Reports in a minute."""
INTERVAL_S = 60.0 / REPORTS
CLOCK_MHZ = 1590


@dataclass(frozen=True)
class Always:
    """A belief that never changes."""

    belief: Belief = field(default_factory=Formula)

    def current(self) -> Belief:
        return self.belief


@dataclass(frozen=True, kw_only=True)
class Running:
    """What a replica reports in every interval. A whole T4 gives `bert-base` 20 ms for a batch of 8 at half of it."""

    name: str
    execution_ms: float | None = 20.0
    executions: float = 100.0
    batch_mean: float = 8.0
    share_pct_sm: int = 50
    model: str = "resnet50"
    kind: str = "service"
    state: str = "ready"
    dropped: float = 0.0
    sm_count: int | None = None


class Story:
    """Minutes that lead up to now."""

    def __init__(self, session: Session) -> None:
        self._session = session
        now: datetime = session.execute(select(func.now())).scalar_one()
        self.end = (now - timedelta(seconds=SETTLED_S)).replace(second=0, microsecond=0)
        """The first minute that has not settled."""
        self._sequence = 0
        put(session, kinds.GPU_TYPE, gpu_type("t4"))
        put_node(session, "n1")

    def device(self, uuid: str) -> None:
        """Register a whole T4."""
        put(self._session, kinds.DEVICE, device(uuid, "n1"))

    def minute(self, before_end: int, uuid: str, running: Sequence[Running], **board: Any) -> None:
        """One minute of a device, so many minutes before the end."""
        start = self.end - timedelta(minutes=before_end)
        for index in range(REPORTS):
            self._sequence += 1
            said = Report(
                node="n1",
                boot_id="boot",
                sequence=self._sequence,
                observed_at_s=(start + timedelta(seconds=index * INTERVAL_S)).timestamp(),
                interval_s=INTERVAL_S,
                generation_applied=0,
                devices=(_board(uuid, board),),
                replicas=tuple(_running(uuid, each) for each in running),
            )
            put_samples(self._session, said, start + timedelta(seconds=(index + 0.5) * INTERVAL_S))


def rows(database: Database, query: str) -> list[Any]:
    """Look into the database."""
    with database.reading() as session:
        return list(session.execute(text(query)).all())


def told(database: Database) -> list[tuple[str, str]]:
    """Events, oldest first: name and subject."""
    return [(row.name, row.subject) for row in rows(database, "SELECT name, subject FROM events ORDER BY id")]


def _board(uuid: str, changes: dict[str, Any]) -> DeviceReport:
    usual = DeviceReport(
        uuid=uuid, power_w=50.0, energy_j=50.0, utilisation_pct=50.0, memory_mib_used=1000.0,
        clock_mhz_sm=CLOCK_MHZ, share_pct_sm_total=50,
    )  # fmt: skip
    return replace(usual, **changes)


def _running(uuid: str, each: Running) -> ReplicaReport:
    return ReplicaReport(
        replica=each.name, kind=each.kind, workload="vision/a", project="vision", model=each.model,
        uuid=uuid, state=each.state, share_pct_sm=each.share_pct_sm,
        sm_count=40 * each.share_pct_sm // 100 if each.sm_count is None else each.sm_count,
        memory_mib_limit=4000, memory_mib_used=2000.0, batch=16, held_s=INTERVAL_S,
        arrived=each.executions * each.batch_mean, completed=each.executions * each.batch_mean, violated=0.0,
        dropped=each.dropped, queue_length=0.0, batch_mean=each.batch_mean, energy_j=1.0,
        executions=each.executions, execution_ms_mean=each.execution_ms,
    )  # fmt: skip
