"""OLTunes as a planner: ratings, groups, tuning, what stays, what is learned, cycle after cycle."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import OfflineTask
from solvers.errors import FieldError
from solvers.models.base import Queries
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.policies.oltunes import memory
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.planner import Oltunes
from solvers.policies.oltunes.rating import CandidateJudge, CandidateQuestion
from solvers.verify.checks import is_fatal, verify
from tests import builders
from tests.unit.lab.benches.tasks.course import Course, facts, of, picture, task


def test_choices_tell_score_power_group_and_what_else_was_looked_at() -> None:
    plan = Course(picture([task("one"), task("two", "bert")], ("t4",))).cycle()
    told = facts(of(plan, "one")) | facts(of(plan, "two"))
    assert {"score", "epc_score", "predicted_latency_ms", "group", "member", "affinity"} <= set(told)
    rejected = [reason for reason in of(plan, "one").reasons if reason.code is ReasonCode.REJECTED_ALTERNATIVE]
    assert rejected
    scores = [fact.value for reason in rejected for fact in reason.facts if fact.name == "score"]
    assert scores == sorted(scores, reverse=True)


def test_a_high_and_a_low_variant_share_and_two_high_ones_do_not() -> None:
    plan = Course(picture([task("low"), task("high", "bert"), task("other", "bert")])).cycle()
    assert of(plan, "low").device == of(plan, "high").device
    assert of(plan, "other").device != of(plan, "high").device
    assert facts(of(plan, "high"))["affinity"] == 75.0 or facts(of(plan, "low"))["affinity"] == 75.0


def test_who_finds_no_group_waits_only_where_that_is_wanted() -> None:
    tasks = [task("one", "bert"), task("two", "bert")]
    strict = Course(picture(tasks, ("t4",)), affinity_strict=True).cycle()
    assert len(strict.assignments) == 1
    (left,) = strict.unplaced
    waits = next(reason for reason in left.reasons if reason.code is ReasonCode.WAITS_IN_LINE)
    assert {fact.name for fact in waits.facts} == {"queue", "queue_position", "deadline_over_latency", "in_time"}
    joined = Course(picture(tasks, ("t4",))).cycle()
    assert len(joined.assignments) == 2
    below = [facts(item) for item in joined.assignments if "affinity_below_threshold" in facts(item)]
    assert [told["affinity"] for told in below] == [25.0]


def test_a_plan_is_handed_over_before_all_profiles_are_learned() -> None:
    planner, request = Oltunes(), builders.request(picture([task("one"), task("two", "bert")]))
    first, again = builders.Taker(), builders.Taker()
    thought = planner.think(request, b"", first)
    (early,) = first.taken
    assert early.plan is not None
    assert {item.workload for item in early.plan.assignments} == {"demo/one", "demo/two"}
    assert not is_fatal(verify(request.snapshot, early.plan, request.movable))
    assert thought.proposal == planner.propose(request, b"", SilentReporter())
    planner.think(request, thought.state or b"", again)
    assert not again.taken


def test_who_is_in_time_with_a_large_share_alone_has_it_though_a_small_one_is_thriftier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was learned may leave in time none of the shares that a low rate would be content with."""

    def learned(
        _judge: CandidateJudge, asked: Queries, latency_ms: Floats, capacity_rps: Floats
    ) -> tuple[Floats, Floats]:
        return np.where(asked.share_pct >= 100.0, latency_ms, 1_000.0 + latency_ms), capacity_rps

    monkeypatch.setattr(CandidateJudge, "_predicted", learned)
    services = (builders.service("seldom", rate_rps_declared=1.0, slo=builders.slo(200.0)),)
    plan = Course(picture([], ("t4",), services=services)).cycle()
    assert of(plan, "seldom").share_pct_sm == 100


def test_groups_have_a_largest_size() -> None:
    tasks = [task(f"t{number}") for number in range(5)]
    plan = Course(picture(tasks, ("v100", "v100")), group_max=3, threshold_affinity=0.0).cycle()
    counts = sorted(sum(item.device == device.id for item in plan.assignments) for device in picture([]).devices)
    assert counts == [2, 3]


def test_urgent_work_comes_first_and_then_the_least_slack() -> None:
    tasks = [
        task("calm", deadline_s=6000.0),
        task("soon", deadline_s=300.0),
        task("urgent", deadline_s=6000.0, class_lambda=0.9),
    ]
    course = Course(picture(tasks, ("t4",)), group_max=1, affinity_strict=True)
    plan = course.cycle()
    assert [item.workload for item in plan.assignments] == ["demo/urgent"]
    positions = {
        item.workload: fact.value
        for item in plan.unplaced
        for reason in item.reasons
        for fact in reason.facts
        if fact.name == "queue_position"
    }
    assert positions == {"demo/soon": 1.0, "demo/calm": 2.0}


