"""A node whose replicas change shares: real worker processes, real receipts, real promotions over one control plane.

Owns the order of a hand-over as an agent keeps it: start the shadow, wait until it is ready, tell; tell that the old
one drains; wait until routers have learned; end the old one; tell. It refuses to know any gateway.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from agents.wire import PROTOCOL_VERSION, DeviceInventory, Join, NodeReceipt, ReplicaReadBack, encode
from app.client import Client
from app.store import plans, targets
from app.store.engine import Database
from app.store.plans import NewPlan, PlanState
from app.store.targets import Promotion
from benchmarks.gateway.processes import Worker, await_true, end, start_worker
from solvers.cycle.record import Lane
from solvers.domain.ids import DeviceId, Digest, Generation, ModelName, ReplicaId, WorkloadId, replica_id
from solvers.domain.objective import Objective
from solvers.domain.plan import Assignment, Envelope, Plan
from solvers.domain.workload import WorkloadKind

NODE, BOOT = "gpu-host", "boot-handover"
PROJECT, NAME = "demo", "vision"
SERVICE = f"{PROJECT}/{NAME}"
MEMORY_MIB, BATCH, CLOCK_MHZ = 4000, 8, 1590
GRACE_S = 1.0
"""How long routers get to learn that a replica leaves."""


@dataclass(slots=True)
class Held:
    """A process that the node holds."""

    ordinal: int
    share_pct_sm: int
    worker: Worker
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """Where everything is told and stored."""

    database: Database
    cluster: str
    server: str
    admin_token: str


@dataclass(slots=True)
class Node:
    """One node with a GPU for each replica."""

    plane: ControlPlane
    replicas: int
    grace_s: float = GRACE_S
    token: str = ""
    generation: int = 0
    held: list[Held] = field(default_factory=list)
    switched_s: list[float] = field(default_factory=list)
    """When each new process was told to be ready; monotonic."""

    def prepare(self) -> None:
        """Declare the service, join, plan every replica at half a GPU, start them and tell."""
        with Client(self.plane.server, self.plane.admin_token) as admin:
            admin.put("project", {"name": PROJECT})
            slo = {"latency_ms": 200.0}
            service = {"project": PROJECT, "name": NAME, "model": "resnet50", "slo": slo, "rate_rps_declared": 100.0}
            admin.put("service", {**service, "mode": "off"})
            join_token = admin.create_token({"name": "join", "role": "agent", "purpose": "join"})["secret"]
        with Client(self.plane.server, join_token) as stranger:
            self.token = stranger.call("POST", "/v1/agent/join", json=encode(self._join())).body["token"]
        self._promote([50] * self.replicas)
        self.held = [Held(ordinal, 50, self._start(ordinal)) for ordinal in range(self.replicas)]
        for held in self.held:
            self._await_ready(held)
        self.tell()

    def hand_over(self, ordinal: int, share_pct_sm: int) -> None:
        """Change one replica's share."""
        (old,) = [held for held in self.held if held.ordinal == ordinal]
        shares = [held.share_pct_sm for held in sorted(self.held, key=lambda each: each.ordinal)]
        shares[ordinal] = share_pct_sm
        self._promote(shares)
        new = Held(ordinal, share_pct_sm, self._start(ordinal))
        self.held.append(new)
        self.tell()
        self._await_ready(new)
        self.tell()
        self.switched_s.append(time.monotonic())
        old.ready = False
        self.tell()
        threading.Event().wait(self.grace_s)
        end(old.worker.process)
        self.held.remove(old)
        self.tell()

    def tell(self) -> None:
        """Send a receipt of what is held."""
        receipt = NodeReceipt(
            node=NODE,
            boot_id=BOOT,
            generation=self.generation,
            plan=None,
            outcome="partial",
            observed_at_s=time.time(),
            elapsed_ms=1.0,
            devices=(),
            replicas=tuple(
                ReplicaReadBack(
                    replica=_replica(held.ordinal),
                    uuid=_uuid(held.ordinal),
                    share_pct_sm=held.share_pct_sm,
                    sm_count=10,
                    memory_mib_limit=MEMORY_MIB,
                    batch=BATCH,
                    ready=held.ready,
                    endpoint=held.worker.endpoint,
                )
                for held in self.held
            ),
        )
        with Client(self.plane.server, self.token) as agent:
            agent.call("POST", "/v1/agent/receipts", json=encode(receipt))

    def close(self) -> None:
        """End every worker."""
        for held in self.held:
            end(held.worker.process)

    def _start(self, ordinal: int) -> Worker:
        return start_worker(_replica(ordinal))

    @staticmethod
    def _await_ready(held: Held) -> None:
        await_true(held.worker.ready, "the start of a worker")
        held.ready = True

    def _join(self) -> Join:
        return Join(
            node=NODE,
            boot_id=BOOT,
            agent_version="0.1.0",
            protocol_version=PROTOCOL_VERSION,
            rack="rack-1",
            failure_domain="zone-1",
            region="default",
            endpoint=None,
            devices=tuple(
                DeviceInventory(
                    uuid=_uuid(ordinal),
                    gpu_type="t4",
                    product="T4",
                    index=ordinal,
                    memory_mib=15360,
                    sm_count=40,
                    clocks_mhz_sm=(585, CLOCK_MHZ),
                    power_limit_w_min=60.0,
                    power_limit_w_max=70.0,
                )
                for ordinal in range(self.replicas)
            ),
        )

    def _promote(self, shares: list[int]) -> None:
        """Make a plan with these shares the target."""
        plan = Plan(
            snapshot=Digest("sha256:" + "0" * 64),
            parent=Generation(self.generation),
            planner="handover",
            planner_version="1",
            seed=self.generation,
            assignments=tuple(assignment(ordinal, _uuid(ordinal), share) for ordinal, share in enumerate(shares)),
            settings=(),
            unplaced=(),
            objective=Objective(),
        )
        new = NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="handover")
        with self.plane.database.transaction() as session:
            wish = Promotion(
                cluster=self.plane.cluster,
                plan_id=plans.put(session, new).id,
                parent_generation=self.generation,
                promoted_by="handover",
                node_documents={},
            )
            self.generation = targets.promote(session, wish)


def assignment(ordinal: int, device: str, share_pct_sm: int) -> Assignment:
    """A replica of the service on a device."""
    return Assignment(
        replica=ReplicaId(_replica(ordinal)),
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId(SERVICE),
        model=ModelName("resnet50"),
        device=DeviceId(device),
        share_pct_sm=share_pct_sm,
        memory_mib_limit=MEMORY_MIB,
        batch=BATCH,
        envelope=Envelope(
            batch_min=1,
            batch_max=BATCH,
            clock_mhz_sm_min=585,
            clock_mhz_sm_max=CLOCK_MHZ,
        ),
        latency_ms_planned=20.0,
        capacity_rps=10.0 * share_pct_sm,
        power_w_planned=10.0,
    )


def _replica(ordinal: int) -> str:
    return replica_id(SERVICE, ordinal)


def _uuid(ordinal: int) -> str:
    return f"GPU-handover-{ordinal}"
