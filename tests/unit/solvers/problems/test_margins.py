"""Headroom is had where it costs about what the demand costs, and a quarter of it anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.planners.joint.reading.formulation import read
from solvers.problems.joint import JointProblem
from solvers.problems.margins import DEARER_MAX, SURE_PART, with_margins
from tests import builders
from tests.unit.solvers.planners.joint.seat.floors import problem, workload

DEVICE_RPS = 100.0
"""What the least loaded device of the floor serves for a replica with all of it."""


def of(least_rps: float, sized_rps: float, dear_usd: float, **changes: Any) -> JointProblem:
    """Two cheap devices, and many dear ones that are no faster."""
    made = problem(1, (2, 9), workloads=(workload(0, sized_rps, rate_least_rps=least_rps, **changes),))
    cheap, dear = made.pools
    return replace(made, pools=(cheap, replace(dear, usd_per_h=dear_usd)))


def sized_rps(asked: JointProblem) -> float:
    return with_margins(asked).workloads[0].rate_rps


def test_a_margin_ends_where_only_dearer_devices_are_left() -> None:
    assert sized_rps(of(160.0, 240.0, dear_usd=10.0)) == pytest.approx(2 * DEVICE_RPS)


def test_a_margin_at_about_the_same_price_is_had() -> None:
    assert sized_rps(of(160.0, 240.0, dear_usd=DEARER_MAX)) == 240.0


def test_a_margin_that_fits_is_had_whatever_the_rest_costs() -> None:
    assert sized_rps(of(160.0, 190.0, dear_usd=10.0)) == 190.0


def test_part_of_a_margin_is_had_at_any_price() -> None:
    """Two devices would do for the demand alone, and for no moment longer: the third kind is needed anyway."""
    assert sized_rps(of(195.0, 195.0 + 10.0 / SURE_PART, dear_usd=10.0)) == pytest.approx(195.0 + 10.0 / SURE_PART)


def test_demand_beyond_cheap_devices_has_its_margin_on_dear_ones() -> None:
    assert sized_rps(of(250.0, 300.0, dear_usd=10.0)) == 300.0


def test_demand_that_nothing_can_serve_and_jobs_are_left_as_they_are() -> None:
    assert sized_rps(of(5000.0, 6000.0, dear_usd=10.0)) == 6000.0
    assert sized_rps(of(0.0, 240.0, dear_usd=10.0, may_wait=True)) == 240.0


def test_devices_that_a_workload_may_not_use_do_not_count() -> None:
    asked = of(160.0, 240.0, dear_usd=10.0)
    barred = replace(asked, allowed=np.array([[False], [True]]))
    assert sized_rps(barred) == 240.0


def test_replicas_that_a_workload_may_not_have_do_not_count() -> None:
    """One replica on a cheap device, and the rest of all that it may have on dear ones: its margin is had there."""
    assert sized_rps(of(160.0, 190.0, dear_usd=10.0, replicas_max=1)) == 190.0


def test_where_memory_is_billed_a_margin_is_no_reason_for_a_device_of_ones_own() -> None:
    """The whole share is billed as all of the device, and the largest below it (80 %) as what is used."""
    asked = replace(of(130.0, 200.0, dear_usd=10.0), by_memory=True)
    billed = replace(asked, pools=tuple(replace(item, memory_mib_whole=16_000.0) for item in asked.pools))
    assert sized_rps(billed) == pytest.approx(160.0)


@pytest.mark.parametrize(
    ("least_rps", "sized", "expected"),
    [(150.0, 165.0, 160.0), (150.0, 205.0, 205.0), (158.0, 162.0, 160.0), (159.9, 163.0, 163.0), (150.0, 160.0, 160.0)],
    ids=["a sliver", "more than half", "a sliver beyond the sure part", "the sure part", "what fits"],
)
def test_where_memory_is_billed_no_replica_is_had_for_a_sliver_of_margin(
    least_rps: float, sized: float, expected: float
) -> None:
    """A replica of 80 requests/s is billed whole, whoever needs what is left of it."""
    asked = replace(of(least_rps, sized, dear_usd=1.0), by_memory=True)
    billed = replace(asked, pools=tuple(replace(item, memory_mib_whole=16_000.0) for item in asked.pools))
    assert sized_rps(billed) == pytest.approx(expected)
    assert sized_rps(replace(billed, by_memory=False)) == sized, "what is left of a device serves others"


def test_where_memory_is_billed_a_larger_batch_has_to_be_worth_its_memory() -> None:
    """The small batch serves half as much as the large one for a tenth of its bill, so that each request more costs
    nineteen times as much: the large one is for the demand alone.
    """
    asked = replace(of(50.0, 80.0, dear_usd=1000.0), by_memory=True)
    small, large = replace(asked.variants[0], batch_max=1), asked.variants[0]
    split = replace(
        asked.of_variants(np.array([0, 0])), variants=(small, large), billed_mib=np.array([[160.0, 1600.0]] * 2)
    )
    only_small = np.array([[[[0.0, np.inf]]], [[[0.0, 0.0]]]]).reshape(1, 2, 1, 2)
    cells = replace(
        split,
        mean_ms=split.mean_ms + only_small,
        tail_ms=split.tail_ms + only_small,
        pools=tuple(replace(item, memory_mib_whole=16_000.0) for item in split.pools),
    )
    assert sized_rps(cells) == pytest.approx(80.0)
    less = replace(cells, workloads=(replace(cells.workloads[0], rate_rps=100.0),))
    assert sized_rps(less) == pytest.approx(80.0)
    more = replace(cells, workloads=(workload(0, 160.0, rate_least_rps=90.0),))
    assert sized_rps(more) == pytest.approx(160.0)


def test_the_joint_problem_is_sized_so() -> None:
    """Both T4 bear the demand, and of its margin as much as they can: ten times as dear, nothing else is worth it."""
    service = builders.service(rate_rps_declared=700.0)
    picture = builders.lab([service], policy=builders.policy(demand_headroom=1.2))
    dearer = [
        item if item.name == "t4" else replace(item, prices=tuple(replace(row, usd_per_h=9.0) for row in item.prices))
        for item in picture.gpu_types
    ]
    for types, wanted_rps in ((picture.gpu_types, 840.0), (tuple(dearer), 746.67)):
        priced = replace(picture, gpu_types=types)
        work = read(priced, builders.everything_movable(priced)).problem.workloads[0]
        assert work.rate_least_rps == 700.0
        assert work.rate_rps == pytest.approx(wanted_rps, abs=0.01)