def test_what_runs_stays_where_it_is() -> None:
    course = Course(picture([task("one")]))
    before = of(course.cycle(), "one")
    course.picture = replace(course.picture, tasks=(*course.picture.tasks, task("other", "bert")))
    after = course.cycle({"one": 100})
    assert of(after, "one").device == before.device
    assert (of(after, "one").batch, of(after, "one").share_pct_sm) == (before.batch, before.share_pct_sm)
    assert of(after, "one").reasons[0].code is ReasonCode.KEPT_STANDING
    assert facts(of(after, "one"))["group"] == facts(before)["group"]


def test_an_urgent_task_alone_is_tuned_into_the_spare_room() -> None:
    plan = Course(picture([task("alone", class_lambda=0.9, deadline_s=60_000.0)], ("t4",))).cycle()
    assert facts(of(plan, "alone"))["tuned"] == "true"
    assert of(plan, "alone").share_pct_sm > 25


def test_a_patient_task_is_tuned_only_to_a_larger_batch() -> None:
    plan = Course(picture([task("alone", deadline_s=60_000.0)], ("t4",))).cycle()
    assert of(plan, "alone").batch == max(builders.BATCHES)
    assert "tuned" not in facts(of(plan, "alone"))


def test_services_are_served_and_not_tuned() -> None:
    services = [builders.service("vision", rate_rps_declared=20.0)]
    plan = Course(picture([task("one", "bert")], services=services)).cycle()
    assert {item.workload for item in plan.assignments} == {"demo/vision", "demo/one"}
    assert "tuned" not in facts(of(plan, "vision"))
    assert not plan.unplaced


def test_a_service_that_needs_less_gives_up_replicas() -> None:
    services = [builders.service("vision", rate_rps_declared=900.0)]
    course = Course(picture([], ("v100", "v100", "v100"), services=services))
    many = len(course.cycle().assignments)
    calm = replace(services[0], rate_rps_declared=1.0)
    course.picture = replace(course.picture, services=(calm,))
    assert len(course.cycle().assignments) < many


def test_a_finished_task_teaches_one_step() -> None:
    course = Course(picture([task("one")], ("t4",)))
    placed = of(course.cycle({"one": 1_000}), "one")
    course.cycle({"one": 2_500})
    before = course.memory
    course.cycle({"one": 6_000})
    assert course.memory.lessons.lessons == 0
    course.cycle({"one": 6_000})
    (error,) = course.memory.lessons.errors
    measured_ms = 1000.0 * placed.batch * 15.0 / 1_500
    predicted_ms = before.known[0].flight.predicted_ms if before.known[0].flight is not None else 0.0
    assert error == pytest.approx(abs(predicted_ms - measured_ms) / measured_ms)
    assert course.memory.lessons.lessons == 1
    assert course.memory.solo != before.solo
    assert course.memory.known == ()


def sliced(*tasks: OfflineTask) -> Snapshot:
    before = picture(tasks, ("v100",))
    return replace(before, devices=(*before.devices, builders.mig_slice("a", 1, "v100", 2)))


def test_a_task_on_a_slice_teaches_of_the_share_of_a_gpu_that_it_had() -> None:
    course = Course(sliced(task("one")))
    placed = of(course.cycle({"one": 1_000}), "one")
    course.cycle({"one": 2_500})
    course.cycle({"one": 6_000})
    (seen,) = memory.hear(course.memory, course.picture, course.planner.parameters).lessons.pending
    part = course.picture.devices[1].sm_count / builders.gpu_type("v100").sm_count
    assert (placed.device, part < 0.5) == (course.picture.devices[1].id, True)
    assert seen.share_pct == pytest.approx(part * placed.share_pct_sm)


def test_estimated_power_of_a_slice_is_that_of_its_part_of_the_gpu() -> None:
    course = Course(sliced(task("one")))
    case = Case.of(builders.request(course.picture))
    judge = CandidateJudge(
        draft=Draft.of(builders.request(course.picture), case),
        solo=None,
        gpu_types=course.picture.gpu_types_by_name(),
        load=0.5,
        group_max=4,
        parameters=course.planner.parameters,
    )
    (need,) = case.needs
    rated = judge.rate(CandidateQuestion(need=need, latency_weight=0.3, deadline_ms=6e5, inputs=6_000.0))
    assert rated is not None
    options, shape, slice_ = judge.draft.options(need), builders.gpu_type("v100"), course.picture.devices[1]
    rows = options.device_class == judge.draft.fleet.class_of[judge.draft.fleet.index[slice_.id]]
    share, used = slice_.sm_count / shape.sm_count * options.share_pct / 100.0, options.memory_mib / shape.memory_mib
    wanted = 60.0 + (shape.tdp_w - 60.0) * share * used * rated.run_ms / 1000.0
    assert rows.any()
    assert rated.epc[rows] == pytest.approx(wanted[rows])


def test_missing_by_more_than_theta_trains_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RETRAINED_AFTER", 10, raising=False)
    tasks = [task(f"t{number:02}", inputs_total=2_000) for number in range(12)]
    course = Course(picture(tasks, ("v100",) * 6), theta=0.05)
    everybody = [item.name for item in course.picture.tasks]
    course.cycle(dict.fromkeys(everybody, 10))
    course.cycle(dict.fromkeys(everybody, 20))
    course.cycle(dict.fromkeys(everybody, 2000))
    course.cycle(dict.fromkeys(everybody, 2000))
    assert course.memory.lessons.retrainings == 1
    assert course.memory.lessons.errors == ()


