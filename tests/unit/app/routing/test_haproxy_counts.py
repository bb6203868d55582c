"""Offered load from HAProxy's counters: through new processes, cleared counters, services that come and go."""

from __future__ import annotations

import pytest

from app.client.offered import REPORT_EVERY_S, ReportLedger
from app.routing.offered import GAP_S_MAX, AskedOfHaproxy, BackendCounts, OfferedLoad, read_asked

A, B = "p/a", "p/b"
ANSWER = """\
Name: HAProxy
Version: 2.6.12
Pid: 4711
Uptime: 0d 0h01m05s
Uptime_sec: 65
Description: one: two

# pxname,svname,qcur,stot,dreq,dresp,econ,check_desc,-,
p:a,BACKEND,2,10,1,0,3,,,
p:b,BACKEND,0,0,,0,,"a, ""quoted"" one",,
stats,FRONTEND,0,99,0,0,,,,
"""


class Kept(ReportLedger):
    """Keeps what is counted, and when it was cut."""

    def __init__(self) -> None:
        super().__init__("g", "boot")
        self.counted: list[tuple[str, float, float, float]] = []
        self.cuts: list[float] = []

    def count(self, service: str, arrived: float, unrouted: float, interval_s: float) -> None:
        self.counted.append((service, arrived, unrouted, interval_s))

    def cut(self, now_s: float) -> None:
        self.cuts.append(now_s)

    def take(self) -> list[tuple[str, float, float, float]]:
        found, self.counted = self.counted, []
        return found


@pytest.fixture
def ledger() -> Kept:
    return Kept()


@pytest.fixture
def load(ledger: Kept) -> OfferedLoad:
    return OfferedLoad(ledger)


def reading(arrived: int, *, uptime_s: int, pid: int = 1, denied: int = 0, failed: int = 0) -> AskedOfHaproxy:
    """Of service A, while nobody asks for B."""
    counts = BackendCounts(arrived=arrived, denied=denied, failed=failed)
    return AskedOfHaproxy(pid=pid, uptime_s=uptime_s, backends={"p:a": counts, "p:b": BackendCounts()})


def test_an_answer_is_read_and_any_other_text_is_none() -> None:
    found = read_asked(ANSWER)
    assert (found.pid, found.uptime_s) == (4711, 65)
    assert found.backends == {"p:a": BackendCounts(arrived=10, denied=1, failed=3), "p:b": BackendCounts()}
    for other in ("", "hello", ANSWER.partition("#")[0], ANSWER.replace("stot", "x"), ANSWER.replace("Pid", "x")):
        with pytest.raises((ValueError, KeyError)):
            read_asked(other)


def test_the_first_reading_says_where_counting_begins(load: OfferedLoad, ledger: Kept) -> None:
    load.take(reading(1000, uptime_s=500), [A], 10.0, 0.0)
    assert ledger.take() == []
    load.take(reading(1007, uptime_s=502, failed=2), [A, B], 12.0, 0.0)
    # Nobody asks for B, and that is a rate.
    assert ledger.take() == [(A, 7, 2, 2.0), (B, 0, 0, 2.0)]


def test_what_is_denied_is_no_load(load: OfferedLoad, ledger: Kept) -> None:
    load.take(reading(5, uptime_s=5), [A], 0.0, 0.0)
    load.take(reading(15, uptime_s=6, denied=4), [A], 1.0, 0.0)
    # Denied when it had arrived before: nothing is counted twice, and nothing is less than nothing.
    load.take(reading(15, uptime_s=7, denied=5), [A], 2.0, 0.0)
    load.take(reading(18, uptime_s=8, denied=5), [A], 3.0, 0.0)
    assert [arrived for _, arrived, *_ in ledger.take()] == [6, 0, 3]


@pytest.mark.parametrize("pid", [1, 2])
def test_a_new_process_counts_from_zero_over_the_time_that_it_lives(load: OfferedLoad, ledger: Kept, pid: int) -> None:
    """Also one with the number of the old, as in a container, and with as many requests."""
    load.take(reading(100, uptime_s=500), [A], 0.0, 0.0)
    load.take(reading(100, uptime_s=2, pid=pid, failed=1), [A], 8.0, 0.0)
    # Of the five seconds before it began, nothing is known.
    assert ledger.take() == [(A, 100, 1, 3.0)]
    load.take(reading(104, uptime_s=3, pid=pid, failed=1), [A], 9.0, 0.0)
    assert ledger.take() == [(A, 4, 0, 1.0)]


def test_of_a_process_that_was_there_before_nothing_is_counted_at_first(load: OfferedLoad, ledger: Kept) -> None:
    """It may have counted for hours, elsewhere."""
    load.take(reading(100, uptime_s=500), [A], 0.0, 0.0)
    load.take(reading(90_000, uptime_s=40_000, pid=2), [A], 1.0, 0.0)
    assert ledger.take() == []
    load.take(reading(90_005, uptime_s=40_001, pid=2), [A], 2.0, 0.0)
    assert ledger.take() == [(A, 5, 0, 1.0)]


def test_cleared_counters_are_no_new_process(load: OfferedLoad, ledger: Kept) -> None:
    load.take(reading(100, uptime_s=500, failed=9), [A], 0.0, 0.0)
    load.take(reading(3, uptime_s=501, failed=1), [A], 1.0, 0.0)
    assert ledger.take() == [(A, 3, 1, 1.0)]


def test_services_come_and_go_without_a_jump(load: OfferedLoad, ledger: Kept) -> None:
    load.take(reading(100, uptime_s=10), [A], 0.0, 0.0)
    load.take(reading(200, uptime_s=11), [], 1.0, 0.0)
    assert ledger.take() == []
    # Declared anew, or told of only now: what came meanwhile is of nobody.
    load.take(reading(203, uptime_s=12), [A, "p/unknown"], 2.0, 0.0)
    assert ledger.take() == [(A, 3, 0, 1.0)]


def test_a_backend_that_a_process_adds_counts_from_zero(load: OfferedLoad, ledger: Kept) -> None:
    load.take(AskedOfHaproxy(pid=1, uptime_s=10, backends={}), [A], 0.0, 0.0)
    load.take(reading(4, uptime_s=11), [A], 1.0, 0.0)
    assert ledger.take() == [(A, 4, 0, 1.0)]


def test_of_a_time_in_which_nobody_looked_nothing_is_said(load: OfferedLoad, ledger: Kept) -> None:
    load.take(reading(100, uptime_s=10), [A], 0.0, 0.0)
    load.take(reading(9000, uptime_s=20), [A], GAP_S_MAX + 1.0, 0.0)
    assert ledger.take() == []


def test_reports_are_cut_every_few_seconds_by_the_clock_on_the_wall(load: OfferedLoad, ledger: Kept) -> None:
    for second in range(int(2 * REPORT_EVERY_S) + 1):
        load.take(reading(second, uptime_s=second), [A], float(second), 1000.0 + second)
    assert ledger.cuts == [1000.0 + REPORT_EVERY_S, 1000.0 + 2 * REPORT_EVERY_S]
