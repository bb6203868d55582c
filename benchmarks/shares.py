"""The SM-share step, both ways: seconds for all devices at once, and how far the solver and the closed form differ.

Draws devices with one to seven members whose least shares nearly fill some of them, and divides each by the closed form
and by CVXPY with Clarabel, then with other rates on what was compiled.
Run: `python -m benchmarks.shares [--devices N]`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from solvers.engines.convex import Convex
from solvers.engines.shares import ShareAnswer, ShareProgram, shares, whole_shares

PLACES = 7
AGREEMENT = 1e-4


def drawn(devices: int, seed: int) -> ShareProgram:
    """Rates from one to a thousand a second, latencies from a millisecond to seconds at the least share."""
    rng = np.random.default_rng(seed)
    members = rng.integers(1, PLACES + 1, devices)
    shape = (devices, PLACES)
    present = np.arange(PLACES) < members[:, None]
    least = rng.uniform(0.01, 0.95, shape) / members[:, None]
    return ShareProgram(
        weight=np.exp(rng.uniform(0, 7, shape)),
        fixed_ms=rng.uniform(0, 4, shape),
        work_ms=np.exp(rng.uniform(-1, 4, shape)),
        least=least,
        most=np.minimum(1.0, least + rng.uniform(0.05, 1.0, shape)),
        room=np.ones(devices),
        present=present,
    )


def timed(solve: Callable[[], ShareAnswer]) -> tuple[float, ShareAnswer]:
    """Processor seconds, so that others on the machine do not count."""
    begun = time.process_time()
    answer = solve()
    return time.process_time() - begun, answer


def main() -> int:
    """Fails when the two ways disagree by more than 1e-4 of a device in any share or of any device's total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    program = drawn(chosen.devices, chosen.seed)
    faster = replace(program, weight=program.weight * np.random.default_rng(2).uniform(0.5, 2, program.weight.shape))
    convex = Convex()
    begun = time.process_time()
    import cvxpy  # noqa: F401  its import is no part of solving

    print(f"{chosen.devices} devices, {int(program.present.sum())} members")
    print(f"import of CVXPY          {time.process_time() - begun:8.3f} s")
    worst = 0.0
    for name, asked in (("first, compiled", program), ("warm, other rates", faster), ("warm, first rates", program)):
        closed_s, closed = timed(partial(shares, asked))
        convex_s, solved = timed(partial(shares, asked, convex))
        there = asked.present & closed.feasible[:, None]
        share_off = float(np.max(np.abs(solved.share - closed.share)[there]))
        total_off = float(np.max(np.abs(solved.total / closed.total - 1)))
        worst = max(worst, share_off, total_off)
        print(
            f"{name:<20}closed {closed_s:8.4f} s   convex {convex_s:7.3f} s   "
            f"shares differ by {share_off:.1e} of a device, totals by {total_off:.1e}"
        )
    whole_s, (steps, feasible) = timed_whole(program)
    rounded = (
        program.weight * (program.fixed_ms + 100 * program.work_ms / np.maximum(steps, 1)) * program.present
    ).sum(1)
    lost = rounded[feasible] / shares(program).total[feasible] - 1
    print(
        f"whole percents           {whole_s:8.4f} s   for {int(feasible.sum())} devices, "
        f"worse by {lost.mean():.2%} (mean)"
    )
    return int(worst > AGREEMENT)


def timed_whole(program: ShareProgram) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Processor seconds of rounding, and what came out."""
    answer = shares(program)
    begun = time.process_time()
    rounded = whole_shares(program, answer)
    return time.process_time() - begun, rounded


if __name__ == "__main__":
    sys.exit(main())
