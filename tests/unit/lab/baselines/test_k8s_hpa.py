"""Kubernetes' autoscaler: its rule, its windows, its whole GPUs."""

from __future__ import annotations

import pytest

from lab.baselines.k8s_hpa import HpaParameters, Moment, recommended, stabilised
from tests import builders
from tests.unit.lab.baselines.course import Course, farm

DEFAULT = HpaParameters()


@pytest.mark.parametrize(
    ("current", "metric", "wanted"),
    [(3, 0.95, 4), (3, 0.88, 3), (3, 0.89, 4), (3, 0.72, 3), (3, 0.71, 3), (4, 0.40, 2), (2, 1.60, 4), (5, 0.0, 0)],
)
def test_the_ratio_rule(current: int, metric: float, wanted: int) -> None:
    assert recommended(current, metric, DEFAULT) == wanted


def moments(*pairs: tuple[float, int, int]) -> tuple[Moment, ...]:
    return tuple(Moment(at_s=at, recommended=asked, current=current) for at, asked, current in pairs)


def test_down_goes_only_to_the_highest_recommendation_of_the_window() -> None:
    seen = moments((0, 9, 9), (200, 6, 9), (400, 4, 9))
    assert stabilised(9, 3, 299, seen[:1], DEFAULT) == 9
    assert stabilised(9, 3, 450, seen, DEFAULT) == 6
    assert stabilised(9, 3, 600, seen, DEFAULT) == 4
    assert stabilised(9, 3, 800, seen, DEFAULT) == 3


def test_up_doubles_or_adds_four_in_a_minute() -> None:
    assert stabilised(1, 30, 0, (), DEFAULT) == 5
    assert stabilised(10, 30, 0, (), DEFAULT) == 20
    seen = moments((0, 20, 10))
    assert stabilised(20, 30, 45, seen, DEFAULT) == 20
    assert stabilised(20, 30, 60, seen, DEFAULT) == 30


def test_it_starts_with_its_floor_and_grows_by_its_rule() -> None:
    course = Course("k8s_hpa", farm(builders.service(replicas_min=1)))
    counts = [len(course.step(vision=3000).assignments) for _ in range(6)]
    assert counts[0] == 1
    assert 1 < counts[1] <= 5
    assert counts == sorted(counts)


def test_every_replica_has_a_gpu_of_its_own() -> None:
    course = Course("k8s_hpa", farm(builders.service(), builders.service("text", model="bert")))
    for _ in range(3):
        plan = course.step(vision=1500, text=1500)
    assert len(plan.assignments) > 3
    assert len({item.device for item in plan.assignments}) == len(plan.assignments)
    assert {item.share_pct_sm for item in plan.assignments} == {100}


def test_it_shrinks_when_the_window_has_passed() -> None:
    course = Course("k8s_hpa", farm(builders.service()))
    for _ in range(4):
        high = len(course.step(vision=900).assignments)
    counts = [len(course.step(vision=100).assignments) for _ in range(24)]
    assert counts[:16] == [high] * 16
    assert counts[-1] == 1
