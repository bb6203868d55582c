"""What services are asked for, from the counters of a running HAProxy.

Its backends count every request once, when it arrives, however often it is tried; what HAProxy itself denies is no
load. Counters begin at zero with every process, so two readings are subtracted only within one. A process that began
since the last reading counted nothing but news; of one that was there before, no one knows when it counted. What is not
known to have been counted is left out together with its time, so that rates stay right.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.client.offered import ReportLedger
from app.routing.routes import label_of

ASKED = "show info;show stat -1 2 -1"
"""One question, so that one process answers both; of statistics those of backends alone (2)."""
GAP_S_MAX = 60.0
"""Who has not looked for longer, as on a machine that slept, says nothing of the time between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCounts:
    """Requests since a process began. `failed` are those that reached no server: none was up, could be connected to, or
    had room in time."""

    arrived: int = 0
    denied: int = 0
    failed: int = 0

    def since(self, before: BackendCounts) -> BackendCounts:
        """What came after a reading of the same process; all of it where counters were cleared meanwhile."""
        if self.arrived < before.arrived or self.denied < before.denied or self.failed < before.failed:
            return self
        return BackendCounts(
            arrived=self.arrived - before.arrived,
            denied=self.denied - before.denied,
            failed=self.failed - before.failed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfHaproxy:
    """One reading: which process answered, how long it runs (whole seconds), and what its backends counted."""

    pid: int
    uptime_s: int
    backends: Mapping[str, BackendCounts]


def read_asked(answer: str) -> AskedOfHaproxy:
    """The answer to `ASKED`. Raises ValueError or KeyError for any other text."""
    told, head, rows = answer.partition("# pxname,")
    if not head:
        raise ValueError(f"no table of statistics: {answer.strip()[:200]!r}")
    facts = dict(line.partition(":")[::2] for line in told.splitlines())
    backends = {
        row["pxname"]: BackendCounts(
            arrived=int(row["stot"] or 0), denied=int(row["dreq"] or 0), failed=int(row["econ"] or 0)
        )
        for row in csv.DictReader(f"pxname,{rows}".splitlines())
        if row["svname"] == "BACKEND"
    }
    return AskedOfHaproxy(pid=int(facts["Pid"]), uptime_s=int(facts["Uptime_sec"]), backends=backends)


class OfferedLoad:
    """Counts what arrives between readings into a ledger."""

    def __init__(self, ledger: ReportLedger) -> None:
        self._ledger = ledger
        self._before: AskedOfHaproxy | None = None
        self._read_s = 0.0

    def take(self, asked: AskedOfHaproxy, services: Iterable[str], now_s: float, wall_s: float) -> None:
        """A reading of now, which `now_s` tells by a clock that only goes on."""
        before, elapsed_s = self._before, now_s - self._read_s
        self._before, self._read_s = asked, now_s
        if before is not None and 0 < elapsed_s <= GAP_S_MAX:
            self._count(before, asked, services, elapsed_s)
        self._ledger.end_second(now_s, wall_s)

    def _count(self, before: AskedOfHaproxy, asked: AskedOfHaproxy, services: Iterable[str], elapsed_s: float) -> None:
        known, interval_s = before.backends, elapsed_s
        if asked.pid != before.pid or asked.uptime_s < before.uptime_s:
            if asked.uptime_s > elapsed_s:
                return
            known, interval_s = {}, min(elapsed_s, asked.uptime_s + 1.0)
        for service in services:
            found = asked.backends.get(label_of(service))
            if found is not None:
                new = found.since(known.get(label_of(service), BackendCounts()))
                self._ledger.count(service, max(0, new.arrived - new.denied), new.failed, interval_s)
