"""How Mudi is tuned: the paper's values, and defaults of our reading where it states none."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from solvers.domain.value import value
from solvers.planners.tuning import Tune, check_tuned


class Selector(StrEnum):
    """Which device a training job goes to, of those with room."""

    SLOPE = "slope"
    """Where taking share away costs the service least, as printed."""
    SPREAD = "spread"
    """The same among devices with the fewest training jobs: the paper minimises iteration times, and two jobs on a
    device take twice as long.
    """
    OPTIMAL = "optimal"
    """Where the iteration times of all jobs together become least, by looking at every way to spread up to six waiting
    jobs: the paper's reference, for small fleets.
    """
    RANDOM = "random"
    """Anywhere, all alike: the paper's reference for what choosing is worth."""


class Rounding(StrEnum):
    """How many batches the requests of a window make."""

    CEIL = "ceil"
    RATIO = "ratio"
    """As printed: parts of a batch count as parts."""


class ShareEngine(StrEnum):
    """Who solves for the least share."""

    CLOSED = "closed"
    CONVEX = "convex"


@value
class MudiParameters:
    """See each."""

    selector: Annotated[Selector, Tune("which device a training job goes to")] = Selector.SPREAD
    jobs_per_device: Annotated[int, Tune("training jobs on one device at most", 1, 16)] = 3
    iterations: Annotated[int, Tune("batches that the tuner tries at most", 1, 200)] = 25
    gain_least: Annotated[float, Tune("tuning ends when the bound promises less than this part", 0, 1)] = 0.01
    delta: Annotated[float, Tune("how likely the bound may be wrong; wide bounds explore", 0.000001, 0.999999)] = 0.1
    window_part: Annotated[float, Tune("control window in parts of the latency limit", 0.01, 100)] = 1.0
    rounding: Annotated[Rounding, Tune("how many batches a window's requests make")] = Rounding.CEIL
    share_engine: Annotated[ShareEngine, Tune("who solves for the least share; both give the same")] = (
        ShareEngine.CLOSED
    )
    share_pct_least: Annotated[float, Tune("least share of inference: one pair of SMs", 0.1, 100)] = 1.0
    keep_pct: Annotated[float, Tune("a standing share that is larger by less than this stays", 0, 100)] = 10.0
    job_step_pct: Annotated[float, Tune("a job's share is not raised by less than this", 0, 100)] = 10.0
    penalty: Annotated[float, Tune("what a batch counts at which all requests were late, in iteration times", 0)] = 10.0
    host_mib_per_device: Annotated[
        float, Tune("memory of jobs that can do without, of one device, that may stand on its host", 0)
    ] = 65536.0
    heed: Annotated[float, Tune("weight of the newest reading among those remembered of a batch", 0.01, 1)] = 0.3

    def __post_init__(self) -> None:
        check_tuned(self)
