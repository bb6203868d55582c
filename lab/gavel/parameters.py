"""How Gavel and POP are tuned: the published length of rounds, and defaults of our reading where nothing is stated."""

from __future__ import annotations

from typing import Annotated

from solvers.domain.value import value
from solvers.planners.tuning import Tune, check_tuned


@value
class GavelParameters:
    """See each."""

    round_s: Annotated[float, Tune("jobs change places no more often than this", 1)] = 360.0
    parts: Annotated[int, Tune("parts that jobs and GPUs are dealt into and solved apart", 1, 1024)] = 1
    pair_part_unknown: Annotated[
        float, Tune("of its speed alone, what a job is taken to do beside one that it never met", 0.01, 1)
    ] = 0.6
    heed: Annotated[float, Tune("weight of the newest speed among those remembered", 0.01, 1)] = 0.5
    forget_s: Annotated[float, Tune("time after which what a job was given counts a third", 1)] = 3600.0

    def __post_init__(self) -> None:
        check_tuned(self)
