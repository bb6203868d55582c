"""Child processes: planners in a long-lived one, so that a hung, crashed or lying planner costs one cycle, never the
service; learning in one of its own for each fit, so that minutes of arithmetic hold up neither plans nor requests.

A child is never trusted. A plan's request goes over pickled, its answer comes back as canonical JSON and is decoded
strictly; every failure is an EngineError. Children die with their parent, also when that is killed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Self

from app.services.beliefs.beliefs import Evidence, Fit, fitted
from solvers.domain.codec import canonical_json, digest, from_json
from solvers.domain.evidence import Reporter
from solvers.domain.plan import Proposal
from solvers.errors import EngineError, HeadroomError, TransientError
from solvers.models.suite import Suite
from solvers.planners.base import Planner, PlanRequest, Thought
from solvers.planners.registry import settings_of, think, with_settings

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """End this process when its parent ends, however that comes; called first thing in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


# --- Learning


FIT_S_MAX = 1800.0
NICENESS = 10
SUITE_BYTES_MAX = 1 << 30


def fit_apart(evidence: Evidence, fit: Fit = fitted, limit_s: float = FIT_S_MAX) -> Suite:
    """The suite that has learned the evidence, once a child has done it. `fit` is a module's function.

    Raises EngineError when the child fails, ends without an answer or takes too long.
    """
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_learn, args=(theirs, os.getpid(), fit, evidence), name="headroom-fit", daemon=True)
    try:
        child.start()
        theirs.close()
        if not answers.poll(limit_s):
            raise EngineError("learning what was measured took too long", limit_s=limit_s)
        found: object = pickle.loads(answers.recv_bytes(SUITE_BYTES_MAX))
    except (OSError, EOFError, pickle.PickleError) as error:
        child.join(1.0)
        raise EngineError("the process that learns ended without an answer", exit_code=child.exitcode) from error
    finally:
        answers.close()
        if child.pid is not None:
            child.kill()
            child.join()
            child.close()
    if not isinstance(found, Suite):
        raise EngineError(f"what was measured cannot be learned: {found}")
    return found


def _learn(answers: Connection[object, object], parent_pid: int, fit: Fit, evidence: Evidence) -> None:
    """The child's life. The answer is a suite, or what went wrong in words."""
    die_with(parent_pid)
    # Ctrl-C reaches the whole process group; the parent decides when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    found: object
    try:
        found = fit(evidence)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        found = f"{type(error).__name__}: {error}"
    answers.send_bytes(pickle.dumps(found))


# --- Planning


PlannerFactory = Callable[[str], Planner]
"""Makes a planner by name; must be importable in the child (a module's function)."""

Event = tuple[str, dict[str, str | float]]

_EVENTS_MAX = 1_000


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
    """Bounds of the pool: grace beyond a planner's own deadline, time for a child to start, requests in line (with the
    running one), size of an answer and of a state worth keeping."""

    grace_s: float = 2.0
    start_s: float = 60.0
    requests_max: int = 4
    answer_bytes_max: int = 64 * 2**20
    state_bytes_max: int = 8 * 2**20


