"""Agents over HTTP: joining, targets, reports, receipts, offered load, and what is read back of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from agents.wire import EdgeReport, NodeReceipt, NodeTarget, RateSample, Report, decode, encode
from app import kinds
from app.store import targets
from app.store.sql import ago
from app.store.tables import node_targets, target_history
from app.store.targets import Promotion
from solvers.domain.codec import digest
from tests import builders
from tests.integration.api.world import CLUSTER, NODE, World, join_message
from tests.integration.store import plans as stored
from tests.integration.store.samples import count, device_report, edge_report, replica_report, report, tell

pytestmark = pytest.mark.integration

REPORTS = "/v1/agent/reports"


def _report(sequence: int, node: str = NODE, **changes: Any) -> Report:
    made = report(
        node,
        sequence,
        boot_id="boot-1",
        observed_at_s=time.time() - 60 + sequence,
        devices=[device_report(f"GPU-{node}-0")],
        replicas=[replica_report("demo/vision#0", f"GPU-{node}-0")],
    )
    return replace(made, **changes)


def _told(world: World, node: str = NODE) -> None:
    """The node is told to hold what it reports."""
    with world.database.transaction() as session:
        tell(session, node, *_report(1, node).replicas)


def _rows(world: World, table: str) -> int:
    with world.database.raw() as connection:
        return count(connection, table)


def test_joining_registers_node_and_devices(world: World) -> None:
    joined = world.joined(NODE, types=("t4", "v100"))
    assert (joined["node"], joined["generation"], joined["report_interval_s"]) == (NODE, 0, 5.0)
    assert world.call("GET", f"/v1/nodes/{NODE}").json()["rack"] == "rack-1"
    devices = world.call("GET", "/v1/devices").json()["items"]
    assert [(device["id"], device["gpu_type"]) for device in devices] == [("GPU-a-0", "t4"), ("GPU-a-1", "v100")]
    target = world.call("GET", f"/v1/agent/nodes/{NODE}/target", NODE)
    assert decode(NodeTarget, target.json()).devices == ()
    names = [event["name"] for event in world.call("GET", "/v1/events").json()["items"]]
    assert {"node.joined", "node.created", "device.created"} <= set(names)


def test_unknown_gpu_types_are_named_with_the_known_ones(world: World) -> None:
    message = encode(join_message(NODE, types=("t4",)))
    message["devices"][0]["gpu_type"] = "h999"  # type: ignore[index]
    answer = world.call("POST", "/v1/agent/join", "join", plain=message)
    assert answer.status_code == 422
    error = answer.json()["errors"][0]
    assert error["pointer"] == "/devices/0/gpu_type"
    assert "t4, v100" in error["detail"]
    assert world.call("GET", f"/v1/nodes/{NODE}").status_code == 404


def test_a_living_node_keeps_its_name(world: World) -> None:
    world.joined(NODE)
    impostor = encode(join_message(NODE, boot_id="boot-2"))
    taken = world.call("POST", "/v1/agent/join", "join", plain=impostor)
    assert (taken.status_code, taken.json()["code"]) == (409, "node-id-taken")
    # The answer to its first join may have been lost: who names the boot that has not reported yet is the same agent.
    again = world.call("POST", "/v1/agent/join", "join", plain=encode(join_message(NODE)))
    world.secrets[NODE] = again.json()["token"]
    world.app.state.authenticator.forget()
    assert world.call("POST", REPORTS, NODE, plain=encode(_report(1))).status_code == 200
    for boot in ("boot-1", "boot-2"):
        stolen = world.call("POST", "/v1/agent/join", "join", plain=encode(join_message(NODE, boot_id=boot)))
        assert (stolen.status_code, stolen.json()["code"]) == (409, "node-id-taken")
    # The node itself may start again, with its own token, and gets that token back.
    own = world.call("POST", "/v1/agent/join", NODE, plain=impostor)
    assert (own.status_code, own.json()["token"]) == (200, world.secrets[NODE])
    # And so may anybody once it is silent.
    with world.database.raw() as connection:
        minute_ago = "now() - interval '1 minute'"
        connection.execute(f"UPDATE node_states SET last_report_at = {minute_ago}, joined_at = {minute_ago}".encode())
    before = world.secrets.pop(NODE)
    world.joined(NODE, boot_id="boot-3")
    assert world.secrets[NODE] != before
    world.app.state.authenticator.forget()
    world.secrets["before"] = before
    assert world.call("GET", f"/v1/agent/nodes/{NODE}/target", "before").status_code == 401


def test_what_operators_declared_survives_a_new_join(world: World) -> None:
    world.joined(NODE)
    device = world.call("GET", "/v1/devices/GPU-a-0").json()
    drained = {**device, "schedulable": False, "taints": [{"key": "spare", "value": "true"}]}
    assert world.call("PUT", "/v1/devices/GPU-a-0", plain=drained).status_code == 200
    node = {**world.call("GET", f"/v1/nodes/{NODE}").json(), "rack": "rack-9"}
    assert world.call("PUT", f"/v1/nodes/{NODE}", plain=node).status_code == 200
    world.joined(NODE, boot_id="boot-2")
    assert world.call("GET", "/v1/devices/GPU-a-0").json() == drained
    assert world.call("GET", f"/v1/nodes/{NODE}").json()["rack"] == "rack-9"


def test_a_vanished_device_is_tainted_and_costs_nothing_until_it_returns(world: World) -> None:
    def whole() -> float:
        return float(fleet()["cost"]["fleet_usd_per_h"])

    def fleet() -> dict[str, Any]:
        return dict(world.call("GET", "/v1/fleet").json())

    world.joined(NODE, types=("t4", "v100"))
    both, (_, second) = whole(), fleet()["devices"]
    world.joined(NODE, boot_id="boot-2", types=("t4",))
    vanished = world.call("GET", "/v1/devices/GPU-a-1").json()
    assert vanished["taints"] == [{"key": "vanished", "value": "true"}]
    assert whole() == pytest.approx(both - second["price_usd_per_h"])
    world.joined(NODE, boot_id="boot-3", types=("t4", "v100"))
    assert world.call("GET", "/v1/devices/GPU-a-1").json()["taints"] == []
    assert whole() == both


def test_a_node_gets_its_target_once_per_generation(world: World) -> None:
    world.joined(NODE)
    plan = stored.plan()
    document = {"node": NODE, "generation": 1, "plan": digest(plan), "devices": []}
    with world.database.transaction() as session:
        wish = Promotion(
            cluster=CLUSTER,
            plan_id=stored.keep(session, plan),
            parent_generation=0,
            promoted_by="test",
            node_documents={NODE: document},
        )
        assert targets.promote(session, wish) == 1
    path = f"/v1/agent/nodes/{NODE}/target"
    answer = world.call("GET", path, NODE)
    assert answer.json() == document
    assert answer.headers["etag"] == '"1"'
    assert world.call("GET", path, NODE, headers={"If-None-Match": '"1"'}).status_code == 304
    assert world.call("GET", path, NODE, headers={"If-None-Match": '"0"'}).status_code == 200


def test_a_node_that_everything_has_left_can_be_deleted(world: World) -> None:
    world.joined(NODE)
    plan = stored.plan()
    staying, leaving = {"replica": "demo/vision#0"}, {"replica": "demo/vision#1", "retire_after_s": 30.0}
    with world.database.transaction() as session:
        stored.promote(session, plan, nodes=())

    def answer(*held: object, stands_s: int) -> str:
        document = {"devices": [{"replicas": list(held)}]}
        with world.database.transaction() as session:
            session.execute(delete(node_targets))
            session.execute(insert(node_targets).values(node_id=NODE, generation=1, document=document))
            session.execute(update(target_history).values(promoted_at=ago(stands_s)))
        answered = world.call("DELETE", f"/v1/nodes/{NODE}")
        return answered.json()["detail"] if answered.status_code == 409 else str(answered.status_code)

    assert answer(leaving, staying, stands_s=60).endswith(
        "replica demo/vision#0, which the current target places there"
    )
    assert "replica demo/vision#1, which goes on there for" in answer(leaving, stands_s=10)
    assert answer(leaving, stands_s=31) == "204"


def test_reports_are_stored_once(world: World) -> None:
    world.joined(NODE)
    _told(world)
    first = world.call("POST", REPORTS, NODE, plain=encode(_report(1)))
    assert first.json() == {"accepted": 1, "duplicates": 0}
    both = world.call("POST", REPORTS, NODE, plain=[encode(_report(1)), encode(_report(2))])
    assert both.json() == {"accepted": 1, "duplicates": 1}
    assert (_rows(world, "device_samples"), _rows(world, "replica_samples"), _rows(world, "report_log")) == (2, 2, 2)


@pytest.mark.parametrize(
    ("changes", "status", "code", "pointer"),
    [
        ({"observed_at_s": time.time() + 3600}, 422, "field-invalid", "/observed_at_s"),
        ({"devices": (device_report("GPU-b-0"),)}, 422, "field-invalid", "/devices/0/uuid"),
        ({"replicas": (replica_report("demo/vision#0", "GPU-none"),)}, 422, "field-invalid", "/replicas/0/uuid"),
        ({"interval_s": 0.0}, 422, "field-invalid", "/interval_s"),
        ({"interval_s": float("nan")}, 422, "field-invalid", "/interval_s"),
        ({"devices": (device_report("GPU-a-0", power_w=-1.0),)}, 422, "field-invalid", "/devices/0/power_w"),
        ({"node": "b"}, 403, "forbidden", None),
    ],
    ids=["future", "foreign device", "unknown device", "no time", "nan", "negative", "foreign node"],
)
def test_bad_reports_leave_nothing(
    refusing_world: World, changes: dict[str, Any], status: int, code: str, pointer: str | None
) -> None:
    refusing_world.joined("b")
    refusing_world.joined(NODE)
    answer = refusing_world.call("POST", REPORTS, NODE, plain=encode(_report(1, **changes)))
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert pointer is None or answer.json()["errors"][0]["pointer"] == pointer
    assert _rows(refusing_world, "report_log") == 0


def test_a_clock_that_runs_backwards_is_refused(world: World) -> None:
    world.joined(NODE)
    assert world.call("POST", REPORTS, NODE, plain=encode(_report(1))).status_code == 200
    answer = world.call("POST", REPORTS, NODE, plain=encode(_report(2, observed_at_s=1_000.0)))
    assert (answer.status_code, answer.json()["code"]) == (409, "clock-backwards")


def test_many_nodes_at_once_lose_nothing(world: World) -> None:
    nodes = [f"node-{number}" for number in range(8)]
    for node in nodes:
        world.joined(node)
        _told(world, node)

    def send(node: str) -> list[int]:
        reports = [_report(sequence, node) for sequence in range(1, 11)]
        return [world.call("POST", REPORTS, node, plain=encode(each)).status_code for each in reports]

    with ThreadPoolExecutor(8) as pool:
        assert {status for statuses in pool.map(send, nodes) for status in statuses} == {200}
    assert (_rows(world, "report_log"), _rows(world, "replica_samples")) == (80, 80)
    metrics = world.call("GET", "/metrics", None).text
    assert "headroom_ingest_rows_total 160.0" in metrics
    assert "headroom_nodes_up 8.0" in metrics
    assert "headroom_replicas_ready 8.0" in metrics


def test_receipts_tell_how_far_a_node_got(world: World) -> None:
    world.joined(NODE)
    with world.database.transaction() as session:
        stored.promote(session, stored.plan(), nodes=(NODE,))
    receipt = NodeReceipt(
        node=NODE,
        boot_id="boot-1",
        generation=1,
        plan=None,
        outcome="applied",
        observed_at_s=time.time(),
        elapsed_ms=12.5,
        devices=(),
        replicas=(),
    )
    assert world.call("POST", "/v1/agent/receipts", NODE, plain=encode(receipt)).json() == {"new": True}
    assert world.call("POST", "/v1/agent/receipts", NODE, plain=encode(receipt)).json() == {"new": False}
    shown = world.call("GET", f"/v1/receipts?node={NODE}&generation=1").json()["items"]
    assert "boot" not in str(shown)
    assert [item["outcome"] for item in shown] == ["applied"]
    assert world.call("GET", "/v1/fleet").json()["nodes"][0]["generation_applied"] == 1


def test_offered_load_comes_from_gateways(world: World) -> None:
    assert world.call(
        "POST", "/v1/agent/edge-reports", "gateway", plain=encode(edge_report(1, {"demo/vision": 5.0}))
    ).json() == {
        "accepted": 1,
        "duplicates": 0,
        "unknown": ["demo/vision"],
    }
    world.put(kinds.SERVICE, builders.service())
    both = encode(edge_report(2, {"demo/vision": 5.0, "demo/visoin": 5.0}))
    told = world.call("POST", "/v1/agent/edge-reports", "gateway", plain=both).json()
    assert told == {"accepted": 1, "duplicates": 0, "unknown": ["demo/visoin"]}
    other = encode(edge_report(2, {"demo/vision": 5.0}, gateway="elsewhere"))
    assert world.call("POST", "/v1/agent/edge-reports", "gateway", plain=other).status_code == 403
    assert world.call("POST", "/v1/agent/edge-reports", "operator", plain=[other]).status_code == 200


def test_telemetry_is_read_back_as_series_summary_and_routes(world: World) -> None:
    world.joined(NODE)
    world.put(kinds.SERVICE, builders.service())
    with world.database.transaction() as session:
        stored.promote(session, stored.plan(), nodes=(NODE,))
    _told(world)
    assert world.call("POST", REPORTS, NODE, plain=encode(_report(1))).status_code == 200
    sample = RateSample(service="demo/vision", arrived=100.0, interval_s=5.0, unrouted=50.0)
    # Nobody declares that one any more: what is asked of it breaks no SLO.
    samples = (sample, replace(sample, service="demo/gone"))
    edge = EdgeReport(gateway="edge", boot_id="b", sequence=1, observed_at_s=time.time(), samples=samples)
    assert world.call("POST", "/v1/agent/edge-reports", "gateway", plain=encode(edge)).status_code == 200

    series = world.call("GET", "/v1/telemetry/services/demo/vision?step_s=60").json()["items"]
    assert sum(point["offered_rps"] or 0 for point in series) == pytest.approx(20.0)
    power = world.call("GET", "/v1/telemetry/devices/GPU-a-0").json()["items"]
    assert [point["power_w"] for point in power] == [50.0]

    fleet = world.call("GET", "/v1/fleet").json()
    # 50 completed of which 1 violated, and 50 that found nobody.
    assert (fleet["services"][0]["slo_attainment"], fleet["slo_attainment"]) == (pytest.approx(0.49),) * 2
    assert (fleet["services"][0]["replicas_planned"], fleet["services"][0]["replicas_ready"]) == (1, 1)
    assert fleet["devices"][0]["replicas"][0]["replica"] == "demo/vision#0"
    assert fleet["devices"][0]["price_usd_per_h"] > 0
    assert (fleet["generation"], fleet["plan"]["cost_usd_per_h"]) == (1, 0.35)

    routes = world.call("GET", "/v1/routes", "gateway")
    replica = {"replica": "demo/vision#0", "endpoint": "http://127.0.0.1:9000", "weight": 50.0}
    assert [item["service"] for item in routes.json()["items"]] == ["demo/vision"]
    assert routes.json()["items"][0]["replicas"][0].items() >= replica.items()
    held = world.call("GET", "/v1/routes", "gateway", headers={"If-None-Match": routes.headers["etag"]})
    assert held.status_code == 304
    assert world.call("GET", "/v1/routes", "foreign viewer").json() == {"items": []}
