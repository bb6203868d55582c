"""Nodes speak of what they were told to hold, and of nothing else: no report or receipt can route, finish, bill or
teach the work of others.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agents.wire import HISTORY, READS, NodeReceipt, ReplicaReadBack, ReplicaReport, encode
from app import kinds
from app.cli.planning import _explanation
from app.cli.watch import _head
from app.services.declared.fleet import Fleet
from app.services.declared.tokens import Deed
from app.services.seen.telemetry import FOREIGN
from app.store import profile_runs, targets
from app.store.profile_runs import NewRun
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from tests import builders
from tests.integration.api.world import CLUSTER, DEVICE, NODE, OWN, World, join_message
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, replica_report, report, tell

pytestmark = pytest.mark.integration

ROGUE = "rogue"
VISION, TRAIN = f"{OWN}/vision#0", f"{OWN}/train#0"
OTHERS = "http://127.0.0.1:9"


def receive(world: World, node: str, *replicas: ReplicaReadBack, generation: int = 1) -> httpx.Response:
    return deliver(world, receipt_of(node, *replicas, generation=generation))


def receipt_of(node: str, *replicas: ReplicaReadBack, generation: int = 1, **more: Any) -> NodeReceipt:
    receipt = NodeReceipt(
        node=node, boot_id="boot-1", generation=generation, plan=None, outcome="applied", observed_at_s=time.time(),
        elapsed_ms=1.0, devices=(), replicas=replicas,
    )  # fmt: skip
    return replace(receipt, **more)


def deliver(world: World, receipt: NodeReceipt) -> httpx.Response:
    return world.call("POST", "/v1/agent/receipts", receipt.node, plain=encode(receipt))


def read_back(node: str = NODE, endpoint: str | None = OTHERS, **changes: Any) -> ReplicaReadBack:
    planned = stored.plan().assignments[0]
    found = ReplicaReadBack(
        replica=VISION, uuid=f"GPU-{node}-0", share_pct_sm=planned.share_pct_sm, sm_count=12,
        memory_mib_limit=planned.memory_mib_limit, batch=8, ready=True, endpoint=endpoint,
    )  # fmt: skip
    return replace(found, **changes)


def send(world: World, node: str, sequence: int, *replicas: ReplicaReport, generation: int = 0) -> None:
    sent = report(
        node, sequence, boot_id="boot-1", generation=generation, devices=[device_report(f"GPU-{node}-0")],
        replicas=replicas,
    )  # fmt: skip
    assert world.call("POST", "/v1/agent/reports", node, plain=encode(sent)).status_code == 200


def routed(world: World) -> list[str]:
    return [each["endpoint"] for each in world.call("GET", f"/v1/routes/{OWN}/vision").json()["replicas"]]


def trained(world: World) -> float:
    with world.database.raw() as connection:
        return sum(row[0] for row in connection.execute("SELECT done FROM job_progress").fetchall())


def noted(world: World, node: str = ROGUE) -> list[str]:
    found = world.call("GET", f"/v1/events?subject=nodes/{node}").json()["items"]
    return [event["facts"]["code"] for event in found if event["name"] == FOREIGN]


def stored_rows(world: World) -> set[Any]:
    with world.database.raw() as connection:
        return {row[0] for row in connection.execute("SELECT replica FROM replica_samples").fetchall()}


@pytest.fixture
def standing(world: World) -> World:
    """A planned service and a job; node `a` was told of both, the other one joined and was told of nothing."""
    world.put(kinds.SERVICE, builders.service())
    world.put(kinds.JOB, builders.job())
    world.joined(NODE)
    world.joined(ROGUE)
    promote(world, stored.plan())
    return world


def promote(world: World, plan: Plan) -> None:
    with world.database.transaction() as session:
        stored.promote(session, plan, nodes=(NODE, ROGUE))


def work(node: str, **changes: Any) -> ReplicaReport:
    values = {"kind": "job", "model": "resnet50", "iterations_done": 40, **changes}
    return replica_report(TRAIN, f"GPU-{node}-0", **values)


def test_nobody_routes_requests_to_what_it_was_not_told_to_hold(standing: World) -> None:
    for wrong in (read_back(ROGUE), read_back(ROGUE, replica=f"{OWN}/bert#0"), read_back(ROGUE, uuid=DEVICE)):
        assert receive(standing, ROGUE, wrong).status_code == 200
    assert routed(standing) == []
    assert noted(standing) == ["replica-not-told"]
    larger = read_back(share_pct_sm=100)
    assert receive(standing, NODE, larger).status_code == 200
    assert routed(standing) == []
    assert receive(standing, NODE, read_back(), larger).status_code == 200
    assert routed(standing) == [OTHERS]
    kept = standing.call("GET", f"/v1/receipts?node={NODE}").json()["items"][0]["document"]["replicas"]
    assert [each["share_pct_sm"] for each in kept] == [30]


def test_processes_answer_on_their_own_node(standing: World) -> None:
    """Where the node's endpoint is, where it said at joining, or whence it calls."""
    refused = receive(standing, NODE, read_back(endpoint="http://10.9.9.9:80"))
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "endpoint-foreign")
    assert refused.json()["errors"][0]["pointer"] == "/replicas/0/endpoint"
    assert (routed(standing), noted(standing, NODE)) == ([], ["endpoint-foreign"])
    own = receive(standing, NODE, read_back(endpoint="http://testclient:80"))
    assert (own.status_code, routed(standing)) == (200, ["http://testclient:80"])
    message = replace(join_message(NODE, boot_id="boot-1"), worker_host="10.9.9.9")
    assert standing.call("POST", "/v1/agent/join", NODE, plain=encode(message)).status_code == 200
    assert receive(standing, NODE, read_back(endpoint="http://10.9.9.9:80")).status_code == 200
    assert routed(standing) == ["http://10.9.9.9:80"]


