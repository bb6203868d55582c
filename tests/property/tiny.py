"""Joint problems small enough for the oracle, drawn with every rule in them: two pools, three or four demands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, WorkloadId
from solvers.planners.joint.reading.work import split
from solvers.problems.joint import Cap, JointProblem, Pool, Variant, Workload

STEP_PCT = 25
SHARES = np.arange(STEP_PCT, 101, STEP_PCT)
BATCHES = np.array([1, 4], dtype=np.int64)


def tiny(seed: int) -> JointProblem:
    """Two pools of two and one devices, the second at two clocks; three demands, one of which has two networks."""
    rng = np.random.default_rng(seed)
    pools = (
        _pool("small", 2, float(rng.uniform(0.3, 1.2)), 120.0),
        _pool("large", 1, float(rng.uniform(1.5, 3)), 300.0),
    )
    owner = np.array([0, 1, 2, int(rng.integers(0, 3))])
    speed = np.array([1.0, 3.0, 2.1])
    part = (SHARES / 100.0) ** rng.uniform(0.5, 1.0, len(owner))[:, None]
    work = rng.uniform(3, 12, len(owner))[:, None] * (0.4 + 0.3 * BATCHES)
    mean = 1 + work[None, :, None, :] / (part[None, :, :, None] * speed[:, None, None, None])
    power = np.array([70.0, 200.0, 110.0])[:, None, None, None] * part[None, :, :, None] * np.ones_like(mean)
    memory = rng.uniform(500, 3000, len(owner))[None, :, None] * np.ones((3, 1, len(BATCHES)))
    by_variant = (3, len(owner))
    allowed = rng.random((2, len(owner))) < 0.85
    allowed[1] |= ~allowed[0]
    rate = rng.uniform(0.1, 0.6, 3) * 0.8 * 1000 * 4 / mean[0, :3, -1, 1]
    return JointProblem(
        pools=pools,
        kind_pool=np.array([0, 1, 1]),
        kind_clock_mhz=np.array([1000, 1500, 1000]),
        kind_table=np.arange(3),
        workloads=tuple(_workload(number, float(rate[number]), rng) for number in range(3)),
        variants=tuple(
            Variant(workload=int(item), model=ModelName(f"net-{place}")) for place, item in enumerate(owner)
        ),
        shares_pct=SHARES,
        batches=BATCHES,
        mean_ms=mean,
        tail_ms=mean * 1.1,
        power_w=power,
        memory_mib=memory,
        pressure=rng.uniform(0.05, 0.4, by_variant),
        exponent=np.full(by_variant, 0.5),
        sensitivity=rng.uniform(0.1, 0.6, by_variant),
        crowd=np.where(rng.random(by_variant) < 0.2, 1.1, 1.0),
        allowed=allowed,
        caps=(Cap(name="all", limit_w=float(rng.uniform(150, 450)), devices=(2, 1)),),
        quotas=((ProjectName("red"), float(rng.choice([0.5, 1.0, 3.0]))),),
        usd_per_wh=0.0003,
        by_share=bool(rng.random() < 0.2),
        share_step_pct=STEP_PCT,
    )


def tiniest(seed: int) -> JointProblem:
    """The same with one device in each pool."""
    made = tiny(seed)
    pools = tuple(replace(item, devices=1) for item in made.pools)
    caps = tuple(replace(item, devices=(1, 1)) for item in made.caps)
    return replace(made, pools=pools, caps=caps)


def spread(seed: int) -> JointProblem:
    """With a device of each pool in a failure domain of its own, demands that ask for two, and a training job."""
    made, rng = tiny(seed), np.random.default_rng(seed + 1000)
    pools = tuple(replace(item, failure_domain=place) for place, item in enumerate(made.pools))
    both = replace(made.workloads[0], domains_min=2, replicas_max=50, budget_usd_per_h=np.inf)
    value_usd = float(rng.choice([0.05, 0.4, 1.5]))
    job = replace(made.workloads[2], rate_least_rps=0.0, unserved_usd=value_usd, replicas_min=0, replicas_max=1)
    works = (both, made.workloads[1], replace(job, may_wait=True, burst=0.0, end_to_end=False))
    allowed = made.allowed | (made.variant_workload == 0)
    return replace(made, pools=pools, workloads=works, allowed=allowed)


def billed(seed: int) -> JointProblem:
    """One whose memory grows with the batch and is paid."""
    return replace(tiniest(seed), by_share=False, by_memory=True)


def used_mib(problem: JointProblem) -> Floats:
    """A single input uses less."""
    return problem.memory_mib * np.array([0.4, 1.0])


def apart(seed: int) -> JointProblem:
    """The same with every batch a choice of its own, as the planner reads it."""
    problem = billed(seed)
    return split(problem, used_mib(problem))


def permuted(problem: JointProblem, seed: int) -> JointProblem:
    """The same problem with its demands, networks and pools in another order."""
    rng = np.random.default_rng(seed)
    pools, works, nets, tables = (
        rng.permutation(size)
        for size in (len(problem.pools), len(problem.workloads), len(problem.variants), problem.kinds)
    )
    pool_now, work_now = np.argsort(pools), np.argsort(works)
    by_variant = np.ix_(tables, nets)
    return replace(
        problem,
        pools=tuple(problem.pools[place] for place in pools),
        kind_pool=pool_now[problem.kind_pool[tables]],
        kind_clock_mhz=problem.kind_clock_mhz[tables],
        kind_table=np.arange(problem.kinds),
        workloads=tuple(
            replace(
                problem.workloads[place], avoids=tuple(int(work_now[foe]) for foe in problem.workloads[place].avoids)
            )
            for place in works
        ),
        variants=tuple(
            replace(problem.variants[place], workload=int(work_now[problem.variants[place].workload])) for place in nets
        ),
        allowed=problem.allowed[np.ix_(pools, nets)],
        caps=tuple(replace(cap, devices=tuple(cap.devices[place] for place in pools)) for cap in problem.caps),
        mean_ms=problem.mean_ms[by_variant],
        tail_ms=problem.tail_ms[by_variant],
        power_w=problem.power_w[by_variant],
        memory_mib=problem.memory_mib[by_variant],
        pressure=problem.pressure[by_variant],
        exponent=problem.exponent[by_variant],
        sensitivity=problem.sensitivity[by_variant],
        crowd=problem.crowd[by_variant],
    )


def _pool(name: str, devices: int, usd_per_h: float, limit_w: float) -> Pool:
    return Pool(
        name=name,
        gpu_type=GpuTypeName(name),
        devices=devices,
        usd_per_h=usd_per_h,
        memory_mib=8000.0,
        idle_w=15.0,
        limit_w=limit_w,
        clients=3,
        memory_mib_whole=8200.0,
    )


def _workload(number: int, rate_rps: float, rng: np.random.Generator) -> Workload:
    made = _drawn(number, rate_rps, rng)
    return replace(made, priority=int(made.unserved_usd))


def _drawn(number: int, rate_rps: float, rng: np.random.Generator) -> Workload:
    return Workload(
        id=WorkloadId(f"s{number}"),
        project=ProjectName("red" if number == 0 else "blue"),
        rate_rps=rate_rps,
        rate_least_rps=1.0,
        unserved_usd=float(rng.choice([50.0, 1000.0])),
        limit_ms=float(rng.uniform(60, 300)),
        burst=float(rng.choice([0.0, 4.6])),
        end_to_end=bool(rng.random() < 0.5),
        utilisation_max=0.8,
        replicas_min=int(rng.integers(0, 3)),
        replicas_max=int(rng.choice([2, 50])),
        per_device_max=int(rng.integers(1, 3)),
        dedicated=bool(rng.random() < 0.1),
        budget_usd_per_h=float(rng.choice([1.5, np.inf])),
        avoids=((number + 1) % 3,) if rng.random() < 0.2 else (),
    )
