"""What a run of the tests costs: wall and processor seconds in all, and its dearest files.

`--durations-kept FILE` keeps them of all files. Processor seconds include those of processes that a test started and
waited for; what a daemon spends that outlives its parent (PostgreSQL, `headroom up`, a browser) is seen only among all
that this machine's processors did, whoever asked for it.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import nursery

DEAREST = 10
_PROPERTY = "cpu_s"


def cpu_s() -> float:
    """Processor seconds of this process, of the children it has waited for and of what was forked for it."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system + nursery.spent_s()


def busy_s() -> float:
    """Seconds that this machine's processors have worked since it began, all of them together and for whomever."""
    _, user, nice, system, _, _, hard, soft, *_ = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=8)
    return sum(map(int, (user, nice, system, hard, soft))) / os.sysconf("SC_CLK_TCK")


class Durations:
    """Counts in the process that runs a test, and adds up in the one that reports."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._began_s, self._began_busy_s = time.monotonic(), busy_s()
        self._mark_s = 0.0
        self._wall_s: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self) -> None:
        """What was spent between tests is nobody's."""
        self._mark_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put onto each phase what it spent."""
        report = yield
        now_s = cpu_s()
        report.user_properties.append((_PROPERTY, now_s - self._mark_s))
        self._mark_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase to its file."""
        file = report.nodeid.split("::", 1)[0]
        self._wall_s[file] += report.duration
        self._cpu_s[file] += sum(float(str(value)) for name, value in report.user_properties if name == _PROPERTY)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell the sums, and keep them."""
        if not self._wall_s:
            return
        sums = {"wall_s": time.monotonic() - self._began_s, "cpu_s": cpu_s(), "busy_s": busy_s() - self._began_busy_s}
        if self._kept is not None:
            files = {file: (self._wall_s[file], self._cpu_s[file]) for file in sorted(self._wall_s)}
            self._kept.write_text(json.dumps({**sums, "files": files}, indent=1), encoding="utf-8")
        wall_s, spent_s, machine_s = sums.values()
        terminalreporter.section(
            f"{wall_s:.0f} s, of processors {spent_s:.0f} s"
            f" (the machine's {os.cpu_count()}: {machine_s:.0f} s); the dearest files"
        )
        for file in sorted(self._cpu_s, key=self._cpu_s.__getitem__, reverse=True)[:DEAREST]:
            terminalreporter.line(f"{self._cpu_s[file]:7.1f} s of processors {self._wall_s[file]:7.1f} s  {file}")
