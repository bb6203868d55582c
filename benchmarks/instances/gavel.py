"""Gavel's question of cost under deadlines: which part of its time each training job spends on which GPU type.

Owns the linear programme's data and a seeded generator. Gavel's table of measured throughputs and its draw of deadlines
are not on record here, so throughputs are drawn: a job runs on an older type at a part of its V100 speed. Half of the
jobs have a deadline; the cheapest plan serves exactly those. It refuses packing and gangs across types.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.problems.joint import Floats, Whole

TYPES = ("k80", "p100", "v100")
USD_PER_H = np.array([0.45, 1.46, 2.48])
SPEED = np.array([[0.08, 0.35], [0.35, 0.8], [1.0, 1.0]])
"""Range of each type's speed as a part of the V100's."""
SCALES = (1, 2, 4, 8)
SCALE_ODDS = (0.7, 0.1, 0.15, 0.05)
DEADLINE_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """One row per job."""

    speed: Floats
    """Job x type: progress per hour, the V100's being 1."""
    gpus: Whole
    """Of one job."""
    needed: Floats
    """Progress per hour that keeps the deadline; 0 for jobs without one."""
    devices: Whole
    """By type."""


def gavel_jobs(jobs: int, seed: int) -> Jobs:
    """Three GPUs for every four jobs, as many of each type."""
    rng = np.random.default_rng(seed)
    speed = np.stack([rng.uniform(low, high, jobs) for low, high in SPEED], axis=1)
    gpus = rng.choice(SCALES, size=jobs, p=SCALE_ODDS)
    needed = np.where(rng.random(jobs) < DEADLINE_PART, rng.uniform(0.02, 0.3, jobs), 0.0)
    return Jobs(speed=speed, gpus=gpus, needed=needed, devices=np.full(len(TYPES), jobs // 4))
