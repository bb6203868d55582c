"""Planners of one's own that never end, one after it had found something."""

from __future__ import annotations

import threading

from solvers.domain.evidence import Reporter
from solvers.domain.plan import Proposal
from solvers.planners import registry
from solvers.planners.base import PlannerSpec, PlanRequest, Stateless, hand_over


class Endless(Stateless):
    spec = PlannerSpec(name="endless", version="1", knobs=())

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        threading.Event().wait()
        raise AssertionError("nobody ends this wait")


class Finder(Endless):
    spec = PlannerSpec(name="finder", version="1", knobs=())

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        hand_over(reporter, registry.propose("greedy", request))
        return super().propose(request, state, reporter)
