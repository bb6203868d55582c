"""Snapshots of the synthetic family say what its joint problem says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.instances.family import CARDS, SHARES_PCT, family_problem
from benchmarks.instances.family_snapshot import family_snapshot
from solvers.domain.codec import canonical_json, digest, from_json
from solvers.domain.ids import WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.models.options import memory_limit_mib
from solvers.planners.joint.reading.formulation import read

GPUS, SERVICES, SEED = 30, 6, 5


def test_it_reads_back_the_same() -> None:
    snapshot = family_snapshot(GPUS, SERVICES, SEED)
    assert digest(from_json(Snapshot, canonical_json(snapshot))) == digest(snapshot)
    assert len(snapshot.devices) == GPUS
    ids = [device.id for device in snapshot.devices]
    assert ids == sorted(set(ids))


def test_profiles_carry_the_numbers_of_the_problem() -> None:
    snapshot, problem = family_snapshot(GPUS, SERVICES, SEED), family_problem(GPUS, SERVICES, SEED)
    profiles = snapshot.profiles_by_key()
    for kind in range(problem.kinds):
        pool = problem.pools[int(problem.kind_pool[kind])]
        for number, variant in enumerate(problem.variants):
            grid = profiles[(variant.model, pool.gpu_type)].grid
            assert grid is not None
            clock = grid.clocks_mhz_sm.index(int(problem.kind_clock_mhz[kind]))
            shape = (len(grid.clocks_mhz_sm), len(SHARES_PCT), len(problem.batches))
            latency, power = (np.reshape(values, shape)[clock] for values in (grid.latency_ms, grid.power_w))
            assert latency == pytest.approx(problem.mean_ms[kind, number], rel=1e-5)
            assert power == pytest.approx(problem.power_w[kind, number], rel=1e-5)
            limits = np.array([memory_limit_mib(memory) for memory in grid.memory_mib])
            over = limits - problem.memory_mib[kind, number]
            assert over.min() >= 0
            assert over.max() <= 65


def test_rules_of_the_fleet_are_the_same() -> None:
    snapshot, problem = family_snapshot(GPUS, SERVICES, SEED), family_problem(GPUS, SERVICES, SEED)
    assert sum(cap.limit_w for cap in snapshot.power_caps) == pytest.approx(sum(cap.limit_w for cap in problem.caps))
    for service, work in zip(snapshot.services, problem.workloads, strict=True):
        assert service.id == work.id
        assert service.rate_rps_declared == pytest.approx(work.rate_rps, rel=1e-5)
        assert service.slo.latency_ms == pytest.approx(work.limit_ms, rel=1e-5)
        assert service.policy is None
    assert snapshot.policy.usd_per_wh(snapshot.taken_at_s) == pytest.approx(problem.usd_per_wh)
    types = snapshot.gpu_types_by_name()
    counts = [sum(device.gpu_type == card.name for device in snapshot.devices) for card in CARDS]
    assert counts == list(problem.pool_devices)
    assert [types[pool.gpu_type].memory_mib for pool in problem.pools] == [pool.memory_mib for pool in problem.pools]


def test_the_planner_reads_the_same_problem_from_the_snapshot() -> None:
    snapshot, drawn = family_snapshot(GPUS, SERVICES, SEED), family_problem(GPUS, SERVICES, SEED)
    problem = read(snapshot, tuple(WorkloadId(service.id) for service in snapshot.services)).problem
    types = [pool.gpu_type for pool in problem.pools]
    assert {pool.gpu_type: pool.devices for pool in drawn.pools} == {
        pool.gpu_type: pool.devices for pool in problem.pools
    }
    assert sorted(cap.limit_w for cap in problem.caps) == pytest.approx(sorted(cap.limit_w for cap in drawn.caps))
    assert problem.usd_per_wh == pytest.approx(drawn.usd_per_wh)
    for kind in range(drawn.kinds):
        pool = types.index(drawn.pools[int(drawn.kind_pool[kind])].gpu_type)
        same = (problem.kind_pool == pool) & (problem.kind_clock_mhz == drawn.kind_clock_mhz[kind])
        (table,) = problem.kind_table[same]
        for ours, theirs in (
            (drawn.mean_ms, problem.mean_ms),
            (drawn.tail_ms, problem.tail_ms),
            (drawn.power_w, problem.power_w),
        ):
            assert theirs[table] == pytest.approx(ours[kind], rel=1e-5)
        for numbers, others in ((drawn.pressure, problem.pressure), (drawn.exponent, problem.exponent)):
            assert others[table] == pytest.approx(numbers[kind], rel=1e-5)
        assert problem.sensitivity[table] == pytest.approx(drawn.sensitivity[kind], rel=1e-5)
        assert np.abs(problem.memory_mib[table] - drawn.memory_mib[kind]).max() <= 65
    for number, work in enumerate(drawn.workloads):
        seen = problem.workloads[number]
        assert (seen.id, seen.per_device_max, seen.end_to_end, seen.burst) == (work.id, 1, False, 0.0)
        assert (seen.rate_rps, seen.limit_ms) == pytest.approx((work.rate_rps, work.limit_ms), rel=1e-5)
