"""Bad input over a real socket: a clear problem for each, and not one row written or changed."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psycopg
import pytest

from agents.wire import encode
from app.store.tokens import Purpose, Role
from solvers.domain.ids import ProjectName
from tests.integration.faults.fleet import LOW_RPS, plain, profile, seed, service
from tests.integration.faults.house import House, Postgres
from tests.integration.faults.reporters import join_message, report

pytestmark = pytest.mark.integration

BODY_BYTES_MAX = 300_000
LABELS = "/v1/services/vision/labels"
REPORTS = "/v1/agent/reports"
LAST_SEQUENCE = 5
# Whom a request names may be noted beside it; everything else must stay as it is, to the last byte.
NOT_COMPARED = ("tokens", "idempotency_keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    media_type: str
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The body as a problem."""
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass(frozen=True, slots=True)
class Wired:
    """A served house with a node that has reported, and the tokens of everybody."""

    house: House
    tokens: Mapping[str, str]
    last_s: float

    def send(self, method: str, path: str, body: bytes | None, who: str = "admin", **headers: str) -> Answer:
        """One request, its body exactly these bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.house.port, timeout=10.0)
        try:
            sent = {"Content-Type": "application/json", "Authorization": f"Bearer {self.tokens[who]}"}
            named = {name.replace("_", "-"): text for name, text in headers.items()}
            connection.request(method, path, body, sent | named)
            return _answer(connection)
        finally:
            connection.close()

    def stored(self) -> dict[str, object]:
        """A digest of every table's content."""
        with psycopg.connect(self.house.url) as connection:
            tables = connection.execute(
                "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
                " WHERE nspname = 'public' AND relkind IN ('r', 'p') AND NOT relispartition"
            ).fetchall()
            return {
                table: connection.execute(_content(table)).fetchone()
                for (table,) in tables
                if table not in NOT_COMPARED
            }


def _content(table: str) -> bytes:
    return f"SELECT count(*), md5(string_agg(each::text, ',' ORDER BY each::text)) FROM {table} AS each".encode()


def _answer(connection: http.client.HTTPConnection) -> Answer:
    answer = connection.getresponse()
    media_type = (answer.getheader("content-type") or "").partition(";")[0]
    return Answer(status=answer.status, media_type=media_type, body=answer.read())


@pytest.fixture(scope="module")
def wired(postgres: Postgres) -> Iterator[Wired]:
    """One API for all requests: it must bear them all."""
    house = House(postgres, {"HEADROOM_BODY_BYTES_MAX": str(BODY_BYTES_MAX)})
    try:
        house.start_api()
        with house.client() as client:
            seed(client)
            client.put("project", {"name": "other"})
            client.put("service", plain(replace(service("secret", LOW_RPS), project=ProjectName("other"))))
        with house.client(house.join) as client:
            node = client.call("POST", "/v1/agent/join", json=encode(join_message("node-x", "boot-x"))).body["token"]
            client.call("POST", "/v1/agent/join", json=encode(join_message("node-y", "boot-y")))
        last_s = time.time()
        with house.client(node) as client:
            client.call("POST", REPORTS, json=encode(report("node-x", "boot-x", LAST_SEQUENCE, last_s)))
        tokens = {
            "admin": house.admin,
            "join": house.join,
            "node-x": node,
            "viewer": house.token(Role.VIEWER),
            "vision": house.token(Role.OPERATOR, project="vision"),
            "gateway": house.token(Role.AGENT, purpose=Purpose.GATEWAY, subject="edge"),
            "nobody": "hr_nobody",
        }
        yield Wired(house, tokens, last_s)
    finally:
        house.close()


def _service(**changes: Any) -> bytes:
    return json.dumps({**plain(service("labels", LOW_RPS)), **changes}).encode()


def _raw(old: str, new: str) -> bytes:
    text = _service().decode()
    assert old in text
    return text.replace(old, new, 1).encode()


