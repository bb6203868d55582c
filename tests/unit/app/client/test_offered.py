"""A ledger of offered load: reports kept through outages, sent in order, counted once, and bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from app.client.offered import REPORT_EVERY_S, REPORTS_KEPT_MAX, SAMPLES_MAX, ReportLedger, ReportSender
from headroom_client import ApiError, Client

SERVICE = "p/a"


class Door:
    """The API's door for reports: counts every report once, unless it is told to refuse or to lose its answer."""

    def __init__(self) -> None:
        self.status = 200
        self.loses_answers = False
        self.bodies: list[list[dict[str, Any]]] = []
        self.taken: dict[tuple[str, int], dict[str, Any]] = {}
        self.during: Callable[[], None] = lambda: None

    def client(self) -> Client:
        return Client("http://api.test", "t", transport=httpx.MockTransport(self._answer), attempts_max=1)

    def arrived(self) -> float:
        return float(sum(sample["arrived"] for report in self.taken.values() for sample in report["samples"]))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/v1/agent/edge-reports")
        self.during()
        if self.status == 0:
            raise httpx.ConnectError("down", request=request)
        if self.status != 200:
            return httpx.Response(self.status, json={"detail": "no", "code": "x"})
        told = json.loads(request.content)
        reports = told if isinstance(told, list) else [told]
        self.bodies.append(reports)
        self.taken |= {(report["boot_id"], report["sequence"]): report for report in reports}
        if self.loses_answers:
            raise httpx.ReadTimeout("lost", request=request)
        return httpx.Response(200, json={"accepted": len(reports), "duplicates": 0})


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def ledger() -> ReportLedger:
    return ReportLedger("g", "boot")


def count_for(ledger: ReportLedger, *seconds: int) -> None:
    """A report for each of these seconds, in which as many requests arrived."""
    for second in seconds:
        ledger.count(SERVICE, second, 0, 1.0)
        ledger.cut(float(second))


def sequences(door: Door) -> list[int]:
    return [report["sequence"] for body in door.bodies for report in body]


