"""A small fleet in a real database: documents, joined nodes and their reports, written the way the API writes them."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Sequence
from itertools import count

from agents.wire import DeviceReport, EdgeReport, RateSample, ReplicaReport, Report
from app import kinds
from app.clock import SystemClock
from app.kinds import Kind
from app.services.planning.planning import Planning, PlanningParts
from app.services.seen.history import History
from app.store import cycles, documents, ingest, nodes, profiles
from app.store.engine import Database
from app.store.ingest import OutcomeKind
from app.store.replica import Reads
from solvers.cycle.cycle import replay
from solvers.cycle.ports import Runner
from solvers.domain.codec import to_plain
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Proposal
from solvers.domain.workload import Service
from solvers.planners.base import PlanRequest
from tests.integration.store.samples import joining
from tests.unit.app.services.whatif.small_fleet import (
    POLICY,
    PROJECT,
    T4,
    V100,
    device,
    model,
    node,
    profile,
    service,
)

CLUSTER = "default"
BOOT = "boot-1"
DEVICES = {"a": ("GPU-a0", "GPU-a1"), "b": ("GPU-b0",)}
_KINDS = {kind.domain: kind for kind in kinds.KINDS}


class World:
    """Writes what people and agents would."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.policy = POLICY
        self._sequences = count(1)

    def declare(self, *items: object) -> None:
        """Put documents."""
        with self.database.transaction() as session:
            for item in items:
                plain = to_plain(item)
                assert isinstance(plain, dict)
                documents.put(session, _KINDS[type(item)], plain)

    def delete(self, kind: Kind, *key: str) -> None:
        """Delete a document."""
        with self.database.transaction() as session:
            documents.delete(session, kind, key)

    def build(self, *services: Service) -> None:
        """The fleet with these services (two by default), every node joined and reporting."""
        self.declare(self.policy, PROJECT, T4, V100, model())
        self.declare(node("a"), node("b"))
        self.declare(device("GPU-a0", "a", T4), device("GPU-a1", "a", T4, 1), device("GPU-b0", "b", V100))
        self.declare(*(services or (service("labels"), service("search"))))
        with self.database.transaction() as session:
            profiles.put_points(session, [*profile(T4).points, *profile(V100, 2.5).points])
        for name in DEVICES:
            self.join(name)
            self.report(name)

    def join(self, name: str) -> None:
        """An agent starts."""
        with self.database.transaction() as session:
            nodes.join(session, joining(name, BOOT))

    def report(self, name: str, *replicas: ReplicaReport) -> None:
        """An agent reports."""
        report = Report(
            node=name,
            boot_id=BOOT,
            sequence=next(self._sequences),
            observed_at_s=time.time(),
            interval_s=1.0,
            generation_applied=0,
            devices=tuple(_device_report(uuid) for uuid in DEVICES[name]),
            replicas=replicas,
        )
        with self.database.raw() as connection:
            outcomes = ingest.ingest(connection, [report])
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.ACCEPTED]

    def offer(self, rates_rps: dict[str, float], gateway: str = "edge") -> None:
        """An edge reports one second of load."""
        samples = tuple(RateSample(service=name, arrived=rate, interval_s=1.0) for name, rate in rates_rps.items())
        report = EdgeReport(
            gateway=gateway, boot_id=BOOT, sequence=next(self._sequences), observed_at_s=time.time(), samples=samples
        )
        with self.database.raw() as connection:
            outcomes = ingest.ingest(connection, [report])
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.ACCEPTED]

    def planning(self, runner: Runner) -> Planning:
        """The planning use cases over this world."""
        parts = PlanningParts(
            database=self.database,
            runner=runner,
            clock=SystemClock(),
            reporter=SilentReporter(),
            cluster=CLUSTER,
            software_version="test",
        )
        return Planning(parts)

    def replays(self, runner: Runner, cycle_id: str) -> bool:
        """Whether a stored cycle's planners, handed what they remembered then, make the same plan to the last digit."""
        with self.database.reading() as session:
            record = cycles.load(session, cycle_id)
        handed = {
            (item.policy, item.planner): item
            for item in History(self.database, CLUSTER, Reads(self.database)).states(cycle_id).items
        }
        states = {}
        for maker in record.makers:
            if maker.state_digest is not None:
                found = handed[maker.policy, maker.planner]
                assert (found.version, found.digest) == (maker.version, maker.state_digest)
                assert found.state is not None
                states[maker.policy] = b64decode(found.state)

        def propose(planner: str, request: PlanRequest, state: bytes | None) -> Proposal:
            return runner.think(planner, request, state).proposal

        return replay(record, propose, states) == record.plan_digest

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Look into the database."""
        with self.database.raw() as connection:
            return [tuple(row) for row in connection.execute(query.encode()).fetchall()]

    def column(self, query: str) -> list[object]:
        """The first column of a query."""
        return [row[0] for row in self.rows(query)]


def _device_report(uuid: str) -> DeviceReport:
    return DeviceReport(
        uuid=uuid, power_w=20.0, energy_j=20.0, utilisation_pct=10.0, memory_mib_used=100.0, clock_mhz_sm=1590
    )


def replica_report(replica: str, uuid: str, state: str = "ready") -> ReplicaReport:
    """One replica over one second."""
    workload = replica.partition("#")[0]
    return ReplicaReport(
        replica=replica,
        kind="service",
        workload=workload,
        project=workload.partition("/")[0],
        model="resnet50",
        uuid=uuid,
        state=state,
        share_pct_sm=25,
        sm_count=10,
        memory_mib_limit=2000,
        memory_mib_used=1300.0,
        batch=4,
        held_s=1.0,
        arrived=30.0,
        completed=20.0,
        violated=5.0,
        dropped=0.0,
        queue_length=3.0,
        batch_mean=3.5,
        latency_ms_p50=40.0,
        latency_ms_p99=90.0,
    )


def check_history(world: World, generations: Sequence[int]) -> None:
    """Exactly one target is current, and history has neither gaps nor repeats."""
    assert world.column("SELECT generation FROM target_history ORDER BY 1") == list(generations)
    assert world.column("SELECT generation FROM cluster_state") == [generations[-1]]
    assert world.column("SELECT count(*) FROM plans WHERE state = 'promoted'") == [1]
    assert set(world.column("SELECT generation FROM node_targets")) == {generations[-1]}
    assert set(world.column("SELECT (document ->> 'generation')::bigint FROM node_targets")) == {generations[-1]}
    assert world.rows(
        "SELECT c.plan_id = h.plan_id AND h.plan_id = p.id FROM cluster_state c"
        " JOIN target_history h USING (generation) JOIN plans p ON p.state = 'promoted'"
    ) == [(True,)]