RATE = f'"rate_rps_declared": {LOW_RPS:g}'
BAD_SERVICES: Mapping[str, tuple[bytes, str, str]] = {
    "unknown field": (_service(colour="red"), "field-invalid", "/colour"),
    "unknown field inside": (_service(slo={"latency_ms": 80, "nice": True}), "field-invalid", "/slo/nice"),
    "latency 0": (_service(slo={"latency_ms": 0}), "field-invalid", "/slo/latency_ms"),
    "latency below 0": (_service(slo={"latency_ms": -1}), "field-invalid", "/slo/latency_ms"),
    "percentile 0": (_service(slo={"latency_ms": 80, "percentile": 0}), "field-invalid", "/slo/percentile"),
    "two kinds of SLO": (_service(slo={"latency_ms": 80, "deadline_s": 5}), "field-invalid", "/slo/deadline_s"),
    "negative rate": (_service(rate_rps_declared=-1), "field-invalid", "/rate_rps_declared"),
    "rate NaN": (_raw(RATE, '"rate_rps_declared": NaN'), "field-invalid", ""),
    "rate infinite": (_raw(RATE, '"rate_rps_declared": -Infinity'), "field-invalid", ""),
    "rate beyond floats": (_raw(RATE, '"rate_rps_declared": 1e999'), "field-invalid", ""),
    "rate beyond integers": (_raw(RATE, '"rate_rps_declared": ' + "9" * 5000), "field-invalid", ""),
    "rate as text": (_service(rate_rps_declared="20"), "field-invalid", "/rate_rps_declared"),
    "floor above ceiling": (_service(replicas_min=5, replicas_max=2), "field-invalid", "/replicas_min"),
    "model that is not there": (_service(model="nowhere"), "field-invalid", "/model"),
    "key of another": (_service(name="search"), "field-invalid", "/name"),
    "key twice": (_raw(RATE, RATE + ", " + RATE), "field-invalid", ""),
    "cut short": (_service()[:-10], "request-malformed", ""),
    "no JSON": (b"rate_rps_declared: 20", "request-malformed", ""),
    "nothing": (b"", "request-malformed", ""),
    "not UTF-8": (_raw('"labels"', '"lab\xff"').decode().encode("latin-1"), "request-malformed", ""),
    "U+0000": (_raw('"resnet50"', '"res\\u0000"'), "request-malformed", ""),
    "lone surrogate": (_raw('"resnet50"', '"\\ud800"'), "", ""),
    "deep arrays": (b"[" * 100_000, "request-malformed", ""),
    "deep objects": (b'{"slo":' * 40_000, "request-malformed", ""),
    "deep and closed": (_raw('"alternatives": []', '"alternatives": ' + "[" * 9000 + "]" * 9000), "", ""),
    "a list": (b"[" + _service() + b"]", "field-invalid", ""),
    "null": (b"null", "field-invalid", ""),
}


@pytest.mark.parametrize("name", BAD_SERVICES)
def test_bad_documents_are_refused_whole(wired: Wired, name: str) -> None:
    body, code, pointer = BAD_SERVICES[name]
    before = wired.stored()
    answer = wired.send("PUT", LABELS, body)
    problem = _check_problem(answer, 422)
    if code:
        assert problem["code"] == code, problem
    assert problem["errors"], problem
    if pointer:
        assert pointer in [fault["pointer"] for fault in problem["errors"]], problem
    assert wired.stored() == before


_sequences = count(LAST_SEQUENCE + 1)


def _report(**changes: Any) -> dict[str, Any]:
    # Each a sequence of its own, so that none is taken for a repeat of another.
    made = report("node-x", "boot-x", next(_sequences), time.time())
    plain_report: dict[str, Any] = json.loads(json.dumps(encode(made)))
    return {**plain_report, **changes}


def _device(**changes: Any) -> dict[str, Any]:
    changed = _report()
    changed["devices"][0] |= changes
    return changed


def _replica(**changes: Any) -> dict[str, Any]:
    changed = _report()
    changed["replicas"][0] |= changes
    return changed


