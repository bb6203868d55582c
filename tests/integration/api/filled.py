"""A cluster in the middle of its life: a node that reports, replicas of two projects, work in line, plans and a cycle
behind it.
"""

from __future__ import annotations

from dataclasses import replace

from agents.wire import NodeReceipt, encode
from app import kinds
from app.store import cycles, plans, targets
from app.store.cycles import NewCycle
from app.store.plans import NewPlan, PlanState
from app.store.targets import Promotion
from solvers.cycle.record import Lane
from solvers.domain.codec import digest
from tests import builders
from tests.integration.api.world import CLUSTER, DEVICE, FOREIGN, NODE, OWN, World
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, edge_report, replica_report, report, tell

OWN_REPLICA, FOREIGN_REPLICA = f"{OWN}/vision#0", f"{FOREIGN}/speech#0"


def fill(world: World) -> None:
    """Put everything in, past the API where a planner would, and over HTTP where an agent would."""
    world.joined(NODE)
    world.put(kinds.SERVICE, builders.service())
    world.put(kinds.SERVICE, builders.service("speech", project=FOREIGN))
    world.put(kinds.JOB, builders.job())
    world.put(kinds.TASK, builders.task(project=FOREIGN))
    _promote(world)
    _report(world)


def _promote(world: World) -> None:
    on = builders.device(NODE, 0, "t4")
    assignments = tuple(
        builders.assignment(name, on, share_pct_sm=share) for name, share in ((OWN_REPLICA, 50), (FOREIGN_REPLICA, 25))
    )
    plan = replace(stored.plan(), assignments=assignments)
    record = stored.record("cycle-held")
    with world.database.transaction() as session:
        plans.put(session, NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="test"))
        wish = Promotion(
            cluster=CLUSTER,
            plan_id=digest(plan),
            parent_generation=plan.parent,
            promoted_by="test",
            node_documents={NODE: {"node": NODE, "generation": 1, "plan": digest(plan), "devices": []}},
        )
        targets.promote(session, wish)
        new = NewCycle(id=record.id, lane=record.lane, holder="x", fencing_token=1, software_version="1")
        cycles.begin(session, new)
        cycles.close(session, record)


def _report(world: World) -> None:
    replicas = [
        replica_report(OWN_REPLICA, DEVICE, share_pct_sm=50, model="resnet50", latency_ms_p99=42.5),
        replica_report(FOREIGN_REPLICA, DEVICE, share_pct_sm=25, model="resnet50", latency_ms_p99=17.5),
    ]
    with world.database.transaction() as session:
        tell(session, NODE, *replicas)
    message = report(NODE, 1, boot_id="boot-1", generation=1, devices=[device_report(DEVICE)], replicas=replicas)
    rates = edge_report(1, {f"{OWN}/vision": 30.0, f"{FOREIGN}/speech": 20.0})
    receipt = NodeReceipt(
        node=NODE, boot_id="boot-1", generation=1, plan=None, outcome="applied", observed_at_s=1_000_000.0,
        elapsed_ms=5.0, devices=(), replicas=(),
    )  # fmt: skip
    for path, who, plain in (
        ("/v1/agent/reports", NODE, encode(message)),
        ("/v1/agent/edge-reports", "gateway", encode(rates)),
        ("/v1/agent/receipts", NODE, encode(receipt)),
    ):
        answer = world.call("POST", path, who, plain=plain)
        assert answer.is_success, answer.text