def samples_of(report: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    found = report["samples"]
    return {item["service"]: (item["arrived"], item["unrouted"], item["interval_s"]) for item in found}


def test_every_service_has_the_time_in_which_it_was_counted(ledger: ReportLedger, door: Door) -> None:
    ledger.count("p/b", 3, 1, 1.0)
    ledger.count("p/a", 0, 0, 1.0)
    ledger.count("p/b", 4, 2, 1.5)
    ledger.count("p/c", 7, 0, 0.0)
    ledger.cut(100.0)
    with door.client() as client:
        ledger.send(client)
    (report,) = door.taken.values()
    assert (report["gateway"], report["observed_at_s"]) == ("g", 100.0)
    # Nothing is known of a rate in no time.
    assert samples_of(report) == {"p/a": (0, 0, 1.0), "p/b": (7, 3, 2.5)}


def seconds(ledger: ReportLedger, from_s: int, *rates: tuple[float, float]) -> int:
    """Seconds in which so many asked for `p/a` and `p/b`; by when they have passed."""
    for both in rates:
        for service, rate in zip(("p/a", "p/b"), both, strict=True):
            ledger.count(service, rate, 0, 1.0)
        from_s += 1
        ledger.end_second(float(from_s), 1000.0 + from_s)
    return from_s


def reported(ledger: ReportLedger, door: Door) -> list[tuple[float, dict[str, tuple[float, float, float]]]]:
    door.taken.clear()
    with door.client() as client:
        ledger.send(client)
    return [(report["observed_at_s"], samples_of(report)) for report in door.taken.values()]


def test_all_is_reported_every_few_seconds_and_a_jump_at_once_apart_from_what_was_before(
    ledger: ReportLedger, door: Door
) -> None:
    calm = (100.0, 10.0)
    # What nobody knew before is a jump, too, once it has gone on for a second.
    now_s = seconds(ledger, 0, *[calm] * 11)
    reported(ledger, door)
    now_s = seconds(ledger, now_s, *[calm] * 10)
    assert [(at_s, list(found)) for at_s, found in reported(ledger, door)] == [
        (1016.0, ["p/a", "p/b"]),
        (1021.0, ["p/a", "p/b"]),
    ]
    # The load jumps halfway through a second: the next is the first whole one.
    now_s = seconds(ledger, now_s, calm, (250.0, 10.0))
    assert ledger.waiting == 0
    now_s = seconds(ledger, now_s, (400.0, 10.0))
    assert reported(ledger, door) == [(1023.0, {"p/a": (350.0, 0, 2.0)}), (1024.0, {"p/a": (400.0, 0, 1.0)})]
    # It is known now, and what others counted waits for its turn.
    now_s = seconds(ledger, now_s, (400.0, 10.0), (400.0, 10.0))
    assert reported(ledger, door) == [(1026.0, {"p/a": (800.0, 0, 2.0), "p/b": (50.0, 0, 5.0)})]


def test_one_busy_second_is_no_jump(ledger: ReportLedger, door: Door) -> None:
    seconds(ledger, 0, *[(100.0, 10.0)] * 11, (400.0, 10.0), (100.0, 10.0))
    reported(ledger, door)
    seconds(ledger, 13, (100.0, 10.0), (100.0, 10.0))
    assert ledger.waiting == 0


def test_moments_are_gathered_until_they_are_a_second(ledger: ReportLedger) -> None:
    """Whoever follows routes counts again when they change."""
    seconds(ledger, 0, *[(10.0, 0.0)] * 11)
    before = ledger.waiting
    for moment in range(9):
        ledger.count("p/a", 1, 0, 0.1)
        ledger.end_second(11.1 + moment / 10, 1011.1 + moment / 10)
    assert ledger.waiting == before


def test_a_jump_is_of_the_same_boot_when_clocks_disagree_a_little(ledger: ReportLedger, door: Door) -> None:
    seconds(ledger, 0, *[(100.0, 0.0)] * 11)
    for second in (12, 13):
        ledger.count("p/a", 400, 0, 1.0)
        # By the clock on the wall less time has passed, so what was before seems to end before the last report.
        ledger.end_second(float(second), 1000.0 + second - 0.5)
    assert {boot for boot, _ in (reported(ledger, door), door.taken)[1]} == {"boot"}


def test_whoever_sends_is_told_of_news(ledger: ReportLedger, door: Door) -> None:
    sender = ReportSender(ledger, door.client())
    arrived = threading.Event()
    door.during = arrived.set
    sender.start()
    try:
        count_for(ledger, 1)
        # Sooner than its next look.
        assert arrived.wait(REPORT_EVERY_S / 2)
    finally:
        sender.close()
    assert sequences(door) == [1]


@pytest.mark.parametrize("status", [0, 500, 503, 429, 401, 403, 404, 408])
def test_reports_wait_through_an_outage_and_arrive_in_order_once(ledger: ReportLedger, door: Door, status: int) -> None:
    with door.client() as client:
        door.status = status
        for second in (1, 2, 3):
            count_for(ledger, second)
            ledger.send(client)
        assert ledger.waiting == 3
        door.status = 200
        ledger.send(client)
        ledger.send(client)
    assert sequences(door) == [1, 2, 3]
    assert ledger.waiting == 0


@pytest.mark.parametrize("answer", [b"{", b"\x1f\x8b nonsense"])
def test_an_answer_that_cannot_be_read_is_none(ledger: ReportLedger, answer: bytes) -> None:
    kind = {"Content-Type": "application/json"} | ({} if answer == b"{" else {"Content-Encoding": "gzip"})
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=kind, stream=httpx.ByteStream(answer)))
    count_for(ledger, 1)
    with Client("http://api.test", "t", transport=transport) as client:
        ledger.send(client)
    assert ledger.waiting == 1


