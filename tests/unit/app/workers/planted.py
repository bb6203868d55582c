"""Planners that misbehave in one way each, for the solve pool's tests; imported by the child process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from solvers.domain.codec import digest
from solvers.domain.evidence import Reason, ReasonCode, Reporter
from solvers.domain.ids import Digest, Generation
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.policy import Objective, Policy
from solvers.domain.value import value
from solvers.errors import EngineError
from solvers.planners.base import Planner, PlannerSpec, PlanRequest, Stateless, Thought, hand_over
from solvers.planners.registry import settings_of, think, tuned_for, with_settings
from solvers.planners.tuning import Tune, check_tuned


def empty_plan(request: PlanRequest, snapshot: Digest | None = None, parent: int | None = None) -> Plan:
    return Plan(
        snapshot=snapshot if snapshot is not None else digest(request.snapshot),
        parent=Generation(parent) if parent is not None else request.snapshot.target.generation,
        planner="planted",
        planner_version="1",
        seed=request.seed,
        assignments=(),
        settings=(),
        unplaced=(),
        objective=Objective(),
    )


def _answer(plan: Plan | None) -> Proposal:
    return Proposal(status=ProposalStatus.FEASIBLE, planner="planted", plan=plan)


def _good(request: PlanRequest, reporter: Reporter) -> Proposal:
    reporter.event("plan.searched", candidates=3)
    return _answer(empty_plan(request))


def _speak(request: PlanRequest, reporter: Reporter) -> Proposal:
    sys.stdout.write("a planner speaks\n")
    sys.stdout.flush()
    os.write(1, b"a library speaks\n")
    return _answer(empty_plan(request))


def _hang(request: PlanRequest, reporter: Reporter) -> Proposal:
    threading.Event().wait()
    raise AssertionError("nobody ends this wait")


def _spin_in_c(request: PlanRequest, reporter: Reporter) -> Proposal:
    # PyDLL keeps the interpreter lock: nothing in this process but a signal from the kernel can end it.
    ctypes.PyDLL(None).sleep(600)
    return _answer(None)


def _exit(request: PlanRequest, reporter: Reporter) -> Proposal:
    os._exit(7)


def _segfault(request: PlanRequest, reporter: Reporter) -> Proposal:
    ctypes.string_at(0)
    return _answer(None)


def _raise(request: PlanRequest, reporter: Reporter) -> Proposal:
    raise ZeroDivisionError("planted")


def _interrupt(request: PlanRequest, reporter: Reporter) -> Proposal:
    raise KeyboardInterrupt


def _leave(request: PlanRequest, reporter: Reporter) -> Proposal:
    sys.exit("planted")


def _wrong_type(request: PlanRequest, reporter: Reporter) -> Proposal:
    return "not a proposal"  # type: ignore[return-value]


def _wrong_field(request: PlanRequest, reporter: Reporter) -> Proposal:
    return Proposal(status=ProposalStatus.FEASIBLE, planner=17, plan=None)  # type: ignore[arg-type]


def _not_a_number(request: PlanRequest, reporter: Reporter) -> Proposal:
    reasons = (Reason(code=ReasonCode.BUDGET, subject="x"),)
    return Proposal(
        status=ProposalStatus.FEASIBLE,
        planner="planted",
        plan=Plan(
            snapshot=digest(request.snapshot),
            parent=Generation(0),
            planner="planted",
            planner_version="1",
            seed=1,
            assignments=(),
            settings=(),
            unplaced=(),
            objective=Objective(cost_usd_per_h=float("nan")),
        ),
        reasons=reasons,
    )


def _huge(request: PlanRequest, reporter: Reporter) -> Proposal:
    return Proposal(status=ProposalStatus.FEASIBLE, planner="x" * 4_000_000, plan=None)


def _other_snapshot(request: PlanRequest, reporter: Reporter) -> Proposal:
    return _answer(empty_plan(request, snapshot=Digest("sha256:" + "0" * 64)))


def _other_parent(request: PlanRequest, reporter: Reporter) -> Proposal:
    return _answer(empty_plan(request, parent=41))


def _chatty(request: PlanRequest, reporter: Reporter) -> Proposal:
    for _ in range(5_000):
        reporter.event("plan.searched", candidates=1)
    return _answer(empty_plan(request))


def _incumbent(request: PlanRequest, reporter: Reporter) -> None:
    """Two plans, the second one better."""
    for seed in (1, 2):
        hand_over(reporter, _answer(replace(empty_plan(request), seed=seed)))


def _found_and_hung(request: PlanRequest, reporter: Reporter) -> Proposal:
    _incumbent(request, reporter)
    return _hang(request, reporter)


def _found_and_killed(request: PlanRequest, reporter: Reporter) -> Proposal:
    _incumbent(request, reporter)
    os.kill(os.getpid(), signal.SIGKILL)
    return _answer(None)


def _found_and_raised(request: PlanRequest, reporter: Reporter) -> Proposal:
    _incumbent(request, reporter)
    return _raise(request, reporter)


def _found_and_full(request: PlanRequest, reporter: Reporter) -> Proposal:
    _incumbent(request, reporter)
    held = []
    while True:
        held.append(bytearray(2**24))


def _found_and_lied(request: PlanRequest, reporter: Reporter) -> Proposal:
    hand_over(reporter, _other_parent(request, reporter))
    return _raise(request, reporter)


_BEHAVIOURS: dict[str, Callable[[PlanRequest, Reporter], Proposal]] = {
    "good": _good,
    "marking": _good,
    "speak": _speak,
    "hang": _hang,
    "spin-in-c": _spin_in_c,
    "exit": _exit,
    "segfault": _segfault,
    "raise": _raise,
    "interrupt": _interrupt,
    "leave": _leave,
    "wrong-type": _wrong_type,
    "wrong-field": _wrong_field,
    "not-a-number": _not_a_number,
    "huge": _huge,
    "other-snapshot": _other_snapshot,
    "other-parent": _other_parent,
    "chatty": _chatty,
    "found-and-hung": _found_and_hung,
    "found-and-killed": _found_and_killed,
    "found-and-raised": _found_and_raised,
    "found-and-full": _found_and_full,
    "found-and-lied": _found_and_lied,
}


class Planted(Stateless):
    """A planner with one planted behaviour."""

    def __init__(self, name: str) -> None:
        self.spec = PlannerSpec(name=name, version="1", knobs=())
        self._behave = _BEHAVIOURS[name]

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        return self._behave(request, reporter)


class Mindful(Planted):
    """Says what it was handed, and wants that and a byte more next time."""

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        reporter.event("state.handed", size=float(len(state)))
        return Thought(proposal=_good(request, reporter), state=state + b"." * int(self.spec.version))


@value
class Loudness:
    """How often a planner speaks."""

    events: Annotated[int, Tune("so many", 0, 9)] = 1

    def __post_init__(self) -> None:
        check_tuned(self)


@dataclass(frozen=True)
class Tuned(Stateless):
    """Speaks as often as it is told."""

    spec: PlannerSpec = field(default_factory=lambda: PlannerSpec(name="tuned", version="1", knobs=()))
    parameters: Loudness = field(default_factory=Loudness)

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        for _ in range(self.parameters.events):
            reporter.event("loud")
        return _answer(empty_plan(request))


MARK = "HEADROOM_PLANTED_MARK"
"""Names the file that a planner leaves where it is made."""


def build(name: str, policy: Policy) -> Planner:
    return with_settings(_built(name), settings_of(policy, name))


def _built(name: str) -> Planner:
    if name == "mindful":
        return Mindful("good")
    if name == "tuned":
        return Tuned()
    if name == "marking":
        Path(os.environ[MARK]).touch()
    if name not in _BEHAVIOURS:
        raise EngineError(f"no planner is called {name}")
    return Planted(name)


class Lingering(Stateless):
    """Hands over what another planner finds, and is never done."""

    def __init__(self, inner: Planner) -> None:
        self.spec = inner.spec
        self._inner = inner

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        hand_over(reporter, think(self._inner, request, state, reporter).proposal)
        Path(os.environ[MARK]).touch()
        return _hang(request, reporter)


def build_lingering(name: str, policy: Policy) -> Planner:
    """Planners as they are, but for the joint one."""
    made = tuned_for(name, policy)
    return Lingering(made) if name == "joint" else made
