"""The demo's users at the edge: routing by weight, and unrouted requests counted."""

from __future__ import annotations

import json
from collections import Counter

import httpx

from app.client.held import EMPTY_HOLD_S
from app.client.offered import REPORT_EVERY_S
from app.demo.traffic import NodeEndpoints, RateShape, ReadyRoutes, TrafficLoop, TrafficOrder, TrafficPlan
from headroom_client import Client

NODE = "http://node.test:9"


def routes_body(*replicas: tuple[str, str | None, float]) -> dict[str, object]:
    places = [
        {"replica": replica, "endpoint": endpoint, "weight": weight, "node": "n", "state": "ready"}
        for replica, endpoint, weight in replicas
    ]
    return {"items": [{"service": "p/a", "replicas": places}]}


class World:
    """An API and a node, both of which a test may break."""

    def __init__(self, *replicas: tuple[str, str | None, float]) -> None:
        self.routes = routes_body(*replicas)
        self.tag = '"1"'
        self.api_status = 200
        self.node_answer: dict[str, object] = {}
        self.node_error = False
        self.loads: list[dict[str, object]] = []
        self.reports: list[dict[str, object]] = []
        self.route_calls: list[str | None] = []

    def client(self) -> Client:
        return Client("http://api.test", "t", transport=httpx.MockTransport(self._api), attempts_max=1)

    def nodes(self) -> NodeEndpoints:
        return NodeEndpoints(httpx.MockTransport(self._node))

    def _api(self, request: httpx.Request) -> httpx.Response:
        if self.api_status == 0:
            raise httpx.ConnectError("down", request=request)
        if self.api_status != 200:
            return httpx.Response(self.api_status, json={"detail": "no", "code": "x"})
        if request.url.path == "/v1/routes":
            known = request.headers.get("If-None-Match")
            self.route_calls.append(known)
            if known == self.tag:
                return httpx.Response(304)
            return httpx.Response(200, json=self.routes, headers={"ETag": self.tag})
        self.reports.extend(json.loads(request.content))
        return httpx.Response(202, json={})

    def _node(self, request: httpx.Request) -> httpx.Response:
        if self.node_error:
            raise httpx.ConnectError("down", request=request)
        assert str(request.url) == f"{NODE}/load"
        self.loads.append(json.loads(request.content))
        return httpx.Response(200, json=self.node_answer)


def traffic_of(world: World, rate_rps: float = 1000.0) -> TrafficLoop:
    plan = TrafficPlan(shapes=(RateShape(service="p/a", rate_rps_mean=rate_rps, swing=0.0),))
    made = TrafficLoop(world.client(), TrafficOrder(plan=plan, gateway="g", anchor_s=0.0), world.nodes())
    made.refresh_routes(0.0)
    return made


def due(traffic: TrafficLoop, wall_s: float) -> None:
    """What was counted becomes due."""
    traffic.report(0.0, wall_s - REPORT_EVERY_S)
    traffic.report(REPORT_EVERY_S, wall_s)


def test_arrivals_reach_ready_replicas_by_weight_and_are_reported() -> None:
    world = World(("p/a#0", NODE, 3.0), ("p/a#1", NODE, 1.0), ("p/a#2", None, 9.0))
    traffic = traffic_of(world)
    traffic.tick(0.0, 1.0)
    (load,) = world.loads
    assert load["interval_s"] == 1.0
    sent = load["replicas"]
    assert isinstance(sent, dict)
    assert set(sent) == {"p/a#0", "p/a#1"}
    assert 2.4 < sent["p/a#0"] / sent["p/a#1"] < 3.7
    due(traffic, 100.0)
    (report,) = world.reports
    assert (report["gateway"], report["sequence"], report["observed_at_s"]) == ("g", 1, 100.0)
    arrived = sum(sent.values())
    assert report["samples"] == [{"service": "p/a", "arrived": arrived, "interval_s": 1.0, "unrouted": 0}]
    assert 900 < arrived < 1100


def test_without_replicas_everything_is_unrouted_but_still_offered() -> None:
    world = World()
    traffic = traffic_of(world)
    traffic.tick(0.0, 1.0)
    due(traffic, 1.0)
    ((sample,),) = [report["samples"] for report in world.reports]
    assert sample["arrived"] == sample["unrouted"] > 0
    assert world.loads == []


def test_what_a_node_does_not_take_is_unrouted() -> None:
    world = World(("p/a#0", NODE, 1.0), ("p/a#1", NODE, 1.0))
    world.node_answer = {"unknown": ["p/a#0"], "not_ready": []}
    traffic = traffic_of(world)
    traffic.tick(0.0, 1.0)
    due(traffic, 1.0)
    sent = world.loads[0]["replicas"]
    assert isinstance(sent, dict)
    ((sample,),) = [report["samples"] for report in world.reports]
    assert sample["unrouted"] == sent["p/a#0"]


def test_a_silent_node_is_left_alone_for_a_while() -> None:
    world = World(("p/a#0", NODE, 1.0))
    world.node_error = True
    traffic = traffic_of(world)
    traffic.tick(0.0, 1.0)
    world.node_error = False
    traffic.tick(1.0, 1.0)
    assert world.loads == []
    due(traffic, 2.0)
    ((sample,),) = [report["samples"] for report in world.reports]
    assert sample["unrouted"] == sample["arrived"] > 0


def test_routes_are_kept_while_the_api_is_away_and_asked_for_by_tag() -> None:
    world = World(("p/a#0", NODE, 1.0))
    routes = ReadyRoutes()
    with world.client() as client:
        routes.refresh(client, 0.0)
        world.api_status = 0
        routes.refresh(client, 1.0)
        assert [route.replica for route in routes.of("p/a")] == ["p/a#0"]
        world.api_status = 200
        routes.refresh(client, 2.0)
    assert [route.replica for route in routes.of("p/a")] == ["p/a#0"]
    assert world.route_calls == [None, '"1"']
    assert routes.of("p/b") == ()


def test_an_api_that_is_back_and_knows_no_node_yet_is_not_believed_at_once() -> None:
    world = World(("p/a#0", NODE, 1.0))
    routes = ReadyRoutes()
    with world.client() as client:
        routes.refresh(client, 0.0)
        world.routes, world.tag = routes_body(), '"2"'
        for now_s, left in ((1.0, 1), (EMPTY_HOLD_S, 1), (2 + EMPTY_HOLD_S, 0)):
            routes.refresh(client, now_s)
            assert len(routes.of("p/a")) == left


def test_equal_seeds_send_equal_loads() -> None:
    def counts() -> Counter[str]:
        world = World(("p/a#0", NODE, 1.0), ("p/a#1", NODE, 1.0))
        traffic = traffic_of(world, 20.0)
        for second in range(5):
            traffic.tick(float(second), 1.0)
        return Counter(json.dumps(load, sort_keys=True) for load in world.loads)

    assert counts() == counts()