def test_a_report_whose_answer_was_lost_is_sent_again_under_its_number(ledger: ReportLedger, door: Door) -> None:
    with door.client() as client:
        count_for(ledger, 1, 2)
        door.loses_answers = True
        ledger.send(client)
        assert ledger.waiting == 2
        count_for(ledger, 3)
        door.loses_answers = False
        ledger.send(client)
    assert sequences(door) == [1, 2, 1, 2, 3]
    assert door.arrived() == 6.0


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_report_refused_for_good_is_not_sent_for_ever(ledger: ReportLedger, door: Door, status: int) -> None:
    door.status = status
    count_for(ledger, 1)
    with door.client() as client:
        ledger.send(client)
    assert ledger.waiting == 0


def test_one_bad_report_does_not_cost_its_neighbours(ledger: ReportLedger) -> None:
    stored: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        told = [report["sequence"] for report in json.loads(request.content)]
        if 2 in told:
            return httpx.Response(422, json={"detail": "bad", "code": "field-invalid"})
        stored.extend(told)
        return httpx.Response(202, json={})

    count_for(ledger, 1, 2, 3, 4)
    with Client("http://api.test", "t", transport=httpx.MockTransport(answer)) as client:
        ledger.send(client)
    assert stored == [1, 3, 4]
    assert ledger.waiting == 0


def test_a_clock_that_was_set_back_begins_a_boot_that_the_api_takes(ledger: ReportLedger, door: Door) -> None:
    """Of one boot the API refuses what is older than what it has."""
    with door.client() as client:
        ledger.introduce(client, 99.0)
        count_for(ledger, 100, 40, 41)
        ledger.send(client)
    found = [(*name, report["observed_at_s"]) for name, report in door.taken.items()]
    assert found == [("boot", 1, 99.0), ("boot", 2, 100.0), ("boot.1", 1, 40.0), ("boot.1", 2, 41.0)]


def test_the_buffer_is_bounded_and_an_empty_interval_is_no_report(ledger: ReportLedger) -> None:
    ledger.cut(0.0)
    assert ledger.waiting == 0
    count_for(ledger, *range(REPORTS_KEPT_MAX + 5))
    assert ledger.waiting == REPORTS_KEPT_MAX


def test_what_is_given_up_while_others_are_sent_takes_nothing_unsent_along(ledger: ReportLedger, door: Door) -> None:
    count_for(ledger, *range(1, REPORTS_KEPT_MAX + 1))
    newer = iter([REPORTS_KEPT_MAX + 1, REPORTS_KEPT_MAX + 2])

    def count_more() -> None:
        if (second := next(newer, None)) is not None:
            count_for(ledger, second)

    door.during = count_more
    with door.client() as client:
        ledger.send(client)
    assert sequences(door) == list(range(1, REPORTS_KEPT_MAX + 3))


def test_many_services_are_parted_into_what_the_api_takes(ledger: ReportLedger, door: Door) -> None:
    for _ in range(2):
        for number in range(SAMPLES_MAX + 1):
            ledger.count(f"p/s{number}", 1, 0, 1.0)
        ledger.cut(1.0)
    with door.client() as client:
        ledger.send(client)
    assert [[len(report["samples"]) for report in body] for body in door.bodies] == [
        [SAMPLES_MAX], [1], [SAMPLES_MAX], [1],
    ]  # fmt: skip
    assert len(door.taken) == 4


def test_who_may_not_report_hears_so_at_once(ledger: ReportLedger, door: Door) -> None:
    with door.client() as client:
        door.status = 403
        with pytest.raises(ApiError):
            ledger.introduce(client, 1.0)
        door.status = 200
        ledger.introduce(client, 2.0)
    assert [samples_of(report) for report in door.taken.values()] == [{}]


def test_what_waits_is_sent_before_the_end(ledger: ReportLedger, door: Door) -> None:
    with door.client() as client:
        sender = ReportSender(ledger, client)
        sender.start()
        count_for(ledger, 1)
        sender.close()
    assert sequences(door) == [1]
