"""What a node may say × what is not its own: for every operation that a node's token opens, everything in it that may
name the work, devices, runs or place of somebody else. Whatever is answered, nothing of the others changes.

The operations come from the table of `test_access`, so that a new one without a line here fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agents.wire import encode
from app import kinds
from app.store import logs, profile_runs
from app.store.profile_runs import NewRun
from tests import builders
from tests.integration.api.test_access import IN, OPEN, TABLE
from tests.integration.api.test_foreign import TRAIN, VISION, promote, read_back, receipt_of
from tests.integration.api.world import DEVICE, NODE, OWN, World, join_message
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, edge_report, replica_report, report

pytestmark = pytest.mark.integration

ROGUE, OFFERED = "rogue", f"{OWN}/vision"
MINE = f"GPU-{ROGUE}-0"
RUN, LOGS = "/v1/agent/profile-runs", "/v1/agent/log-requests"
REPORTS, RECEIPTS, JOIN, EDGE = (f"/v1/agent/{name}" for name in ("reports", "receipts", "join", "edge-reports"))
VICTIM = """
SELECT md5(string_agg(part, '|' ORDER BY part)) FROM (
    SELECT 'target ' || t::text AS part FROM node_targets AS t WHERE node_id = 'a'
    UNION ALL SELECT 'state ' || t::text FROM node_states AS t WHERE node_id = 'a'
    UNION ALL SELECT 'told ' || t::text FROM told_replicas AS t
    UNION ALL SELECT 'read ' || t::text FROM node_read_backs AS t WHERE node_id = 'a'
    UNION ALL SELECT 'receipt ' || t::text FROM receipts AS t WHERE node_id = 'a'
    UNION ALL SELECT 'device ' || t::text FROM device_samples AS t WHERE uuid LIKE 'GPU-a-%'
    UNION ALL SELECT 'replica ' || t::text FROM replica_samples AS t
    UNION ALL SELECT 'rate ' || t::text FROM rate_samples AS t
    UNION ALL SELECT 'head ' || t::text FROM report_heads AS t WHERE source <> 'node/rogue'
    UNION ALL SELECT 'log ' || t::text FROM report_log AS t WHERE source <> 'node/rogue'
    UNION ALL SELECT 'progress ' || t::text FROM job_progress AS t
    UNION ALL SELECT 'run ' || t::text FROM profile_runs AS t
    UNION ALL SELECT 'read log ' || t::text FROM log_requests AS t
    UNION ALL SELECT 'point ' || t::text FROM profile_points AS t
    UNION ALL SELECT 'document ' || t::text FROM devices AS t WHERE uuid LIKE 'GPU-a-%'
    UNION ALL SELECT 'node ' || t::text FROM nodes AS t WHERE id = 'a'
    UNION ALL SELECT 'token ' || id || coalesce(revoked_at::text, '') FROM tokens
    WHERE subject IS DISTINCT FROM 'rogue'
) AS parts
"""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something a rogue node asks or tells, and how it is answered."""

    method: str
    path: str
    status: int
    message: Callable[[], Any] = lambda: None
    who: str = ROGUE


def _report(**changes: Any) -> Callable[[], Any]:
    return lambda: encode(
        replace(report(ROGUE, 1, boot_id="boot-1", devices=[device_report(f"GPU-{ROGUE}-0")]), **changes)
    )


def _replicas(*replicas: Any) -> Callable[[], Any]:
    return _report(replicas=tuple(replicas))


def _receipt(*replicas: Any, **changes: Any) -> Callable[[], Any]:
    return lambda: encode(receipt_of(ROGUE, *replicas, **changes))


def _join(**changes: Any) -> Callable[[], Any]:
    return lambda: encode(replace(join_message(ROGUE), **changes))


def _on(uuid: str, replica: str = VISION, **changes: Any) -> Any:
    return replica_report(replica, uuid, **changes)


