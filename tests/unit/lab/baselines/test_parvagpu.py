"""ParvaGPU: segments of the most efficient size, the rest on the smallest that suffices, little-filled GPUs emptied."""

from __future__ import annotations

import pytest

from solvers.domain.workload import Service
from tests import builders
from tests.unit.lab.baselines.course import Course, farm


def v100s(count: int, *services: Service) -> Course:
    devices = [builders.device("v", at, "v100") for at in range(count)]
    return Course("parvagpu", builders.snapshot(devices, services))


@pytest.mark.parametrize("rate", [10.0, 250.0, 1400.0])
def test_segments_are_multiples_of_ten_and_serve_the_rate(rate: float) -> None:
    plan = Course("parvagpu", farm(builders.service())).step(vision=rate)
    assert not plan.unplaced
    assert all(item.share_pct_sm % 10 == 0 for item in plan.assignments)
    assert sum(item.capacity_rps for item in plan.assignments) >= rate


def test_at_most_one_segment_is_of_another_size() -> None:
    plan = v100s(4, builders.service(rate_rps_declared=1700.0)).step()
    shares = sorted(item.share_pct_sm for item in plan.assignments)
    assert len(shares) > 1
    assert len(set(shares[1:])) == 1
    assert shares[0] <= shares[1]


def test_small_services_share_one_gpu() -> None:
    services = [builders.service(name, model=name, rate_rps_declared=20.0) for name in ("a", "b", "c")]
    plan = v100s(3, *services).step()
    assert not plan.unplaced
    assert len({item.device for item in plan.assignments}) == 1


def test_larger_segments_go_first_and_never_beside_their_own_service() -> None:
    services = [builders.service("a", model="a", rate_rps_declared=2000.0), builders.service("b", model="b")]
    plan = v100s(4, *services).step()
    assert not plan.unplaced
    mine = [item.device for item in plan.assignments if item.workload == "demo/a"]
    assert len(mine) == len(set(mine)) > 1
