"""The request's way: which modules a plan of the joint planner runs through, and how often it comes back to one.

A golden snapshot is planned by the planner `joint`, everything movable, with counted work units, so that the walk is
the same on every machine; once untraced, so that no import is part of it, and once under `sys.setprofile`. From the
request's arrival until the proposal is returned, every start of a function written in the measured folder is one step,
at the module that the function is written in. Comprehensions and generator expressions are part of the function around
them, a generator counts when it is made and not when it goes on, a return to the caller is no step. Steps that follow
each other in one module are one stay. Then

    rooms    modules that were entered at all
    stays    stays, so one more than the changes of module
    returns  stays in a module that was left before: stays - rooms
    hops     different ordered pairs of modules that a change led from and to; loops do not raise it
    given    rooms in which some function was handed the very request or its snapshot as an argument
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from types import CodeType, FrameType

CASE = "tests/golden/cases/mixed-fleet.snapshot.json"
WORK_UNITS = 500
HIDDEN = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One start of a function, and whether it was handed what is followed."""

    path: str
    given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """See the module."""

    rooms: int
    stays: int
    returns: int
    hops: int
    given: int


class Walk:
    """Records steps in files under a folder of a checkout while its `run` runs."""

    def __init__(self, root: Path, folder: str, followed: Iterable[object] = ()) -> None:
        self._root = root.resolve()
        self._folder = self._root / folder
        self._followed = tuple(followed)
        self._paths: dict[CodeType, str | None] = {}
        # Held, so that no later frame gets the identity of one that was counted.
        self._begun: set[FrameType] = set()
        self.steps: list[Step] = []

    def run(self, what: Callable[[], object]) -> None:
        """Call it under the profiler."""
        sys.setprofile(self._seen)
        try:
            what()
        finally:
            sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._paths:
            self._paths[code] = self._path_of(code)
        path = self._paths[code]
        if path is None or (code.co_flags & inspect.CO_GENERATOR and frame in self._begun):
            return
        if code.co_flags & inspect.CO_GENERATOR:
            self._begun.add(frame)
        held = frame.f_locals.values() if self._followed else ()
        self.steps.append(Step(path=path, given=any(one is other for one in held for other in self._followed)))

    def _path_of(self, code: CodeType) -> str | None:
        path = Path(code.co_filename)
        if code.co_name in HIDDEN or not path.is_relative_to(self._folder):
            return None
        return path.relative_to(self._root).as_posix()


def trip(steps: Iterable[Step], within: str = "") -> Trip:
    """What the steps in files whose path begins so come to."""
    inside = [step for step in steps if step.path.startswith(within)]
    stays = [path for path, _ in groupby(step.path for step in inside)]
    rooms = len(set(stays))
    return Trip(
        rooms=rooms,
        stays=len(stays),
        returns=len(stays) - rooms,
        hops=len(set(pairwise(stays))),
        given=len({step.path for step in inside if step.given}),
    )


def planned(root: Path) -> list[Step]:
    """The steps of one plan, in all of `solvers`."""
    from solvers.cycle.ports import movable_workloads
    from solvers.cycle.record import Lane
    from solvers.domain.codec import from_json
    from solvers.domain.snapshot import Snapshot
    from solvers.planners.base import Budget, PlanRequest
    from solvers.planners.registry import propose

    snapshot = from_json(Snapshot, (root / CASE).read_text(encoding="utf-8"))
    request = PlanRequest(
        snapshot=snapshot,
        movable=movable_workloads(snapshot, Lane.ACT),
        budget=Budget(deadline_s=3600.0, work_units=WORK_UNITS),
        seed=1,
    )
    propose("joint", request)
    walk = Walk(root, "solvers", (request, snapshot))
    walk.run(lambda: propose("joint", request))
    return walk.steps