def test_nobody_finishes_or_bills_the_work_of_others(standing: World) -> None:
    with standing.database.transaction() as session:
        tell(session, NODE, work(NODE))
    foreign = [
        work(ROGUE),
        work(ROGUE, project="other"),
        replica_report("nobody/x#0", f"GPU-{ROGUE}-0"),
        replica_report(VISION, f"GPU-{ROGUE}-0", workload=f"{OWN}/train"),
    ]
    send(standing, ROGUE, 1, *foreign)
    send(standing, ROGUE, 2, *foreign)
    assert (trained(standing), stored_rows(standing)) == (0.0, set())
    assert noted(standing) == ["replica-not-told"]
    wrong = [work(NODE, share_pct_sm=99), work(NODE, model="other"), work(NODE, kind="task")]
    send(standing, NODE, 1, *wrong, work(NODE, project="other"), work(NODE, workload=f"{OWN}/vision"))
    assert (trained(standing), stored_rows(standing)) == (0.0, set())
    send(standing, NODE, 2, work(NODE))
    assert (trained(standing), stored_rows(standing)) == (40.0, {TRAIN})


def test_generations_that_never_were_are_not_believed(standing: World) -> None:
    refused = receive(standing, NODE, generation=2)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "generation-unknown")
    send(standing, NODE, 1, generation=9 * 10**15)
    assert noted(standing, NODE) == ["generation-unknown"]
    applied = {each["id"]: each["generation_applied"] for each in standing.call("GET", "/v1/fleet").json()["nodes"]}
    assert applied[NODE] == 0
    promote(standing, stored.plan(parent=1))
    assert receive(standing, NODE, generation=2).status_code == 200


def test_late_words_of_an_earlier_generation_count_for_a_day(standing: World) -> None:
    earlier = replica_report(VISION, DEVICE, model="resnet50", memory_mib_limit=1408)
    promote(standing, stored.plan(parent=1, share_pct_sm=50))
    send(standing, NODE, 1, earlier)
    assert stored_rows(standing) == {VISION}
    with standing.database.raw() as connection:
        connection.execute("DELETE FROM node_samples")
        connection.execute("UPDATE told_replicas SET told_until = told_until - interval '25 hours'")
    with standing.database.transaction() as session:
        assert targets.forget_told(session) == 1
    standing.app.state.services.telemetry.registry.forget(NODE)
    send(standing, NODE, 2, earlier)
    assert (stored_rows(standing), noted(standing, NODE)) == (set(), ["replica-not-told"])
    # Told once more, it counts once more.
    promote(standing, stored.plan(parent=2))
    send(standing, NODE, 3, earlier)
    assert stored_rows(standing) == {VISION}
    with standing.database.transaction() as session:
        assert targets.generation(session, CLUSTER) == Generation(3)
        assert targets.forget_told(session) == 0


