"""What a job is worth: by its reference GPU, and by nothing else that the fleet has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.problems.fleet import open_fleet
from solvers.problems.jobs import JobWorth, job_worth
from solvers.problems.needs import needs_of
from tests import builders


def worth(*gpu_types: str, reference: str = "v100", share_pct_sm_max: int = 100) -> JobWorth:
    """Of a job in a fleet of one device of each type."""
    made = {"gpu_type_reference": reference, "share_pct_sm_max": share_pct_sm_max, "value_usd_per_h": 2.0}
    job = builders.job("train", **made)
    devices = [builders.device(f"node-{name}", 0, name) for name in gpu_types]
    catalogue = tuple(builders.gpu_type(name) for name in ("a100", "t4", "v100"))
    picture = replace(builders.snapshot(devices, jobs=(job,)), gpu_types=catalogue)
    (need,) = needs_of(picture, builders.everything_movable(picture))
    return job_worth(picture, open_fleet(picture, {}), need, job)


@pytest.mark.parametrize(("most_pct", "at_best"), [(100, 2.0), (60, 1.2)])
def test_an_hour_on_the_whole_reference_gpu_is_worth_what_was_declared(most_pct: int, at_best: float) -> None:
    found = worth("v100", share_pct_sm_max=most_pct)
    assert found.usd_per_h == pytest.approx(at_best)
    assert found.earned_usd(0, 50) == pytest.approx(1.0)


def test_elsewhere_it_is_worth_as_much_more_or_less_as_it_is_faster_or_slower() -> None:
    assert worth("a100").earned_usd(0, 100) == pytest.approx(2.0 * 2.4)
    assert worth("t4").earned_usd(0, 100) == pytest.approx(2.0 * 0.4)


@pytest.mark.parametrize("reference", ["v100", "t4", "a100"])
def test_what_joins_the_fleet_makes_it_worth_no_less_where_it_runs(reference: str) -> None:
    """Else whoever adds a faster GPU stops what runs on the others."""
    alone, joined = worth("t4", reference=reference), worth("t4", "a100", reference=reference)
    slow = joined.by_class.index(min(joined.by_class))
    assert joined.earned_usd(slow, 70) == pytest.approx(alone.earned_usd(0, 70))
    assert joined.opens(slow, 100) == alone.opens(0, 100)
