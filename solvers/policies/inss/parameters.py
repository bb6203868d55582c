"""How InSS' planners are tuned. Owns the parameters and their ranges; its latency model has none."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from solvers.domain.value import value
from solvers.planners.traits import Counting
from solvers.planners.tuning import Tune, check_tuned


class Placing(StrEnum):
    """Who places where batches alone do not suffice."""

    KNAPSACK = "knapsack"
    GREEDY = "greedy"
    LEARNED = "learned"


class LeftoverShare(StrEnum):
    """What becomes of share that nobody needs."""

    DISTRIBUTE = "distribute"
    RESERVE = "reserve"


@value
class InssParameters:
    """See each."""

    batch_max: Annotated[int, Tune("largest batch", 1, 65536)] = 32
    placing: Annotated[Placing, Tune("who places: the exact knapsack, a plain rule, or the trained actor")] = (
        Placing.KNAPSACK
    )
    leftover: Annotated[LeftoverShare, Tune("what becomes of share that nobody needs")] = LeftoverShare.DISTRIBUTE
    engine: Annotated[str, Tune("who solves the knapsack", choices=("highs", "cbc", "cp-sat"))] = "highs"
    columns_max: Annotated[int, Tune("beyond so many columns the plain rule places", 1)] = 4000
    rounds_max: Annotated[int, Tune("solves, each without the columns that neighbours broke", 1, 50)] = 5
    stay_part: Annotated[float, Tune("going on as it is is worth this part of a replica's throughput", 0, 1)] = 0.5
    gain_part_min: Annotated[float, Tune("a new placement must serve this part of all rates more", 0, 1)] = 0.005
    gap: Annotated[float, Tune("a knapsack this near to its bound is good enough", 0, 1)] = 0.001

    def __post_init__(self) -> None:
        check_tuned(self)


@value
class BatchParameters:
    """Of gpulet with InSS' batches."""

    batch_max: Annotated[int, Tune("largest batch", 1, 65536)] = 32
    counting: Annotated[Counting, Tune("what a partition is counted to serve: proven, or busy as printed")] = (
        Counting.PROVEN
    )

    def __post_init__(self) -> None:
        check_tuned(self)
