"""What a run of the tests costs: wall and processor seconds in all, and its dearest files.

A run that was split passes `--durations-kept FILE`: each part adds what the earlier parts left in that file, so that
the last one tells of all. Processor seconds include those of processes that a test started and waited for; a daemon
that outlived its parent is not seen.
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


class Durations:
    """Counts in the process that runs a test, and adds up in the one that reports."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._began_s = time.monotonic()
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
        """Tell the sums, and keep them for the next part."""
        if not self._wall_s:
            return
        wall_s, spent_s = time.monotonic() - self._began_s, cpu_s()
        if self._kept is not None:
            if self._kept.exists():
                before = json.loads(self._kept.read_text(encoding="utf-8"))
                wall_s, spent_s = wall_s + before["wall_s"], spent_s + before["cpu_s"]
                for file, (file_wall_s, file_cpu_s) in before["files"].items():
                    self._wall_s[file] += file_wall_s
                    self._cpu_s[file] += file_cpu_s
            files = {file: (self._wall_s[file], self._cpu_s[file]) for file in sorted(self._wall_s)}
            told = {"wall_s": wall_s, "cpu_s": spent_s, "files": files}
            self._kept.write_text(json.dumps(told, indent=1), encoding="utf-8")
        terminalreporter.section(f"{wall_s:.0f} s, of processors {spent_s:.0f} s; the dearest files")
        for file in sorted(self._cpu_s, key=self._cpu_s.__getitem__, reverse=True)[:DEAREST]:
            terminalreporter.line(f"{self._cpu_s[file]:7.1f} s of processors {self._wall_s[file]:7.1f} s  {file}")
