"""Tuning parameters of OLTunes as a planner: the paper's values, and for those that it leaves unstated our readings.

Owns their names in policies and how the parts that the planner shares with the task scheduler are tuned by them.
"""

from __future__ import annotations

from typing import Annotated

from solvers.domain.value import value
from solvers.errors import FieldError
from solvers.planners.tuning import Tune, check_tuned
from solvers.policies.oltunes.parameters import FM_FTRL, MF, RFR
from solvers.policies.oltunes.parameters import OltunesParameters as SchedulerParameters


@value
class OltunesPlanningParameters:
    """What may be tuned."""

    predictor: Annotated[str, Tune("who predicts latency and throughput", choices=(FM_FTRL, MF, RFR))] = FM_FTRL
    alpha: Annotated[float, Tune("weight of the time left before the deadline", 0, 100)] = 0.5
    theta: Annotated[
        float, Tune("relative error of finished tasks above which the predictor is trained again", 0.01, 10)
    ] = 0.25
    rho_lc: Annotated[float, Tune("part of latency-critical work above which the window shrinks", 0, 1)] = 0.7
    window_ms_first: Annotated[float, Tune("how long a group may collect tasks at first", 1, 60_000)] = 100.0
    window_ms_min: Annotated[float, Tune("shortest window", 1, 60_000)] = 50.0
    window_ms_max: Annotated[float, Tune("longest window", 1, 60_000)] = 1000.0
    window_ms_step: Annotated[float, Tune("how much the window grows or shrinks in a cycle", 0, 10_000)] = 10.0
    cycle_ms: Annotated[
        float, Tune("a window that is no longer than this is over: before the next cycle nothing can start", 1, 600_000)
    ] = 15_000.0
    group_max: Annotated[int, Tune("tasks that share a device at most", 1, 16)] = 4
    threshold_affinity: Annotated[float, Tune("affinity from which work may join a group", 0, 100)] = 70.0
    affinity_strict: Annotated[
        bool, Tune("whether who finds no group of enough affinity waits, as in the paper, or joins the best there is")
    ] = False
    kept_strict: Annotated[
        bool,
        Tune("whether who fits in no configuration that was kept waits, as in the paper, or takes the cheapest"),
    ] = False
    services_thrifty: Annotated[
        bool,
        Tune(
            "whether services take their cheapest configuration even where there is room, and leave it to later tasks"
        ),
    ] = False
    idle_w: Annotated[float, Tune("P_base of estimated power", 0, 1000)] = 60.0
    samples_max: Annotated[int, Tune("measured points that teach the predictor before the first task", 0, 5000)] = 500
    slice_spare_mib: Annotated[
        float, Tune("spare memory of a device from which the plan asks for a MIG slice of the rest; 0: never", 0, 1e6)
    ] = 0.0

    def __post_init__(self) -> None:
        check_tuned(self)
        if not self.window_ms_min <= self.window_ms_first <= self.window_ms_max:
            raise FieldError("window_ms_first", "window_ms_first must lie between window_ms_min and window_ms_max")

    @property
    def scheduler(self) -> SchedulerParameters:
        """For all that the planner shares with the scheduler."""
        return SchedulerParameters(
            predictor=self.predictor,
            affinity_min=self.threshold_affinity,
            slack_weight=self.alpha,
            idle_w=self.idle_w,
            theta=self.theta,
            slice_spare_mib=self.slice_spare_mib,
            lc_part_max=self.rho_lc,
            window_ms_first=self.window_ms_first,
            window_ms_min=self.window_ms_min,
            window_ms_max=self.window_ms_max,
            window_ms_step=self.window_ms_step,
            group_max=self.group_max,
        )
