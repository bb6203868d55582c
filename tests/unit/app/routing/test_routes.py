"""The API's routes as a gateway reads them."""

from __future__ import annotations

from typing import Any

import pytest

from app.routing.routes import RouteServer, read_service, read_services
from solvers.errors import InputError


def replica(ordinal: int, endpoint: str | None, weight: float = 10.0) -> dict[str, Any]:
    host, _, port = (endpoint or "").removeprefix("http://").partition(":")
    return {
        "replica": f"vision/labels#{ordinal}",
        "endpoint": endpoint,
        "host": host or None,
        "port": int(port) if port else None,
        "weight": weight,
        "state": "ready",
        "generation": 3,
    }


def told(*replicas: dict[str, Any], service: str = "vision/labels", ready_path: str | None = None) -> dict[str, Any]:
    return {"service": service, "generation": 3, "ready_path": ready_path, "replicas": list(replicas)}


def test_weights_become_whole_numbers_of_which_the_heaviest_is_100() -> None:
    found = read_service(
        told(
            replica(0, "http://10.0.0.1:9001", 300.0),
            replica(1, "http://10.0.0.2:9001", 100.0),
            replica(2, "http://10.0.0.3:9001", 0.1),
        )
    )
    assert [(server.address, server.weight) for server in found.servers] == [
        ("10.0.0.1:9001", 100),
        ("10.0.0.2:9001", 33),
        ("10.0.0.3:9001", 1),
    ]


def test_replicas_under_one_address_are_one_server_and_unreachable_ones_none() -> None:
    found = read_service(
        told(
            replica(0, "http://10.0.0.1:80", 10.0),
            replica(1, "http://10.0.0.1:80", 30.0),
            replica(2, None, 99.0),
            replica(3, "http://10.0.0.2:80", 20.0),
            ready_path="/up",
        )
    )
    assert found.servers == (
        RouteServer(host="10.0.0.1", port=80, weight=100, replicas=("vision/labels#0", "vision/labels#1")),
        RouteServer(host="10.0.0.2", port=80, weight=50, replicas=("vision/labels#3",)),
    )
    assert found.ready_path == "/up"


def test_weightless_services_share_evenly() -> None:
    found = read_service(told(replica(0, "http://a:1", 0.0), replica(1, "http://b:1", 0.0)))
    assert [server.weight for server in found.servers] == [100, 100]


@pytest.mark.parametrize("endpoint", ["https://10.0.0.1:9001", "http://10.0.0.1:9001/base"])
def test_what_a_plain_gateway_cannot_forward_to_is_refused(endpoint: str) -> None:
    item = {**replica(0, "http://10.0.0.1:9001"), "endpoint": endpoint}
    with pytest.raises(InputError, match="plain http"):
        read_service(told(item))


def test_all_services_are_read_and_sixth_generation_addresses_are_bracketed() -> None:
    item = {**replica(0, None), "endpoint": "http://[fd00::7]:9001", "host": "fd00::7", "port": 9001}
    first, second = read_services({"items": [told(item), told(service="vision/faces")]})
    assert first.servers[0].address == "[fd00::7]:9001"
    assert (second.service, second.servers) == ("vision/faces", ())
