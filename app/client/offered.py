"""Offered load on its way to the API: what a gateway counted becomes reports, which wait until they are acknowledged.

Every few seconds all services are reported, and one whose requests jumped at once, by the second that shows how far. A
report keeps its number however often it is sent, so that the API counts it once. What cannot be delivered waits; what
the API finds wrong with a report itself would be found wrong for ever, and is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import httpx

from agents.wire import EdgeReport, RateSample, encode
from app.logs import EventLog
from headroom_client import ApiError, Client, UnreachableError
from solvers.cycle.alarm import JumpWatch
from solvers.domain.telemetry import DEMAND_COUNT_S

REPORT_EVERY_S = 5.0
COUNTED_S_MIN = 0.9 * DEMAND_COUNT_S
"""What is counted sooner waits for more."""
REPORTS_KEPT_MAX = 720
"""An hour of reports; older ones are given up."""
REPORTS_PER_SEND_MAX = 60
SAMPLES_MAX = 4096
"""Services in one report, as many as the API takes; and in one request, so that many services send shorter bodies."""
LAST_SEND_S = 5.0
_FAULTY = frozenset({400, 409, 413, 422})
_log = EventLog("headroom.offered")


@dataclass(slots=True)
class _Arrivals:
    """What arrived at one service, and in how much time."""

    arrived: float = 0.0
    unrouted: float = 0.0
    interval_s: float = 0.0

    def add(self, other: _Arrivals) -> None:
        self.arrived += other.arrived
        self.unrouted += other.unrouted
        self.interval_s += other.interval_s

    def sample(self, service: str) -> RateSample:
        return RateSample(service=service, arrived=self.arrived, interval_s=self.interval_s, unrouted=self.unrouted)


class ReportLedger:
    """What arrived since the last report, by seconds, and the reports that wait. Thread-safe; one thread sends."""

    def __init__(self, gateway: str, boot_id: str) -> None:
        """`boot_id`: of this ledger alone."""
        self._gateway = gateway
        self._boot_id = boot_id
        self._clock_turns = 0
        self._sequence = 0
        self._cut_s = 0.0
        self._counted: dict[str, _Arrivals] = {}
        self._newest: dict[str, _Arrivals] = {}
        """What was counted since the last second ended."""
        self._ended_s: float | None = None
        self._due_s = 0.0
        self._watches: dict[str, JumpWatch] = {}
        self.news = threading.Event()
        """Set whenever something new waits."""
        self._waiting: deque[EdgeReport] = deque(maxlen=REPORTS_KEPT_MAX)
        self._lock = threading.Lock()

    def count(self, service: str, arrived: float, unrouted: float, interval_s: float) -> None:
        """Add what arrived at a service in a time; without any it still has its row, because zero is a rate."""
        with self._lock:
            arrivals = _Arrivals(arrived=arrived, unrouted=unrouted, interval_s=interval_s)
            self._newest.setdefault(service, _Arrivals()).add(arrivals)

    def end_second(self, now_s: float, wall_s: float) -> None:
        """Whoever counts has counted up to now, which `now_s` tells by a clock that only goes on. What is due becomes a
        report: everything every few seconds, and at once what jumped, apart from what was before the jump.
        """
        with self._lock:
            if self._ended_s is None:
                self._ended_s, self._due_s = now_s, now_s + REPORT_EVERY_S
            since_s = now_s - self._ended_s
            if since_s >= COUNTED_S_MIN:
                self._ended_s = now_s
                jumped = {
                    service: arrivals
                    for service, arrivals in self._newest.items()
                    if arrivals.interval_s > 0
                    and self._watches.setdefault(service, JumpWatch()).take(
                        arrivals.arrived, arrivals.interval_s, now_s
                    )
                }
                before = {service: self._counted.pop(service) for service in jumped if service in self._counted}
                self._add_report(max(wall_s - since_s, min(wall_s, self._cut_s)), before)
                self._add_report(wall_s, jumped)
                for service in jumped:
                    del self._newest[service]
                self._settle()
        if now_s >= self._due_s:
            self._due_s = now_s + REPORT_EVERY_S
            self.cut(wall_s)

    def cut(self, now_s: float) -> None:
        """What was counted becomes a report of now (epoch seconds)."""
        with self._lock:
            self._settle()
            self._add_report(now_s, self._counted)
            self._counted.clear()

    def _settle(self) -> None:
        for service, arrivals in self._newest.items():
            self._counted.setdefault(service, _Arrivals()).add(arrivals)
        self._newest.clear()

    def _add_report(self, now_s: float, counted: Mapping[str, _Arrivals]) -> None:
        samples = [arrivals.sample(service) for service, arrivals in sorted(counted.items()) if arrivals.interval_s > 0]
        for first in range(0, len(samples), SAMPLES_MAX):
            self._waiting.append(self._report(now_s, tuple(samples[first : first + SAMPLES_MAX])))
            self.news.set()

    def introduce(self, client: Client, now_s: float) -> None:
        """Send a report of nothing, so that a token that may not report is an error at once. Raises as `Client`."""
        with self._lock:
            report = self._report(now_s, ())
        client.call("POST", "/v1/agent/edge-reports", json=encode(report))

    def send(self, client: Client) -> None:
        """Send what waits, oldest first. What the API refuses for good is dropped; the rest waits for better times."""
        size = REPORTS_PER_SEND_MAX
        while batch := self._oldest(size):
            try:
                client.call("POST", "/v1/agent/edge-reports", json=[encode(report) for report in batch], attempts_max=1)
            except ApiError as error:
                if error.status not in _FAULTY:
                    _log.warning("report.delayed", error, waiting=self.waiting)
                    return
                if len(batch) > 1:
                    # One of them is bad; from now on each stands for itself.
                    size = 1
                    continue
                _log.warning("report.refused", error, sequence=batch[0].sequence)
            except (UnreachableError, httpx.HTTPError, ValueError) as error:
                _log.warning("report.delayed", error, waiting=self.waiting)
                return
            self._forget(batch)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _report(self, now_s: float, samples: tuple[RateSample, ...]) -> EdgeReport:
        if now_s < self._cut_s:
            # A clock that was set back: of one boot nothing older is taken than what it sent, and all until the clock
            # has caught up would be refused.
            self._clock_turns += 1
            self._sequence = 0
        self._cut_s = now_s
        self._sequence += 1
        boot_id = f"{self._boot_id}.{self._clock_turns}" if self._clock_turns else self._boot_id
        return EdgeReport(
            gateway=self._gateway, boot_id=boot_id, sequence=self._sequence, observed_at_s=now_s, samples=samples
        )

    def _oldest(self, size: int) -> list[EdgeReport]:
        found: list[EdgeReport] = []
        with self._lock:
            for report in islice(self._waiting, size):
                if found and sum(len(each.samples) for each in (*found, report)) > SAMPLES_MAX:
                    break
                found.append(report)
        return found

    def _forget(self, sent: list[EdgeReport]) -> None:
        """Those of them that wait still: the oldest may have been given up meanwhile."""
        with self._lock:
            for report in sent:
                if self._waiting and self._waiting[0] is report:
                    self._waiting.popleft()


class ReportSender:
    """Sends a ledger's reports from a thread of its own, so that an API that hangs keeps nobody from counting."""

    def __init__(self, ledger: ReportLedger, client: Client) -> None:
        """The client is the sender's alone."""
        self._ledger = ledger
        self._client = client
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offered", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send once more what waits, for as long as an end may take."""
        self._ending.set()
        self._ledger.news.set()
        self._thread.join(LAST_SEND_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._ledger.news.wait(REPORT_EVERY_S)
            self._ledger.news.clear()
            self._ledger.send(self._client)
        self._ledger.send(self._client)
