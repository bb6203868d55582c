"""The better plan is proposed, among equals of the objective the one that can be acted on now."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.cycle.attempts import Asking, try_chain
from solvers.cycle.gate import GateCase, gate
from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import Decision, HoldReason, Lane
from solvers.domain.change import Target, diff
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import CycleId, Generation, ReplicaId
from solvers.domain.plan import Plan, Proposal
from solvers.domain.policy import Choice, CostBasis, Objective, Term
from solvers.domain.snapshot import Snapshot
from solvers.engines.deadline import Deadline
from solvers.models.worth import worth_of
from solvers.planners.base import PlanRequest
from solvers.planners.joint.attempt import Attempt
from solvers.planners.joint.reading.formulation import read
from solvers.planners.registry import propose
from tests import builders


def standing(**policy: object) -> Snapshot:
    services = [builders.service(name, rate_rps_declared=rate) for name, rate in (("one", 300.0), ("two", 300.0))]
    picture = builders.lab(services, policy=builders.policy(**policy))
    plan = propose("greedy", builders.request(picture)).plan
    assert plan is not None
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target)


def plan(picture: Snapshot, moved: int = 0, **objective: float) -> Plan:
    """What stands, with so many replicas restarted at another share, and an objective as told."""
    made = propose("keep-target", builders.request(picture)).plan
    assert made is not None
    items = tuple(
        replace(item, share_pct_sm=item.share_pct_sm - 1) if number < moved else item
        for number, item in enumerate(made.assignments)
    )
    return replace(made, assignments=items, objective=replace(made.objective, **objective))


def chosen(picture: Snapshot, *plans: Plan) -> int:
    return attempt(picture).better(plans)


def attempt(picture: Snapshot) -> Attempt:
    request = builders.request(picture)
    return Attempt(request=request, reading=read(picture, request.movable), clock=Deadline(60.0))


def test_what_a_plan_interrupts_counts_as_unserved_where_it_is_known() -> None:
    picture = standing()
    short, served = plan(picture, unserved=1.0), plan(picture, unserved=0.0)
    assert attempt(picture).better((short, served)) == 1
    assert attempt(picture).better((short, served), (0.0, 0.9)) == 1
    assert attempt(picture).better((short, served), (0.0, 1.1)) == 0


def cost(picture: Snapshot) -> float:
    target = picture.target
    worth = worth_of(picture, builders.everything_movable(picture), target.assignments, target.settings)
    return worth.objective.cost_usd_per_h


def test_nothing_worse_than_the_first_is_proposed() -> None:
    picture = standing()
    assert chosen(picture, plan(picture), plan(picture, cost_usd_per_h=99.0)) == 0
    assert chosen(picture, plan(picture), plan(picture, unserved=1.0, cost_usd_per_h=0.0)) == 0


def test_the_policy_says_what_is_better() -> None:
    picture = standing(objective=(Term.COST,))
    assert chosen(picture, plan(picture), plan(picture, unserved=1.0, cost_usd_per_h=0.0)) == 1


def test_more_of_what_the_policy_wants_can_be_acted_on_whatever_it_costs() -> None:
    picture = standing(objective=(Term.UNSERVED, Term.CAPACITY))
    kept = plan(picture)
    more = {"cost_usd_per_h": 99.0, "capacity_rps": 2 * kept.objective.capacity_rps}
    assert kept.objective.capacity_rps > 0
    assert chosen(picture, kept, plan(picture, moved=1, **more)) == 1
    barely = {"cost_usd_per_h": 99.0, "capacity_rps": 1.01 * kept.objective.capacity_rps}
    assert chosen(picture, plan(picture), plan(picture, moved=1, **barely)) == 0


def test_a_saving_too_small_for_what_it_touches_gives_way_to_one_that_is_not() -> None:
    picture = standing()
    now = cost(picture)
    waits = plan(picture, moved=2, cost_usd_per_h=now * 0.97)
    acts = plan(picture, moved=1, cost_usd_per_h=now * 0.98)
    worth_it = plan(picture, moved=2, cost_usd_per_h=now * 0.90)
    assert chosen(picture, plan(picture, cost_usd_per_h=now), waits) == 0
    assert chosen(picture, plan(picture, cost_usd_per_h=now), worth_it) == 1
    assert chosen(picture, acts, waits) == 1
    assert chosen(picture, acts, worth_it) == 1


def decided(picture: Snapshot, made: Plan) -> Decision:
    """What the gate says of a plan, long after the last promotion."""
    order = CycleOrder(id=CycleId("c1"), lane=Lane.ACT, seed=1, software_version="0")
    launch_s = {model.name: model.launch_s for model in picture.models}
    return gate(
        GateCase(
            order=order,
            snapshot=picture,
            movable=builders.everything_movable(picture),
            plan=made,
            transition=diff(picture.target, made, launch_s),
            standing=plan(picture),
        )
    )


def of_chain(picture: Snapshot, plans: list[Plan]) -> Plan:
    """What a chain of planners chooses of the best of theirs."""
    by_name = {str(number): made for number, made in enumerate(plans)}

    def propose_own(planner: str, request: PlanRequest) -> Proposal:
        return replace(propose("keep-target", request), plan=by_name[planner])

    best = replace(picture, policy=replace(picture.policy, choice=Choice.BEST))
    asking = Asking(propose=propose_own, verify=lambda *_: (), reporter=SilentReporter())
    found = try_chain(asking, by_name, builders.request(best)).plan
    assert found is not None
    return found


SAVINGS = st.sampled_from([0.0, 0.02, 0.03, 0.2])
RIVAL = st.fixed_dictionaries(
    {"moved": st.integers(0, 4), "unserved": st.sampled_from([0.0, 0.5]), "part": SAVINGS, "slo_risk": SAVINGS}
)


@settings(max_examples=60, deadline=None)
@given(
    rivals=st.lists(RIVAL, min_size=1, max_size=4),
    basis=st.sampled_from(list(CostBasis)),
    changes_max=st.integers(1, 4),
    dear_launches=st.booleans(),
)
def test_the_gate_would_act_on_what_planner_and_chain_choose_if_on_any(
    rivals: list[dict[str, float]], basis: CostBasis, changes_max: int, dear_launches: bool
) -> None:
    """Never is chosen what the gate would hold for too small a gain, nor dropped what it would promote."""
    launch_usd_per_s = 0.01 if dear_launches else 0.0
    picture = standing(cost_basis=basis, changes_max=changes_max, launch_usd_per_s=launch_usd_per_s)
    now = plan(picture).objective
    plans = [
        plan(
            picture,
            moved=int(rival["moved"]),
            unserved=now.unserved + rival["unserved"],
            slo_risk=now.slo_risk + rival["slo_risk"],
            cost_usd_per_h=now.cost_usd_per_h * (1 - rival["part"]),
        )
        for rival in rivals
    ]
    able = [made for made in plans if made.objective.key() <= plans[0].objective.key()]
    kept = (HoldReason.NOTHING_TO_CHANGE,)
    for those, taken in ((able, plans[chosen(picture, *plans)]), (plans, of_chain(picture, plans))):
        if any(decided(picture, made).promote for made in those):
            decision = decided(picture, taken)
            assert decision.promote or decision.reasons == kept


def test_more_changes_than_one_promotion_may_cause_give_way() -> None:
    picture = standing(changes_max=1)
    now = cost(picture)
    many = plan(picture, moved=2, cost_usd_per_h=now / 2)
    few = plan(picture, moved=1, cost_usd_per_h=now * 0.7)
    assert chosen(picture, few, many) == 0
    assert chosen(replace(picture, target=replace(picture.target, generation=Generation(0))), few, many) == 1


def test_what_serves_more_may_start_as_many_as_it_takes() -> None:
    picture = standing(changes_max=1)
    missing = replace(picture, target=replace(picture.target, assignments=()))
    everything = plan(picture)
    few = replace(everything, assignments=everything.assignments[:1], objective=Objective(unserved=1.0))
    assert chosen(missing, few, replace(everything, objective=Objective())) == 1
    assert ReplicaId("demo/one#0") in {item.replica for item in everything.assignments}
