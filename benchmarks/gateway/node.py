"""A node run by the real agent, on a GPU host that is not there: shares change because plans do.

Owns the host (NVML, MPS and CUDA stand-ins, stand-in model servers), the agent's process, and promotions as the planner
makes them. Everything else of a hand-over is the agent's: the shadow, its checks, receipts, draining, the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from app.services.planning.rollout import Author, promote
from app.services.planning.snapshots import StoreObserver
from app.store import plans
from app.store.engine import Database
from app.store.plans import NewPlan, PlanState
from benchmarks.gateway.processes import ROOT, await_true, end
from headroom_client import Client
from solvers.cycle.record import Lane
from solvers.domain.codec import digest
from solvers.domain.ids import DeviceId, ModelName, WorkloadId, replica_id
from solvers.domain.plan import Assignment, Envelope, Plan
from solvers.domain.policy import Objective
from solvers.domain.workload import WorkloadKind
from tests.standins import servers
from tests.standins.hosts import HostStandIn
from tests.standins.nvml.fixtures import compile_library

NODE = "gpu-host"
PROJECT, NAME = "demo", "vision"
SERVICE = f"{PROJECT}/{NAME}"
MEMORY_MIB, BATCH = 4000, 8
FIRST_SHARE = 40
SHARES = (50, 45, 35, 40)
"""In turn; any two beside each other fit on a GPU, so that there is room for the shadow."""
GRACE_S = 1.0
"""How long routers get to learn that a replica leaves."""
APPLIED_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """Where everything is told and stored."""

    database: Database
    cluster: str
    server: str
    admin_token: str


@dataclass(slots=True)
class Node:
    """One node with a GPU for each replica. Close it."""

    plane: ControlPlane
    replicas: int
    folder: Path
    grace_s: float
    _host: HostStandIn | None = None
    _agent: subprocess.Popen[bytes] | None = None
    generation: int = 0

    def prepare(self) -> None:
        """Declare the service, start the agent, plan every replica at the first share and wait until they serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        host = self._host = HostStandIn(self.folder, ("t4",) * self.replicas, compile_library(self.folder))
        with Client(self.plane.server, self.plane.admin_token) as admin:
            admin.put("project", {"name": PROJECT})
            admin.put("service", self._service(host))
            join_token = admin.create_token({"name": "join", "role": "agent", "purpose": "join"})["secret"]
            self._agent = self._start(host, join_token)
            await_true(lambda: len(list(admin.items("devices"))) == self.replicas, "the agent's joining")
        self.change([FIRST_SHARE] * self.replicas)

    def change(self, shares_pct_sm: Sequence[int]) -> None:
        """Make a plan with these shares the target, and wait until the agent holds nothing else."""
        self.generation = self._promote(shares_pct_sm)
        with Client(self.plane.server, self.plane.admin_token) as admin:
            await_true(lambda: self._applied(admin), f"generation {self.generation}", APPLIED_S_MAX)

    def told_ready_s(self) -> list[float]:
        """When the control plane first heard that each process is ready, seconds since the epoch, in order."""
        first: dict[str, float] = {}
        with Client(self.plane.server, self.plane.admin_token) as admin:
            for receipt in admin.items("receipts"):
                at_s = datetime.fromisoformat(receipt["received_at"]).timestamp()
                for replica in receipt["document"]["replicas"]:
                    if replica["ready"]:
                        first[replica["endpoint"]] = min(at_s, first.get(replica["endpoint"], at_s))
        return sorted(first.values())

    def workers(self) -> int:
        """Worker processes that live."""
        return 0 if self._host is None else sum(len(self._host.mps.clients(uuid)) for uuid in self._host.uuids)

    def resident_mib(self) -> float:
        """Memory of the agent's process."""
        assert self._agent is not None
        status = Path(f"/proc/{self._agent.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024.0

    def log(self) -> str:
        """What the agent said."""
        return (self.folder / "agent.log").read_text(encoding="utf-8")

    def close(self) -> None:
        """Take every replica away, end the agent and the host."""
        try:
            if self._agent is not None and self._agent.poll() is None:
                self._leave()
        finally:
            if self._agent is not None:
                end(self._agent)
            if self._host is not None:
                self._host.mps.close()
                self._host.nvml.close()

    def _leave(self) -> None:
        """Nothing is wanted any more: workers outlive the agent, and would outlive the host."""
        with Client(self.plane.server, self.plane.admin_token) as admin:
            admin.delete("service", PROJECT, NAME)
        self._promote(())
        await_true(lambda: self.workers() == 0, "the end of the workers", APPLIED_S_MAX)

    def _promote(self, shares_pct_sm: Sequence[int]) -> int:
        """Make a plan with a replica of each share, on a device each, the target; its generation."""
        snapshot = StoreObserver(self.plane.database, self.plane.cluster).observe()
        devices = sorted(device.id for device in snapshot.devices)
        plan = Plan(
            snapshot=digest(snapshot),
            parent=snapshot.target.generation,
            planner="handover",
            planner_version="1",
            seed=1,
            assignments=tuple(
                _assignment(ordinal, device, share)
                for ordinal, (device, share) in enumerate(zip(devices, shares_pct_sm, strict=False))
            ),
            settings=(),
            unplaced=(),
            objective=Objective(),
        )
        new = NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="handover")
        with self.plane.database.transaction() as session:
            plans.put(session, new)
        return promote(self.plane.database, self.plane.cluster, plan, snapshot, Author(name="handover"), Lane.ACT)

    def _applied(self, admin: Client) -> bool:
        (node,) = admin.fleet()["nodes"]
        return int(node["generation_applied"]) == self.generation

    def _service(self, host: HostStandIn) -> dict[str, object]:
        command = servers.command(step_ms=2.0, batch=32, start_s=0.1)
        return {
            "project": PROJECT,
            "name": NAME,
            "model": "resnet50",
            "slo": {"latency_ms": 200.0},
            "rate_rps_declared": 100.0,
            "mode": "off",
            "worker": {
                "command": list(command),
                "environment": [
                    {"name": "HEADROOM_STANDIN_CUDA", "value": host.mps.library},
                    {"name": "STANDIN_NVML", "value": str(host.nvml.root)},
                ],
                "ready_path": "/health",
                "warm_up": {"path": "/v1/infer", "body": "{}"},
                "drain_s": 10.0,
                "stop_s": 5.0,
            },
        }

    def _start(self, host: HostStandIn, join_token: str) -> subprocess.Popen[bytes]:
        options = [*host.options(), "--route-grace-s", str(self.grace_s), "--governor", "off"]
        environment = {**os.environ, **host.environment(), "HEADROOM_TOKEN": join_token}
        with (self.folder / "agent.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "agents", "--server", self.plane.server, "--node", NODE, *options],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip


def _assignment(ordinal: int, device: str, share_pct_sm: int) -> Assignment:
    """A replica of the service on a device."""
    return Assignment(
        replica=replica_id(SERVICE, ordinal),
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
            clock_mhz_sm_max=1590,
        ),
        latency_ms_planned=20.0,
        capacity_rps=10.0 * share_pct_sm,
        power_w_planned=10.0,
    )
