"""Two services side by side: which configurations a run of a pair goes through, and in which order.

Owns the design: each partner alone at a configuration before both together there, so that a slowdown can be told from
one run's own numbers; even splits first, then uneven ones. It refuses to measure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agents.profiling.points import Point

BATCHES = (8, 1, 32)
SHARES_PCT = ((50, 50), (30, 70), (70, 30))
Step = tuple[Point | None, Point | None]
"""What of the first and the second is measured at once; None: it is absent."""


def steps() -> Iterator[Step]:
    """All measurements of a pair, in their order; every configuration of one alone comes once."""
    alone: set[tuple[int, Point]] = set()
    for batch, shares in itertools.product(BATCHES, SHARES_PCT):
        one, other = (Point(batch=batch, share_pct_sm=share) for share in shares)
        if (0, one) not in alone:
            yield one, None
        if (1, other) not in alone:
            yield None, other
        alone |= {(0, one), (1, other)}
        yield one, other
