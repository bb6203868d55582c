"""Queries: a name that a route does not know is refused, so that whoever misspells a filter is not told everything."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx
import pytest

from agents.wire import encode
from tests.integration.api.routes import Requests, routes_of
from tests.integration.api.world import NODE, World
from tests.integration.store.samples import report

pytestmark = pytest.mark.integration
ASKED_BY_PROBES = {"get_health", "get_ready", "get_version", "get_metrics"}


def _faults(answer: httpx.Response) -> list[tuple[str, str, str]]:
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), answer.text
    return [(fault["pointer"], fault["code"], fault["detail"]) for fault in answer.json()["errors"]]


def test_every_route_refuses_what_it_does_not_know(world: World, requests: Requests) -> None:
    """By whoever may ask; who may not is told that, and who looks after processes may add what they like."""
    for route in routes_of(world):
        path, plain, headers = requests.request(route)
        path += ("&" if urlsplit(path).query else "?") + "nonsense=1"
        found = {}
        for who in ("admin", "join", "node", None):
            found[who] = world.call(route.method, path, who, plain=plain, headers=headers)
        if route.operation in ASKED_BY_PROBES:
            assert {each.status_code for each in found.values()} == {200}, route
            continue
        refused = [each for each in found.values() if each.status_code == 422]
        assert refused, route
        for each in refused:
            ((pointer, code, told),) = _faults(each)
            assert (pointer, code) == ("query:nonsense", "unknown-parameter"), route
            assert told.startswith("there is no parameter nonsense"), route
        others = {each.status_code for each in found.values() if each.status_code != 422}
        assert others <= {401, 403, 404}, route


def test_a_misspelt_name_is_told_the_nearest(world: World) -> None:
    (fault,) = _faults(world.call("GET", "/v1/services?projct=demo"))
    assert fault == ("query:projct", "unknown-parameter", "there is no parameter projct; did you mean project?")
    faults = _faults(world.call("GET", "/v1/telemetry?subject=services/demo/vision&fields=power_w&limit=3"))
    assert [pointer for pointer, _, _ in faults] == ["query:fields", "query:limit"]
    assert faults[0][2].endswith("did you mean field?")
    (fault,) = _faults(world.call("DELETE", "/v1/services/demo/vision?force=true"))
    assert fault[2] == "there is no parameter force; known are none"
    (fault,) = _faults(world.call("GET", f"/v1/services?{'x' * 5_000}=1"))
    assert len(fault[2]) < 300


def test_a_parameter_that_says_two_things_is_refused(world: World) -> None:
    (fault,) = _faults(world.call("GET", "/v1/services?project=demo&project=other"))
    assert fault == ("query:project", "repeated-parameter", "project may be given only once")
    many = "/v1/telemetry?subject=services/demo/vision&field=offered_rps&field=replicas"
    assert world.call("GET", many).json()["detail"] == "there is no service demo/vision"


def test_who_may_not_ask_is_told_that_first(world: World) -> None:
    assert world.call("GET", "/v1/nodes?nonsense=1", None).status_code == 401
    assert world.call("GET", "/v1/nodes?nonsense=1", "own viewer").status_code == 403


def test_a_report_with_a_query_is_not_stored(world: World) -> None:
    world.joined(NODE)
    answer = world.call("POST", "/v1/agent/reports?again=1", NODE, plain=encode(report(NODE, 1, boot_id="boot-1")))
    assert _faults(answer)[0][0] == "query:again"
    with world.database.raw() as connection:
        assert connection.execute("SELECT count(*) FROM report_log").fetchone() == (0,)


def test_pages_of_the_console_take_what_browsers_add(world: World) -> None:
    cookie = world.cookie("viewer")
    for path in ("/", "/services", "/plans", "/costs", "/fleet", "/audit"):
        assert world.call("GET", f"{path}?utm_source=mail", None, headers=cookie).status_code == 200
