"""OLTunes' tuning parameters: the paper's values, and for those that it leaves unstated the defaults of our reading."""

from __future__ import annotations

from typing import Annotated

from solvers.domain.value import value
from solvers.errors import FieldError
from solvers.planners.tuning import Tune, check_tuned

FM_FTRL, MF, RFR = "fm_ftrl", "mf", "rfr"
BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
"""Table 3."""


@value
class OltunesParameters:
    """What may be tuned. The three switches are for finding out what each part is worth."""

    predictor: Annotated[str, Tune("who predicts latency and throughput", choices=(FM_FTRL, MF, RFR))] = FM_FTRL
    lc_part_max: Annotated[float, Tune("rho_lc: part of urgent tasks above which the window shrinks", 0, 1)] = 0.7
    window_ms_first: Annotated[float, Tune("how long a group may collect tasks at first", 1, 60_000)] = 100.0
    window_ms_min: Annotated[float, Tune("shortest window", 1, 60_000)] = 50.0
    window_ms_max: Annotated[float, Tune("longest window", 1, 60_000)] = 1000.0
    window_ms_step: Annotated[float, Tune("how much the window grows or shrinks at a time", 0, 10_000)] = 10.0
    group_max: Annotated[int, Tune("tasks that share a GPU at most", 1, 16)] = 4
    group_restored_after: Annotated[
        int, Tune("after so many groups without failure a group may be larger by one again", 1, 10_000)
    ] = 10
    affinity_min: Annotated[float, Tune("affinity from which a task may join a group", 0, 100)] = 70.0
    slack_weight: Annotated[float, Tune("alpha: weight of the time left before the deadline", 0, 100)] = 0.5
    idle_w: Annotated[float, Tune("P_base of estimated power", 0, 1000)] = 60.0
    memory_margin_mib: Annotated[float, Tune("min_mem: kept free on every GPU", 0, 100_000)] = 512.0
    memory_step_mib: Annotated[float, Tune("memory limits are multiples of this", 1, 100_000)] = 2048.0
    share_step_pct: Annotated[int, Tune("SM shares looked at are multiples of this", 5, 100)] = 10
    nearly_free: Annotated[
        float, Tune("when no GPU is empty: one with more than this part free, or done, counts as available", 0, 1)
    ] = 0.8
    looked_at_max: Annotated[int, Tune("tasks of each queue that are looked at for one group", 4, 100_000)] = 64
    theta: Annotated[float, Tune("relative error of predictions above which the predictor is trained again", 0, 10)] = (
        0.25
    )
    learned_at_once: Annotated[int, Tune("outcomes that are learned together", 1, 10_000)] = 16
    slice_spare_mib: Annotated[
        float, Tune("spare memory from which the rest of an empty GPU is asked for as a MIG slice; 0: never", 0, 1e6)
    ] = 0.0
    with_affinity: Annotated[bool, Tune("whether affinity decides who may share")] = True
    with_window: Annotated[bool, Tune("whether the window adapts")] = True
    with_tuning: Annotated[bool, Tune("whether spare memory is used to tune one task of a group")] = True

    def __post_init__(self) -> None:
        check_tuned(self)
        if not self.window_ms_min <= self.window_ms_first <= self.window_ms_max:
            raise FieldError("window_ms_first", "window_ms_first must lie between window_ms_min and window_ms_max")

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Shares that are looked at, the whole GPU among them."""
        return (*range(self.share_step_pct, 100, self.share_step_pct), 100)
