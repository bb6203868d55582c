"""Bodies are read strictly, and every fault points to its place."""

import json
import subprocess
import sys

import pytest

from app import kinds
from app.api.body import parse, plain_of, pointer_of, require_key
from app.api.routers.documents import DocumentsToCheck
from app.errors import FieldsError, MalformedError
from solvers.domain.device import GpuType
from solvers.domain.workload import Service

_GOOD = '{"project": "default", "name": "a", "model": "m", "slo": {"latency_ms": 80}, "rate_rps_declared": 300}'


def _fault(body: str) -> tuple[str, str]:
    with pytest.raises(FieldsError) as caught:
        parse(Service, body.encode())
    assert len(caught.value.faults) == 1, caught.value.faults
    return caught.value.faults[0].pointer, caught.value.faults[0].code


def test_a_good_body_becomes_the_domain_value() -> None:
    service = parse(Service, _GOOD.encode())
    assert (service.id, service.slo.latency_ms) == ("default/a", 80.0)


@pytest.mark.parametrize(
    ("old", "new", "pointer", "code"),
    [
        ('"latency_ms": 80', '"latency_ms": 0', "/slo/latency_ms", "value-invalid"),
        ('"latency_ms": 80', '"latency_ms": -5', "/slo/latency_ms", "value-invalid"),
        ('"latency_ms": 80', '"latency_ms": 80, "colour": 1', "/slo/colour", "unknown-field"),
        ('"latency_ms": 80', '"latency_ms": "80"', "/slo/latency_ms", "float-type"),
        ("300", "-1", "/rate_rps_declared", "value-invalid"),
        ("300", "true", "/rate_rps_declared", "float-type"),
        ("300", "NaN", "/rate_rps_declared", "number-not-finite"),
        ("300", "-Infinity", "/rate_rps_declared", "number-not-finite"),
        ("300", "1e999", "/rate_rps_declared", "number-not-finite"),
        ("300", "9" * 400, "/rate_rps_declared", "number-out-of-range"),
        ("300", '300, "extra": {}', "/extra", "unknown-field"),
        ("300", '300, "replicas_min": 5, "replicas_max": 2', "/replicas_min", "value-invalid"),
        ("300", '300, "mode": "sometimes"', "/mode", "enum"),
        ("300", '300, "name": "b"', "/name", "key-repeated"),
        ('"latency_ms": 80', '"latency_ms": NaN', "/slo/latency_ms", "number-not-finite"),
        ("300", '300, "alternatives": ["a", Infinity]', "/alternatives/1", "number-not-finite"),
        ("300", '300, "a/b": {"c": 1, "c": NaN}', "/a~1b/c", "key-repeated"),
        ('"m"', '"../m"', "/model", "value-invalid"),
        ('"model": "m", ', "", "/model", "missing"),
    ],
)
def test_wrong_fields_are_pointed_at(old: str, new: str, pointer: str, code: str) -> None:
    assert old in _GOOD
    assert _fault(_GOOD.replace(old, new)) == (pointer, code)


def test_every_wrong_field_is_told_beside_the_others() -> None:
    """Also beside a part that is wrong itself, which keeps the validator from the limits of the whole."""
    wrong = (
        _GOOD.replace('"a"', '"My Service"').replace("300", '-1, "priority": -4').replace("80", '80, "percentile": 0.9')
    )
    for body in (wrong, wrong.replace('"percentile": 0.9', '"latncy": 1'), wrong.replace(', "percentile": 0.9', "")):
        with pytest.raises(FieldsError) as caught:
            parse(Service, body.encode())
        told = [fault.pointer for fault in caught.value.faults if not fault.pointer.startswith("/slo/")]
        assert sorted(told) == ["/name", "/priority", "/rate_rps_declared"]
        assert len(caught.value.faults) - len(told) == ("latncy" in body or "percentile" in body)


def test_rules_of_several_fields_are_told_beside_each_other() -> None:
    """Where the whole could be read but for them, and beside a part that is no value."""
    wrong = _GOOD.replace(
        "300", '300, "replicas_min": 5, "replicas_max": 2, "affinity": {"avoid_services": ["default/a"]}'
    )
    for body, more in ((wrong, []), (wrong.replace('"m"', '"../m"'), ["/model"])):
        with pytest.raises(FieldsError) as caught:
            parse(Service, body.encode())
        assert sorted(fault.pointer for fault in caught.value.faults) == sorted(["/affinity", "/replicas_min", *more])
    broken = wrong.replace('"latency_ms": 80', '"kind": "throughput", "latency_ms": -1')
    with pytest.raises(FieldsError) as caught:
        parse(Service, broken.encode())
    told = [(fault.pointer, fault.detail.partition(" of ")[0]) for fault in caught.value.faults]
    assert ("/slo/throughput_rps_min", "an SLO") in told
    assert {"/slo/latency_ms", "/replicas_min"} <= {pointer for pointer, _ in told}


@pytest.mark.parametrize("part", ['["{"]', "[]", '["a", 3]', "3", '["{port_b}"]'])
def test_rules_that_meet_what_is_wrong_by_itself_say_nothing(part: str) -> None:
    worker = f'{{"command": {part}, "working_directory": "x", "environment": [{{"name": "1", "value": "{{"}}]}}'
    with pytest.raises(FieldsError) as caught:
        parse(Service, _GOOD.replace("300", f'300, "worker": {worker}').encode())
    assert {"/worker/environment/0/name", "/worker/environment/0/value"} <= {
        fault.pointer for fault in caught.value.faults
    }


