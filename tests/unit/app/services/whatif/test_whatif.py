"""Two plans compared, and advice that is proven by plans: numbers that can be checked by hand, and nothing repeated
differently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.services.planning.plans import Simulations
from app.services.whatif.changes import Changes, NodesAdded, RateChange, apply_changes
from app.services.whatif.made import Made, Wish, planned, request_of, standing_on
from app.services.whatif.outcome import Fate, Outcome, outcome_of, power_w_of
from app.services.whatif.question import Pictures, WhatIf, WhatIfQuestion, answer
from solvers.cycle.attempts import Asking, ChosenPlan
from solvers.domain.codec import digest
from solvers.domain.device import PriceKind
from solvers.domain.evidence import Insight, Resource, ShadowPrice, SilentReporter
from solvers.domain.ids import GpuTypeName, NodeId, ServiceId, WorkloadId
from solvers.domain.plan import DeviceSetting, Proposal
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError, FieldError, OverrunError
from solvers.planners.base import PlanRequest
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders

ASKING = Asking(propose=propose, verify=verify, reporter=SilentReporter())
VISION, SPEECH = ServiceId("demo/vision"), ServiceId("demo/speech")
GREEDY = builders.policy(planners=("greedy",))
"""Ends by itself, so that every plan is the same on any machine."""
PICTURE = builders.lab([builders.service(), builders.service("speech", rate_rps_declared=40.0)], policy=GREEDY)


def asked(picture: Snapshot, question: WhatIfQuestion, asking: Asking = ASKING) -> WhatIf:
    after = apply_changes(picture, question.changes)
    pictures = Pictures(before=picture, after=after, types=after.gpu_types, complete=lambda found: found)
    return answer(question, pictures, asking)


def question(changes: Changes | None = None, **more: Any) -> WhatIfQuestion:
    return replace(WhatIfQuestion(changes=changes or Changes(), advise=1), **{"advise": 0, **more})


TRIPLE = Changes(rates=(RateChange(service=VISION, factor=3.0),))


def test_the_difference_is_that_of_the_two_plans() -> None:
    found = asked(PICTURE, question(TRIPLE)).simulation
    assert found is not None
    assert found.before == outcome_of(planned(PICTURE, Wish(), ASKING))
    assert found.before.verified
    assert found.after.verified
    assert found.difference.cost_usd_per_h == pytest.approx(found.after.cost_usd_per_h - found.before.cost_usd_per_h)
    assert found.difference.cost_usd_per_h > 0
    assert found.difference.energy_kwh_per_day == pytest.approx(found.difference.power_w * 0.024 * 1.3)
    (vision,) = (row for row in found.workloads if row.workload == VISION)
    assert (vision.fate, vision.before.rate_rps, vision.after.rate_rps) == (Fate.KEPT, 100.0, 300.0)
    assert sum(item.replicas for item in vision.after.on) == vision.after.replicas


class Seen:
    """A fleet that is read as often as it is asked for."""

    readings = 0

    def whole(self) -> Snapshot:
        self.readings += 1
        return PICTURE

    def completed(self, picture: Snapshot) -> Snapshot:
        return picture


def test_questions_together_plan_the_fleet_as_it_is_once() -> None:
    planned_for: list[PlanRequest] = []

    def counted(name: str, request: PlanRequest, *more: Any) -> Proposal:
        planned_for.append(request)
        return propose(name, request, *more)

    seen: Any = Seen()
    simulations = Simulations(seen, counted)
    more = question(Changes(nodes_added=(NodesAdded(gpu_type=GpuTypeName("t4"), gpus=1),)))
    alone = [simulations.answer(each) for each in (question(TRIPLE), more)]
    apart, planned_for[:] = len(planned_for), []
    seen.readings, together = 0, simulations.together()
    assert [together.answer(each) for each in (question(TRIPLE), more)] == alone
    assert (len(planned_for), seen.readings) == (apart - 1, 1)
    # Whoever wishes to plan otherwise has a plan of their own.
    together.answer(replace(more, seed=7))
    assert len(planned_for) == apart + 1


def test_where_nothing_stands_moves_are_counted_from_the_plan_before() -> None:
    found = asked(PICTURE, question(Changes(rates=(RateChange(service=SPEECH, factor=1.0),)))).simulation
    assert found is not None
    assert found.moves_from_plan_before
    assert found.before.moves.starts == found.before.replicas > 0
    assert (found.after.moves.starts, found.after.moves.stops, found.after.moves.launch_s) == (0, 0, 0.0)
    assert (found.workloads, found.workloads_same) == ((), 2)


def test_where_something_stands_both_start_from_it() -> None:
    plan = planned(PICTURE, Wish(), ASKING).plan
    standing = replace(PICTURE, target=builders.target(plan.assignments))
    found = asked(standing, question(Changes(remove=(WorkloadId(SPEECH),)))).simulation
    assert found is not None
    assert not found.moves_from_plan_before
    assert (found.before.moves.starts, found.before.moves.stops) == (0, 0)
    assert found.after.moves.stops == sum(item.workload == SPEECH for item in plan.assignments) > 0
    assert [(row.workload, row.fate) for row in found.workloads] == [(SPEECH, Fate.REMOVED)]


def test_a_lost_node_is_left_and_what_it_carried_moves() -> None:
    changes = Changes(nodes_lost=(NodeId("a"),))
    found = asked(PICTURE, question(changes)).simulation
    assert found is not None
    used = {item.gpu_type: item.in_use for item in found.after.gpus}
    assert used[GpuTypeName("t4")] == used[GpuTypeName("l4")] == 0
    assert found.after.verified
    assert found.after.rate_rps_short == 0
    assert found.difference.cost_usd_per_h > 0


def test_the_same_question_has_the_same_answer() -> None:
    wanted = question(TRIPLE, advise=2, seed=5, work_units=100)
    assert asked(PICTURE, wanted) == asked(PICTURE, wanted)


FULL = builders.snapshot([builders.device("a", 0, "t4")], [builders.service(rate_rps_declared=500.0)], policy=GREEDY)


def test_advice_for_a_short_fleet_gains_what_a_device_can_serve() -> None:
    found = asked(FULL, question(advise=3)).advised
    assert found is not None
    assert found.before.rate_rps_short > 0
    (only,) = found.advice
    grown = apply_changes(FULL, Changes(nodes_added=(NodesAdded(gpu_type=GpuTypeName("t4")),)))
    proof = outcome_of(planned(grown, Wish(), ASKING))
    assert (only.gpu_type, only.devices, only.devices_used, only.verified) == ("t4", 1, 1, True)
    assert only.rate_rps_gained == pytest.approx(found.before.rate_rps_short - proof.rate_rps_short)
    assert only.rate_rps_gained > 0
    assert only.saved_usd_per_h == pytest.approx(found.before.cost_usd_per_h - only.cost_usd_per_h)


@pytest.mark.parametrize(("gpu_type", "worth_usd_per_h"), [("t4", 8.0), ("v100", 20.0)])
def test_advice_counts_what_jobs_do_as_plans_do(gpu_type: str, worth_usd_per_h: float) -> None:
    # One more GPU costs more, and lets a job run that waited; how much of it runs there is by the type's speed.
    picture = builders.snapshot(
        [builders.device("a", 0, "t4")],
        [builders.service(rate_rps_declared=150.0)],
        policy=GREEDY,
        gpu_types=(builders.gpu_type("t4"), builders.gpu_type("v100")),
        profiles=[builders.profile(type_name="t4"), builders.profile(type_name="v100")],
        jobs=[builders.job(value_usd_per_h=20.0, share_pct_sm_min=80, gpu_types_allowed=(GpuTypeName(gpu_type),))],
    )
    found = asked(picture, question(advise=2)).advised
    assert found is not None
    tried = {item.gpu_type: item for item in found.advice}[GpuTypeName(gpu_type)]
    assert tried.cost_usd_per_h > found.before.cost_usd_per_h
    saved = found.before.cost_usd_per_h - tried.cost_usd_per_h + worth_usd_per_h
    assert tried.saved_usd_per_h == pytest.approx(saved)
    assert tried.breakeven_usd_per_h == pytest.approx(saved + tried.charged_usd_per_h)


def test_who_is_short_is_told_why() -> None:
    found = asked(FULL, question(Changes(rates=(RateChange(service=FULL.services[0].id, factor=2.0),)))).simulation
    assert found is not None
    (short,) = found.after.short
    assert (short.id, short.rate_rps_short) == (FULL.services[0].id, found.after.rate_rps_short)
    assert " % of 1000 requests/s unserved: t4 " in short.told


def dear(basis: CostBasis) -> Snapshot:
    """On an A100 alone a small service pays for a tenth of it; a T4 does the same for less."""
    return builders.snapshot(
        [builders.device("a", 0, "a100")],
        [builders.service(rate_rps_declared=60.0)],
        policy=replace(GREEDY, cost_basis=basis),
        gpu_types=(builders.gpu_type("a100"), builders.gpu_type("t4")),
        profiles=[builders.profile(type_name="a100"), builders.profile(type_name="t4")],
    )


def test_advice_names_what_serves_more_cheaply_and_what_it_may_cost() -> None:
    found = asked(dear(CostBasis.SHARE), question(advise=2)).advised
    assert found is not None
    assert found.types_considered == 2
    best = {item.gpu_type: item for item in found.advice}[GpuTypeName("t4")]
    assert best.saved_usd_per_h > 0
    assert best.price_usd_per_h == builders.gpu_type("t4").prices[0].usd_per_h
    assert best.charged_usd_per_h == pytest.approx(best.cost_usd_per_h)
    assert best.breakeven_usd_per_h == pytest.approx(best.saved_usd_per_h + best.charged_usd_per_h)
    assert best.payback == pytest.approx(best.breakeven_usd_per_h / best.price_usd_per_h)
    assert best.estimate_usd_per_h == pytest.approx(found.before.cost_usd_per_h - best.price_usd_per_h)


def test_advice_charges_the_memory_that_new_devices_use_where_that_is_paid() -> None:
    found = asked(dear(CostBasis.MEMORY), question(advise=2)).advised
    assert found is not None
    best = {item.gpu_type: item for item in found.advice}[GpuTypeName("t4")]
    assert 0 < best.charged_usd_per_h < 0.5 * best.price_usd_per_h
    assert best.charged_usd_per_h == pytest.approx(best.cost_usd_per_h)


def test_shadow_prices_rank_before_estimates() -> None:
    def knowing(planner: str, wanted: PlanRequest) -> Proposal:
        price = ShadowPrice(resource=Resource.GPU, subject="v100", usd_per_h=9.0)
        return replace(propose(planner, wanted), insight=Insight(prices=(price,)))

    found = asked(PICTURE, question(advise=1), replace(ASKING, propose=knowing)).advised
    assert found is not None
    assert [(item.gpu_type, item.shadow_usd_per_h) for item in found.advice] == [("v100", 9.0)]


def test_power_counts_idle_once_a_device_and_stops_at_the_limit() -> None:
    plan = planned(PICTURE, Wish(), ASKING).plan
    on = PICTURE.devices[0]
    idle_w = builders.gpu_type(on.gpu_type).idle_w
    two = tuple(builders.assignment(f"demo/vision#{index}", on, power_w_planned=15.0) for index in (0, 1))
    assert power_w_of(PICTURE, replace(plan, assignments=two, settings=())) == idle_w + 30.0
    limited = (DeviceSetting(device=on.id, power_limit_w=35.0),)
    assert power_w_of(PICTURE, replace(plan, assignments=two, settings=limited)) == 35.0


def test_offline_asks_what_a_cycle_of_the_lane_asks() -> None:
    made = request_of(PICTURE, Wish(seed=4, deadline_s=1.5, work_units=10))
    assert (made.seed, made.budget.deadline_s, made.budget.work_units) == (4, 1.5, 10)
    assert made.movable == builders.everything_movable(PICTURE)
    assert request_of(PICTURE, Wish()).seed == PICTURE.policy.seed


def test_no_plan_is_an_engine_error_and_no_question_none() -> None:
    with pytest.raises(EngineError, match="no planner gave a plan"):
        asked(PICTURE, question(TRIPLE, planner="prophet"))
    idle = replace(PICTURE, policy=replace(PICTURE.policy, planners=()))
    with pytest.raises(EngineError, match=r"no planner gave a plan \(policy default names no planners\)"):
        asked(idle, question(TRIPLE))
    with pytest.raises(FieldError, match="nothing to simulate"):
        WhatIfQuestion()


@pytest.mark.parametrize("error", [EngineError("planted"), OverrunError("planted")])
def test_a_planner_that_crashes_or_overruns_with_nothing_found_leaves_greeds_plan(error: EngineError) -> None:
    def fails(planner: str, request: PlanRequest) -> Proposal:
        if planner == "joint":
            raise error
        return propose(planner, request)

    made = planned(PICTURE, Wish(planner="joint"), replace(ASKING, propose=fails))
    outcome = outcome_of(made)
    assert (outcome.planner, outcome.unserved, outcome.stood_in) == ("greedy", 0.0, True)
    assert [(item.planner, item.error) for item in outcome.attempts] == [("joint", "planted"), ("greedy", None)]


def test_what_stands_is_not_replaced() -> None:
    chosen = ChosenPlan((), propose("greedy", builders.request(PICTURE)))
    assert chosen.plan is not None
    standing = replace(PICTURE, target=builders.target([builders.assignment("demo/vision#0", PICTURE.devices[0])]))
    assert standing_on(standing, chosen.plan) is standing
    stood = standing_on(PICTURE, chosen.plan)
    assert (stood.target.plan, stood.target.generation) == (digest(chosen.plan), 1)
    assert isinstance(outcome_of(Made(picture=stood, plan=chosen.plan, chosen=chosen)), Outcome)


def test_added_devices_are_priced_as_they_are_paid() -> None:
    spot = Changes(nodes_added=(NodesAdded(gpu_type=GpuTypeName("t4"), price_kind=PriceKind.SPOT),))
    after = apply_changes(PICTURE, spot)
    assert {node.price_kind for node in after.nodes} == {PriceKind.ON_DEMAND, PriceKind.SPOT}
