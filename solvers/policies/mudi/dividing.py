"""How training jobs on one device divide what inference leaves them.

Owns even shares within the owners' bounds, and memory: everybody's least first, then all that each wants, those with
the shortest iterations first, for they touch their memory most often; what is missing to the coldest stands on the
host.
"""

from __future__ import annotations

from collections.abc import Sequence


def even(room: int, least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Whole shares, as even as the bounds allow, of at most `room` together."""
    shares = list(least)
    left = room - sum(shares)
    while left > 0:
        low = [index for index, share in enumerate(shares) if share < most[index]]
        if not low:
            break
        index = min(low, key=lambda at: (shares[at], at))
        shares[index] += 1
        left -= 1
    return shares


def warmest_first(room_mib: int, bounds_mib: Sequence[tuple[int, int]], iteration_ms: Sequence[float]) -> list[int]:
    """Resident memory within bounds (least, all), of at most `room_mib` together where the least fits."""
    held = [least for least, _ in bounds_mib]
    left = room_mib - sum(held)
    for index in sorted(range(len(held)), key=lambda at: (iteration_ms[at], at)):
        more = max(0, min(left, bounds_mib[index][1] - held[index]))
        held[index] += more
        left -= more
    return held
