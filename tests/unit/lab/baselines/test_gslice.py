"""GSLICE: its published step, and that steps add up over cycles."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lab.baselines.gslice import GsliceParameters, fair_level, stepped
from solvers.domain.ids import ReplicaId
from solvers.domain.telemetry import ReplicaTelemetry
from tests import builders
from tests.unit.lab.baselines.course import Course, farm

DEFAULT = GsliceParameters()


def reading(replica: ReplicaId, latency_ms_p99: float) -> ReplicaTelemetry:
    return ReplicaTelemetry(
        replica=replica,
        rate_rps=50,
        latency_ms_p50=40,
        latency_ms_p99=latency_ms_p99,
        queue_length=0,
        batch_mean=4,
        violation_fraction=0.5,
        age_s=1,
    )


@pytest.mark.parametrize(
    ("residuals", "share", "batch"),
    [
        ((0.03, 0.04), 40.0, 8.0),
        ((-0.25, 0.1), 50.0, 6.0),
        ((0.1, -0.5), 60.0, 8.8),
        ((0.5, 0.2), 20.0, 12.0),
        ((-3.0, 0.1), 100.0, 1.0),
        ((0.2, 4.0), 5.0, 9.6),
        ((1.0, -2.0), 100.0, 16.0),
    ],
)
def test_the_published_step(residuals: tuple[float, float], share: float, batch: float) -> None:
    after = stepped(40.0, 8.0, residuals, DEFAULT)
    assert after == pytest.approx((share, batch))


def test_batches_stay_in_bounds() -> None:
    assert stepped(40.0, 30.0, (0.9, 0.9), DEFAULT)[1] == 32
    assert stepped(40.0, 1.0, (-0.9, 0.9), DEFAULT)[1] == 1


@pytest.mark.parametrize(
    ("wished", "room", "level"),
    [([20.0, 30.0], 50.0, math.inf), ([20.0, 90.0], 100.0, 80.0), ([60.0, 10.0, 60.0], 100.0, 45.0), ([9.0], 4.0, 4.0)],
)
def test_the_largest_wishes_are_cut_to_one_level(wished: list[float], room: float, level: float) -> None:
    assert fair_level(wished, room) == pytest.approx(level)


def test_small_steps_of_a_batch_add_up() -> None:
    """A batch that the table rounds down again grows all the same: 1, 1.5, 2.2."""
    course = Course("gslice", builders.snapshot([builders.device("v", 0, "v100")], [builders.service()]))
    first = course.step(vision=50).assignments[0]
    envelope = replace(first.envelope, batch_min=1)
    held = replace(first, batch=1, envelope=envelope, capacity_rps=1.0)
    course.picture = replace(course.picture, target=replace(course.picture.target, assignments=(held,)))
    batches = []
    for _ in range(4):
        calm = reading(first.replica, 30.0)
        course.picture = replace(course.picture, replica_telemetry=(calm,))
        batches.append(course.step(vision=50).assignments[0].batch)
    assert batches[0] == 1 < batches[-1]


def test_a_service_that_lacks_throughput_gets_more_share_until_it_has_enough() -> None:
    course = Course("gslice", builders.snapshot([builders.device("v", 0, "v100")], [builders.service()]))
    plans = [course.step(vision=300) for _ in range(6)]
    assert plans[0].assignments[0].share_pct_sm == 30
    assert plans[-1].assignments[0].share_pct_sm > 30
    assert plans[-1].objective.unserved == 0


def test_slow_answers_earn_share() -> None:
    course = Course("gslice", builders.snapshot([builders.device("v", 0, "v100")], [builders.service()]))
    before = course.step(vision=50).assignments[0]
    slow = reading(before.replica, 90.0)
    course.picture = replace(course.picture, replica_telemetry=(slow,))
    after = course.step(vision=50).assignments[0]
    assert after.share_pct_sm > before.share_pct_sm
    assert after.device == before.device


def test_beyond_a_whole_gpu_it_adds_replicas() -> None:
    course = Course("gslice", farm(builders.service()))
    plans = [course.step(vision=1500) for _ in range(12)]
    assert len(plans[0].assignments) == 1 < len(plans[-1].assignments)
    # The published feedback hunts around the band, so it is not always within it.
    assert any(not plan.unplaced for plan in plans)
