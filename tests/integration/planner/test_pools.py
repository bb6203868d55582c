"""Policies with pools from the API to simulated nodes under load: who owns what, switched and moved as users send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agents.wire import NodeTarget, decode
from app.services.planning.planning import Leader, Planning
from app.store import profiles, targets
from app.store.engine import Database
from app.workers.solve_pool import SolvePool
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.device import ColocationClass
from solvers.domain.ids import PolicyName
from tests.integration.api.world import World as Api
from tests.integration.api.world import build_world, spec
from tests.integration.planner.test_make_before_break import LABELS, Fleet
from tests.integration.planner.world import CLUSTER, World
from tests.unit.app.services.whatif.small_fleet import POLICY, T4, job, profile, service

pytestmark = pytest.mark.integration
EDGE = "/v1/policies/edge"
MINE = replace(service("labels"), policy=PolicyName("edge"))


@pytest.fixture
def api(database: Database) -> Iterator[Api]:
    made = build_world(database, cluster=CLUSTER)
    yield made
    made.client.close()


class Site:
    """The served application, the real planners and two simulated nodes, over one database."""

    def __init__(self, api: Api, world: World, planning: Planning) -> None:
        self.api, self.world, self.planning = api, world, planning
        self.fleet = Fleet(world)
        with world.database.transaction() as session:
            profiles.put_points(session, profile(T4).points)
            lease = targets.acquire_lease(session, targets.PLANNER, "test", 600.0)
        assert lease is not None
        self.fencing = lease.token
        # Nodes report before anything is planned.
        self.fleet.pass_s(0.5, loaded=False)

    def put(self, path: str, plain: object, status: tuple[int, ...] = (200, 201)) -> Any:
        answer = self.api.call("PUT", path, plain=plain)
        assert answer.status_code in status, answer.text
        return answer.json()

    def policy(self, **changes: Any) -> Any:
        plain = {**spec(POLICY), "name": "edge", "pool": {"nodes": ["a"]}, "planners": ["morak", "greedy"], **changes}
        return {name: value for name, value in plain.items() if value is not None}

    def cycle(self) -> CycleRecord:
        leader = Leader(holder="test", fencing=self.fencing)
        return next(record for record in self.planning.run_lanes(leader) if record.lane is Lane.ACT)

    def governors(self) -> dict[str, set[str]]:
        """What every node was told to govern its devices by."""
        found = {}
        for name in ("a", "b"):
            with self.world.database.reading() as session:
                stored = targets.node_document(session, name)
            assert stored is not None
            target = decode(NodeTarget, stored.document)
            found[name] = {target.governor_of(device) for device in target.devices}
        return found

    def homes(self) -> set[str]:
        return {name for name, fakes in self.fleet.fakes.items() for _ in fakes.workers()}

    def get(self, path: str) -> Any:
        answer = self.api.call("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def problems(self, path: str, plain: object) -> list[tuple[str, str]]:
        answer = self.put(path, plain, (422,))
        return [(error["pointer"], error["detail"]) for error in answer["errors"]]


@pytest.fixture
def site(api: Api, world: World, pool: SolvePool) -> Site:
    return Site(api, world, world.planning(pool))


def test_policies_are_switched_and_pools_moved_under_load(site: Site, pool: SolvePool) -> None:
    fleet = site.fleet
    site.put(EDGE, site.policy(planners=["gslice", "greedy"]))
    site.put(f"/v1/services/{LABELS}", spec(MINE))
    first = site.cycle()
    assert first.generation == 1
    assert [(item.policy, item.planner) for item in first.attempts] == [("edge", "gslice")]
    fleet.pass_s(10.0, loaded=False)
    assert site.homes() == {"a"}
    fleet.pass_s(2.0)

    # Another chain and another controller on the same pool: the target stays, and the next cycle is theirs.
    site.put(EDGE, site.policy(planners=["greedy"], governor="clipper_l"))
    assert site.get("/v1/fleet")["generation"] == 1
    fleet.pass_s(2.0)
    second = site.cycle()
    assert [(item.policy, item.planner) for item in second.attempts] == [("edge", "greedy")]
    assert second.generation == 2
    assert site.governors() == {"a": {"clipper_l"}, "b": {"morak"}}
    fleet.pass_s(16.0)
    kept = set(site.world.column("SELECT planner FROM planner_states"))
    site.put(EDGE, site.policy(planners=["gslice", "greedy"]))
    third = site.cycle()
    again = next(item for item in third.attempts if item.planner == "gslice")
    assert kept == {"edge/gslice"}
    assert again.state_digest is not None
    assert again.state_digest in set(site.world.column("SELECT digest FROM planner_states"))
    fleet.pass_s(16.0)

    # The pool moves to the other node, and its service with it.
    site.put(EDGE, site.policy(planners=["gslice", "greedy"], pool={"nodes": ["b"]}))
    fleet.pass_s(1.0)
    moved = site.cycle()
    assert moved.generation is not None
    fleet.pass_s(45.0)
    assert site.homes() == {"b"}
    assert site.governors() == {"a": {"morak"}, "b": {"morak"}}
    assert (fleet.lost, fleet.empty_handed) == (0, 0)
    assert site.world.replays(pool, moved.id)
    told = [item for item in site.get("/v1/events")["items"] if item["name"] == "ownership.moved"]
    assert [(item["subject"], item["facts"]["owns_now"]) for item in told[:2]] == [
        ("policies/edge", "edge (planners gslice, greedy; governor morak)"),
        ("policies/default", "default (planners joint, greedy; governor morak)"),
    ]
    assert told[-1]["facts"]["owned_before"] == "default (planners joint, greedy; governor morak)"


def test_status_and_explain_say_who_owns_what(site: Site) -> None:
    site.put(EDGE, site.policy(governor="dfs"))
    site.put(f"/v1/services/{LABELS}", spec(MINE))
    site.put("/v1/services/vision/search", spec(service("search")))
    assert site.cycle().generation == 1
    fleet = site.get("/v1/fleet")
    assert [(item["policy"], item["devices"], item["workloads"], item["planner"]) for item in fleet["policies"]] == [
        ("edge", 2, 1, "morak"),
        ("default", 2, 1, "joint"),
    ]
    assert {(device["node"], device["policy"]) for device in fleet["devices"]} == {("a", "edge"), ("b", "default")}
    assert {item["id"]: item["policy"] for item in fleet["services"]} == {LABELS: "edge", "vision/search": "default"}
    knobs = ["placement", "replicas", "share", "memory", "batch", "clock", "power"]
    assert all(list(device["owners"]) == knobs for device in fleet["devices"])
    held = [device for device in fleet["devices"] if device["node"] == "a" and device["share_pct_sm_planned"] > 0]
    assert {device["owners"]["placement"] for device in held} == {"edge: planner morak"}
    assert {device["owners"]["clock"] for device in held} == {"edge: governor dfs"}
    plan = fleet["plan"]["id"]
    mine = site.get(f"/v1/plans/{plan}/explain?workload={LABELS}")["owners"]
    places = " and ".join(sorted(f"a GPU {device['index']}" for device in held))
    assert f"batch and clock on {places} are owned by policy edge: governor dfs" in mine
    assert f"placement, replicas, share, memory and power on {places} are owned by policy edge: planner morak" in mine
    other = site.get(f"/v1/plans/{plan}/explain?workload=vision/search")
    assert any("on b GPU " in line and "policy default: planner joint" in line for line in other["owners"])
    assert other["demand"].endswith(" requests/s must be served now, as declared: nobody has counted any lately")
    assert site.get(f"/v1/plans/{plan}/explain")["demand"] is None


def test_what_contradicts_is_refused_and_named(site: Site) -> None:
    uuid = site.fleet.uuid("a", 0)
    site.put(EDGE, site.policy())
    other = {**site.policy(), "name": "other"}

    ((pointer, said),) = site.problems("/v1/policies/other", {**other, "pool": {"devices": [uuid]}})
    assert (pointer, said) == ("/pool", f"{uuid} would be in the pools of edge and other: every knob has one owner")
    ((pointer, said),) = site.problems("/v1/policies/default", {**other, "name": "default"})
    assert (pointer, said.split(",")[0]) == ("/pool", "the policy default has whatever is in no pool")
    clock = {**other, "pool": {"nodes": ["b"]}, "planners": ["hetsev", "greedy"], "governor": "dfs"}
    ((pointer, said),) = site.problems("/v1/policies/other", clock)
    assert (pointer, said.split(":")[0]) == (
        "/governor",
        "dfs moves the clock alone, and hetsev, greedy plan for a constant one",
    )
    settings = [
        {"planner": "inss", "name": "leftover", "value": "reserve"},
        {"planner": "inss_ni", "name": "leftover", "value": "distribute"},
    ]
    twice = {**other, "pool": {"nodes": ["b"]}, "planners": ["inss", "inss_ni"], "planner_settings": settings}
    ((pointer, said),) = site.problems("/v1/policies/other", twice)
    assert (pointer, said) == (
        "/planner_settings/1/value",
        "leftover is distribute for inss_ni and reserve for inss in one chain",
    )
    assert [pointer for pointer, _ in site.problems("/v1/policies/other", {**other, "pool": {}})] == ["/pool/devices"]


def test_a_workload_names_a_policy_that_can_host_it(site: Site) -> None:
    path = f"/v1/services/{LABELS}"
    assert site.problems(path, spec(MINE)) == [("/policy", "there is no policy edge")]
    site.put(EDGE, site.policy(pool=None))
    ((pointer, said),) = site.problems(path, spec(MINE))
    assert (pointer, said) == ("/policy", f"the policy edge has no pool, so nothing could host {LABELS}")
    site.put(EDGE, site.policy())
    ((pointer, said),) = site.problems(path, {**spec(MINE), "gpu_types_allowed": ["v100"]})
    assert (pointer, said) == ("/policy", f"the pool of edge has t4, and {LABELS} may only run on v100")
    site.put(path, spec(MINE))
    ((pointer, said),) = site.problems(EDGE, site.policy(pool=None))
    assert (pointer, said) == ("/pool", f"{LABELS} would be without devices: edge plans them")
    refused = site.api.call("DELETE", EDGE)
    assert (refused.status_code, refused.json()["code"]) == (409, "still-referenced")
    for index in (0, 1):
        uuid = site.fleet.uuid("a", index)
        found = site.get(f"/v1/devices/{uuid}")
        site.put(f"/v1/devices/{uuid}", {**found, "colocation": ColocationClass.INFERENCE.value})
    ((pointer, said),) = site.problems("/v1/jobs/vision/train", {**spec(job()), "policy": "edge"})
    assert (pointer, said) == (
        "/policy",
        "every device in the pool of edge is for inference only, so none could host vision/train",
    )


def test_a_label_does_not_bring_a_node_into_two_pools(site: Site) -> None:
    site.put(EDGE, site.policy())
    labelled = {**site.policy(), "name": "north", "pool": {"labels": [{"key": "site", "value": "north"}]}}
    site.put("/v1/policies/north", labelled)
    found = site.get("/v1/nodes/a")
    ((pointer, said),) = site.problems("/v1/nodes/a", {**found, "labels": [{"key": "site", "value": "north"}]})
    assert pointer == "/labels"
    assert said.endswith("would be in the pools of edge and north: every knob has one owner")
    other = site.get("/v1/nodes/b")
    site.put("/v1/nodes/b", {**other, "labels": [{"key": "site", "value": "north"}]})
    assert {device["policy"] for device in site.get("/v1/fleet")["devices"]} == {"edge", "north"}
