"""Agents' messages are checked for shape and range in one pass."""

import json
from typing import Any

import pytest

from agents.wire import DeviceReport, EdgeReport, Join, NodeReceipt, RateSample, ReplicaReport, Report, encode
from app.api.messages import MESSAGES, REPORT, decode_edge_reports, decode_reports
from app.errors import FieldsError, MalformedError


def _report() -> Report:
    device = DeviceReport(
        uuid="GPU-1", power_w=50.0, energy_j=250.0, utilisation_pct=30.0, memory_mib_used=1000.0, clock_mhz_sm=1000
    )
    replica = ReplicaReport(
        replica="default/resnet50#0",
        kind="service",
        workload="default/resnet50",
        project="default",
        model="resnet50",
        uuid="GPU-1",
        state="ready",
        share_pct_sm=20,
        sm_count=8,
        memory_mib_limit=4000,
        memory_mib_used=3000.0,
        batch=4,
        held_s=5.0,
        arrived=100.0,
        completed=100.0,
        violated=0.0,
        dropped=0.0,
        queue_length=0.0,
        batch_mean=3.5,
    )
    return Report(
        node="node-1",
        boot_id="boot-1",
        sequence=7,
        observed_at_s=1.7e9,
        interval_s=5.0,
        generation_applied=3,
        devices=(device,),
        replicas=(replica,),
    )


def _plain() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(encode(_report())))
    return plain


def test_one_report_or_many() -> None:
    assert decode_reports(json.dumps(_plain()).encode()) == (_report(),)
    assert decode_reports(json.dumps([_plain(), _plain()]).encode()) == (_report(), _report())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("interval_s",), 0),
        (("interval_s",), 3601),
        (("interval_s",), "5"),
        (("sequence",), -1),
        (("sequence",), 2**63),
        (("observed_at_s",), float("nan")),
        (("observed_at_s",), float("inf")),
        (("node",), "Node 1"),
        (("boot_id",), ""),
        (("devices", 0, "power_w"), -1),
        (("devices", 0, "clock_mhz_sm"), 2**31),
        (("devices", 0, "utilisation_pct"), 101),
        (("devices", 0, "throttle"), "line\nbreak"),
        (("replicas", 0, "arrived"), float("nan")),
        (("replicas", 0, "share_pct_sm"), 101),
        (("replicas", 0, "state"), "dancing"),
        (("replicas", 0, "kind"), "daemon"),
        (("replicas", 0, "workload"), "no-project"),
        (("replicas", 0, "latency_ms_p99"), -3),
        (("replicas", 0, "batch"), 1.5),
    ],
)
def test_values_out_of_range_are_pointed_at(path: tuple[str | int, ...], value: object) -> None:
    plain = _plain()
    place: Any = plain
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(FieldsError) as caught:
        decode_reports(json.dumps(plain).encode())
    assert [fault.pointer for fault in caught.value.faults] == ["/" + "/".join(str(part) for part in path)]


def test_unknown_fields_are_refused_at_every_depth() -> None:
    plain = _plain()
    plain["devices"][0]["fan_rpm"] = 3000
    with pytest.raises(FieldsError) as caught:
        decode_reports(json.dumps([plain]).encode())
    assert caught.value.faults[0].pointer == "/0/devices/0/fan_rpm"


def test_nul_characters_are_refused() -> None:
    with pytest.raises(MalformedError):
        decode_reports(json.dumps(_plain()).replace("boot-1", "boot\\u0000").encode())


def test_edge_reports_are_checked_as_well() -> None:
    report = EdgeReport(
        gateway="edge-1",
        boot_id="b",
        sequence=0,
        observed_at_s=1.0,
        samples=(RateSample(service="default/a", arrived=3.0, interval_s=5.0),),
    )
    body = json.dumps(encode(report))
    assert decode_edge_reports(body.encode()) == (report,)
    with pytest.raises(FieldsError):
        decode_edge_reports(body.replace("3.0", "-3.0").encode())


def test_schemas_name_the_ranges() -> None:
    schema = REPORT.json_schema()
    assert schema["properties"]["interval_s"]["exclusiveMinimum"] == 0
    assert schema["$defs"]["DeviceReport"]["additionalProperties"] is False


@pytest.mark.parametrize("kind", [Join, NodeReceipt])
def test_missing_fields_are_named(kind: type) -> None:
    with pytest.raises(FieldsError) as caught:
        MESSAGES[kind.__name__].decode(b"{}")
    assert "/node" in [fault.pointer for fault in caught.value.faults]
