"""Shares that replicas ask for, made to fit a GPU.

Owns the projection onto (1a): whole units, at least one for everybody, in proportion to what was asked, none lost. It
refuses more replicas than there are units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def project(wanted: Sequence[float], units: int, *, spread: bool) -> list[int]:
    """Units for everybody, not more than there are together; with `spread` all are given away, else only what is too
    much is taken. Raises ValueError where units do not suffice for one each.
    """
    if units < len(wanted):
        raise ValueError(f"{units} units do not suffice for {len(wanted)} replicas")
    asked = [max(1.0, each) for each in wanted]
    total = math.fsum(asked)
    if not asked or (total <= units and not spread):
        return [math.floor(each + 1e-9) for each in asked]
    # One each first; the rest in proportion to what is asked beyond, the largest remainders rounded up.
    beyond = [each - 1.0 for each in asked]
    weights = beyond if math.fsum(beyond) > 0 else [1.0] * len(asked)
    rest = units - len(asked)
    exact = [rest * each / math.fsum(weights) for each in weights]
    given = [math.floor(each + 1e-9) for each in exact]
    order = sorted(range(len(asked)), key=lambda at: (given[at] - exact[at], at))
    for at in order[: rest - sum(given)]:
        given[at] += 1
    return [1 + each for each in given]
