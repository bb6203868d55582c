"""Planners by name, imported when first asked for.

Owns the table of names; a new planner is one line here. Callers choose by name from policy data and judge by spec,
never by class.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from solvers.domain.evidence import Reporter, SilentReporter
from solvers.domain.plan import Proposal
from solvers.errors import EngineError
from solvers.planners.base import Planner, PlanRequest, Remembering, Thought

_FACTORIES = {
    "best_single_type": ("solvers.planners.baselines.single_type", "BestSingleType"),
    "static_peak": ("solvers.planners.baselines.single_type", "StaticPeak"),
    "k8s_hpa": ("solvers.planners.baselines.k8s_hpa", "K8sHpa"),
    "gpulet": ("solvers.planners.baselines.gpulet", "GpuLet"),
    "igniter": ("solvers.planners.baselines.igniter", "IGniter"),
    "gslice": ("solvers.planners.baselines.gslice", "GSlice"),
    "parvagpu": ("solvers.planners.baselines.parvagpu", "ParvaGpu"),
    "melange": ("solvers.planners.baselines.melange", "Melange"),
    "hetsev": ("solvers.planners.hetsev.planner", "HetSev"),
    "joint": ("solvers.planners.joint.planner", "Joint"),
    "greedy": ("solvers.planners.greedy.planner", "Greedy"),
    "keep-target": ("solvers.planners.chain", "KeepTarget"),
}


def names() -> tuple[str, ...]:
    """All planners that can be named in a policy."""
    return tuple(sorted(_FACTORIES))


def create(name: str) -> Planner:
    """A planner by name. Raises EngineError for an unknown name."""
    if name not in _FACTORIES:
        raise EngineError(f"no planner is called {name}", planner=name)
    module, factory = _FACTORIES[name]
    return cast("Planner", getattr(import_module(module), factory)())


def think(planner: Planner, request: PlanRequest, state: bytes | None, reporter: Reporter) -> Thought:
    """Ask a planner, with its first state where there is none, for its answer and what it wants kept of it."""
    known = planner.first_state() if state is None else state
    if isinstance(planner, Remembering):
        return planner.think(request, known, reporter)
    return Thought(proposal=planner.propose(request, known, reporter))


def propose(name: str, request: PlanRequest, state: bytes | None = None, reporter: Reporter | None = None) -> Proposal:
    """Run one planner here and now; a plain function of picklable values, so that a child process can be told to run
    it.
    """
    return think(create(name), request, state, SilentReporter() if reporter is None else reporter).proposal
