"""Internals: what each knob saves, the joint problem solved whole and with one knob taken away at a time.

`python -m benchmarks.ablation [--gpus 256] [--services 60] [--seed 1] [--seconds 10]` prints tables and writes
benchmarks/results/ablation.json. Owns what "without a knob" means, by restricting the problem and nothing else, so that
all rows are solved by the same code; greedy plans the same fleet as a snapshot. Two fleets: one with twenty times the
devices, where everything can be served and knobs only save money, and the drawn one, which is 85 % loaded, so that
without a knob part of the demand finds no place. Unserved demand is priced as in the problem.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.instances.family import CAP_PART, Family, family, problem_of
from benchmarks.instances.family_snapshot import snapshot_of
from solvers.domain.ids import WorkloadId
from solvers.engines.deadline import Deadline
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.planners.registry import propose
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout

RESULTS = Path(__file__).resolve().parent / "results" / "ablation.json"
AMPLE_TIMES = 20
GREEDY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of planning."""

    planned: str
    value_usd_per_h: float
    """Cost with unserved demand priced in."""
    usd_per_h: float
    unserved_pct: float
    """Of the summed rates."""
    extra_pct: float
    """Value above the whole joint plan's."""


def main() -> int:
    """Solve, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--services", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each solve")
    asked = parser.parse_args()
    drawn = family(asked.gpus, asked.services, asked.seed)
    ample = replace(drawn, devices=tuple(AMPLE_TIMES * count for count in drawn.devices))
    tables = {}
    for name, instance in (("ample", ample), ("drawn", drawn)):
        rows = _rows(instance, asked.seconds)
        tables[name] = [asdict(row) for row in rows]
        print(f"\nFleet: {name}\n\n{_table(rows)}", flush=True)
    content = {
        "gpus": asked.gpus, "services": asked.services, "seed": asked.seed, "seconds": asked.seconds,
        "fleets": tables,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def _rows(drawn: Family, seconds: float) -> list[Row]:
    problem = problem_of(drawn)
    whole = _solved(problem, seconds)
    value = whole.value(problem)
    rows = [_row("everything jointly", problem, whole, value), _greedy(drawn, problem, value)]
    for name, without in KNOBS.items():
        restricted = without(problem, whole)
        rows.append(_row(f"without {name}", restricted, _solved(restricted, seconds), value))
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _solved(problem: JointProblem, seconds: float) -> Layout:
    return solve(problem, SolveOrder(), Deadline(seconds=seconds))


def _row(name: str, problem: JointProblem, layout: Layout, reference: float) -> Row:
    value = layout.value(problem)
    missing = np.maximum(0.0, problem.rate_rps - layout.served_rps(problem)).sum() / problem.rate_rps.sum()
    return Row(
        planned=name, value_usd_per_h=value, usd_per_h=layout.usd_per_h, unserved_pct=100 * float(missing),
        extra_pct=100 * (value / reference - 1),
    )  # fmt: skip


def _greedy(drawn: Family, problem: JointProblem, reference: float) -> Row:
    snapshot = snapshot_of(drawn)
    services = tuple(WorkloadId(service.id) for service in snapshot.services)
    request = PlanRequest(snapshot=snapshot, movable=services, budget=Budget(deadline_s=GREEDY_S), seed=1)
    plan = propose("greedy", request).plan
    if plan is None:
        raise RuntimeError("greedy has no plan")
    served = dict.fromkeys(services, 0.0)
    for item in plan.assignments:
        served[item.workload] += item.capacity_rps
    missing = np.array([max(0.0, work.rate_rps - served[work.id]) / work.rate_rps for work in problem.workloads])
    missing[missing < 1e-4] = 0.0
    value = plan.objective.cost_usd_per_h + float(missing @ problem.unserved_usd)
    return Row(
        planned="greedy", value_usd_per_h=value, usd_per_h=plan.objective.cost_usd_per_h,
        unserved_pct=100 * float(missing @ problem.rate_rps / problem.rate_rps.sum()),
        extra_pct=100 * (value / reference - 1),
    )  # fmt: skip


def without_type(problem: JointProblem, _: Layout) -> JointProblem:
    """Every service is tied to one GPU type, dealt out in proportion to the fleet."""
    rng = np.random.default_rng(1)
    weight = problem.pool_devices / problem.pool_devices.sum()
    allowed = np.zeros_like(problem.allowed)
    for variant in range(len(problem.variants)):
        able = np.array([_able(problem, pool, variant) for pool in range(len(problem.pools))])
        odds = np.where(able, weight, 0.0)
        pool = int(rng.choice(len(odds), p=odds / odds.sum())) if odds.sum() > 0 else 0
        allowed[pool, variant] = True
    return replace(problem, allowed=allowed)


def _able(problem: JointProblem, pool: int, variant: int) -> bool:
    """Whether a service keeps its promise on whole devices of a pool."""
    limit_ms = problem.workloads[problem.variants[variant].workload].limit_ms
    tables = problem.kind_table[problem.kind_pool == pool]
    return bool((problem.tail_ms[tables, variant, -1] <= limit_ms).any())


def without_mix(problem: JointProblem, whole: Layout) -> JointProblem:
    """Every service keeps to the one type that carries most of it in the whole plan."""
    carried = np.zeros((len(problem.pools), len(problem.variants)))
    for pattern, count in zip(whole.patterns, whole.counts, strict=True):
        pool = int(problem.kind_pool[pattern.kind])
        for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True):
            carried[pool, variant] += count * capacity
    best = carried.argmax(axis=0)
    return replace(problem, allowed=np.arange(len(problem.pools))[:, None] == best[None, :])


def without_share(problem: JointProblem, _: Layout) -> JointProblem:
    """Only halves and whole devices."""
    keep = np.isin(problem.shares_pct, (50, 100))
    return replace(
        problem, shares_pct=problem.shares_pct[keep], share_step_pct=50, mean_ms=problem.mean_ms[:, :, keep],
        tail_ms=problem.tail_ms[:, :, keep], power_w=problem.power_w[:, :, keep],
    )  # fmt: skip


def without_batch(problem: JointProblem, _: Layout) -> JointProblem:
    """One input at a time."""
    return replace(
        problem, batches=problem.batches[:1], mean_ms=problem.mean_ms[..., :1], tail_ms=problem.tail_ms[..., :1],
        power_w=problem.power_w[..., :1], memory_mib=problem.memory_mib[..., :1],
    )  # fmt: skip


def without_clock(problem: JointProblem, _: Layout) -> JointProblem:
    """The highest clock everywhere."""
    highest = np.array(
        [
            clock == problem.kind_clock_mhz[problem.kind_pool == pool].max()
            for pool, clock in zip(problem.kind_pool, problem.kind_clock_mhz, strict=True)
        ]
    )
    return replace(
        problem, kind_pool=problem.kind_pool[highest], kind_clock_mhz=problem.kind_clock_mhz[highest],
        kind_table=problem.kind_table[highest],
    )  # fmt: skip


def without_power(problem: JointProblem, _: Layout) -> JointProblem:
    """Draw is not planned: caps hold because only as many devices run as could draw all they may."""
    pools = tuple(replace(pool, devices=int(pool.devices * CAP_PART)) for pool in problem.pools)
    return replace(problem, pools=pools)


def without_colocation(problem: JointProblem, _: Layout) -> JointProblem:
    """One replica on a device."""
    return replace(problem, pools=tuple(replace(pool, clients=1) for pool in problem.pools))


KNOBS: dict[str, Callable[[JointProblem, Layout], JointProblem]] = {
    "choice of type": without_type,
    "mix of types": without_mix,
    "fine shares": without_share,
    "batches": without_batch,
    "clocks": without_clock,
    "planned power": without_power,
    "co-location": without_colocation,
}


def _table(rows: list[Row]) -> str:
    lines = ["| planned | $/h | unserved | with unserved priced in | above the joint plan |", "|---|---|---|---|---|"]
    lines.extend(
        f"| {row.planned} | {row.usd_per_h:.2f} | {row.unserved_pct:.2f} % | {row.value_usd_per_h:.2f} "
        f"| {row.extra_pct:+.1f} % |"
        for row in rows
    )
    return "\n".join(lines)


if __name__ == "__main__":
    begun = time.monotonic()
    code = main()
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    sys.exit(code)
