"""HetSev's tuning parameters: the paper's values, and for those that it leaves unstated the defaults of our reading."""

from __future__ import annotations

from typing import Annotated

from solvers.domain.value import value
from solvers.domain.workload import AntiAffinity
from solvers.planners.tuning import Counts, Tune, check_tuned

LIMITED, UNLIMITED = "limited", "unlimited"


@value
class HetsevParameters:
    """What may be tuned. Times in seconds."""

    saturation: Annotated[
        float,
        Tune("demand over capacity above which a service grows, and below which it stays when it shrinks", 0.05, 1),
    ] = 0.80
    target_saturation: Annotated[
        float, Tune("demand over capacity that growth aims at; 1 grows to the demand itself, as printed", 0.05, 1)
    ] = 0.80
    rate_window_s: Annotated[
        float, Tune("demand is the mean over so long; 0: the busiest moment that the snapshot tells of", 0, 86_400)
    ] = 120.0
    sustained_s: Annotated[float, Tune("how long a service must be saturated before it grows", 0, 86_400)] = 30.0
    cooldown_s: Annotated[
        float,
        Tune(
            "how long an instance must have been dispensable, and nothing have been changed, before it goes", 0, 86_400
        ),
    ] = 300.0
    """Aligned with the window of the Kubernetes autoscaler."""
    risk_per_s: Annotated[
        float, Tune("lambda at a steady rate: part of an instance's cost that a second of its launch counts", 0, 1000)
    ] = 0.05
    rates_remembered: Annotated[
        int, Tune("lambda grows with the coefficient of variation of so many rates", 1, 1000)
    ] = 10
    queues: Annotated[int, Tune("k: groups in which new instances wait for a place", 1, 64)] = 4
    round_size: Annotated[int, Tune("beta: instances that are picked from the queues at a time", 1, 10_000)] = 8
    sharing: Annotated[
        str,
        Tune(
            "limited: instances on a GPU divide its SMs; unlimited: each may use all of them, where that was measured",
            choices=(LIMITED, UNLIMITED),
        ),
    ] = LIMITED
    """The paper limits nobody's SMs."""
    share_pct: Annotated[
        int,
        Tune(
            "SM share of every instance, where limited; 0: of as many as may meet on a GPU, each the same part of it",
            0,
            100,
        ),
    ] = 0
    """Shares are fixed, so the least harm is done by cutting a GPU into as many parts as there can be tenants."""
    tenants_max: Annotated[
        int,
        Tune(
            "so many instances meet on a GPU at most, unless share_pct says so; fewer where there are fewer models",
            1,
            16,
        ),
    ] = 4
    batches: Annotated[
        Counts, Tune("batch of each model, as in resnet50=8,bert=2; without one, the batch that serves most")
    ] = Counts()
    anti_affinity: Annotated[
        AntiAffinity, Tune("whether instances of one model may share a GPU; the owner's own rule holds beside it")
    ] = AntiAffinity.HARD
    allow_substitution: Annotated[
        bool, Tune("whether running instances may be traded for instances of other types")
    ] = False
    engine: Annotated[str, Tune("who solves the integer programme", choices=("highs", "cbc", "cp-sat"))] = "highs"

    def __post_init__(self) -> None:
        check_tuned(self)
