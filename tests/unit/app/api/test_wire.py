"""Agents' messages are checked for shape and range in one pass."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agents.loop.unsent import UnsentReport
from agents.wire import DeviceReport, EdgeReport, Join, NodeReceipt, RateSample, ReplicaReport, Report, encode
from app.api import messages
from app.api.body import sparse
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


def _long_list() -> list[dict[str, Any]]:
    return [{**_plain(), "sequence": number} for number in range(400)]


@pytest.fixture
def read_whole(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies that were read as one, for their length."""
    read: list[bytes] = []

    def kept(body: bytes) -> Any:
        read.append(body)
        return sparse(body)

    monkeypatch.setattr(messages, "sparse", kept)
    return read


def test_long_lists_as_agents_write_them_are_read_report_by_report(read_whole: list[bytes]) -> None:
    reports = [replace(_report(), sequence=number) for number in range(400)]
    texts = [UnsentReport.of(each).text for each in reports]
    assert decode_reports(b"[" + b",".join(texts) + b"]") == tuple(reports)
    assert not read_whole
    # Whoever writes otherwise is read, too.
    assert decode_reports(json.dumps(_long_list(), indent=1).encode()) == tuple(reports)
    assert len(read_whole) == 1


def test_a_long_list_is_not_cut_within_a_text(read_whole: list[bytes]) -> None:
    plain = _long_list()
    plain[7]["boot_id"] = '},{"node":'
    with pytest.raises(FieldsError) as caught:
        decode_reports(json.dumps(plain, separators=(",", ":")).encode())
    assert caught.value.faults[0].pointer == "/7/boot_id"
    assert len(read_whole) == 1


@pytest.mark.parametrize(
    "harm", [lambda text: text[:-1], lambda text: text[:-2] + b"]", lambda text: text + b"]", lambda text: b"[" + text]
)
def test_a_long_list_that_does_not_end_as_it_began_is_refused(harm: Callable[[bytes], bytes]) -> None:
    with pytest.raises((FieldsError, MalformedError)):
        decode_reports(harm(json.dumps(_long_list(), separators=(",", ":")).encode()))


def test_what_is_wrong_in_a_long_list_is_told_by_its_place() -> None:
    plain = _long_list()
    plain[300]["interval_s"] = -1.0
    with pytest.raises(FieldsError) as caught:
        decode_reports(json.dumps(plain, separators=(",", ":")).encode())
    assert [item.pointer for item in caught.value.faults] == ["/300/interval_s"]


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
    with pytest.raises(FieldsError) as caught:
        decode_edge_reports(body.replace("5.0", "1e-300").encode())
    assert [fault.pointer for fault in caught.value.faults] == ["/samples/0/interval_s"]


def test_schemas_name_the_ranges() -> None:
    schema = REPORT.json_schema()
    assert schema["properties"]["interval_s"]["minimum"] > 0
    assert schema["$defs"]["DeviceReport"]["additionalProperties"] is False


@pytest.mark.parametrize("kind", [Join, NodeReceipt])
def test_missing_fields_are_named(kind: type) -> None:
    with pytest.raises(FieldsError) as caught:
        MESSAGES[kind.__name__].decode(b"{}")
    assert "/node" in [fault.pointer for fault in caught.value.faults]
