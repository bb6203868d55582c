"""Child processes: restarts with back-off, bounded logs, stops that always end, identities that survive reuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.home import SupervisedProcess
from app.demo.process import BACKOFF_S, STEADY_AFTER_S, Child, ChildSpec, alive, end_processes, identify
from tests.waiting import LIMIT_S, wait_until

FOREVER = "import signal; signal.pause()"
STUBBORN = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: signal.pause()"


class Time:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.ask_to_stop()
        child.await_stop()


def child_of(children: list[Child], tmp_path: Path, code: str, now_s: Time, stop_deadline_s: float = 10.0) -> Child:
    spec = ChildSpec(
        name="child",
        command=(sys.executable, "-S", "-c", code),
        environment={"COLOUR": "green"},
        stop_deadline_s=stop_deadline_s,
    )
    child = Child(spec, tmp_path, now_s)
    children.append(child)
    return child


def ended(child: Child) -> bool:
    return child.pid is None


def test_a_child_that_keeps_dying_is_started_with_growing_delays(children: list[Child], tmp_path: Path) -> None:
    now = Time()
    child = child_of(children, tmp_path, "import os; print(os.environ['COLOUR'])", now)
    child.start()
    for failure, delay_s in enumerate((*BACKOFF_S, BACKOFF_S[-1]), start=1):
        wait_until(lambda: ended(child))
        assert child.watch() == f"child ended with 0; next start in {delay_s:g} s"
        assert child.failures == failure
        now.now_s += delay_s - 0.01
        assert child.watch() is None
        now.now_s += 0.02
        assert "started again" in (child.watch() or "")
    wait_until(lambda: ended(child))
    assert child.log.read_text().split() == ["green"] * (len(BACKOFF_S) + 2)


def test_a_child_that_lived_long_starts_from_the_shortest_delay_again(children: list[Child], tmp_path: Path) -> None:
    now = Time()
    child = child_of(children, tmp_path, "", now)
    child.start()
    child.failures = 4
    wait_until(lambda: ended(child))
    now.now_s += STEADY_AFTER_S
    assert child.watch() == f"child ended with 0; next start in {BACKOFF_S[0]:g} s"


def test_a_living_child_is_left_alone_and_stops_when_asked(children: list[Child], tmp_path: Path) -> None:
    child = child_of(children, tmp_path, FOREVER, Time())
    child.start()
    pid = child.pid
    assert pid is not None
    assert child.watch() is None
    child.ask_to_stop()
    assert child.await_stop()
    assert identify("child", pid) is None


def test_a_deaf_child_is_killed_at_the_deadline(children: list[Child], tmp_path: Path) -> None:
    child = child_of(children, tmp_path, STUBBORN, Time(), stop_deadline_s=0.2)
    child.start()
    wait_until(lambda: child.log.read_text() == "deaf\n")
    child.ask_to_stop()
    assert child.await_stop() is False
    assert child.pid is None


def test_logs_are_bounded_and_keep_their_last_part(
    children: list[Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.demo.process.LOG_BYTES_MAX", 10)
    child = child_of(children, tmp_path, FOREVER, Time())
    child.bound_log()
    child.log.write_text("short")
    child.bound_log()
    assert child.log.read_text() == "short"
    child.log.write_text("longer than ten bytes")
    child.bound_log()
    assert child.log.read_text() == ""
    assert child.log.with_suffix(".log.1").read_text() == "longer than ten bytes"


def test_a_process_is_known_by_its_start_too() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", FOREVER], start_new_session=True) as process:
        known = identify("stranger", process.pid)
        assert known is not None
        assert alive(known)
        impostor = SupervisedProcess(name="stranger", pid=process.pid, started_ticks=known.started_ticks - 1)
        assert not alive(impostor)
        assert end_processes([impostor], 1.0) == []
        assert process.poll() is None
        assert end_processes([known, impostor], 10.0) == ["stranger"]
        assert process.wait(LIMIT_S) == -15
        assert not alive(known)


def test_a_deaf_leftover_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"deaf\n"
        known = identify("deaf", process.pid)
        assert known is not None
        assert end_processes([known], 0.2) == ["deaf"]
        assert process.wait(LIMIT_S) == -9
