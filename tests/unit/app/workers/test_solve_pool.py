"""The solve pool against planners that hang, die, lie and talk too much."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import pytest

from app.workers import solve_pool
from app.workers.solve_pool import PoolLimits, SolvePool
from solvers.domain.ids import ClusterName, PolicyName
from solvers.domain.plan import PlannerEnding, ProposalStatus
from solvers.domain.policy import PlannerSetting, Policy
from solvers.domain.snapshot import Snapshot
from solvers.errors import EndingError, EngineError, TransientError
from solvers.planners.base import Budget, PlanRequest
from tests.unit.app.workers.planted import MARK, build, empty_plan
from tests.waiting import LIMIT_S, wait_until

SNAPSHOT = Snapshot(
    cluster=ClusterName("test"),
    taken_at_s=1000.0,
    policy=Policy(name=PolicyName("default")),
)


def request_of(deadline_s: float = LIMIT_S) -> PlanRequest:
    return PlanRequest(snapshot=SNAPSHOT, movable=(), budget=Budget(deadline_s=deadline_s), seed=1)


def tuned_request(planner: str, events: int) -> PlanRequest:
    setting = PlannerSetting(planner=planner, name="events", value=events)
    policy = replace(SNAPSHOT.policy, planner_settings=(setting,))
    return replace(request_of(), snapshot=replace(SNAPSHOT, policy=policy))


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, str | float]]] = []

    def event(self, name: str, **facts: str | float) -> None:
        self.events.append((name, facts))


@pytest.fixture(scope="module")
def heard() -> Heard:
    return Heard()


@pytest.fixture(scope="module")
def pool(heard: Heard) -> Iterator[SolvePool]:
    limits = PoolLimits(grace_s=0.1, memory_mib=1024, answer_bytes_max=1_000_000, state_bytes_max=3)
    pool = SolvePool(build, heard, limits)
    pool.warm()
    yield pool
    pool.close()


def child_pid(pool: SolvePool) -> int | None:
    """Of the standing child, and of no other one that this process has."""
    return None if pool._process is None else pool._process.pid


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_good_planner_answers_and_is_heard(pool: SolvePool, heard: Heard) -> None:
    request = request_of()
    proposal = pool.propose("good", request)
    assert proposal.status is ProposalStatus.FEASIBLE
    assert proposal.plan == empty_plan(request)
    assert ("plan.searched", {"planner": "good", "candidates": 3}) in heard.events


def test_a_state_goes_to_the_child_and_a_new_one_comes_back(pool: SolvePool, heard: Heard) -> None:
    assert pool.think("mindful", request_of(), None).state == b"."
    assert pool.think("mindful", request_of(), b"ab").state == b"ab."
    assert ("state.handed", {"planner": "mindful", "size": 2.0}) in heard.events
    assert pool.think("good", request_of(), b"ab").state is None


def test_a_state_too_large_to_keep_is_dropped_and_the_plan_stands(pool: SolvePool, heard: Heard) -> None:
    thought = pool.think("mindful", request_of(), b"abc")
    assert thought.proposal.plan is not None
    assert thought.state is None
    assert ("planner.state_dropped", {"planner": "mindful", "size_bytes": 4.0}) in heard.events


def test_child_is_kept_between_requests(pool: SolvePool) -> None:
    pool.propose("good", request_of())
    first = child_pid(pool)
    pool.propose("good", request_of())
    assert first is not None
    assert child_pid(pool) == first


def test_the_deadline_begins_when_the_planner_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, there = tmp_path / "made", list[bool]()
    monkeypatch.setenv(MARK, str(mark))

    class Watchdog(solve_pool._Watchdog):
        def __enter__(self) -> Self:
            there.append(mark.exists())
            return super().__enter__()

    monkeypatch.setattr(solve_pool, "_Watchdog", Watchdog)
    pool = SolvePool(build, Heard(), start="fork")
    try:
        assert pool.propose("marking", request_of()).plan is not None
    finally:
        pool.close()
    assert there == [True]


THINK = """
import sys
from app.workers.solve_pool import load_planners
from solvers.domain.evidence import SilentReporter
from solvers.planners.registry import create, think
from benchmarks.instances.family_snapshot import family_snapshot
from tests import builders
request = builders.request(family_snapshot(8, 3, 1))
load_planners()
planners = [create(name) for name in ("mudi", "oltunes", "inss", "morak", "hetsev")]
loaded = set(sys.modules)
for planner in planners:
    assert think(planner, request, None, SilentReporter()).proposal.plan.assignments