def test_what_a_node_is_ordered_to_measure_is_no_replica_of_the_service(standing: World) -> None:
    """Agents of before report it as the service's own; only the device's watts count, as nobody's."""
    ordered = NewRun(
        node_id=NODE, uuid=DEVICE, service=f"{OWN}/vision", beside=f"{OWN}/bert", budget_s=60.0, drain=False,
        created_by="test", patience_s=60.0,
    )  # fmt: skip
    with standing.database.transaction() as session:
        profile_runs.create(session, ordered)
    alone, beside = (f"profile-{OWN}-vision", f"{OWN}/vision"), (f"profile-{OWN}-bert-1", f"{OWN}/bert")
    own = replica_report(VISION, DEVICE, model="resnet50", memory_mib_limit=1408)
    measured = [
        replica_report(name, DEVICE, workload=service, project=OWN, completed=159_322.0, dropped=8_425_678.0)
        for name, service in (alone, (f"{alone[0]}-0", alone[1]), beside)
    ]
    send(standing, NODE, 1, own, *measured)
    assert stored_rows(standing) == {VISION}
    with standing.database.raw() as connection:
        (joules,) = connection.execute("SELECT sum(energy_j) FROM device_samples").fetchone() or ()
        answered = connection.execute("SELECT workload, completed, dropped FROM service_samples").fetchall()
    assert joules > 0.0
    assert answered == [(f"{OWN}/vision", own.completed, own.dropped)]


TARGET = f"/v1/agent/nodes/{NODE}/target"


def history(world: World) -> dict[str, Any]:
    told = world.call("GET", TARGET, NODE, headers={READS: HISTORY}).json()
    return {name: told[name] for name in ("cluster_id", "epoch")}


def begin_epoch(world: World) -> None:
    Fleet(world.database, CLUSTER).begin_epoch(Deed(actor="test"), force=True)
    world.app.state.services.telemetry.registry.forget(NODE)


def test_receipts_of_an_epoch_that_is_over_route_nothing(standing: World) -> None:
    before = history(standing)
    assert before["epoch"] == 1
    assert deliver(standing, receipt_of(NODE, read_back(), **before)).status_code == 200
    assert routed(standing) == [OTHERS]
    begin_epoch(standing)
    assert routed(standing) == []
    refused = deliver(standing, receipt_of(NODE, read_back(), **before))
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "history-foreign")
    assert (routed(standing), noted(standing, NODE)) == ([], ["history-foreign"])
    now = history(standing)
    assert (now["cluster_id"], now["epoch"] > 1) == (before["cluster_id"], True)
    assert deliver(standing, receipt_of(NODE, read_back(), **now)).status_code == 200
    assert routed(standing) == [OTHERS]


def test_what_a_node_of_another_cluster_refuses_is_kept_and_routes_nothing(standing: World) -> None:
    """Whoever looks for the reason finds it where all receipts are."""
    theirs = {"cluster_id": "bbbbbbbb-0000-4000-8000-000000000002", "epoch": 1}
    said = receipt_of(NODE, read_back(), outcome="refused", problems=("the target is of another cluster",), **theirs)
    assert deliver(standing, said).status_code == 200
    kept = standing.call("GET", f"/v1/receipts?node={NODE}").json()["items"][0]
    assert (kept["outcome"], kept["problems"]) == ("refused", ["the target is of another cluster"])
    assert (kept["document"]["cluster_id"], kept["document"]["replicas"]) == (theirs["cluster_id"], [])
    assert (routed(standing), noted(standing, NODE)) == ([], ["history-foreign"])
    assert deliver(standing, replace(said, outcome="applied")).status_code == 422


def test_agents_of_the_version_before_hear_of_no_history_and_are_believed(standing: World) -> None:
    """They refuse targets with fields that they do not know, and send none themselves."""
    answered = standing.call("GET", TARGET, NODE)
    assert not {"cluster_id", "epoch"} & set(answered.json())
    assert answered.headers["etag"] == '"1"'
    assert receive(standing, NODE, read_back()).status_code == 200
    assert routed(standing) == [OTHERS]
    begin_epoch(standing)
    assert receive(standing, NODE, read_back()).status_code == 200
    assert routed(standing) == [OTHERS]


