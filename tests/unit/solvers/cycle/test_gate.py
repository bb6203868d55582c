"""Every reason to hold, and everything that sets hysteresis aside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.cycle.gate import GateCase, gate
from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import Decision, HoldReason, Lane
from solvers.domain.change import Change, ChangeKind, Transition
from solvers.domain.evidence import Finding, FindingCode, Severity
from solvers.domain.ids import CycleId, Digest, Generation, ReplicaId, WorkloadId
from solvers.domain.plan import Destination, Plan
from solvers.domain.policy import ALWAYS, CostBasis, Objective, Term
from solvers.domain.snapshot import JobStatus, NodeStatus, Snapshot
from solvers.domain.telemetry import DemandOrigin, DeviceTelemetry
from solvers.domain.workload import ServiceMode, WorkloadKind
from solvers.models.worth import lost_replicas
from tests import builders

T4 = builders.device("a", 0, "t4")
STANDING = builders.assignment("demo/vision#0", T4)
ORDER = CycleOrder(id=CycleId("c1"), lane=Lane.ACT, seed=1, software_version="0")


def lab(**changes: object) -> Snapshot:
    return builders.lab([builders.service()], target=builders.target([STANDING]), **changes)


def plan(**objective: float) -> Plan:
    made = Objective(cost_usd_per_h=1.0)
    return Plan(
        snapshot=Digest("sha256:0"),
        parent=Generation(1),
        planner="greedy",
        planner_version="1",
        seed=1,
        assignments=(replace(STANDING, share_pct_sm=40),),
        settings=(),
        unplaced=(),
        objective=replace(made, **objective),  # type: ignore[arg-type]
    )


def standing(cost_usd_per_h: float) -> Plan:
    return replace(plan(cost_usd_per_h=cost_usd_per_h), assignments=(STANDING,))


def change(kind: ChangeKind = ChangeKind.SHRINK_SHARE, subject: str = "demo/vision#0") -> Change:
    return Change(kind=kind, subject=subject, before=STANDING, after=STANDING)


def case(**changes: object) -> GateCase:
    """A plan that saves half a dollar with one change, long after the last promotion: nothing holds it."""
    made = GateCase(
        order=ORDER,
        snapshot=lab(),
        movable=(WorkloadId("demo/vision"),),
        plan=plan(cost_usd_per_h=0.5),
        transition=Transition(changes=(change(),)),
        standing=plan(cost_usd_per_h=1.0),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def fatal() -> Finding:
    return Finding(code=FindingCode.SHARE_EXCEEDED, severity=Severity.FATAL, subject="x")


def held(decision: Decision) -> tuple[HoldReason, ...]:
    assert not decision.promote
    return decision.reasons


def young(**changes: object) -> Snapshot:
    """A target that was promoted five seconds ago; the cooldown is fifteen."""
    made = lab(**changes)
    return replace(made, target=replace(made.target, promoted_at_s=made.taken_at_s - 5.0))


def test_a_worthwhile_plan_is_promoted() -> None:
    assert gate(case()) == Decision(promote=True)


def test_no_plan() -> None:
    assert held(gate(case(plan=None))) == (HoldReason.NO_PLAN,)


def test_fatal_findings_hold_whatever_the_urgency() -> None:
    decision = gate(case(findings=(fatal(),), order=replace(ORDER, forced=True)))
    assert held(decision) == (HoldReason.FATAL_FINDINGS,)
    assert decision.facts[0].value == 1.0


def test_warnings_do_not_hold() -> None:
    assert gate(case(findings=(replace(fatal(), severity=Severity.WARNING),))).promote


def test_what_processes_were_told_otherwise_is_promoted_although_nothing_moves() -> None:
    same = {"transition": Transition(changes=()), "plan": standing(1.0), "snapshot": young()}
    renewed = replace(ORDER, outdated=(WorkloadId("demo/vision"),))
    assert gate(case(**same, order=renewed)).promote
    assert held(gate(case(**same, order=renewed, movable=()))) == (HoldReason.NOTHING_TO_CHANGE,)


def test_nothing_to_change() -> None:
    assert held(gate(case(transition=Transition(changes=())))) == (HoldReason.NOTHING_TO_CHANGE,)


class TestStaleData:
    def test_a_silent_node_in_use_holds(self) -> None:
        statuses = (NodeStatus(node=T4.node, age_s=31.0, generation_applied=1),)
        decision = gate(case(snapshot=lab(node_statuses=statuses), order=replace(ORDER, forced=True)))
        assert HoldReason.STALE_DATA in held(decision)
        assert (decision.facts[0].name, decision.facts[0].value) == ("node_silent", "a")

    def test_a_node_that_never_reported_holds(self) -> None:
        assert HoldReason.STALE_DATA in held(gate(case(snapshot=lab(node_statuses=()))))

    def test_a_silent_node_out_of_use_does_not(self) -> None:
        statuses = tuple(replace(status, age_s=1.0 if status.node == "a" else 999.0) for status in lab().node_statuses)
        assert gate(case(snapshot=lab(node_statuses=statuses))).promote

    def test_when_all_nodes_fall_silent_at_once_what_stands_stays(self) -> None:
        emptied = replace(plan(cost_usd_per_h=0.0, unserved=1.0), assignments=())
        for age_s, held_back in ((999.0, True), (1.0, False)):
            statuses = tuple(
                replace(status, age_s=age_s if status.node != "a" else 999.0) for status in lab().node_statuses
            )
            decision = gate(case(plan=emptied, snapshot=lab(node_statuses=statuses), order=replace(ORDER, forced=True)))
            assert (HoldReason.STALE_DATA in decision.reasons) is held_back
            if held_back:
                assert [(fact.name, fact.value) for fact in decision.facts] == [("node_silent", "a")]

    def test_a_silent_edge_holds(self) -> None:
        demands = (builders.demand("demo/vision", 50.0, age_s=31.0),)
        assert held(gate(case(snapshot=lab(demands=demands)))) == (HoldReason.STALE_DATA,)

    @pytest.mark.parametrize(
        "demand",
        [
            builders.demand("demo/vision", 50.0, age_s=29.0),
            builders.demand("demo/vision", 50.0, age_s=999.0, origin=DemandOrigin.DECLARED),
            builders.demand("demo/else", 50.0, age_s=999.0),
        ],
        ids=["fresh", "declared", "foreign"],
    )
    def test_other_demands_do_not(self, demand: object) -> None:
        assert gate(case(snapshot=lab(demands=(demand,)))).promote

    def test_a_lost_device_does_not_wait_for_the_edges(self) -> None:
        demands = (builders.demand("demo/vision", 50.0, age_s=31.0),)
        gone = replace(lab(demands=demands), devices=lab().devices[1:])
        assert HoldReason.STALE_DATA not in gate(case(snapshot=gone)).reasons


class TestCooldown:
    def test_holds_soon_after_a_promotion(self) -> None:
        decision = gate(case(snapshot=young()))
        assert held(decision) == (HoldReason.COOLDOWN,)
        assert (decision.facts[0].name, decision.facts[0].value) == ("cooldown_left_s", 10.0)

    @pytest.mark.parametrize(
        "urgent",
        [
            {"order": replace(ORDER, forced=True)},
            {"standing": plan(unserved=10.0)},
            {"standing": plan(slo_risk=1.0)},
            {"standing_findings": (fatal(),)},
            {"snapshot": replace(young(), devices=lab().devices[1:])},
        ],
        ids=["forced", "serves more", "risks less", "target broken", "device lost"],
    )
    def test_urgency_sets_it_aside(self, urgent: dict[str, object]) -> None:
        assert gate(case(**{"snapshot": young(), **urgent})).promote

    def test_what_the_plan_does_not_repair_is_not_urgent(self) -> None:
        remains = (replace(fatal(), severity=Severity.WARNING),)
        decision = gate(case(snapshot=young(), standing_findings=(fatal(),), findings=remains))
        assert held(decision) == (HoldReason.COOLDOWN,)

    def test_no_cooldown_before_the_first_plan(self) -> None:
        fresh = replace(young(), target=replace(young().target, generation=Generation(0)))
        assert gate(case(snapshot=fresh)).promote


class TestChurnBudget:
    MANY = Transition(changes=tuple(change(subject=f"demo/vision#{index}") for index in range(3)))

    def few(self) -> Snapshot:
        return lab(policy=builders.policy(changes_max=2))

    def test_holds_above_the_budget(self) -> None:
        decision = gate(case(snapshot=self.few(), transition=self.MANY))
        assert held(decision) == (HoldReason.CHURN_BUDGET,)
        assert [fact.value for fact in decision.facts] == [3.0, 2.0]

    def test_starts_and_stops_count_batches_do_not(self) -> None:
        kinds = (ChangeKind.STOP, ChangeKind.MOVE, ChangeKind.SET_BATCH, ChangeKind.SET_ENVELOPE)
        changes = tuple(change(kind, f"demo/vision#{index}") for index, kind in enumerate(kinds))
        assert gate(case(snapshot=self.few(), transition=Transition(changes=changes))).promote

    def test_what_follows_a_plan_that_only_makes_room_counts_too(self) -> None:
        """Or else room would be made, and paid for, that nothing is ever moved into."""
        more = tuple(replace(STANDING, replica=ReplicaId(f"demo/vision#{index}")) for index in range(9))
        to = Destination(assignments=more, settings=(), unplaced=(), objective=Objective(cost_usd_per_h=0.1))
        decision = gate(case(snapshot=self.few(), plan=replace(plan(cost_usd_per_h=2.0), toward=to)))
        assert HoldReason.CHURN_BUDGET in held(decision)
        assert {fact.name: fact.value for fact in decision.facts}["changes_after"] > 2.0

    @pytest.mark.parametrize("first", [True, False])
    def test_the_first_plan_and_a_forced_one_may_exceed_it(self, first: bool) -> None:
        snapshot = self.few()
        if first:
            snapshot = replace(snapshot, target=replace(snapshot.target, generation=Generation(0)))
        order = replace(ORDER, forced=not first)
        assert gate(case(snapshot=snapshot, transition=self.MANY, order=order)).promote

    def test_new_replicas_that_serve_more_are_free_but_moves_are_not(self) -> None:
        starts = tuple(change(ChangeKind.START, f"demo/vision#{index}") for index in range(9))
        short = plan(unserved=5.0)
        assert gate(case(snapshot=self.few(), transition=Transition(changes=starts), standing=short)).promote
        decision = gate(case(snapshot=self.few(), transition=self.MANY, standing=short))
        assert held(decision) == (HoldReason.CHURN_BUDGET,)

    def test_replicas_of_a_lost_device_are_free(self) -> None:
        gone = replace(self.few(), devices=lab().devices[1:])
        moved = (change(ChangeKind.MOVE), *(change(subject=f"demo/vision#{index}") for index in (1, 2)))
        assert gate(case(snapshot=gone, transition=Transition(changes=moved))).promote

    @pytest.mark.parametrize("done", [True, False])
    def test_to_stop_what_is_deleted_or_done_is_free(self, done: bool) -> None:
        """However many tasks end at once, their processes end with the next plan."""
        task = builders.task()
        stands = [
            STANDING,
            *(builders.assignment(f"{task.id}#{index}", T4, kind=WorkloadKind.TASK) for index in range(9)),
        ]
        snapshot = replace(self.few(), target=builders.target(stands))
        stops = Transition(changes=tuple(change(ChangeKind.STOP, item.replica) for item in stands[1:]))
        assert gate(case(snapshot=snapshot, transition=stops)).promote
        status = JobStatus(workload=WorkloadId(task.id), done=task.inputs_total if done else 1)
        asked = replace(snapshot, tasks=(task,), job_statuses=(status,))
        assert gate(case(snapshot=asked, transition=stops)).promote is done


class TestSmallGain:
    @pytest.mark.parametrize("cost", [0.995, 1.0, 1.2])
    def test_holds_below_the_minimum(self, cost: float) -> None:
        decision = gate(case(plan=plan(cost_usd_per_h=cost)))
        assert held(decision) == (HoldReason.SMALL_GAIN,)
        assert decision.facts[0].value == pytest.approx(1.0 - cost)

    def test_by_share_it_must_be_worth_its_changes_to_the_workloads_it_touches(self) -> None:
        # The standing replica holds half of a T4 at 0.35 $/h: 0.175 $/h, of which a fifth is 0.035.
        picky = lab(policy=builders.policy(gain_pct_min=20.0, cost_basis=CostBasis.SHARE))
        assert gate(case(snapshot=picky, plan=plan(cost_usd_per_h=0.964), standing=standing(1.0))).promote
        decision = gate(case(snapshot=picky, plan=plan(cost_usd_per_h=0.966), standing=standing(1.0)))
        assert held(decision) == (HoldReason.SMALL_GAIN,)
        assert [(fact.name, fact.value) for fact in decision.facts] == [
            ("gain_usd_per_h", pytest.approx(0.034)),
            ("gain_usd_per_h_min", pytest.approx(0.035)),
        ]

    def test_by_memory_likewise_with_what_they_use(self) -> None:
        used_usd = 0.35 * builders.memory_mib(builders.assignment("demo/vision#0", T4).batch) / T4.memory_mib
        policy = builders.policy(gain_pct_min=20.0, gain_usd_per_h_min=0.0, cost_basis=CostBasis.MEMORY)
        for saved, promoted in ((0.21 * used_usd, True), (0.19 * used_usd, False)):
            made = case(snapshot=lab(policy=policy), plan=plan(cost_usd_per_h=1.0 - saved), standing=standing(1.0))
            assert gate(made).promote is promoted

    def test_it_must_be_worth_the_devices_it_touches(self) -> None:
        # The T4 as a whole costs 0.35 $/h and the energy of 10 W idle and 20 W planned; a fifth of it is 0.0709.
        picky = lab(policy=builders.policy(gain_pct_min=20.0))
        assert gate(case(snapshot=picky, plan=plan(cost_usd_per_h=0.929), standing=standing(1.0))).promote
        decision = gate(case(snapshot=picky, plan=plan(cost_usd_per_h=0.93), standing=standing(1.0)))
        assert held(decision) == (HoldReason.SMALL_GAIN,)
        assert decision.facts[1].value == pytest.approx(0.2 * (0.35 + 0.03 * 0.12 * 1.3), abs=1e-6)

    def test_it_must_be_worth_its_launches(self) -> None:
        policy = builders.policy(launch_usd_per_s=0.01)
        slow = Transition(changes=(replace(change(), cost_s=30.0),))
        for saving, promoted in ((0.31, True), (0.29, False)):
            decision = gate(
                case(
                    snapshot=lab(policy=policy),
                    plan=plan(cost_usd_per_h=1.0 - saving),
                    standing=standing(1.0),
                    transition=slow,
                )
            )
            assert decision.promote is promoted

    def test_a_cheaper_plan_that_risks_more_is_no_gain(self) -> None:
        assert held(gate(case(plan=plan(cost_usd_per_h=0.1, slo_risk=5.0)))) == (HoldReason.SMALL_GAIN,)

    def test_the_policy_says_what_counts_first(self) -> None:
        thrifty = lab(policy=builders.policy(objective=(Term.COST, Term.UNSERVED)))
        assert gate(case(snapshot=thrifty, plan=plan(cost_usd_per_h=0.1, unserved=5.0))).promote
        dearer = case(snapshot=thrifty, plan=plan(cost_usd_per_h=9.0), standing=plan(unserved=5.0))
        assert held(gate(dearer)) == (HoldReason.SMALL_GAIN,)

    @pytest.mark.parametrize(("term", "name"), [(Term.CAPACITY, "capacity_rps"), (Term.TRAINING, "training_rate")])
    def test_more_of_what_the_policy_wants_may_cost_more_if_it_is_enough(self, term: Term, name: str) -> None:
        eager = lab(policy=builders.policy(objective=(Term.UNSERVED, term), gain_pct_min=5.0))
        now = replace(plan(**{name: 100.0}), assignments=(STANDING,))
        for number, promoted in ((104.9, False), (105.0, True)):
            decision = gate(case(snapshot=eager, plan=plan(cost_usd_per_h=9.0, **{name: number}), standing=now))
            assert decision.promote is promoted
        cheaper = case(snapshot=eager, plan=plan(cost_usd_per_h=0.1, **{name: 99.0}), standing=now)
        assert held(gate(cheaper)) == (HoldReason.SMALL_GAIN,)
        # It is no emergency: it waits for the cooldown.
        soon = replace(eager, target=replace(eager.target, promoted_at_s=eager.taken_at_s - 1.0))
        assert held(gate(case(snapshot=soon, plan=plan(**{name: 200.0}), standing=now))) == (HoldReason.COOLDOWN,)

    def test_what_the_policy_does_not_name_decides_nothing(self) -> None:
        more = case(plan=plan(capacity_rps=200.0, training_rate=9.0), standing=plan(capacity_rps=100.0))
        assert held(gate(more)) == (HoldReason.SMALL_GAIN,)

    def test_what_it_does_not_touch_does_not_count(self) -> None:
        picky = lab(policy=builders.policy(gain_pct_min=20.0, cost_basis=CostBasis.SHARE))
        elsewhere = replace(change(), before=builders.assignment("demo/other#0", T4), after=None)
        transition = Transition(changes=(elsewhere,))
        assert gate(
            case(snapshot=picky, plan=plan(cost_usd_per_h=0.98), standing=standing(1.0), transition=transition)
        ).promote

    def test_a_cheaper_plan_that_serves_less_is_no_gain(self) -> None:
        assert held(gate(case(plan=plan(cost_usd_per_h=0.1, unserved=5.0)))) == (HoldReason.SMALL_GAIN,)

    def test_serving_more_may_cost_more(self) -> None:
        assert gate(case(plan=plan(cost_usd_per_h=9.0), standing=plan(unserved=5.0))).promote

    def test_less_risk_may_cost_more(self) -> None:
        assert gate(case(plan=plan(cost_usd_per_h=9.0), standing=plan(slo_risk=5.0))).promote

    def test_repairing_a_broken_target_may_cost_more(self) -> None:
        assert gate(case(plan=plan(cost_usd_per_h=9.0), standing_findings=(fatal(),))).promote


class TestRental:
    @pytest.mark.parametrize("lane", Lane)
    @pytest.mark.parametrize("forced", [True, False])
    def test_gpus_that_nobody_rented_hold_whatever_the_urgency(self, lane: Lane, forced: bool) -> None:
        offered = [f"offer.{name}.{number:06d}.gpu-0" for name, number in (("more", 0), ("more", 7), ("spot.b", 0))]
        replicas = tuple(replace(STANDING, replica=f"demo/vision#{n}", device=at) for n, at in enumerate(offered * 2))
        rented = replace(plan(cost_usd_per_h=0.1), assignments=(STANDING, *replicas))
        decision = gate(case(plan=rented, order=replace(ORDER, lane=lane, forced=forced)))
        assert HoldReason.AWAITING_RENTAL in held(decision)
        facts = {fact.name: fact.value for fact in decision.facts}
        assert facts == {"gpus_of_more": 2.0, "gpus_of_spot.b": 1.0}


class TestLanes:
    def test_approve_waits_for_a_person(self) -> None:
        picture = young()
        services = tuple(replace(item, mode=ServiceMode.APPROVE) for item in picture.services)
        asking = replace(picture, services=services)
        decision = gate(case(order=replace(ORDER, lane=Lane.APPROVE), snapshot=asking))
        assert held(decision) == (HoldReason.AWAITING_APPROVAL,)

    def test_nobody_is_asked_about_what_the_acting_lane_changes(self) -> None:
        decision = gate(case(order=replace(ORDER, lane=Lane.APPROVE), snapshot=young()))
        assert held(decision) == (HoldReason.NOTHING_TO_CHANGE,)

    def test_approve_does_not_bother_a_person_with_little(self) -> None:
        decision = gate(case(order=replace(ORDER, lane=Lane.APPROVE), plan=plan()))
        assert held(decision) == (HoldReason.SMALL_GAIN,)

    def test_shadow_never_acts(self) -> None:
        assert held(gate(case(order=replace(ORDER, lane=Lane.SHADOW)))) == (HoldReason.SHADOW_ONLY,)
        decision = gate(case(order=replace(ORDER, lane=Lane.SHADOW, forced=True), plan=plan()))
        assert held(decision) == (HoldReason.SHADOW_ONLY,)

    def test_on_request_waits_for_a_person(self) -> None:
        assert held(gate(case(order=replace(ORDER, promote=False)))) == (HoldReason.AWAITING_APPROVAL,)


def test_all_holds_are_named_at_once() -> None:
    snapshot = young(demands=(builders.demand("demo/vision", 50.0, age_s=31.0),))
    decision = gate(case(snapshot=snapshot, plan=plan()))
    assert held(decision) == (HoldReason.STALE_DATA, HoldReason.SMALL_GAIN, HoldReason.COOLDOWN)


def test_lost_replicas_are_those_on_devices_that_are_gone_sick_or_silent() -> None:
    sick = DeviceTelemetry(
        device=T4.id, power_w=1, utilisation_pct=1, memory_mib_used=1, clock_mhz_sm=1, healthy=False, age_s=1
    )
    statuses = (NodeStatus(node=T4.node, age_s=31.0, generation_applied=1),)
    assert lost_replicas(lab()) == frozenset()
    assert lost_replicas(lab(device_telemetry=(sick,))) == {"demo/vision#0"}
    assert lost_replicas(lab(node_statuses=statuses)) == {"demo/vision#0"}
    assert lost_replicas(replace(lab(), devices=lab().devices[1:])) == {"demo/vision#0"}


class TestRoom:
    """A plan that only makes room for another one."""

    @staticmethod
    def dearer(then_usd: float, cooldown_s: float = 60.0, stood_s: float = 1000.0) -> GateCase:
        """Three dollars for a while, then so many; one stands, and has for so long."""
        made = plan(cost_usd_per_h=3.0)
        objective = replace(made.objective, cost_usd_per_h=then_usd)
        to = Destination(assignments=made.assignments, settings=(), unplaced=(), objective=objective)
        picture = lab()
        target = replace(picture.target, promoted_at_s=picture.taken_at_s - stood_s)
        picture = replace(picture, target=target, policy=replace(picture.policy, cooldown_s=cooldown_s))
        return case(snapshot=picture, plan=replace(made, toward=to))

    def test_it_is_made_where_what_follows_pays_for_it(self) -> None:
        assert gate(self.dearer(0.5)).promote

    def test_a_dearer_plan_that_leads_nowhere_is_held(self) -> None:
        made = self.dearer(0.5)
        assert made.plan is not None
        assert held(gate(replace(made, plan=replace(made.plan, toward=None)))) == (HoldReason.SMALL_GAIN,)

    @pytest.mark.parametrize(
        ("stood_s", "cooldown_s"), [(1000.0, 240.0), (1800.0, 240.0), (3600.0, 480.0), (14400.0, 2400.0), (1e6, 2400.0)]
    )
    def test_what_it_costs_meanwhile_is_saved_in_as_long_as_what_stands_has_stood(
        self, stood_s: float, cooldown_s: float
    ) -> None:
        """Half an hour at least, four hours at most."""
        assert gate(self.dearer(0.5, cooldown_s, max(stood_s, cooldown_s))).promote
        assert held(gate(self.dearer(0.5, cooldown_s * 1.5, max(stood_s, cooldown_s * 1.5)))) == (
            HoldReason.SMALL_GAIN,
        )

    def test_who_is_short_on_the_way_is_short(self) -> None:
        made = self.dearer(0.5)
        assert made.plan is not None
        short = replace(made.plan, objective=replace(made.plan.objective, unserved=5.0))
        assert held(gate(replace(made, plan=short))) == (HoldReason.SMALL_GAIN,)


def dearer(planner: str, named: tuple[Term, ...] = ALWAYS, **objective: float) -> Decision:
    """What a production cycle's gate says to a plan that costs a dollar more."""
    made = replace(plan(cost_usd_per_h=2.0, **objective), planner=planner)
    picture = lab(policy=builders.policy(objective=named))
    return gate(case(order=replace(ORDER, by_pursuit=True), snapshot=picture, plan=made))


