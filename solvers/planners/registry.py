"""Planners by name, imported when first asked for.

The table of names is what is installed (`solvers.extensions`). Callers choose by name from policy data and judge by
spec, never by class. Tuning parameters are set by name as well, and a request's own policy says with which ones a
planner answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from solvers.domain.evidence import Reporter, SilentReporter
from solvers.domain.plan import Proposal
from solvers.domain.policy import ALWAYS, Policy, Term
from solvers.domain.value import value
from solvers.errors import EngineError, FieldError, InvariantError
from solvers.extensions import PLANNERS, found
from solvers.planners.base import Knob, Planner, PlanRequest, Remembering, Thought
from solvers.planners.tuning import Parameter, Scalar, Tunable, parameters_of, tuned


@value
class PlannerListing:
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
    return tuple(found(PLANNERS))


def create(name: str, settings: Mapping[str, Scalar] | None = None) -> Planner:
    """A planner by name, with the defaults of its parameters where `settings` does not say otherwise.

    Raises EngineError for an unknown name, FieldError for a setting that it does not have or that cannot be.
    """
    entry = found(PLANNERS).get(name)
    if entry is None:
        raise EngineError(f"no planner is called {name}", planner=name)
    return with_settings(cast("Planner", entry.load()()), settings or {})


def with_settings(planner: Planner, settings: Mapping[str, Scalar]) -> Planner:
    """The same planner tuned otherwise. Raises FieldError as `create` does."""
    if not settings:
        return planner
    if not isinstance(planner, Tunable):
        tuned(None, settings, planner.spec.name)
        return planner
    made: Any = planner
    return cast("Planner", replace(made, parameters=tuned(planner.parameters, settings, planner.spec.name)))


def tuned_for(name: str, policy: Policy) -> Planner:
    """A planner by name, tuned as a policy says. Raises as `create` does."""
    return create(name, settings_of(policy, name))


def pursued(policy: Policy, planner: str) -> tuple[Term, ...]:
    """What counts of a planner's plans: what the policy says, else what the planner says. The order that every plan is
    judged by says nothing.
    """
    if policy.objective != ALWAYS or planner not in found(PLANNERS):
        return policy.terms
    return tuned_for(planner, policy).spec.pursues


def settings_of(policy: Policy, name: str) -> dict[str, Scalar]:
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


def listing(planner: Planner) -> PlannerListing:
    spec = planner.spec
    return PlannerListing(
        name=spec.name,
        version=spec.version,
        about=spec.about,
        knobs=spec.knobs,
        needs_profiles=spec.needs_profiles,
        remembers=isinstance(planner, Remembering),
        parameters=parameters_of(planner.parameters) if isinstance(planner, Tunable) else (),
    )


def table() -> tuple[PlannerListing, ...]:
    """All planners by name, with their knobs and parameters."""
    return tuple(listing(create(name)) for name in names())


def think(planner: Planner, request: PlanRequest, state: bytes | None, reporter: Reporter) -> Thought:
    """Ask a planner, with its first state where there is none, for its answer and what it wants kept of it. Raises
    InvariantError for an answer of another type.
    """
    known = planner.first_state() if state is None else state
    if isinstance(planner, Remembering):
        thought = planner.think(request, known, reporter)
    else:
        thought = Thought(proposal=planner.propose(request, known, reporter))
    _check_type(thought, Thought)
    _check_type(thought.proposal, Proposal)
    _check_type(b"" if thought.state is None else thought.state, bytes)
    return thought


def _check_type(answered: object, kind: type) -> None:
    if not isinstance(answered, kind):
        raise InvariantError(f"answered with {type(answered).__name__}, not with {kind.__name__}")


def propose(name: str, request: PlanRequest, state: bytes | None = None, reporter: Reporter | None = None) -> Proposal:
    """Run one planner here and now, tuned as the request's policy says; a plain function of picklable values, so that a
    child process can be told to run it.
    """
    planner = tuned_for(name, request.snapshot.policy)
    return think(planner, request, state, SilentReporter() if reporter is None else reporter).proposal
