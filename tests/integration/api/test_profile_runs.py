"""Profile runs over HTTP: ordered for free devices, carried out by their node alone, with nothing planned meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from agents.wire import ProfileOrder, ProfilePointAsked, WorkerTarget, decode_items, encode
from app import kinds
from app.clock import SystemClock
from app.services.planning.planning import Leader
from app.services.planning.snapshots import read_snapshot
from app.services.profiles.runs import PROFILING
from app.settings import Settings
from app.store import profile_runs
from app.workers.scheduler import Housekeeping
from solvers.domain.ids import ClusterName
from solvers.domain.worker import EnvironmentVariable, WarmUp, WorkerCommand
from tests import builders
from tests.integration.api.world import CLUSTER, DEVICE, NODE, OWN, World, join_message

pytestmark = pytest.mark.integration
SERVICE = f"{OWN}/vision"
COMMAND = WorkerCommand(
    command=("serve", "--port", "{port}"),
    environment=(EnvironmentVariable(name="MODE", value="fast"),),
    warm_up=WarmUp(path="/infer", body="{}"),
)


@pytest.fixture
def served(world: World) -> World:
    """A node with two GPUs and a service that says how it is started."""
    world.joined(NODE, types=("t4", "t4"))
    world.joined("b", types=("t4",))
    world.put(kinds.SERVICE, replace(builders.service(), worker=COMMAND))
    return world


def order(world: World, status: int = 201, **more: Any) -> dict[str, Any]:
    wanted = {"service": SERVICE, "node": NODE, "budget_s": 60, **more}
    answer = world.call("POST", "/v1/profile-runs", "operator", plain=wanted)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tainted(world: World) -> set[str]:
    with world.database.reading() as session:
        snapshot = read_snapshot(session, ClusterName(CLUSTER))
    return {device.id for device in snapshot.devices if PROFILING in device.taints}


def tell(world: World, run: int, who: str = NODE, **news: Any) -> Any:
    plain = {"state": "running", "measured": 0, "doubtful": 0, **news}
    return world.call("POST", f"/v1/agent/profile-runs/{run}", who, plain=plain)


def point(**more: Any) -> dict[str, Any]:
    return {
        "model": "resnet50",
        "gpu_type": "t4",
        "batch": 4,
        "share_pct_sm": 50,
        "clock_mhz_sm": 1500,
        "latency_ms_mean": 9.5,
        **more,
    }


def test_an_order_reaches_its_node_with_the_process_to_start(served: World) -> None:
    run = order(served)
    (told,) = decode_items(ProfileOrder, served.call("GET", "/v1/agent/profile-runs", NODE).json())
    assert (told.run, told.uuid, told.subject.service, told.subject.model) == (run["id"], DEVICE, SERVICE, "resnet50")
    assert isinstance(told.subject.worker, WorkerTarget)
    assert told.subject.worker.command == COMMAND.command
    assert told.subject.worker.environment == (("MODE", "fast"),)
    assert decode_items(ProfileOrder, served.call("GET", "/v1/agent/profile-runs", "b").json()) == ()


def test_nothing_is_planned_on_a_device_that_is_measured_on(served: World) -> None:
    run = order(served)
    assert tainted(served) == {DEVICE}
    assert tell(served, run["id"], state="done").json() == {"going_on": True}
    assert tainted(served) == set()


def test_the_second_run_takes_the_second_device_and_a_third_is_refused(served: World) -> None:
    assert {order(served)["uuid"], order(served)["uuid"]} == {DEVICE, "GPU-a-1"}
    assert "another run" in order(served, 409)["detail"]
    assert order(served, 409, device=DEVICE)["code"] == "state-conflict"
    served.put(kinds.SERVICE, replace(builders.service(), gpu_types_allowed=("v100",)))
    assert "no device on which" in order(served, 422)["errors"][0]["detail"]


def test_live_traffic_is_taken_only_when_draining_is_asked_for(served: World) -> None:
    served.put(kinds.SERVICE, replace(builders.service(), worker=COMMAND, gpu_types_allowed=("t4",)))
    live = served.call("POST", "/v1/plans", plain={}).json()["id"]
    assert served.call("POST", f"/v1/plans/{live}/apply", plain={}).status_code == 200
    with served.database.reading() as session:
        placed = {item.device for item in read_snapshot(session, ClusterName(CLUSTER)).target.assignments}
    assert placed, "the plan places nothing, so that this shows nothing"
    on_node = sorted(placed & {DEVICE, "GPU-a-1"})
    assert on_node
    assert "live traffic" in order(served, 409, device=on_node[0])["detail"]
    assert order(served, device=on_node[0], drain=True)["drain"] is True


def test_results_become_profiles_and_progress_shows(served: World) -> None:
    run = order(served)
    assert tell(served, run["id"], measured=1, points=[point()], detail="batch 4").json() == {"going_on": True}
    profile = served.call("GET", "/v1/profiles/resnet50/t4").json()
    assert [(item["batch"], item["latency_ms_mean"]) for item in profile["points"]] == [(4, 9.5)]
    shown = served.call("GET", f"/v1/profile-runs/{run['id']}", "viewer").json()
    assert (shown["state"], shown["measured"], shown["detail"]) == ("running", 1, "batch 4")
    assert shown["started_at"] is not None


def test_a_node_hands_in_only_what_its_run_is_about(served: World) -> None:
    run = order(served)
    answer = tell(served, run["id"], points=[point(model="bert-base")])
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/points/0"
    assert tell(served, run["id"], who="b").status_code == 404


def test_a_cancelled_run_tells_its_node_to_stop(served: World) -> None:
    run = order(served)
    assert served.call("DELETE", f"/v1/profile-runs/{run['id']}", "operator").status_code == 204
    assert served.call("DELETE", f"/v1/profile-runs/{run['id']}", "operator").status_code == 204
    assert tell(served, run["id"]).json() == {"going_on": False}
    assert tainted(served) == set()
    assert served.call("GET", f"/v1/profile-runs/{run['id']}").json()["state"] == "cancelled"


def test_a_run_whose_node_fell_silent_frees_its_device(served: World) -> None:
    run = order(served)
    with served.database.transaction() as session:
        session.execute(text("UPDATE profile_runs SET expires_at = now() - interval '1 second'"))
    assert tainted(served) == set()
    assert order(served, device=DEVICE)["uuid"] == DEVICE
    ended = served.call("GET", f"/v1/profile-runs/{run['id']}").json()
    assert ended["state"] == "failed"
    assert "did not tell" in ended["detail"]


def test_points_are_those_that_tell_most(served: World) -> None:
    run = order(served)
    answer = served.call("GET", f"/v1/agent/profile-runs/{run['id']}/points", NODE)
    points = decode_items(ProfilePointAsked, answer.json())
    assert len(points) == 16
    assert len({(item.batch, item.share_pct_sm, item.clock_mhz_sm) for item in points}) == 16


def clocks_proposed(world: World, path: str, who: str) -> set[int]:
    items = world.call("GET", path, who).json()["items"]
    assert len(items) > 8
    return {item["clock_mhz_sm"] for item in items}


def rejoined(world: World, node: str, refused: str) -> None:
    """A node whose agent starts anew, and now may or may not set clocks."""
    said = join_message(node, "boot-2", ("t4", "t4") if node == NODE else ("t4",))
    devices = tuple(replace(each, capabilities={"set_clock": refused}) for each in said.devices)
    answer = world.call("POST", "/v1/agent/join", node, plain=encode(replace(said, devices=devices)))
    assert answer.status_code == 200, answer.text


def test_no_lower_clock_is_asked_of_a_device_whose_agent_may_not_set_it(served: World) -> None:
    rejoined(served, NODE, "this process may not write to GPUs")
    run, other = order(served), order(served, node="b")
    assert clocks_proposed(served, f"/v1/agent/profile-runs/{run['id']}/points", NODE) == {1590}
    assert clocks_proposed(served, f"/v1/agent/profile-runs/{other['id']}/points", "b") > {1590}
    path = "/v1/profiles/resnet50/t4/next-points?budget=64"
    assert clocks_proposed(served, path, "viewer") > {1590}, "one device of the type can"
    rejoined(served, "b", "not as root")
    assert clocks_proposed(served, path, "viewer") == {1590}


def test_what_does_not_exist_is_named(served: World) -> None:
    for field, wanted in (("service", f"{OWN}/none"), ("node", "none"), ("device", "GPU-none"), ("beside", "x/y")):
        fault = order(served, 422, **{field: wanted})["errors"][0]
        assert fault["code"] == "reference-unknown"
        assert wanted in fault["detail"]


def test_runs_that_ended_long_ago_are_forgotten(served: World) -> None:
    ended, open_ = (order(served)["id"] for _ in range(2))
    tell(served, ended, state="done", measured=3)
    with served.database.transaction() as session:
        session.execute(text("UPDATE profile_runs SET created_at = now() - interval '40 days'"))
        assert profile_runs.delete_older(session, 30) == 0
        session.execute(
            text("UPDATE profile_runs SET ended_at = now() - interval '31 days' WHERE ended_at IS NOT NULL")
        )
    Housekeeping(served.database, Settings(cluster=CLUSTER), SystemClock()).retain(Leader(holder="test", fencing=1))
    assert [item["id"] for item in served.call("GET", "/v1/profile-runs").json()["items"]] == [open_]


def test_runs_are_listed_newest_first(served: World) -> None:
    first, second = order(served)["id"], order(served)["id"]
    page = served.call("GET", "/v1/profile-runs?limit=1").json()
    assert [item["id"] for item in page["items"]] == [second]
    rest = served.call("GET", f"/v1/profile-runs?limit=1&cursor={page['next_cursor']}").json()
    assert [item["id"] for item in rest["items"]] == [first]
