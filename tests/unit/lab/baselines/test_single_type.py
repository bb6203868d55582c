"""One GPU type for everything."""

from __future__ import annotations

from solvers.domain.evidence import ReasonCode
from tests import builders
from tests.unit.lab.baselines.course import Course, farm, types_of


def test_the_peak_is_never_forgotten() -> None:
    course = Course("static_peak", farm(builders.service()))
    first, peak = course.step(vision=100), course.step(vision=600)
    assert len(peak.assignments) > len(first.assignments)
    for _ in range(3):
        assert course.step(vision=50).assignments == peak.assignments
    assert {item.share_pct_sm for item in peak.assignments} == {100}
    assert len({item.device for item in peak.assignments}) == len(peak.assignments)


def test_the_static_type_is_chosen_once() -> None:
    course = Course("static_peak", farm(builders.service()))
    first = course.step(vision=100)
    assert types_of(first) == {"t4"}
    later = course.step(vision=3000)
    assert types_of(later) == {"t4"}
    assert later.unplaced[0].rate_rps_short > 0
    assert types_of(Course("static_peak", farm(builders.service())).step(vision=3000)) == {"v100"}


def test_the_best_type_follows_the_demand() -> None:
    course = Course("best_single_type", farm(builders.service(), builders.service("text", model="bert")))
    low = course.step(vision=40, text=40)
    high = course.step(vision=900, text=900)
    assert len(types_of(low)) == len(types_of(high)) == 1
    assert types_of(high) == {"v100"}
    assert high.objective.unserved == 0
    assert low.objective.cost_usd_per_h < high.objective.cost_usd_per_h


def test_a_type_that_one_service_may_not_use_is_said_so() -> None:
    only_t4 = builders.service("text", gpu_types_allowed=("t4",), rate_rps_declared=20.0)
    many = builders.service(rate_rps_declared=1500.0)
    plan = Course("best_single_type", farm(many, only_t4)).step()
    assert types_of(plan) == {"v100"}
    (short,) = (item for item in plan.unplaced if item.workload == "demo/text")
    assert ReasonCode.TYPE_NOT_ALLOWED in {reason.code for reason in short.reasons}
