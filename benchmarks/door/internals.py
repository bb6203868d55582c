"""Internals, not what a user gets: the core's solve of drawn arrays, by phase, beside its relaxed optimum.

    python -m benchmarks.door.internals 1000x200:10 64x20:2 --seed 1 2 --counted

One line per size (GPUs x services : seconds) and seed, each in a process of its own. Ratios are to the relaxed optimum
over the patterns found (no bound, but what column generation reaches) and to the proven bound. No snapshot is read, no
plan seated, written or verified: `python -m benchmarks.door` measures those.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.door.cases import COUNTED_LARGE_S
from benchmarks.instances.family import family_problem
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.solve import SolveOrder, first_layout, solve

SIZES = ("8x5:1", "64x20:2", "256x60:5", "1000x200:10")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
UNITS_PER_S = 1000
PHASES = ("first_s", "generate_s", "count_s", "dive_s", "complete_s", "improve_s", "bound_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What to solve, and for how long."""

    gpus: int
    services: int
    seconds: float

    @classmethod
    def of(cls, text: str) -> Size:
        """From `gpus x services : seconds`."""
        size, _, seconds = text.partition(":")
        gpus, _, services = size.partition("x")
        return cls(gpus=int(gpus), services=int(services), seconds=float(seconds or 10))


def measured(size: Size, seed: int, counted: bool) -> dict[str, float]:
    """Solve one instance here; `counted`: by a thousand units of work for every second, whatever the time."""
    problem = family_problem(size.gpus, size.services, seed)
    began_s = time.perf_counter()
    first_layout(problem)
    first_s = time.perf_counter() - began_s
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    units = int(UNITS_PER_S * size.seconds)
    deadline = Deadline(COUNTED_LARGE_S, units) if counted else Deadline(size.seconds)
    layout = solve(problem, SolveOrder(seed=seed), deadline)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    missing = layout.missing(problem)
    value = layout.value(problem)
    relaxed = layout.facts.get("relaxed_usd_per_h", float("nan"))
    return {
        "first_alone_s": first_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "usd_per_h": layout.usd_per_h,
        "value": value,
        "relaxed": relaxed,
        "bound": layout.bound_usd_per_h or float("nan"),
        "over_relaxed_pct": 100 * (value / relaxed - 1),
        "over_bound_pct": 100 * (value / (layout.bound_usd_per_h or float("nan")) - 1),
        "short_services": float((missing > 0).sum()),
        "short_rates": float(missing.sum()),
        "devices": float(np.sum(layout.counts)),
        "columns": layout.facts.get("columns", 0.0),
        "rounds": layout.facts.get("rounds", 0.0),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{name: layout.facts.get(name, 0.0) for name in PHASES},
    }


def _run(command: list[str]) -> str:
    environment = os.environ | ONE_THREAD
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES, help="gpus x services : seconds, such as 1000x200:10")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--counted", action="store_true", help="count work instead of time: the same on any machine")
    parser.add_argument("--here", action="store_true", help="solve the first size in this process and print JSON")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measured(Size.of(asked.sizes[0]), asked.seed[0], asked.counted)))
        return
    print(f"{'size':>12} {'seed':>4} {'wall s':>7} {'cpu s':>7} {'relaxed':>10} {'cost':>10} {'over':>7} "
          f"{'bound':>10} {'over':>7} {'short':>9} {'MiB':>5}  seconds by phase")  # fmt: skip
    for text in asked.sizes:
        for seed in asked.seed:
            command = [sys.executable, "-m", "benchmarks.door.internals", text, "--here", "--seed", str(seed)]
            command += ["--counted"] if asked.counted else []
            found = json.loads(_run(command))
            phases = " ".join(f"{name.removesuffix('_s')} {found[name]:.2f}" for name in PHASES if found[name] >= 0.005)
            print(f"{text.partition(':')[0]:>12} {seed:>4} {found['wall_s']:>7.2f} {found['cpu_s']:>7.2f} "
                  f"{found['relaxed']:>10.3f} {found['usd_per_h']:>10.3f} {found['over_relaxed_pct']:>6.2f}% "
                  f"{found['bound']:>10.3f} {found['over_bound_pct']:>6.2f}% "
                  f"{found['short_services']:>3.0f}/{found['short_rates']:<5.3f} {found['rss_mib']:>5.0f}  {phases}",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