BAD_REPORTS: Mapping[str, tuple[Any, tuple[int, ...]]] = {
    "from the future": (lambda: _report(observed_at_s=time.time() + 3600), (422,)),
    "before the epoch": (lambda: _report(observed_at_s=-1), (422,)),
    "unknown field": (lambda: _report(mood="good"), (422,)),
    "unknown field of a device": (lambda: _device(mood="good"), (422,)),
    "interval 0": (lambda: _report(interval_s=0), (422,)),
    "negative energy": (lambda: _device(energy_j=-1), (422,)),
    "more than all of a share": (lambda: _replica(share_pct_sm=101), (422,)),
    "negative arrivals": (lambda: _replica(arrived=-1), (422,)),
    "foreign device": (lambda: _device(uuid="GPU-node-y-0"), (404, 409, 422)),
    "device nobody has": (lambda: _device(uuid="GPU-nowhere"), (404, 409, 422)),
    "the same device twice": (lambda: _device(uuid="GPU-node-x-1"), (409, 422)),
    "another node": (lambda: _report(node="node-y"), (403, 404)),
    "sequence beyond integers": (lambda: _report(sequence=2**63), (422,)),
    "a bad one behind a good one": (lambda: [_report(), _report(observed_at_s=time.time() + 3600)], (422,)),
    "a foreign one behind a good one": (lambda: [_report(), _report(node="node-y")], (403, 404)),
}


TOLD = frozenset({"from the future", "a bad one behind a good one"})
"""An event says that the node's clock is ahead, once in a while."""


@pytest.mark.parametrize("name", BAD_REPORTS)
def test_bad_reports_are_refused_whole(wired: Wired, name: str) -> None:
    make, statuses = BAD_REPORTS[name]
    before = wired.stored()
    _check_problem(wired.send("POST", REPORTS, json.dumps(make()).encode(), "node-x"), *statuses)
    changed = {table for table, stored in wired.stored().items() if stored != before[table]}
    assert changed <= ({"events"} if name in TOLD else set())


def test_a_clock_that_runs_backwards_is_refused(wired: Wired) -> None:
    before = wired.stored()
    late = _report(observed_at_s=wired.last_s - 120)
    problem = _check_problem(wired.send("POST", REPORTS, json.dumps(late).encode(), "node-x"), 409)
    assert problem["code"] == "clock-backwards"
    assert wired.stored() == before


def test_a_report_sent_twice_counts_once(wired: Wired) -> None:
    before = wired.stored()
    again = json.dumps(encode(report("node-x", "boot-x", LAST_SEQUENCE, wired.last_s))).encode()
    assert wired.send("POST", REPORTS, again, "node-x").status in range(200, 300)
    assert wired.stored() == before


def test_a_node_id_in_use_is_not_given_away(wired: Wired) -> None:
    # Whoever has been silent for long is taken for gone.
    assert wired.send("POST", REPORTS, json.dumps(_report()).encode(), "node-x").status in range(200, 300)
    before = wired.stored()
    thief = json.dumps(encode(join_message("node-x", "boot-of-a-thief"))).encode()
    problem = _check_problem(wired.send("POST", "/v1/agent/join", thief, "join"), 409)
    assert problem["code"] == "node-id-taken"
    assert wired.stored() == before
    fresh = json.dumps(_report()).encode()
    assert wired.send("POST", REPORTS, fresh, "node-x").status in range(200, 300), "the true owner still reports"