def test_what_a_refused_body_says_is_read_as_far_as_it_can_be() -> None:
    assert plain_of(b'{"a": 1}') == {"a": 1}
    for body in (b"9" * 5000, b"{", b"[" * 200_000):
        assert plain_of(body) is None


def test_users_are_not_told_of_pythons_arguments() -> None:
    for wrong in (_GOOD.replace("300", '300, "extra": 1'), _GOOD.replace('"model": "m", ', "")):
        with pytest.raises(FieldsError, match="field") as caught:
            parse(Service, wrong.encode())
        assert not any("argument" in fault.detail.lower() for fault in caught.value.faults)


def test_every_odd_value_is_pointed_at_up_to_a_bound() -> None:
    with pytest.raises(FieldsError) as caught:
        parse(Service, b'{"b": [NaN, {"c": -Infinity}], "a": 1e999}')
    assert [fault.pointer for fault in caught.value.faults] == ["/b/0", "/b/1/c", "/a"]
    with pytest.raises(FieldsError) as caught:
        parse(Service, b"[" + b",".join([b"NaN"] * 1000) + b"]")
    assert len(caught.value.faults) == 50
    with pytest.raises(FieldsError) as caught:
        parse(Service, b"NaN")
    assert [fault.pointer for fault in caught.value.faults] == [""]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a": "\\u0000"}', b'{"a": "\\ud800"}', b"'single'"],
    ids=["empty", "cut", "no-utf8", "deep", "nul", "surrogate", "quotes"],
)
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    with pytest.raises((MalformedError, FieldsError)):
        parse(Service, body)


def test_the_wrong_kind_of_json_is_a_fault() -> None:
    with pytest.raises(FieldsError):
        parse(GpuType, b"[]")


def test_pointers_escape_as_the_rfc_says() -> None:
    assert pointer_of(("a/b", 3, "m~n")) == "/a~1b/3/m~0n"


def test_the_body_must_repeat_the_key() -> None:
    require_key("/name", "a", "a")
    with pytest.raises(FieldsError) as caught:
        require_key("/name", "a", "b")
    assert caught.value.faults[0].pointer == "/name"


def _filled(item: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    return before + b"[" + b",".join([item] * (500_000 // (len(item) + 1))) + b"]" + after


_LISTS = _filled(b'{"replicas":[' + b",".join([b"{}"] * 4000) + b"]}")
_KEYS = b"[{" + b",".join(b'"%d":1' % number for number in range(50_000)) + b"}]"
_HOSTILE = {
    "braces": _filled(b"{}"),
    "brackets": _filled(b"[]"),
    "numbers": _filled(b"1"),
    "records inside": _LISTS,
    "keys": _KEYS,
    "a field of braces": _filled(b"{}", b'{"labels":', b"}"),
    "braces that are long enough": _filled(b"{}" + b" " * 60),
    "keys often": b"{" + b",".join([b'"a":1'] * 80_000) + b"}",
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_what_is_nothing_but_braces_costs_no_more_than_what_it_says(name: str) -> None:
    """In a process that may not have much: half a megabyte made 3 GiB of faults, and took minutes."""
    done = subprocess.run(
        [sys.executable, "-c", _READS], input=_HOSTILE[name], capture_output=True, check=False, timeout=120
    )
    assert done.stdout.split() == [b"refused"] * 4, done.stderr.decode()[-2000:]


_READS = """
import resource, sys
from app.api import body, messages
from app.errors import FieldsError, MalformedError
from solvers.domain.policy import Policy
from solvers.domain.workload import Service
looked = []
limits = body.limits_broken
body.limits_broken = lambda holder, known: looked.append(holder) or limits(holder, known)
said = sys.stdin.buffer.read()
for kind in (Policy, Service, tuple[Policy, ...]):
    body.adapter_of(kind)
with open("/proc/self/status") as status:
    has = next(int(line.split()[1]) for line in status if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (has + 400 * 2**20, resource.RLIM_INFINITY))
for read in (*(lambda said, kind=kind: body.parse(kind, said) for kind in (Policy, Service, tuple[Policy, ...])),
             messages.decode_reports):
    looked.clear()
    try:
        read(said)
    except (FieldsError, MalformedError) as error:
        assert len(getattr(error, "faults", ())) <= body.FAULTS_MAX
    assert len(looked) <= body.RECORDS_MAX, len(looked)
    print("refused")
"""


def test_as_many_of_the_shortest_documents_as_are_checked_at_once_are_read() -> None:
    shortest = {"kind": "project", "document": {"name": "p"}}
    body = json.dumps({"documents": [shortest] * kinds.CHECKED_MAX}, separators=(",", ":")).encode()
    assert len(parse(DocumentsToCheck, body).documents) == kinds.CHECKED_MAX


def test_a_long_body_of_sane_length_is_read() -> None:
    """And where many could be wrong, the first of every list is told."""
    plain = json.loads(_GOOD)
    many = [{**plain, "name": f"a-{number}"} for number in range(2000)]
    assert len(parse(tuple[Service, ...], json.dumps(many).encode())) == len(many)
    for number in (3, 7, 1999):
        many[number]["rate_rps_declared"] = "many"
    with pytest.raises(FieldsError) as caught:
        parse(tuple[Service, ...], json.dumps(many).encode())
    assert caught.value.faults[0].pointer == "/3/rate_rps_declared"
    with pytest.raises(FieldsError) as caught:
        parse(tuple[Service, ...], json.dumps(many[:20]).encode())
    assert [fault.pointer for fault in caught.value.faults] == ["/3/rate_rps_declared", "/7/rate_rps_declared"]
