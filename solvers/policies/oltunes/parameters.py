"""OLTunes' tuning parameters: the paper's values, and for those that it leaves unstated our readings."""

from __future__ import annotations

from typing import Annotated

from solvers.domain.value import value
from solvers.errors import FieldError
from solvers.planners.tuning import Tune, check_tuned

FM_FTRL, MF, RFR = "fm_ftrl", "mf", "rfr"


@value
class Shared:
    """What every reading of OLTunes may be tuned by, in production and in a simulated cluster."""

    predictor: Annotated[str, Tune("who predicts latency and throughput", choices=(FM_FTRL, MF, RFR))] = FM_FTRL
    alpha: Annotated[float, Tune("weight of the time left before the deadline", 0, 100)] = 0.5
    theta: Annotated[
        float, Tune("relative error of finished tasks above which the predictor is trained again", 0.01, 10)
    ] = 0.25
    rho_lc: Annotated[float, Tune("part of latency-critical work above which the window shrinks", 0, 1)] = 0.7
    window_ms_first: Annotated[float, Tune("how long a group may collect tasks at first", 1, 60_000)] = 100.0
    window_ms_min: Annotated[float, Tune("shortest window", 1, 60_000)] = 50.0
    window_ms_max: Annotated[float, Tune("longest window", 1, 60_000)] = 1000.0
    window_ms_step: Annotated[float, Tune("how much the window grows or shrinks at a time", 0, 10_000)] = 10.0
    group_max: Annotated[int, Tune("tasks that share a device at most", 1, 16)] = 4
    threshold_affinity: Annotated[float, Tune("affinity from which work may join a group", 0, 100)] = 70.0
    idle_w: Annotated[float, Tune("P_base of estimated power", 0, 1000)] = 60.0

    def __post_init__(self) -> None:
        check_tuned(self)
        if not self.window_ms_min <= self.window_ms_first <= self.window_ms_max:
            raise FieldError("window_ms_first", "window_ms_first must lie between window_ms_min and window_ms_max")


@value
class OltunesParameters(Shared):
    """As a planner, once per cycle."""

    slice_spare_mib: Annotated[
        float, Tune("spare memory of a device from which a MIG slice of the rest is asked for; 0: never", 0, 1e6)
    ] = 0.0
    cycle_ms: Annotated[
        float, Tune("a window that is no longer than this is over: before the next cycle nothing can start", 1, 600_000)
    ] = 15_000.0
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
    samples_max: Annotated[int, Tune("measured points that teach the predictor before the first task", 0, 5000)] = 500
