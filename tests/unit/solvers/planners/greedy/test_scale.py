"""A large fleet is planned within a cycle, and what it plans verifies."""

from __future__ import annotations

import time

import pytest

from solvers.domain.snapshot import Snapshot
from solvers.planners.registry import propose
from solvers.verify.checks import is_fatal, verify
from tests import builders

TYPES = ("t4", "v100", "a100", "l4")


def large(device_count: int, service_count: int) -> Snapshot:
    devices = [
        builders.device(f"n{index // 8:03d}", index % 8, TYPES[(index // 8) % 4]) for index in range(device_count)
    ]
    services = [
        builders.service(
            f"s{index:03d}",
            model=f"m{index % 40}",
            slo=builders.slo(20.0 + index % 60),
            rate_rps_declared=float(100 + (index * 137) % 2000),
            replicas_max=64,
        )
        for index in range(service_count)
    ]
    profiles = [builders.profile(f"m{k}", name, work=0.3 + (k % 17) / 6) for k in range(40) for name in TYPES]
    return builders.snapshot(devices, services, profiles=profiles)


@pytest.mark.slow
def test_a_thousand_gpus_and_two_hundred_services() -> None:
    picture = large(1000, 200)
    began_s = time.process_time()
    plan = propose("greedy", builders.request(picture)).plan
    assert time.process_time() - began_s < 15.0
    assert plan is not None
    assert len(plan.assignments) > 500
    assert not is_fatal(verify(picture, plan))
