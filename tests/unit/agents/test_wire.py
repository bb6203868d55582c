"""Strict decoding of what an agent is told to hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agents.devices.base import WorkerSpec
from agents.wire import NodeTarget, WireError, decode, encode, mirrored
from tests.unit.agents.builders import device_target, node_target, replica_target


def plain_target() -> dict[str, Any]:
    job = replica_target("j", kind="job", iterations_total=7, iteration_ms_reference=90.0, gpu_type_reference="v100")
    message = encode(node_target(7, device_target("GPU-1", replica_target("a"), job, clock_mhz_sm=1380)))
    return json.loads(json.dumps(message))  # type: ignore[no-any-return]


def test_a_target_comes_back_as_it_went_out() -> None:
    assert encode(decode(NodeTarget, plain_target())) == encode(decode(NodeTarget, plain_target()))
    decoded = decode(NodeTarget, plain_target())
    assert decoded.devices[0].replicas[0] == replica_target("a")
    assert decoded.devices[0].replicas[1].gpu_type_reference == "v100"
    assert not decoded.devices[0].replicas[0].latency_execution_only
    assert (decoded.generation, decoded.devices[0].clock_mhz_sm) == (7, 1380)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("generation",), "7"),
        (("generation",), True),
        (("node",), None),
        (("plan",), 3),
        (("devices",), {}),
        (("surprise",), 1),
        (("devices", 0, "uuid"), 1),
        (("devices", 0, "clock_mhz_sm"), 1380.5),
        (("devices", 0, "power_limit_w"), "200"),
        (("devices", 0, "surprise"), 1),
        (("devices", 0, "replicas", 0, "share_pct_sm"), 33.3),
        (("devices", 0, "replicas", 0, "launch_s"), None),
        (("devices", 0, "replicas", 0, "surprise"), 1),
    ],
)
def test_anything_unexpected_is_refused(path: tuple[Any, ...], value: object) -> None:
    plain = plain_target()
    place: Any = plain
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(WireError):
        decode(NodeTarget, plain)


def test_a_record_mirrors_others_and_misses_nothing() -> None:
    replica = replica_target("a")
    spec = mirrored(WorkerSpec, replica, batch=9)
    assert (spec.replica, spec.worker, spec.batch) == ("a", replica.worker, 9)
    with pytest.raises(TypeError, match="nobody tells"):
        mirrored(WorkerSpec, replica.worker, batch=9)


def test_what_older_versions_do_not_know_is_left_out_where_it_says_nothing() -> None:
    named = replace(node_target(7), cluster_id="c", epoch=2)
    assert not {"cluster_id", "epoch"} & set(encode(node_target(7)))
    assert decode(NodeTarget, encode(named)) == named
