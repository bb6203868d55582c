"""HetSev's tuning parameters: the paper's values, and for those that it leaves unstated the defaults of our reading."""

from __future__ import annotations

from solvers.domain.value import check_not_negative, check_positive, check_range, value
from solvers.domain.workload import AntiAffinity


@value
class Parameters:
    """What may be tuned. Times in seconds."""

    saturation: float = 0.80
    """Demand over capacity above which a service grows, and below which it must stay when it shrinks."""
    sustained_s: float = 30.0
    """How long a service must be saturated before it grows; not stated in the paper."""
    cooldown_s: float = 300.0
    """How long an instance must have been dispensable, and nothing have been changed, before it goes; aligned with the
    window of the Kubernetes autoscaler."""
    risk_per_s: float = 0.05
    """The paper's lambda while the rate is steady: part of an instance's cost that one second of its launch counts."""
    rates_remembered: int = 10
    """Lambda grows with the coefficient of variation of so many rates."""
    queues: int = 4
    """The paper's k."""
    round_size: int = 8
    """The paper's beta: instances that are picked from the queues at a time."""
    share_pct: int = 50
    """SM share of every instance; the paper bounds memory alone and leaves the SMs to whoever asks."""
    anti_affinity: AntiAffinity = AntiAffinity.HARD
    """Whether instances of one model may share a device; the owner's own rule holds beside it."""
    allow_substitution: bool = False
    """Whether running instances may be traded for instances of other types."""
    engine: str = "highs"

    def __post_init__(self) -> None:
        check_range("saturation", self.saturation, 0.05, 1)
        check_not_negative("sustained_s", self.sustained_s)
        check_not_negative("cooldown_s", self.cooldown_s)
        check_not_negative("risk_per_s", self.risk_per_s)
        check_range("rates_remembered", self.rates_remembered, 1, 1000)
        check_range("queues", self.queues, 1, 64)
        check_positive("round_size", self.round_size)
        check_range("share_pct", self.share_pct, 1, 100)
