"""Where more of something stops paying: the knee of latency over share, and the ceiling of throughput over batch size.

Owns the two criteria that Morak's partitioning and batch limits begin with. Both read measured points and interpolate
nothing but straight lines between neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

SHARE_PCT_STEP = 10
GAIN_PART_MIN = 0.10
"""A step of share that shortens the latency by less than this part of it does not pay."""
THROUGHPUT_PART = 0.97
"""A batch with this part of the best throughput is as good as the best."""


def knee_share_pct(latency_ms_by_share_pct: Mapping[int, float], gain_part_min: float = GAIN_PART_MIN) -> int:
    """The smallest measured share from which ten percent more do not pay. Raises ValueError without points."""
    shares = sorted(latency_ms_by_share_pct)
    if not shares or min(latency_ms_by_share_pct.values()) <= 0.0:
        raise ValueError("a knee needs positive latencies at one share at least")
    for share in shares:
        here = latency_ms_by_share_pct[share]
        gain = here - _between(latency_ms_by_share_pct, shares, min(share + SHARE_PCT_STEP, shares[-1]))
        if gain < gain_part_min * here:
            return share
    return shares[-1]


def batch_ceiling(throughput_rps_by_batch: Mapping[int, float], part: float = THROUGHPUT_PART) -> int:
    """The smallest measured batch whose throughput is about that of the best. Raises ValueError without points."""
    if not throughput_rps_by_batch:
        raise ValueError("a ceiling needs the throughput of one batch at least")
    best = max(throughput_rps_by_batch.values())
    return min(batch for batch, found in throughput_rps_by_batch.items() if found >= part * best)


def _between(latency_ms: Mapping[int, float], shares: list[int], wanted: int) -> float:
    position = bisect_left(shares, wanted)
    above = shares[position]
    if above == wanted:
        return latency_ms[above]
    below = shares[position - 1]
    part = (wanted - below) / (above - below)
    return latency_ms[below] + part * (latency_ms[above] - latency_ms[below])