STRANGERS: Mapping[str, tuple[str, str, bytes | None, str, tuple[int, ...]]] = {
    "no such token": ("GET", LABELS, None, "nobody", (401,)),
    "viewer writes": ("PUT", LABELS, _service(), "viewer", (403,)),
    "foreign project is read": ("GET", "/v1/services/other/secret", None, "vision", (404,)),
    "foreign project is written": (
        *("PUT", "/v1/services/other/secret"),
        *(_service(project="other", name="secret"), "vision", (404,)),
    ),
    "foreign project is deleted": ("DELETE", "/v1/services/other/secret", None, "vision", (404,)),
    "foreign project is made": (
        "PUT",
        "/v1/services/third/new",
        _service(project="third", name="new"),
        "vision",
        (404,),
    ),
    "foreign project in the body": ("PUT", LABELS, _service(project="other"), "vision", (404, 422)),
    "a project token writes the fleet": ("DELETE", "/v1/models/resnet50", None, "vision", (403,)),
    "a node writes documents": ("PUT", LABELS, _service(), "node-x", (403,)),
    "used model is deleted": ("DELETE", "/v1/models/resnet50", None, "admin", (409,)),
    "name that climbs": ("PUT", "/v1/services/vision/..%2F..%2Fetc", _service(name="../../etc"), "admin", (404, 422)),
    "planner nobody knows": ("POST", "/v1/plans", b'{"planner": "oracle-of-delphi"}', "admin", (404, 409, 422, 503)),
    "unknown field of a plan": ("POST", "/v1/plans", b'{"colour": "red"}', "admin", (422,)),
    "plan nobody made": ("POST", f"/v1/plans/sha256:{'0' * 64}/apply", b"{}", "admin", (404,)),
    "negative edge report": (
        "POST",
        "/v1/agent/edge-reports",
        b'{"gateway": "edge", "boot_id": "b", "sequence": 1, "observed_at_s": 1e9, "samples":'
        b' [{"service": "vision/labels", "arrived": -5, "interval_s": 1, "unrouted": 0}]}',
        "gateway",
        (422,),
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_and_slips_change_nothing(wired: Wired, name: str) -> None:
    method, path, body, who, statuses = STRANGERS[name]
    before = wired.stored()
    _check_problem(wired.send(method, path, body, who), *statuses)
    assert wired.stored() == before


def test_one_bad_point_imports_none(wired: Wired) -> None:
    points = [plain(point) for point in profile()]
    points = [{**point, "source": "again"} for point in points]
    points[-1]["latency_ms_mean"] = 0
    before = wired.stored()
    _check_problem(wired.send("POST", "/v1/profiles", json.dumps(points).encode()), 422)
    assert wired.stored() == before


def test_a_tag_out_of_shape_and_a_stale_one_are_refused(wired: Wired) -> None:
    before = wired.stored()
    _check_problem(wired.send("PUT", LABELS, _service(rate_rps_declared=1), If_Match='"999999"'), 412)
    _check_problem(wired.send("PUT", LABELS, _service(rate_rps_declared=1), If_Match="latest"), 400, 412, 422)
    _check_problem(wired.send("PUT", LABELS, _service(rate_rps_declared=1), Content_Type="text/csv"), 415)
    assert wired.stored() == before


def test_an_oversize_body_is_refused_unread(wired: Wired) -> None:
    before = wired.stored()
    connection = http.client.HTTPConnection("127.0.0.1", wired.house.port, timeout=10.0)
    try:
        connection.putrequest("PUT", LABELS)
        for name, text in (
            ("Authorization", f"Bearer {wired.tokens['admin']}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(BODY_BYTES_MAX + 1)),
        ):
            connection.putheader(name, text)
        connection.endheaders()
        problem = _check_problem(_answer(connection), 413)
    finally:
        connection.close()
    assert problem["code"] == "body-too-large"
    assert wired.stored() == before


def test_an_oversize_chunked_body_is_refused_on_the_way(wired: Wired) -> None:
    before = wired.stored()
    connection = http.client.HTTPConnection("127.0.0.1", wired.house.port, timeout=10.0)
    try:
        connection.putrequest("PUT", LABELS)
        for name, text in (
            ("Authorization", f"Bearer {wired.tokens['admin']}"),
            ("Content-Type", "application/json"),
            ("Transfer-Encoding", "chunked"),
        ):
            connection.putheader(name, text)
        connection.endheaders()
        # Just beyond the limit and without an end: only the count can tell.
        for _ in range(BODY_BYTES_MAX // 10_000 + 1):
            connection.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        problem = _check_problem(_answer(connection), 413)
    finally:
        connection.close()
    assert problem["code"] == "body-too-large"
    assert wired.stored() == before


def test_the_server_bore_it_all(wired: Wired) -> None:
    assert wired.house.ready()
    crashes = wired.house.tracebacks()
    assert not crashes, crashes


def _check_problem(answer: Answer, *statuses: int) -> dict[str, Any]:
    """RFC 9457, filled in."""
    assert answer.status in statuses, (answer.status, answer.body[:500])
    assert answer.media_type == "application/problem+json", answer.body[:500]
    problem = answer.problem
    assert problem["status"] == answer.status
    assert problem["type"] == f"/problems/{problem['code']}"
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] not in ("", "-")
    assert "Traceback" not in answer.body.decode()
    return problem