def speak(world: World, sequence: int, generation: int, **said: Any) -> httpx.Response:
    """A report of what was told to the node, with what it says of its history."""
    sent = report(
        NODE, sequence, boot_id="boot-1", generation=generation, devices=[device_report(f"GPU-{NODE}-0")],
        replicas=[replica_report(VISION, DEVICE, model="resnet50", memory_mib_limit=1408)],
    )  # fmt: skip
    return world.call("POST", "/v1/agent/reports", NODE, plain=encode(replace(sent, **said)))


def applied(world: World) -> int:
    (node,) = (node for node in world.call("GET", "/v1/fleet").json()["nodes"] if node["id"] == NODE)
    return int(node["generation_applied"])


def test_a_report_of_an_epoch_that_is_over_counts_but_for_its_generation(standing: World) -> None:
    """What was held and used is billed, whatever history says of plans; what was applied then stands no more."""
    before = history(standing)
    assert speak(standing, 1, 1, **before).status_code == 200
    assert applied(standing) == 1
    begin_epoch(standing)
    assert speak(standing, 2, 1, **before).json()["accepted"] == 1
    assert (applied(standing), noted(standing, NODE)) == (0, [])
    assert speak(standing, 3, 1, **history(standing)).status_code == 200
    assert applied(standing) == 1


@pytest.mark.parametrize("said", [{"cluster_id": "bbbbbbbb-0000-4000-8000-000000000002", "epoch": 1}, {"epoch": 2**40}])
def test_reports_of_other_histories_are_refused(standing: World, said: dict[str, Any]) -> None:
    refused = speak(standing, 1, 1, **(history(standing) | said))
    (fault,) = refused.json()["errors"]
    assert (refused.status_code, fault["pointer"], fault["code"]) == (422, "/epoch", "history-foreign")
    assert (stored_rows(standing), noted(standing, NODE)) == (set(), ["history-foreign"])
    assert speak(standing, 1, 1, **history(standing)).status_code == 200
    assert stored_rows(standing) == {VISION}


def test_an_agent_of_the_version_before_reports_in_every_epoch(standing: World) -> None:
    assert speak(standing, 1, 1).status_code == 200
    begin_epoch(standing)
    assert speak(standing, 2, 1).status_code == 200
    assert (applied(standing), noted(standing, NODE)) == (1, [])


def test_the_tag_of_a_target_tells_epochs_apart(standing: World) -> None:
    first = standing.call("GET", TARGET, NODE, headers={READS: HISTORY})
    asked = {READS: HISTORY, "If-None-Match": first.headers["etag"]}
    assert standing.call("GET", TARGET, NODE, headers=asked).status_code == 304
    begin_epoch(standing)
    again = standing.call("GET", TARGET, NODE, headers=asked)
    assert (again.status_code, again.json()["generation"]) == (200, first.json()["generation"])
    joined = standing.call("POST", "/v1/agent/join", NODE, plain=encode(join_message(NODE, boot_id="boot-1"))).json()
    assert {name: joined[name] for name in ("cluster_id", "epoch")} == history(standing)


def test_what_a_node_does_not_start_for_others_is_told_where_people_look(standing: World) -> None:
    """One sentence with node and reason; a project reads what concerns its own processes."""
    why = f"{DEVICE} start {VISION}: '/bin/sh' is not started: it is not among --executables"
    others = f"{DEVICE} start elsewhere/speech#0: it ends at once"
    said = receipt_of(NODE, outcome="partial", problems=(others, why))
    assert deliver(standing, receipt_of(NODE, outcome="partial", problems=("of before",))).status_code == 200
    assert deliver(standing, replace(said, elapsed_ms=2.0)).status_code == 200

    def told(who: str) -> list[str]:
        problems: list[str] = standing.call("GET", "/v1/fleet", who).json()["problems"]
        return problems

    mine = f"node {NODE}: {why}"
    assert (told("admin"), told("own operator"), told("foreign viewer")) == (
        [f"node {NODE}: {others}", mine],
        [mine],
        [],
    )
    plan = standing.call("GET", "/v1/plans?limit=1").json()["items"][0]["id"]
    explained = standing.call("GET", f"/v1/plans/{plan}/explain?workload={OWN}/vision").json()
    assert explained["problems"] == [mine]
    assert f"  {mine}" in _explanation(f"{OWN}/vision", explained)
    assert mine in _head(standing.call("GET", "/v1/fleet").json())
    assert deliver(standing, receipt_of(NODE, read_back(), elapsed_ms=3.0)).status_code == 200
    assert told("admin") == []
