"""Planners by name, imported when first asked for.

Owns the table of names; a new planner is one line here. Callers choose by name from policy data and judge by spec,
never by class. Tuning parameters are set by name as well, and a request's own policy says with which ones a planner
answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from solvers.domain.evidence import Reporter, SilentReporter
from solvers.domain.plan import Proposal
from solvers.domain.policy import Policy
from solvers.domain.value import value
from solvers.errors import EngineError, FieldError
from solvers.planners.base import Knob, Planner, PlanRequest, Remembering, Thought
from solvers.planners.tuning import Parameter, Scalar, Tunable, parameters_of, tuned

_FACTORIES = {
    "best_single_type": (
        "solvers.planners.baselines.single_type",
        "BestSingleType",
        "the best plan that uses one GPU type only",
    ),
    "static_peak": (
        "solvers.planners.baselines.single_type",
        "StaticPeak",
        "whole GPUs of one type for the highest rate ever seen",
    ),
    "k8s_hpa": (
        "solvers.planners.baselines.k8s_hpa",
        "K8sHpa",
        "Kubernetes' default autoscaler, each replica on a whole GPU of a random type",
    ),
    "gpulet": (
        "solvers.planners.baselines.gpulet",
        "GpuLet",
        "at most two partitions per GPU, of a few sizes",
    ),
    "igniter": (
        "solvers.planners.baselines.igniter",
        "IGniter",
        "least share alone, then the GPU where neighbours must grow least",
    ),
    "gslice": (
        "solvers.planners.baselines.gslice",
        "GSlice",
        "shares and batches by feedback on latency and throughput",
    ),
    "muxflow": (
        "solvers.planners.baselines.muxflow",
        "MuxFlow",
        "inference on GPUs of its own, beside each at most one training job by a matching of the greatest weight",
    ),
    "parvagpu": (
        "solvers.planners.baselines.parvagpu",
        "ParvaGpu",
        "segments of the best efficiency, packed onto few GPUs",
    ),
    "melange": ("solvers.planners.baselines.melange", "Melange", "the cheapest mix of whole GPUs of several types"),
    "hetsev": (
        "solvers.planners.hetsev.planner",
        "HetSev",
        "counts of instances per GPU type by an integer programme, co-located by worst fit",
    ),
    "morak": (
        "solvers.planners.morak.planner",
        "Morak",
        "virtual GPUs sized by the knee of latency over share, batches and clock left to the controller",
    ),
    "mudi": (
        "solvers.planners.mudi.planner",
        "Mudi",
        "one service to a GPU with the least share it needs, training jobs where that costs the service least",
    ),
    "whole_gpu": (
        "solvers.planners.morak.planner",
        "WholeGpu",
        "every replica a GPU of its own, batches and clock left to the controller",
    ),
    "inss": (
        "solvers.planners.inss.planner",
        "Inss",
        "batches by bisection first; placement and shares by a knapsack only where that fails",
    ),
    "inss_ni": ("solvers.planners.inss.planner", "inss_ni", "inss that knows no interference"),
    "inss_rl": ("solvers.planners.inss.planner", "inss_rl", "inss whose placements a trained actor chooses"),
    "bda_gpulet": ("solvers.planners.inss.bda_gpulet", "BdaGpuLet", "gpulet's partitions with inss' batches"),
    "gavel": (
        "solvers.planners.gavel.planner",
        "Gavel",
        "training jobs take turns on GPU types so that the least normalised progress is highest",
    ),
    "gavel_packed": ("solvers.planners.gavel.planner", "packed", "gavel with two jobs to a GPU where that gains"),
    "pop": ("solvers.planners.gavel.planner", "pop", "gavel_packed solved in random parts"),
    "oltunes": (
        "solvers.planners.oltunes.planner",
        "Oltunes",
        "configurations by score, groups by affinity on little used devices, learning from finished tasks",
    ),
    "oracle": (
        "solvers.planners.baselines.oracle",
        "Oracle",
        "the best plan there is, by looking at all of them; refuses all but small pictures",
    ),
    "joint": ("solvers.planners.joint.planner", "Joint", "all knobs in one problem, with a proven bound"),
    "greedy": (
        "solvers.planners.greedy.planner",
        "Greedy",
        "the cheapest option that fits, one workload after the other",
    ),
    "keep-target": ("solvers.planners.chain", "KeepTarget", "what stands, unchanged"),
}


@value
class Listing:
    """One planner as it is published."""

    name: str
    version: str
    about: str
    knobs: tuple[Knob, ...]
    needs_profiles: bool
    remembers: bool
    parameters: tuple[Parameter, ...] = ()


def names() -> tuple[str, ...]:
    """All planners that can be named in a policy."""
    return tuple(sorted(_FACTORIES))


def create(name: str, settings: Mapping[str, Scalar] | None = None) -> Planner:
    """A planner by name, with the defaults of its parameters where `settings` does not say otherwise.

    Raises EngineError for an unknown name, FieldError for a setting that it does not have or that cannot be.
    """
    if name not in _FACTORIES:
        raise EngineError(f"no planner is called {name}", planner=name)
    module, factory, _ = _FACTORIES[name]
    return with_settings(cast("Planner", getattr(import_module(module), factory)()), settings or {})


def with_settings(planner: Planner, settings: Mapping[str, Scalar]) -> Planner:
    """The same planner tuned otherwise. Raises FieldError as `create` does."""
    if not settings:
        return planner
    if not isinstance(planner, Tunable):
        tuned(None, settings, planner.spec.name)
        return planner
    made: Any = planner
    return cast("Planner", replace(made, parameters=tuned(planner.parameters, settings, planner.spec.name)))


def settings_of(policy: Policy, name: str) -> dict[str, Scalar]:
    """What a policy sets of one planner."""
    return {item.name: item.value for item in policy.planner_settings if item.planner == name}


def check_settings(policy: Policy) -> None:
    """Refuse a policy that sets what no planner has, or to what cannot be. Raises FieldError at a pointer."""
    for index, item in enumerate(policy.planner_settings):
        try:
            create(item.planner, {item.name: item.value})
        except EngineError:
            said = f"there is no planner {item.planner}; known are {', '.join(names())}"
            raise FieldError(f"/planner_settings/{index}/planner", said) from None
        except FieldError as error:
            known = item.name in {each.name for each in listing(create(item.planner)).parameters}
            part = "value" if known else "name"
            raise FieldError(f"/planner_settings/{index}/{part}", error.message) from None


def listing(planner: Planner) -> Listing:
    """What a planner publishes of itself."""
    spec = planner.spec
    return Listing(
        name=spec.name,
        version=spec.version,
        about=_FACTORIES[spec.name][2] if spec.name in _FACTORIES else "",
        knobs=spec.knobs,
        needs_profiles=spec.needs_profiles,
        remembers=isinstance(planner, Remembering),
        parameters=parameters_of(planner.parameters) if isinstance(planner, Tunable) else (),
    )


def table() -> tuple[Listing, ...]:
    """All planners by name, with their knobs and parameters."""
    return tuple(listing(create(name)) for name in names())


def think(planner: Planner, request: PlanRequest, state: bytes | None, reporter: Reporter) -> Thought:
    """Ask a planner, with its first state where there is none, for its answer and what it wants kept of it."""
    known = planner.first_state() if state is None else state
    if isinstance(planner, Remembering):
        return planner.think(request, known, reporter)
    return Thought(proposal=planner.propose(request, known, reporter))


def propose(name: str, request: PlanRequest, state: bytes | None = None, reporter: Reporter | None = None) -> Proposal:
    """Run one planner here and now, tuned as the request's policy says; a plain function of picklable values, so that a
    child process can be told to run it.
    """
    planner = create(name, settings_of(request.snapshot.policy, name))
    return think(planner, request, state, SilentReporter() if reporter is None else reporter).proposal