THEIRS = {"cluster_id": "bbbbbbbb-0000-4000-8000-000000000002", "epoch": 1}
MATRIX: Mapping[str, tuple[Deed, ...]] = {
    "join_node": (
        Deed("POST", JOIN, 403, lambda: encode(join_message(NODE, "boot-9"))),
        Deed("POST", JOIN, 409, lambda: encode(join_message(NODE, "boot-9")), who="join"),
        Deed("POST", JOIN, 409, lambda: encode(join_message(NODE, "boot-1")), who="join"),
        Deed("POST", JOIN, 409, _join(devices=join_message(NODE).devices)),
    ),
    "certify_node": (
        Deed(
            "POST", f"/v1/agent/nodes/{NODE}/certificates", 404, lambda: {"csr": "-----BEGIN CERTIFICATE REQUEST-----"}
        ),
    ),
    "get_node_target": (Deed("GET", f"/v1/agent/nodes/{NODE}/target", 404),),
    "send_reports": (
        Deed("POST", REPORTS, 403, _report(node=NODE)),
        Deed("POST", REPORTS, 403, lambda: [_report()(), _report(node=NODE, sequence=2)()]),
        Deed("POST", REPORTS, 422, _report(devices=(device_report(DEVICE),))),
        Deed("POST", REPORTS, 422, _replicas(_on(DEVICE))),
        Deed("POST", REPORTS, 200, _replicas(_on(MINE))),
        Deed("POST", REPORTS, 200, _replicas(_on(MINE, project="other"))),
        Deed("POST", REPORTS, 200, _replicas(_on(MINE, workload=f"{OWN}/train"))),
        Deed("POST", REPORTS, 200, _replicas(_on(MINE, TRAIN, kind="job", model="resnet50", iterations_done=40))),
        Deed("POST", REPORTS, 200, _replicas(_on(MINE, f"profile-{OWN}-vision-0", workload=f"{OWN}/vision"))),
        Deed("POST", REPORTS, 200, _report(generation_applied=9 * 10**15)),
    ),
    "send_receipt": (
        Deed("POST", RECEIPTS, 403, lambda: encode(receipt_of(NODE))),
        Deed("POST", RECEIPTS, 200, _receipt(read_back(ROGUE))),
        Deed("POST", RECEIPTS, 200, _receipt(read_back(ROGUE, uuid=DEVICE))),
        Deed("POST", RECEIPTS, 422, _receipt(read_back(ROGUE, endpoint="http://10.9.9.9:80"))),
        Deed("POST", RECEIPTS, 422, _receipt(generation=9)),
        Deed("POST", RECEIPTS, 422, _receipt(**THEIRS)),
    ),
    "list_node_profile_runs": (Deed("GET", RUN, 200),),
    "list_profile_run_points": (Deed("GET", f"{RUN}/1/points", 404),),
    "tell_profile_run": (
        Deed("POST", f"{RUN}/1", 404, lambda: {"state": "running", "measured": 0, "doubtful": 0}),
        Deed("POST", f"{RUN}/1", 404, lambda: {"state": "done", "measured": 9, "doubtful": 0}),
        Deed("POST", f"{RUN}/99", 404, lambda: {"state": "running", "measured": 0, "doubtful": 0}),
    ),
    "list_log_requests": (Deed("GET", LOGS, 200),),
    "hand_over_log": (
        Deed("POST", f"{LOGS}/1", 404, lambda: {"lines": ["a lie"]}),
        Deed("POST", f"{LOGS}/99", 404, lambda: {"lines": ["a lie"]}),
    ),
    # What may be read names nobody; whom it shows is `test_access`' matter.
    "get_routes": (),
    "get_service_routes": (),
    "listen_doorbell": (),
    "send_edge_reports": (
        Deed("POST", EDGE, 403, lambda: encode(edge_report(1, {OFFERED: 3.0}))),
        Deed(
            "POST", EDGE, 403, lambda: encode(replace(edge_report(1, {OFFERED: 3.0}), gateway="others")), who="gateway"
        ),
    ),
}


@pytest.fixture
def standing(world: World) -> World:
    """Node `a` was told of a service and a job, has said so and measures something; a rogue one was told of nothing."""
    world.put(kinds.SERVICE, builders.service())
    world.put(kinds.JOB, builders.job())
    world.joined(NODE)
    world.joined(ROGUE)
    promote(world, stored.plan())
    said = report(NODE, 1, boot_id="boot-1", generation=1, devices=[device_report(DEVICE)])
    assert world.call("POST", REPORTS, NODE, plain=encode(said)).status_code == 200
    assert world.call("POST", RECEIPTS, NODE, plain=encode(receipt_of(NODE, read_back()))).status_code == 200
    run = NewRun(
        node_id=NODE, uuid=DEVICE, service=f"{OWN}/vision", beside=None, budget_s=60.0, drain=False, created_by="test",
        patience_s=600.0,
    )  # fmt: skip
    with world.database.transaction() as session:
        assert profile_runs.create(session, run).id == 1
        logs.ask(session, "reader", f"{OWN}/vision", None, 10)
        assert [each.request for each in logs.wanted_of(session, NODE)] == [1]
    return world


def test_every_operation_of_nodes_and_gateways_has_a_line() -> None:
    theirs = {
        operation
        for operation, answers in TABLE.items()
        if answers is not OPEN and IN in (answers["node"], answers["foreign node"], answers["gateway"])
    }
    assert theirs == set(MATRIX)


@pytest.mark.parametrize("operation", [name for name, deeds in MATRIX.items() if deeds])
def test_nothing_of_others_changes(standing: World, operation: str) -> None:
    def held() -> tuple[object, object]:
        with standing.database.raw() as connection:
            digest = connection.execute(VICTIM.encode()).fetchone()
        return digest, standing.call("GET", "/v1/routes").json()

    before = held()
    for deed in MATRIX[operation]:
        answer = standing.call(deed.method, deed.path, deed.who, plain=deed.message())
        assert answer.status_code == deed.status, (deed, answer.text)
        assert held() == before, deed
    if operation in ("list_node_profile_runs", "list_log_requests"):
        (asked,) = MATRIX[operation]
        assert standing.call("GET", asked.path, ROGUE).json()["items"] == []
        assert len(standing.call("GET", asked.path, NODE).json()["items"]) == 1
