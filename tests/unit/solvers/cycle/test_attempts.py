"""The choice among planners: the first sound plan, or the best of all, without taking turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.cycle.attempts import Asking, ChosenPlan, try_chain
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import PolicyName
from solvers.domain.plan import Proposal
from solvers.domain.policy import Choice, Objective, Policy, Term
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError
from solvers.models.worth import worth_of
from solvers.planners import registry
from solvers.planners.base import PlanRequest
from solvers.verify.checks import verify
from tests import builders

NAMES = ("one", "two", "three")


def picture(*, standing: bool = False, rate_rps: float = 50.0, **policy: object) -> Snapshot:
    made = builders.lab(
        [builders.service(rate_rps_declared=rate_rps)], policy=builders.policy(planners=NAMES, **policy)
    )
    if not standing:
        return made
    plan = registry.propose("greedy", request_of(made)).plan
    assert plan is not None
    return replace(made, target=builders.target(plan.assignments, settings=plan.settings))


def request_of(snapshot: Snapshot) -> PlanRequest:
    return builders.request(snapshot)


def chosen(snapshot: Snapshot, *objectives: Objective | None) -> ChosenPlan:
    """What the chain chooses when its planners make plans that differ in nothing but what they say of themselves; one
    that tells of launches restarts what stands.
    """
    asked = request_of(snapshot)
    plan = registry.propose("greedy", asked).plan
    assert plan is not None
    restarted = tuple(replace(item, share_pct_sm=item.share_pct_sm - 1) for item in plan.assignments)
    says = dict(zip(NAMES, objectives, strict=False))

    def propose(planner: str, request: PlanRequest) -> Proposal:
        proposal = registry.propose("greedy", request)
        objective = says[planner]
        if objective is None:
            raise EngineError("gone")
        made = replace(plan, objective=objective, assignments=restarted if objective.churn else plan.assignments)
        return replace(proposal, planner=planner, plan=made)

    asking = Asking(propose=propose, verify=lambda *_: (), reporter=SilentReporter())
    return try_chain(asking, NAMES[: len(objectives)], asked)


def winner(snapshot: Snapshot, *objectives: Objective | None) -> str:
    proposal = chosen(snapshot, *objectives).proposal
    assert proposal is not None
    return proposal.planner


def test_by_default_nobody_is_asked_after_the_first_sound_plan() -> None:
    found = chosen(picture(), Objective(cost_usd_per_h=9.0), Objective(cost_usd_per_h=1.0))
    assert found.proposal is not None
    assert (found.proposal.planner, [item.planner for item in found.attempts]) == ("one", ["one"])


def test_the_best_of_all_is_taken_and_all_are_remembered() -> None:
    found = chosen(picture(choice=Choice.BEST), None, Objective(cost_usd_per_h=9.0), Objective(cost_usd_per_h=1.0))
    assert found.proposal is not None
    assert found.proposal.planner == "three"
    assert [(item.planner, item.status) for item in found.attempts] == [
        ("one", "failed"),
        ("two", "feasible"),
        ("three", "feasible"),
    ]


def test_terms_count_in_the_policys_order() -> None:
    dear, short = Objective(cost_usd_per_h=9.0), Objective(unserved=1.0, cost_usd_per_h=1.0)
    assert winner(picture(choice=Choice.BEST), short, dear) == "two"
    assert winner(picture(choice=Choice.BEST, objective=(Term.COST,)), short, dear) == "one"


def test_more_counts_where_the_policy_wants_it() -> None:
    cheap, strong = Objective(cost_usd_per_h=1.0, capacity_rps=100.0), Objective(cost_usd_per_h=9.0, capacity_rps=101.0)
    wants = {"choice": Choice.BEST, "objective": (Term.UNSERVED, Term.CAPACITY)}
    assert winner(picture(**wants), cheap, strong) == "two"
    assert winner(picture(choice=Choice.BEST), cheap, strong) == "one"
    # What stands is not left for so little.
    assert winner(picture(standing=True, **wants), cheap, strong) == "one"
    assert winner(picture(standing=True, **wants), cheap, replace(strong, capacity_rps=106.0)) == "two"


def test_equal_plans_leave_the_choice_to_the_chain() -> None:
    same = Objective(cost_usd_per_h=1.0, imbalance=0.5)
    assert winner(picture(choice=Choice.BEST), same, replace(same, imbalance=0.0)) == "one"


def restating(standing: Snapshot, part: float = 1.0, **changes: object) -> Objective:
    """What stands is worth this much; `part`: of what it costs."""
    target = standing.target
    now = worth_of(standing, builders.everything_movable(standing), target.assignments, target.settings).objective
    return replace(now, cost_usd_per_h=part * now.cost_usd_per_h, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("part", "takes"), [(0.97, "one"), (0.90, "two")])
def test_a_small_saving_does_not_outweigh_what_stands(part: float, takes: str) -> None:
    standing = picture(standing=True, choice=Choice.BEST, gain_pct_min=5.0)
    keeps, changes = restating(standing), restating(standing, part, churn=10.0)
    assert winner(standing, keeps, changes) == takes
    assert winner(standing, changes, keeps) == {"one": "two", "two": "one"}[takes]


def test_what_the_gate_would_hold_gives_way_to_what_it_would_promote() -> None:
    standing = picture(standing=True, rate_rps=2000.0, choice=Choice.BEST, gain_pct_min=5.0, changes_max=1)
    many, none = restating(standing, 0.5, churn=10.0), restating(standing)
    assert len(standing.target.assignments) > 1
    assert winner(standing, many, none) == "two"
    assert winner(standing, many) == "one"


def test_with_nothing_standing_the_cheapest_is_taken() -> None:
    cheap, dear = Objective(cost_usd_per_h=0.97, churn=10.0), Objective(cost_usd_per_h=1.0)
    assert winner(picture(choice=Choice.BEST), dear, cheap) == "two"


def test_launches_count_as_at_the_gate() -> None:
    standing = picture(
        standing=True, choice=Choice.BEST, gain_pct_min=0.0, gain_usd_per_h_min=0.0, launch_usd_per_s=0.01
    )
    keeps, changes = restating(standing), restating(standing, 0.95, churn=10.0)
    assert winner(standing, keeps, changes) == "one"


def test_a_refuted_plan_is_never_the_best() -> None:
    snapshot = picture(choice=Choice.BEST)
    asked = request_of(snapshot)

    def propose(planner: str, request: PlanRequest) -> Proposal:
        proposal = registry.propose("greedy", request)
        assert proposal.plan is not None
        if planner == "one":
            return replace(proposal, planner=planner)
        free = replace(proposal.plan, objective=replace(proposal.plan.objective, cost_usd_per_h=0.0))
        return replace(proposal, planner=planner, plan=free)

    asking = Asking(propose=propose, verify=verify, reporter=SilentReporter())
    found = try_chain(asking, NAMES[:2], asked)
    assert found.proposal is not None
    assert found.proposal.planner == "one"
    assert "cost wrong" in (found.attempts[1].error or "")


def test_asked_together_planners_share_the_deadline() -> None:
    assert Policy(name=PolicyName("p"), planners=NAMES, deadline_s=6.0).planner_deadline_s == 6.0
    assert Policy(name=PolicyName("p"), planners=NAMES, deadline_s=6.0, choice=Choice.BEST).planner_deadline_s == 2.0
    assert Policy(name=PolicyName("p"), planners=("one",), deadline_s=6.0, choice=Choice.BEST).planner_deadline_s == 6.0