class SolvePool:
    """One child process and the conversation with it; implements the cycle's Runner port."""

    def __init__(self, factory: PlannerFactory, reporter: Reporter, limits: PoolLimits | None = None) -> None:
        self._factory = factory
        self._reporter = reporter
        self._limits = limits or PoolLimits()
        self._context: SpawnContext = multiprocessing.get_context("spawn")
        self._places = threading.BoundedSemaphore(self._limits.requests_max)
        self._closing = False
        self._process: SpawnProcess | None = None
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

        Raises TransientError when too many requests wait already.
        """
        if not self._places.acquire(blocking=False):
            raise TransientError("too many plans are being made at once; try again shortly")
        try:
            return self._thread.submit(self._think, planner, request, state).result()
        except (RuntimeError, CancelledError) as error:
            raise EngineError("the solve pool is closed", planner=planner) from error
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

    @property
    def child_pid(self) -> int | None:
        """Process id of the standing child, for observation."""
        return self._process.pid if self._process is not None else None

    def _think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        answer = self._exchange(planner, request, state)
        for name, facts in answer.events:
            self._reporter.event(
                name, planner=planner, **{key: fact for key, fact in facts.items() if key != "planner"}
            )
        if answer.proposal is None:
            raise EngineError(f"planner {planner} failed: {answer.error}", planner=planner)
        kept = answer.state if isinstance(answer.state, bytes) else None
        if kept is not None and len(kept) > self._limits.state_bytes_max:
            self._reporter.event("planner.state_dropped", planner=planner, size_bytes=float(len(kept)))
            kept = None
        return Thought(proposal=_checked(planner, request, answer.proposal), state=kept)

    def _exchange(self, planner: str, request: PlanRequest, state: bytes | None) -> ChildAnswer:
        self._start()
        if self._closing:
            # Either we see the flag here or `close` sees the child that was just started: nobody waits for it.
            self._discard()
        process, connection = self._process, self._connection
        if process is None or connection is None:
            raise EngineError("the planner process did not start", planner=planner)
        limit_s = request.budget.deadline_s + self._limits.grace_s
        answer: object = None
        failure: Exception | None = None
        with _Watchdog(limit_s, process) as watchdog:
            try:
                connection.send_bytes(pickle.dumps((planner, request, state)))
                answer = pickle.loads(connection.recv_bytes(self._limits.answer_bytes_max))  # from our own child only
            except (OSError, EOFError, pickle.PickleError) as error:
                failure = error
        if failure is None and not watchdog.fired and isinstance(answer, ChildAnswer):
            return answer
        exit_code = self._discard()
        if watchdog.fired:
            message = f"planner {planner} overran its deadline and was killed"
            raise EngineError(message, planner=planner, limit_s=limit_s) from failure
        raise EngineError(
            _cause_of_death(planner, exit_code, failure), planner=planner, exit_code=exit_code
        ) from failure

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._discard()
        connection, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(
            target=_serve, args=(theirs, self._factory, os.getpid()), name="headroom-solve", daemon=True
        )
        process.start()
        theirs.close()
        self._process, self._connection = process, connection
        try:
            ready = connection.poll(self._limits.start_s) and connection.recv_bytes(64) == b"ready"
        except (OSError, EOFError):
            ready = False
        if not ready:
            exit_code = self._discard()
            raise EngineError("the planner process did not start", exit_code=exit_code)

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

    A timer rather than a poll: it also ends a child that stops reading its request or stops halfway through its answer.
    """

    def __init__(self, limit_s: float, process: SpawnProcess) -> None:
        self.fired = False
        self._process = process
        self._timer = threading.Timer(limit_s, self._fire)
        self._timer.daemon = True

    def _fire(self) -> None:
        self.fired = True
        self._process.kill()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()


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
    if plan.snapshot != digest(request.snapshot):
        raise EngineError(f"planner {planner} answered about another snapshot", planner=planner)
    if plan.parent != request.snapshot.target.generation:
        raise EngineError(f"planner {planner} answered about another parent generation", planner=planner)
    return proposal


class _Recorder:
    """Keeps a planner's events until its answer is sent; the earliest ones when there are too many."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, name: str, **facts: str | float) -> None:
        if len(self.events) < _EVENTS_MAX:
            self.events.append((name, facts))


def _serve(connection: Connection[object, object], factory: PlannerFactory, parent_pid: int) -> None:
    """The child's life: answer requests one after the other until the parent is gone."""
    die_with(parent_pid)
    # Ctrl-C reaches the whole process group; the parent decides when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send_bytes(b"ready")
        while True:
            planner, request, state = pickle.loads(connection.recv_bytes())  # from our own parent only
            connection.send_bytes(pickle.dumps(_answer(factory, planner, request, state)))
    except (EOFError, OSError):
        return


def _answer(factory: PlannerFactory, name: str, request: PlanRequest, state: bytes | None) -> ChildAnswer:
    recorder = _Recorder()
    try:
        planner = with_settings(factory(name), settings_of(request.snapshot.policy, name))
        thought = think(planner, request, state, recorder)
        proposal: object = thought.proposal
        if not isinstance(proposal, Proposal):
            return ChildAnswer(None, f"answered a {type(proposal).__name__}, not a Proposal", tuple(recorder.events))
        return ChildAnswer(canonical_json(proposal), None, tuple(recorder.events), thought.state)
    except Exception as error:  # noqa: BLE001 - whatever a planner raises is this cycle's engine error, told to the parent
        return ChildAnswer(None, f"{type(error).__name__}: {error}", tuple(recorder.events))
