"""Measured pairs beside what was measured of their members alone.

Owns the choice of pairs both of whose members were measured alone at the very same configuration.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import GroupSamples, Samples


def known_alone(solo: Samples, pairs: GroupSamples) -> tuple[GroupSamples, Floats]:
    """The pairs both of whose members were measured alone at the same configuration, and their latencies alone."""
    known: dict[tuple[str, float, float], list[float]] = defaultdict(list)
    asked = solo.queries
    for row in range(len(solo)):
        key = (asked.models[asked.model[row]], float(asked.batch[row]), float(asked.share_pct[row]))
        known[key].append(float(solo.latency_ms[row]))
    members = pairs.groups.members
    alone = np.full(len(members), np.nan)
    for row in range(len(members)):
        key = (members.models[members.model[row]], float(members.batch[row]), float(members.share_pct[row]))
        if key in known:
            alone[row] = np.mean(known[key])
    missing = ~np.isfinite(alone) | ~np.isfinite(pairs.latency_ms)
    numbers = np.flatnonzero(np.bincount(pairs.groups.group, weights=missing) == 0)
    rows = np.isin(pairs.groups.group, numbers)
    return pairs.take_groups(numbers), alone[rows]
