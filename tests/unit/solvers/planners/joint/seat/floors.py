"""A small floor to seat on: two equal pools in two failure domains, one network per workload, numbers by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, ProjectName, WorkloadId
from solvers.planners.joint.seat.seats import Floor, Held
from solvers.problems.joint import JointProblem, Pool, Variant, Workload
from solvers.problems.patterns import Pattern
from tests.judgement import judge

SHARES = np.array([20, 40, 60, 80, 100], dtype=np.int64)
BATCHES = np.array([1, 4], dtype=np.int64)
CLOCKS = (600, 1000)
IDLE_W = 10.0


def problem(networks: int = 4, devices: Sequence[int] = (4,), **changes: Any) -> JointProblem:
    """A replica serves 1 rps per percent of share at the high clock, 0.7 at the low one, and draws 1 W or 0.5 W."""
    pools = tuple(
        Pool(
            name=f"pool-{number}",
            gpu_type=GpuTypeName("gpu"),
            devices=count,
            usd_per_h=1.0,
            memory_mib=10_000.0,
            idle_w=IDLE_W,
            limit_w=200.0,
            clients=4,
            failure_domain=number,
        )
        for number, count in enumerate(devices)
    )
    shape = (len(CLOCKS), networks, len(SHARES), len(BATCHES))
    speed = np.array([0.7, 1.0])[:, None, None, None]
    rate = speed * SHARES[None, None, :, None] * np.ones(shape) / 0.8
    rate[..., 0] *= 0.5
    watts = np.array([0.5, 1.0])[:, None, None, None] * SHARES[None, None, :, None] * np.ones(shape)
    by_variant = (len(CLOCKS), networks)
    numbers = np.arange(len(pools) * len(CLOCKS), dtype=np.int64)
    made = {
        "pools": pools,
        "kind_pool": numbers // len(CLOCKS),
        "kind_clock_mhz": np.array(CLOCKS * len(pools), dtype=np.int64),
        "kind_table": numbers % len(CLOCKS),
        "workloads": tuple(workload(number) for number in range(networks)),
        "variants": tuple(Variant(workload=number, model=ModelName(f"net-{number}")) for number in range(networks)),
        "shares_pct": SHARES,
        "batches": BATCHES,
        "mean_ms": 1000 * BATCHES / rate,
        "tail_ms": 1000 * BATCHES / rate,
        "power_w": watts,
        "memory_mib": np.broadcast_to(1000.0 + 100 * BATCHES, (*by_variant, len(BATCHES))),
        "pressure": np.zeros(by_variant),
        "exponent": np.ones(by_variant),
        "sensitivity": np.zeros(by_variant),
        "crowd": np.ones(by_variant),
        "allowed": np.ones((len(pools), networks), dtype=bool),
    }
    return JointProblem(**(made | changes))


def workload(number: int, rate_rps: float = 20.0, **changes: Any) -> Workload:
    """Wants one share step."""
    made: dict[str, object] = {
        "id": WorkloadId(f"demo/w{number}"),
        "project": ProjectName("demo"),
        "rate_rps": rate_rps,
        "rate_least_rps": rate_rps,
        "unserved_usd": 100.0,
        "utilisation_max": 0.8,
    }
    return Workload(**(made | changes))


def pattern(of: JointProblem, *members: tuple[int, int], kind: int = 1) -> Pattern:
    """These (variant, share) on one device of the first pool, at the high clock."""
    made = judge(of, kind, [variant for variant, _ in members], [share for _, share in members])
    assert made is not None
    return made


def held(variant: int, share_pct: int, memory_mib: int = 1400, launch_s: float = 10.0) -> Held:
    """A standing replica that was planned to serve 1 rps per percent."""
    return Held(
        variant=variant,
        share_pct=share_pct,
        memory_mib=memory_mib,
        launch_s=launch_s,
        capacity_rps=float(share_pct),
    )


def floor(
    of: JointProblem, stands: Mapping[int, Sequence[Held]] | None = None, nodes: tuple[int, float] | None = None
) -> Floor:
    """`nodes`: so many devices in a row share a node, whose devices may draw so many watts above idle."""
    count = sum(pool.devices for pool in of.pools)
    domain_of = np.full((count, 3), -1, dtype=np.int64)
    room_w = np.zeros(0)
    if nodes is not None:
        domain_of[:, 0] = np.arange(count) // nodes[0]
        room_w = np.full(int(domain_of[:, 0].max()) + 1, nodes[1])
    sizes = [pool.devices for pool in of.pools]
    return Floor(
        problem=of,
        names=tuple(DeviceId(f"GPU-{number}") for number in range(count)),
        pool_of=np.repeat(np.arange(len(sizes)), sizes),
        held={device: tuple(items) for device, items in (stands or {}).items()},
        domain_of=domain_of,
        room_w=room_w,
    )
