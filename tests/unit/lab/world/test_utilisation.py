"""Utilisation as GPU monitors tell it: against what the fixtures of HetSev's paper say of replicas that never wait."""

from __future__ import annotations

import pytest

from lab.claims.hetsev.worlds import hetsev_replicas
from lab.world.device import DeviceLoad, Tenant, kernels_part, settle
from solvers.sim.truth.catalogue import GPUS

V100 = GPUS["v100"]


def part(tenants: int, rate_rps: float, model: str = "resnet50-tfs", batch: int = 8) -> float:
    each = Tenant(model=model, share_pct_sm=100, batch=batch, rate_rps=rate_rps)
    # The fixtures know no power limit.
    load = DeviceLoad(gpu=V100, clock_mhz_sm=V100.clock_mhz_sm_max, power_limit_w=1e4, tenants=(each,) * tenants)
    return kernels_part(load, settle(load))


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_tenants_that_never_wait_are_as_in_the_fixtures(replicas: int) -> None:
    for known in hetsev_replicas():
        told = part(replicas, 1e5, known.model, known.batch)
        assert told == pytest.approx(known.utilisation[replicas - 1], abs=0.01)


def test_an_idle_device_runs_no_kernels_and_less_load_means_less() -> None:
    assert part(2, 0.0) == 0.0
    assert 0.0 < part(1, 100.0) < part(1, 300.0) < part(1, 1e5) < 1.0