print(sorted(name for name in set(sys.modules) - loaded if name.startswith(("scipy", "highspy", "cvxpy"))))
"""


def test_thinking_loads_nothing_large() -> None:
    """Who has no processor for himself would spend his deadline on it, again in every child that follows."""
    done = subprocess.run([sys.executable, "-c", THINK], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("planner", ["hang", "spin-in-c"])
def test_overrun_is_killed_and_the_next_request_served(pool: SolvePool, planner: str) -> None:
    pool.propose("good", request_of())
    hung = child_pid(pool)
    assert hung is not None
    began = time.monotonic()
    with pytest.raises(EngineError, match="overran its deadline"):
        pool.propose(planner, request_of(deadline_s=0.3))
    assert time.monotonic() - began > 0.3  # and it came back, which the planner alone would never have
    assert gone(hung)
    assert pool.propose("good", request_of()).plan is not None
    assert child_pid(pool) != hung


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        ("exit", "exit code 7"),
        ("segfault", "SIGSEGV"),
        ("huge", "unreadable answer|exit code|killed by"),
    ],
)
def test_lost_child_is_an_engine_error_and_is_replaced(pool: SolvePool, planner: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        pool.propose(planner, request_of())
    assert pool.propose("good", request_of()).plan is not None


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        ("raise", "ZeroDivisionError: planted"),
        ("interrupt", "KeyboardInterrupt"),
        ("leave", "SystemExit: planted"),
        ("unknown", "no planner is called unknown"),
        ("wrong-type", "answered with str, not with Proposal"),
        ("wrong-field", "broke its contract"),
        ("not-a-number", "ValueError"),
        ("other-snapshot", "another snapshot"),
        ("other-parent", "another parent generation"),
    ],
)
def test_bad_answer_is_an_engine_error_and_the_child_lives(pool: SolvePool, planner: str, message: str) -> None:
    pool.propose("good", request_of())
    child = child_pid(pool)
    with pytest.raises(EngineError, match=message):
        pool.propose(planner, request_of())
    assert pool.propose("good", request_of()).plan is not None
    assert child_pid(pool) == child


@pytest.mark.parametrize(
    ("planner", "ending", "why"),
    [
        ("found-and-hung", PlannerEnding.KILLED, "planner found-and-hung overran its deadline and was killed"),
        ("found-and-killed", PlannerEnding.FAILED, "planner found-and-killed was killed by SIGKILL"),
        ("found-and-raised", PlannerEnding.FAILED, "planner found-and-raised failed: ZeroDivisionError: planted"),
        ("found-and-full", PlannerEnding.FAILED, "planner found-and-full failed: MemoryError: "),
    ],
)
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_the_best_that_was_handed_over_outlives_its_planner(
    start: Literal["spawn", "fork"], planner: str, ending: PlannerEnding, why: str
) -> None:
    forked = SolvePool(build, Heard(), PoolLimits(grace_s=0.1, memory_mib=1024), start=start)
    try:
        request = request_of(deadline_s=0.3 if ending is PlannerEnding.KILLED else LIMIT_S)
        found = forked.propose(planner, request)
        assert found.plan == replace(empty_plan(request), seed=2)
        assert (found.ending, found.failure) == (ending, why)
        assert forked.propose("good", request_of()).ending is PlannerEnding.FINISHED
    finally:
        forked.close()


def test_what_is_handed_over_is_checked_as_an_answer_is(pool: SolvePool) -> None:
    with pytest.raises(EngineError, match="another parent generation"):
        pool.propose("found-and-lied", request_of())


@pytest.mark.parametrize("times", [0, 3])
def test_a_planner_is_tuned_as_the_policy_of_the_request_says(pool: SolvePool, heard: Heard, times: int) -> None:
    heard.events.clear()
    pool.propose("tuned", tuned_request("tuned", times))
    assert len(heard.events) == times


def test_a_setting_that_a_planner_does_not_have_is_its_error(pool: SolvePool) -> None:
    with pytest.raises(EngineError, match="tuned's parameter events must be a whole number from 0 to 9, got 10"):
        pool.propose("tuned", tuned_request("tuned", 10))
    with pytest.raises(EngineError, match="good has no parameter events; it has none"):
        pool.propose("good", tuned_request("good", 1))
    assert pool.propose("good", tuned_request("tuned", 10)).plan is not None


def test_events_are_bounded(pool: SolvePool, heard: Heard) -> None:
    heard.events.clear()
    pool.propose("chatty", request_of())
    assert len(heard.events) == 1_000


def test_child_killed_while_idle_costs_one_request_at_most(pool: SolvePool) -> None:
    pool.propose("good", request_of())
    child = child_pid(pool)
    assert child is not None
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: gone(child))
    assert pool.propose("good", request_of()).plan is not None


@pytest.mark.parametrize("planner", ["hang", "found-and-hung"])
def test_close_ends_a_running_request_and_the_line_is_bounded(planner: str) -> None:
    """Whoever asked hears that this process ends, not that a planner failed, whatever that had found."""
    pool = SolvePool(build, Heard(), PoolLimits(requests_max=1))
    pool.warm()
    child = child_pid(pool)
    assert child is not None
    failures: list[EndingError] = []

    def ask() -> None:
        try:
            pool.propose(planner, request_of(deadline_s=60))
        except EndingError as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: pool._places._value == 0)
    with pytest.raises(TransientError, match="too many plans"):
        pool.propose("good", request_of())
    pool.close()
    asking.join(10)
    assert len(failures) == 1
    assert gone(child)
    with pytest.raises(EndingError, match="closed"):
        pool.propose("good", request_of())


_PARENT = """
from app.workers import solve_pool
from app.workers.solve_pool import SolvePool
from solvers.domain.evidence import SilentReporter
from tests.unit.app.workers.planted import build
from tests.unit.app.workers.test_solve_pool import child_pid, request_of

