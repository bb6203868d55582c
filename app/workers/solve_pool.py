"""Planners in a long-lived child process, so that a hung, crashed or lying planner costs one cycle, never the service.

The child is never trusted. A request goes over pickled, what is found comes back as canonical JSON and is decoded
strictly. A deadline begins when the planner is loaded: a child that takes the place of a killed one would else be late
for what the killed one knew. While it searches, a planner hands over the best so far: where it then overruns its
deadline, crashes or runs out of memory, that is the answer, which says so. With nothing handed over, that is an
EngineError. The child dies with its parent, also when that is killed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Self

from solvers.domain.codec import canonical_json, from_json, picture_digest
from solvers.domain.evidence import Reporter
from solvers.domain.ids import Digest
from solvers.domain.plan import PlannerEnding, Proposal
from solvers.domain.policy import Policy
from solvers.errors import EndingError, EngineError, HeadroomError, OverrunError, TransientError
from solvers.planners.base import Planner, PlanRequest, Thought
from solvers.planners.registry import create, think

_PR_SET_PDEATHSIG = 1
_STDOUT = 1
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
LARGE_BYTES, ARENAS_MAX = 1 << 20, 1
READY = b"ready"


def die_with(parent_pid: int) -> None:
    """End this process when its parent ends, however that comes; called first thing in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def keep_little() -> None:
    """Give freed memory back: arrays of a megabyte and more have pages of their own, and threads share the rest. Else
    the C library keeps what a large solve has freed, in pieces by thread: a gigabyte at 20,000 GPUs.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):  # not in every C library
            library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
            library.mallopt(_M_ARENA_MAX, ARENAS_MAX)


PlannerFactory = Callable[[str, Policy], Planner]
"""Makes a planner by name, tuned as a policy says; importable where the child is spawned (a module's function)."""

Event = tuple[str, dict[str, str | float]]

_EVENTS_MAX = 1_000
PLANNERS_FIRST = ("joint", "greedy")
WORKLOADS_SMALL = 100
"""For each of so many workloads a planner has the whole grace once more to say anything at all."""
OVERRUN_PART = 0.05
"""Of its deadline: so much longer a planner that has handed something over may take for its last word."""


@dataclass(frozen=True, slots=True)
class Incumbent:
    proposal: str


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """What the child says: the proposal's JSON, or the error that prevented it, the planner's events, and what it wants
    to be handed next time."""

    proposal: str | None
    error: str | None
    events: tuple[Event, ...]
    state: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Bounds of the pool: grace beyond a planner's own deadline while nothing was handed over (for a small fleet, more
    for larger ones), memory of the child, time for it to start or to load a planner, requests in line (with the running
    one), size of an answer and of a state worth keeping.
    """

    grace_s: float = 2.0
    memory_mib: int = 8192
    start_s: float = 60.0
    requests_max: int = 4
    answer_bytes_max: int = 64 * 2**20
    state_bytes_max: int = 8 * 2**20


@dataclass(slots=True)
class _Heard:
    """What came of a request: the best that was handed over, and the last word, or why there was none."""

    incumbent: str | None = None
    answer: ChildAnswer | None = None
    ending: PlannerEnding = PlannerEnding.FAILED
    failure: str = ""

    def last_word(self, connection: Connection[object, object], bytes_max: int, watchdog: _Watchdog) -> object:
        """What the child says when it hands over nothing more. Raises as `recv_bytes` does when it is gone."""
        while True:
            said: object = pickle.loads(connection.recv_bytes(bytes_max))  # from our own child only
            if not isinstance(said, Incumbent):
                return said
            self.incumbent = said.proposal
            watchdog.content()


class SolvePool:
    """One child process and the conversation with it; implements the cycle's Runner port. A child that is forked is
    there at once, which suits programmes of few threads.
    """

    def __init__(
        self,
        factory: PlannerFactory,
        reporter: Reporter,
        limits: PoolLimits | None = None,
        start: Literal["spawn", "fork"] = "spawn",
    ) -> None:
        self._factory = factory
        self._reporter = reporter
        self._limits = limits or PoolLimits()
        # Both kinds of context have the same methods, but no type says so.
        self._context: Any = multiprocessing.get_context(start)
        self._places = threading.BoundedSemaphore(self._limits.requests_max)
        self._closing = False
        self._process: BaseProcess | None = None
        self._connection: Connection[object, object] | None = None
        # The kernel ties the child's life to the thread that started it, so one thread, as old as the pool, does it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="solve-pool")

    def warm(self) -> None:
        """Start the child now, so that the first request does not pay for it; EngineError when it does not start."""
        self._thread.submit(self._start).result()

    def propose(self, planner: str, request: PlanRequest, state: bytes | None = None) -> Proposal:
        """The planner's checked answer alone; raises as `think` does."""
        return self.think(planner, request, state).proposal

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        """The planner's checked answer with its new state; EngineError for everything that went wrong on the way.
        Raises TransientError when too many requests wait already, EndingError when the pool was closed meanwhile.
        """
        if not self._places.acquire(blocking=False):
            raise TransientError("too many plans are being made at once; try again shortly")
        try:
            return self._thread.submit(self._think, planner, request, state).result()
        except (RuntimeError, CancelledError) as error:
            raise _closed(planner) from error
        finally:
            self._places.release()

    def close(self) -> None:
        """End the child, also in the middle of a request, and take no more."""
        self._closing = True
        process = self._process
        if process is not None:
            with suppress(ValueError):  # the pool's own thread may be discarding it at this moment
                process.kill()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._discard()

    def _think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        try:
            heard = self._exchange(planner, request, state)
        finally:
            if self._closing:
                # Whatever became of it, `close` did that: the planner is not to blame, and nobody takes its place.
                raise _closed(planner)
        answer = heard.answer
        for name, facts in () if answer is None else answer.events:
            self._reporter.event(
                name, planner=planner, **{key: fact for key, fact in facts.items() if key != "planner"}
            )
        if answer is None or answer.proposal is None:
            return Thought(proposal=_left_behind(planner, request, heard))
        kept = answer.state if isinstance(answer.state, bytes) else None
        if kept is not None and len(kept) > self._limits.state_bytes_max:
            self._reporter.event("planner.state_dropped", planner=planner, size_bytes=float(len(kept)))
            kept = None
        return Thought(proposal=_checked(planner, request, answer.proposal), state=kept)

    def _exchange(self, planner: str, request: PlanRequest, state: bytes | None) -> _Heard:
        self._start()
        if self._closing:
            # Either we see the flag here or `close` sees the child that was just started: nobody waits for it.
            self._discard()
        process, connection = self._process, self._connection
        if process is None or connection is None:
            raise EngineError("the planner process did not start", planner=planner)
        self._load(planner, request.snapshot.policy)
        heard, failure = _Heard(), None
        grace_s = self._limits.grace_s * (1 + len(request.movable) / WORKLOADS_SMALL)
        with _Watchdog(request.budget.deadline_s, grace_s, process) as watchdog:
            try:
                connection.send_bytes(pickle.dumps((request, state)))
                # Both need it; the child has enough to do until then.
                connection.send_bytes(picture_digest(request.snapshot).encode())
                said = heard.last_word(connection, self._limits.answer_bytes_max, watchdog)
            except (OSError, EOFError, pickle.PickleError) as error:
                said, failure = None, error
        if not watchdog.fired and isinstance(said, ChildAnswer):
            heard.answer, heard.failure = said, f"planner {planner} failed: {said.error}"
            return heard
        exit_code = self._discard()
        if watchdog.fired:
            heard.ending, heard.failure = PlannerEnding.KILLED, f"planner {planner} overran its deadline and was killed"
        else:
            heard.failure = _cause_of_death(planner, exit_code, failure)
        return heard

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._discard()
        connection, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(
            target=_serve,
            args=(theirs, self._factory, os.getpid(), self._limits.memory_mib),
            name="headroom-solve",
            daemon=True,
        )
        process.start()
        theirs.close()
        self._process, self._connection = process, connection
        if not self._ready():
            exit_code = self._discard()
            raise EngineError(f"the planner process did not start: exit code {exit_code}", exit_code=exit_code)

    def _load(self, planner: str, policy: Policy) -> None:
        """Have the child make the planner, whatever it must import for it."""
        connection = self._connection
        with suppress(OSError):  # a child that is gone is not ready
            if connection is not None:
                connection.send_bytes(pickle.dumps((planner, policy)))
        if not self._ready():
            raise EngineError(f"planner {planner} could not be loaded", planner=planner, exit_code=self._discard())

    def _ready(self) -> bool:
        """Whether the child says within its time that it is."""
        connection = self._connection
        try:
            return (
                connection is not None and connection.poll(self._limits.start_s) and connection.recv_bytes(64) == READY
            )
        except (OSError, EOFError):
            return False

    def _discard(self) -> int | None:
        """Kill and reap whatever child there is; its exit code (negative: the signal), None when it was alive."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        # A child that closed its pipe is dying; give it the moment it needs to leave its own exit code.
        process.join(0.2)
        exit_code = process.exitcode
        process.kill()
        process.join()
        process.close()
        return exit_code


class _Watchdog:
    """Kills the child when the time is up; surely over when the block is left.

    Timers rather than a poll: they also end a child that stops reading its request or stops halfway through its answer.
    Whoever has handed something over has a moment beyond its deadline, whoever has not, all of the grace.
    """

    def __init__(self, deadline_s: float, grace_s: float, process: BaseProcess) -> None:
        self.fired = False
        self._content = self._overdue = False
        self._process = process
        self._timers = [
            threading.Timer(deadline_s + min(grace_s, OVERRUN_PART * deadline_s), self._fire_if_content),
            threading.Timer(deadline_s + grace_s, self._fire),
        ]

    def content(self) -> None:
        """Something was handed over: it need not go on for long."""
        self._content = True
        if self._overdue:
            self._fire()

    def _fire_if_content(self) -> None:
        self._overdue = True
        if self._content:
            self._fire()

    def _fire(self) -> None:
        self.fired = True
        self._process.kill()

    def __enter__(self) -> Self:
        for timer in self._timers:
            timer.daemon = True
            timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            timer.join()


def _closed(planner: str) -> EndingError:
    return EndingError("the solve pool is closed", planner=planner)


def _left_behind(planner: str, request: PlanRequest, heard: _Heard) -> Proposal:
    """The best that a planner had handed over before it was stopped. Raises EngineError where there is nothing."""
    if heard.incumbent is None:
        kind = OverrunError if heard.ending is PlannerEnding.KILLED else EngineError
        raise kind(heard.failure, planner=planner)
    found = _checked(planner, request, heard.incumbent)
    return replace(found, ending=heard.ending, failure=heard.failure)


def _cause_of_death(planner: str, exit_code: int | None, failure: Exception | None) -> str:
    if exit_code is None:
        return f"planner {planner} gave an unreadable answer: {failure}"
    if exit_code < 0:
        return f"planner {planner} was killed by {signal.Signals(-exit_code).name}"
    return f"planner {planner} ended its process with exit code {exit_code}"


def _checked(planner: str, request: PlanRequest, text: str) -> Proposal:
    try:
        proposal = from_json(Proposal, text)
    except (HeadroomError, ValueError, RecursionError) as error:
        raise EngineError(f"planner {planner} broke its contract: {error}", planner=planner) from error
    plan = proposal.plan
    if plan is None:
        return proposal
    if plan.snapshot != picture_digest(request.snapshot):
        raise EngineError(f"planner {planner} answered about another snapshot", planner=planner)
    if plan.parent != request.snapshot.target.generation:
        raise EngineError(f"planner {planner} answered about another parent generation", planner=planner)
    return proposal


def load_planners() -> None:
    """Import the planners that are asked first, and what numpy looks for when it first needs it, so that no deadline
    pays for it.
    """
    import_module("numpy.ma")
    for name in PLANNERS_FIRST:
        create(name)


class _Recorder:
    """Keeps a planner's events until its answer is sent, the earliest ones when there are too many. What it finds on
    its way goes to the parent at once.
    """

    def __init__(self, connection: Connection[object, object]) -> None:
        self.events: list[Event] = []
        self._connection = connection

    def event(self, name: str, **facts: str | float) -> None:
        if len(self.events) < _EVENTS_MAX:
            self.events.append((name, facts))

    def found(self, proposal: Proposal) -> None:
        self._connection.send_bytes(pickle.dumps(Incumbent(canonical_json(proposal))))


def _serve(connection: Connection[object, object], factory: PlannerFactory, parent_pid: int, memory_mib: int) -> None:
    """The child's life: answer requests one after the other until the parent is gone."""
    die_with(parent_pid)
    keep_little()
    load_planners()
    # Ctrl-C reaches the whole process group; the parent decides when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_mib << 20, memory_mib << 20))
    # What a planner prints is no part of the parent's answer, and what a library below it writes is for nobody.
    sys.stdout = sys.stderr
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    try:
        connection.send_bytes(READY)
        while True:
            name, policy = pickle.loads(connection.recv_bytes())  # from our own parent only
            planner = _made(factory, name, policy)
            connection.send_bytes(READY)
            request, state = pickle.loads(connection.recv_bytes())
            picture_digest.found_elsewhere(request.snapshot, lambda _: Digest(connection.recv_bytes().decode()))
            connection.send_bytes(pickle.dumps(_answer(planner, request, state, _Recorder(connection))))
            picture_digest(request.snapshot)  # so that it is not taken for the next request
    except (EOFError, OSError):
        return


def _made(factory: PlannerFactory, name: str, policy: Policy) -> Planner | BaseException:
    try:
        return factory(name, policy)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the request that follows is answered with it
        return error


def _answer(
    planner: Planner | BaseException, request: PlanRequest, state: bytes | None, recorder: _Recorder
) -> ChildAnswer:
    try:
        if isinstance(planner, BaseException):
            raise planner
        thought = think(planner, request, state, recorder)
        return ChildAnswer(canonical_json(thought.proposal), None, tuple(recorder.events), thought.state)
    except BaseException as error:  # noqa: BLE001 - whatever a planner raises is this cycle's engine error, told to the parent
        return ChildAnswer(None, f"{type(error).__name__}: {error}", tuple(recorder.events))