@pytest.mark.parametrize("planner", ["hetsev", "inss", "inss_ni", "inss_rl", "morak", "mudi", "oltunes"])
def test_a_plan_of_who_pursues_no_savings_need_not_save(planner: str) -> None:
    assert dearer(planner, churn=9.0, imbalance=0.5).promote
    assert held(dearer(planner, unserved=0.1)) == (HoldReason.SMALL_GAIN,)
    assert held(dearer(planner, slo_risk=1.0)) == (HoldReason.SMALL_GAIN,)


@pytest.mark.parametrize("planner", ["joint", "greedy", "whole_gpu", "unheard-of"])
def test_a_plan_of_who_pursues_savings_must_save(planner: str) -> None:
    assert held(dearer(planner)) == (HoldReason.SMALL_GAIN,)


def test_an_objective_that_the_policy_names_has_the_word() -> None:
    assert held(dearer("inss", (Term.UNSERVED, Term.SLO_RISK, Term.COST))) == (HoldReason.SMALL_GAIN,)


def test_the_calm_after_a_promotion_holds_whatever_is_pursued() -> None:
    made = case(order=replace(ORDER, by_pursuit=True), snapshot=young(), plan=replace(plan(), planner="inss"))
    assert held(gate(replace(made, standing=made.plan))) == (HoldReason.COOLDOWN,)


def test_planners_that_are_compared_are_judged_alike() -> None:
    made = case(plan=replace(plan(cost_usd_per_h=2.0), planner="inss"))
    assert held(gate(made)) == (HoldReason.SMALL_GAIN,)
    assert gate(replace(made, order=replace(ORDER, by_pursuit=True))).promote