def test_who_lost_its_place_goes_ahead_and_groups_get_smaller() -> None:
    tasks = [task("one", "bert", deadline_s=6000.0), task("soon", "bert", deadline_s=300.0)]
    course = Course(picture(tasks), affinity_strict=True)
    course.cycle({"one": 10, "soon": 10})
    gone = of(course.cycle({"one": 20, "soon": 20}), "one").device
    left = tuple(device for device in course.picture.devices if device.id != gone)
    others = tuple(item for item in course.picture.target.assignments if item.workload != "demo/one")
    course.picture = replace(course.picture, devices=left, target=replace(course.picture.target, assignments=others))
    plan = course.cycle({"one": 20, "soon": 30})
    pace = course.memory.pace
    assert pace is not None
    assert pace.group_max == 3
    assert {str(item.task): item.boost for item in course.memory.known} == {"demo/one": 1, "demo/soon": 0}
    (waits,) = plan.unplaced
    told = {fact.name: fact.value for reason in waits.reasons for fact in reason.facts}
    assert (waits.workload, told["queue"]) == ("demo/one", "latency-critical")


@pytest.mark.parametrize("predictor", ["fm_ftrl", "mf", "rfr"])
def test_each_predictor_plans_and_is_kept(predictor: str) -> None:
    course = Course(picture([task("one"), task("two", "bert")]), predictor=predictor)
    course.cycle({"one": 10})
    solo = course.memory.solo
    assert json.loads(solo)
    course.cycle({"one": 20})
    assert course.memory.solo == solo


def joining(course: Course, *names: str, model: str = "resnet50") -> None:
    tasks = (*course.picture.tasks, *(task(name, model, deadline_s=60_000.0) for name in names))
    course.picture = replace(course.picture, tasks=tuple(sorted(tasks, key=lambda item: item.id)))


def placed(plan: Plan) -> set[str]:
    return {item.workload.removeprefix("demo/") for item in plan.assignments}


LONG: dict[str, Any] = {
    "window_ms_first": 20_000.0,
    "window_ms_max": 60_000.0,
    "cycle_ms": 15_000.0,
    "window_ms_step": 0.0,
}


def test_a_window_longer_than_a_cycle_collects_tasks_since_groups_were_formed_last() -> None:
    course = Course(picture([task("one")]), **LONG)
    assert placed(course.cycle()) == {"one"}
    joining(course, "two")
    assert placed(course.cycle()) == {"one"}
    assert placed(course.cycle()) == {"one", "two"}
    course.cycle()
    joining(course, "late")
    assert placed(course.cycle()) == {"one", "two", "late"}


def test_as_many_tasks_as_a_group_may_have_do_not_wait_for_the_window() -> None:
    course = Course(picture([task("one")]), group_max=3, **LONG)
    course.cycle()
    joining(course, "two", "three")
    assert placed(course.cycle()) == {"one"}
    joining(course, "four")
    assert placed(course.cycle()) == {"one", "two", "three", "four"}


def test_the_window_moves_by_those_who_are_left() -> None:
    course = Course(picture([task("one", class_lambda=0.9)]))
    course.cycle()
    assert course.memory.pace is not None
    assert course.memory.pace.window_ms == 100.0
    tasks = [task(f"t{number}", "bert", class_lambda=0.9) for number in range(3)]
    crowd = Course(picture(tasks, ("t4",)), affinity_strict=True)
    crowd.cycle()
    assert crowd.memory.pace is not None
    assert crowd.memory.pace.window_ms == 90.0


def test_batches_that_a_task_could_never_fill_are_not_taken() -> None:
    plan = Course(picture([task("tiny", inputs_total=6)], ("t4",))).cycle()
    assert of(plan, "tiny").batch <= 8


def test_a_slice_is_wished_for_where_much_is_left_of_an_empty_gpu() -> None:
    def wishes(course: Course) -> int:
        course.cycle()
        assert course.last is not None
        return sum(item.subject.startswith("a MIG slice of") for item in course.last.proposal.reasons)

    course = Course(picture([task("one", deadline_s=60_000.0)], ("v100",)), slice_spare_mib=1000.0)
    assert wishes(course) == 1
    joining(course, "two", model="bert")
    assert wishes(course) == 0, "somebody is there, though much is left"
    assert sum(item.share_pct_sm for item in course.picture.target.assignments) <= 50
    crowd = [task(f"t{number}", deadline_s=60_000.0) for number in range(4)]
    assert wishes(Course(picture(crowd, ("t4",)), slice_spare_mib=1000.0, threshold_affinity=0.0)) == 0


def test_windows_out_of_order_are_refused() -> None:
    with pytest.raises(FieldError, match="window_ms_first"):
        OltunesParameters(window_ms_min=200.0)
