"""Tests in several processes (`--workers N`), which are forked when everything is loaded and collected, so that this
is done once and the memory of it shared.

A file's tests run in one process, one after the other; whoever is free takes the next file. Where a process ends in the
middle of a test, that test has failed, and another process takes the rest of its file.

With `--again N` the tests that failed, if they are no more than N, run once more in the end, with the machine to
themselves. Who passes then does not fail the run, but is named at its end with what went wrong: it is to be mended.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter
from _pytest.tmpdir import TempPathFactory

from tests import nursery

FREE, BEGUN, TOLD = "free", "begun", "told"
"""What a worker says: that it wants a file, which test it begins, and what a hook was called with."""


@dataclass(slots=True)
class Worker:
    """A process that runs tests, as the one that started it sees it."""

    number: int
    pid: int
    begun: int | None = None
    """The last test it began."""
    left: deque[int] = field(default_factory=deque)
    """Tests of its file that it has not begun."""


class Workers:
    """Hands out files and tells what is said of their tests, as if they ran here."""

    def __init__(self, config: pytest.Config, count: int, again_max: int = 0) -> None:
        self._config = config
        self._count = count
        self._again_max = again_max
        self._session: pytest.Session
        self._files: deque[deque[int]] = deque()
        self._living: dict[Connection, Worker] = {}
        self._held: dict[int, list[pytest.TestReport]] = {}
        """Failures of tests that may run again."""
        self._is_second = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all that was collected."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        self._session = session
        folders_of(self._config).getbasetemp()
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(reporter, TerminalReporter):
            reporter.showfspath = False
        nursery.door()
        try:
            self._run(range(len(session.items)), self._count)
            self._is_second = True
            self._run(sorted(self._held), 1)
        except BaseException:
            self._tell_held()
            raise
        finally:
            for line, worker in self._living.items():
                line.close()
                os.waitpid(worker.pid, 0)
            nursery.close()
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Name who failed at first and passed alone."""
        for index, reports in sorted(self._held.items()):
            terminalreporter.section(
                f"TO BE MENDED: failed among others, passed alone: {self._session.items[index].nodeid}"
            )
            for report in reports:
                terminalreporter.line(report.longreprtext)

    def _run(self, tests: Iterable[int], count: int) -> None:
        by_file: dict[str, deque[int]] = {}
        for index in tests:
            by_file.setdefault(self._session.items[index].nodeid.split("::", 1)[0], deque()).append(index)
        self._files.extend(by_file.values())
        for number in range(min(count, len(self._files))):
            self._fork(number)
        while self._living:
            for line in cast(list[Connection], wait([*self._living])):
                self._hear(line)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def _fork(self, number: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            ours.close()
            for line in self._living:
                line.close()
            _live(self._session, theirs, number)
        theirs.close()
        self._living[ours] = Worker(number, pid)

    def _hear(self, line: Connection) -> None:
        worker = self._living[line]
        try:
            said, what = line.recv()
        except (EOFError, ConnectionResetError):
            self._ended(line, worker)
            return
        if said == FREE:
            worker.begun = None
            worker.left = self._files.popleft() if self._files else deque()
            line.send([*worker.left])
        elif said == BEGUN:
            worker.begun = worker.left.popleft()
        else:
            self._tell(worker, *what)

    def _tell(self, worker: Worker, hook: str, known: dict[str, Any]) -> None:
        hooks = self._config.hook
        if hook == "pytest_runtest_logreport":
            report = hooks.pytest_report_from_serializable(config=self._config, data=known["report"])
            # The terminal prints these two where a report has them.
            line = f"[worker {worker.number}]"
            report.node = SimpleNamespace(gateway=SimpleNamespace(id=worker.number), _workerinfocache=line)
            self._report(worker.begun, report)
        else:
            getattr(hooks, hook)(**known)

    def _report(self, test: int | None, report: pytest.TestReport) -> None:
        """Tell of a phase, unless it failed and is to be seen again."""
        if report.failed and test is not None and self._is_second:
            for first in self._held.pop(test, ()):
                report.sections.append(("what failed at first, among others", first.longreprtext))
        elif report.failed and test is not None and self._again_max:
            self._held.setdefault(test, []).append(report)
            if len(self._held) <= self._again_max:
                return
            self._again_max = 0
            self._tell_held()
            return
        self._config.hook.pytest_runtest_logreport(report=report)

    def _tell_held(self) -> None:
        held, self._held = self._held, {}
        for report in chain.from_iterable(held.values()):
            self._config.hook.pytest_runtest_logreport(report=report)

    def _ended(self, line: Connection, worker: Worker) -> None:
        """As it should, for nothing is left, or not."""
        line.close()
        del self._living[line]
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not status and worker.begun is None:
            return
        item = self._session.items[worker.begun or 0]
        where = item.nodeid if worker.begun is not None else f"worker {worker.number}"
        report = pytest.TestReport(
            where, item.location, {}, "failed", f"the process that ran it ended with {status}", "call"
        )
        self._report(worker.begun, report)
        if worker.left:
            self._files.appendleft(worker.left)
        if self._files:
            self._fork(worker.number)


class Telling:
    """In a worker: what hooks are called with goes to the process that reports."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config = config
        self._line = line

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell("pytest_runtest_logstart", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._tell("pytest_runtest_logreport", report=data)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell("pytest_runtest_logfinish", nodeid=nodeid, location=location)

    def _tell(self, hook: str, **known: object) -> None:
        self._line.send((TOLD, (hook, known)))


def _live(session: pytest.Session, line: Connection, number: int) -> NoReturn:
    """Run files as long as there are any, and be gone without what the process that forked would do at its end."""
    status = 1
    try:
        _be_apart(session.config, number)
        session.config.pluginmanager.register(Telling(session.config, line))
        _run_files(session, line)
        atexit._run_exitfuncs()
        status = 0
    except BaseException:  # noqa: BLE001 - told where the other process tells of its status
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _be_apart(config: pytest.Config, number: int) -> None:
    """Files for captured output and a folder of its own; another process talks to the terminal."""
    plugins = config.pluginmanager
    reporter, capturing = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if reporter is not None:
        plugins.unregister(reporter)
    assert isinstance(capturing, CaptureManager)
    capturing.stop_global_capturing()
    capturing.start_global_capturing()
    folders = folders_of(config)
    folders._basetemp = folders.getbasetemp() / f"{number}-{os.getpid()}"
    folders._basetemp.mkdir(mode=0o700)


def folders_of(config: pytest.Config) -> TempPathFactory:
    """Where pytest keeps files of tests."""
    return cast(TempPathFactory, getattr(config, "_tmp_path_factory"))  # noqa: B009 - pytest gives it no type


def _run_files(session: pytest.Session, line: Connection) -> None:
    # Whatever belongs to the session stays when a file is done.
    stays = cast(pytest.Item, session)
    try:
        while left := _asked(session, line):
            for item, after in zip(left, [*left[1:], stays], strict=True):
                line.send((BEGUN, None))
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
    except ConnectionError:
        pass  # nobody wants to know any more
    finally:
        session._setupstate.teardown_exact(None)


def _asked(session: pytest.Session, line: Connection) -> list[pytest.Item]:
    line.send((FREE, None))
    try:
        return [session.items[index] for index in line.recv()]
    except EOFError:
        return []
