"""Random joint problems with every rule in them, small enough to look at."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, WorkloadId
from solvers.problems.joint import Cap, JointProblem, Pool, Variant, Workload
from solvers.problems.patterns import Layout
from tests.judgement import judge

CLOCKS = (1.0, 0.7)
BATCHES = np.array([1, 4, 16], dtype=np.int64)
SHARES = np.array([10, 20, 40, 60, 80, 100], dtype=np.int64)
BASES = ("device", "share", "memory")
"""What cost is about."""


def scene(seed: int, services: int = 8, devices: int = 6, basis: str = "device") -> JointProblem:
    """Three pools at two clocks; what every rule needs drawn at random. `basis`: one of `BASES`."""
    rng = np.random.default_rng(seed)
    speed = np.array([1.0, 2.0, 4.0])
    pools = tuple(
        Pool(
            name=f"pool-{index}", gpu_type=GpuTypeName(f"gpu-{index}"), devices=devices, usd_per_h=float(price),
            memory_mib=12_000.0, idle_w=20.0, limit_w=150.0 + 50 * index, clients=int(rng.integers(3, 6)),
            memory_mib_whole=12_500.0,
        )
        for index, price in enumerate((0.5, 1.1, 2.5))
    )  # fmt: skip
    tables = [(index, clock) for index in range(3) for clock in CLOCKS]
    owner = [*range(services), *(int(item) for item in rng.integers(0, services, 2))]
    shape = (len(tables), len(owner), len(SHARES), len(BATCHES))
    work = rng.uniform(2, 12, len(owner))[:, None, None] * (0.3 + 0.25 * BATCHES)[None, None, :]
    part = (SHARES[None, :, None] / 100) ** rng.uniform(0.6, 1.0, len(owner))[:, None, None]
    mean, power = np.empty(shape), np.empty(shape)
    for table, (index, clock) in enumerate(tables):
        mean[table] = 1 + work / (part * speed[index] * clock)
        power[table] = 100 * clock**2 * part * np.ones_like(work)
    mean[:, 0, 0, :] = np.inf
    by_variant = (len(tables), len(owner))
    memory = 500 + rng.uniform(200, 2500, len(owner))[None, :, None] * (1 + 0.1 * BATCHES)[None, None, :]
    allowed = rng.random((3, len(owner))) < 0.85
    allowed[2] = True
    numbers = np.arange(len(tables), dtype=np.int64)
    return JointProblem(
        pools=pools,
        kind_pool=numbers // len(CLOCKS),
        kind_clock_mhz=1000 + 100 * numbers,
        kind_table=numbers,
        workloads=tuple(_workload(index, rng, services) for index in range(services)),
        variants=tuple(Variant(workload=work, model=ModelName(f"net-{index}")) for index, work in enumerate(owner)),
        shares_pct=SHARES,
        batches=BATCHES,
        mean_ms=mean,
        tail_ms=mean * 1.1,
        power_w=power,
        memory_mib=np.broadcast_to(memory, (*by_variant, len(BATCHES))),
        pressure=rng.uniform(0.05, 0.4, by_variant),
        exponent=np.full(by_variant, 0.5),
        sensitivity=rng.uniform(0.1, 0.6, by_variant),
        crowd=np.where(rng.random(by_variant) < 0.2, 1.1, 1.0),
        allowed=allowed,
        caps=(Cap(name="all", limit_w=float(80 * 3 * devices), devices=(devices,) * 3),),
        quotas=((ProjectName("red"), 3.0 * devices / 2),),
        usd_per_wh=0.0002,
        by_share=basis == "share",
        by_memory=basis == "memory",
    )


def _workload(index: int, rng: np.random.Generator, services: int) -> Workload:
    return Workload(
        id=WorkloadId(f"s{index}"),
        project=ProjectName("red" if index % 3 == 0 else "blue"),
        rate_rps=float(rng.uniform(20, 200)),
        rate_least_rps=1.0,
        unserved_usd=float(rng.choice([100.0, 1000.0])),
        limit_ms=float(rng.uniform(40, 400)),
        burst=float(rng.choice([0.0, 4.6])),
        end_to_end=bool(rng.random() < 0.6),
        utilisation_max=0.8,
        replicas_min=int(rng.integers(0, 3)),
        replicas_max=int(rng.choice([3, 50])),
        per_device_max=int(rng.integers(1, 3)),
        dedicated=bool(rng.random() < 0.1),
        budget_usd_per_h=float(rng.choice([4.0, np.inf])),
        avoids=((index + 1) % services,) if rng.random() < 0.2 else (),
    )


def check_layout(problem: JointProblem, layout: Layout) -> None:
    """Every rule of a device and of the whole, checked pattern by pattern with plain sums."""
    assert len(layout.patterns) == len(layout.counts)
    assert all(count >= 1 for count in layout.counts)
    pools, replicas = Counter[int](), Counter[int]()
    caps, bills = defaultdict[int, float](float), defaultdict[int, float](float)
    quotas = defaultdict[str, float](float)
    for item, count in zip(layout.patterns, layout.counts, strict=True):
        again = judge(problem, item.kind, item.variants, item.shares_pct)
        assert again is not None
        assert again.capacity_rps == pytest.approx(item.capacity_rps, rel=1e-9)
        assert again.usd_per_h == pytest.approx(item.usd_per_h, rel=1e-9)
        assert all(share % problem.share_step_pct == 0 or share == 100 for share in item.shares_pct)
        number = int(problem.kind_pool[item.kind])
        pool = problem.pools[number]
        pools[number] += count
        for place, cap in enumerate(problem.caps):
            assert cap.devices[number] in (0, pool.devices)
            caps[place] += count * (item.draw_w - pool.idle_w) * (cap.devices[number] > 0)
        for variant, share in zip(item.variants, item.shares_pct, strict=True):
            work = problem.workloads[problem.variants[variant].workload]
            replicas[problem.variants[variant].workload] += count
            bills[problem.variants[variant].workload] += count * share / 100 * pool.usd_per_h
            quotas[work.project] += count * share / 100 * pool.gpu_part
    assert all(pools[number] <= pool.devices for number, pool in enumerate(problem.pools))
    for place, cap in enumerate(problem.caps):
        idle = sum(devices * pool.idle_w for devices, pool in zip(cap.devices, problem.pools, strict=True))
        assert caps[place] + idle <= cap.limit_w * (1 + 1e-6)
    assert all(quotas[project] <= limit + 1e-6 for project, limit in problem.quotas)
    for number, work in enumerate(problem.workloads):
        assert replicas[number] <= work.replicas_max
        assert bills[number] <= work.budget_usd_per_h + 1e-6