if __name__ == "__main__":
    pool = SolvePool(build, SilentReporter())
    pool.warm()
    print(child_pid(pool), flush=True)
    pool.propose("spin-in-c", request_of(deadline_s=60))
"""


_SPEAKING = """
from app.workers.solve_pool import SolvePool
from solvers.domain.evidence import SilentReporter
from tests.unit.app.workers.planted import build
from tests.unit.app.workers.test_solve_pool import request_of

if __name__ == "__main__":
    pool = SolvePool(build, SilentReporter())
    pool.propose("speak", request_of())
    pool.close()
"""


def test_planners_are_heard_and_libraries_are_not(tmp_path: Path) -> None:
    """A line of a solver library among logs is no object, and beside a plan no news."""
    script = tmp_path / "parent.py"
    script.write_text(_SPEAKING)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment
    )
    assert (done.stdout, done.stderr) == ("", "a planner speaks\n")


def test_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: gone(child))


KEEPS = """
import sys
import numpy as np
from app.workers.solve_pool import keep_little
if sys.argv[1] == "little":
    keep_little()
for _ in range(3):
    np.ones(1 << 20)  # the C library takes what is freed for a sign of what is large
large, small = [], []
for _ in range(100):
    large.append(np.ones(3 << 17))
    small.append(bytearray(60_000))  # larger than the holes that importing left
large.clear()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def test_what_a_solve_has_freed_goes_back() -> None:
    kept_mib = {}
    for how in ("little", "much"):
        done = subprocess.run([sys.executable, "-c", KEEPS, how], capture_output=True, text=True, check=True)
        kept_mib[how] = int(done.stdout) / 1024
    assert (kept_mib["little"] < 100, kept_mib["much"] > 300) == (True, True), kept_mib
