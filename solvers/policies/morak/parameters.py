"""How Morak's planner is tuned. Owns the parameters and their ranges; its controller is tuned in `solvers.control`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from solvers.control.knee import GAIN_PART_MIN, THROUGHPUT_PART
from solvers.domain.value import value
from solvers.planners.tuning import Tune, check_tuned


class VirtualGpuGoal(StrEnum):
    """How many virtual GPUs there shall be."""

    THROUGHPUT = "throughput"
    """As many as fit: copies of every service spread over all GPUs."""
    DEVICES = "devices"
    """As many as the demand needs at the largest batch, on as few GPUs as hold them."""


class Leftover(StrEnum):
    """What becomes of the share that knees leave free, for throughput."""

    RESERVE = "reserve"
    """Copies in turn, the rest stays free."""
    DISTRIBUTE = "distribute"
    """Copies in turn, the rest goes to those which are there."""
    COPIES = "copies"
    """Demand first; then copies of who serves most for its share, and what fits no copy to those which are there."""


@value
class MorakParameters:
    """See each."""

    goal: Annotated[VirtualGpuGoal, Tune("many copies over all GPUs, or few GPUs for the demand")] = (
        VirtualGpuGoal.THROUGHPUT
    )
    knee_batch: Annotated[int, Tune("the knee is read at the first measured batch from this on", 1, 65536)] = 1
    knee_gain_part: Annotated[float, Tune("ten percent more share must gain this part of a latency", 0.001, 0.9)] = (
        GAIN_PART_MIN
    )
    ceiling_part: Annotated[float, Tune("a batch with this part of the best throughput is the ceiling", 0.1, 1.0)] = (
        THROUGHPUT_PART
    )
    clock_mhz_start: Annotated[int, Tune("clocks begin here, or as far above as promises need", 1, 10000)] = 600
    copies_per_device: Annotated[int, Tune("most virtual GPUs of one service on one GPU", 1, 48)] = 4
    leftover: Annotated[Leftover, Tune("what becomes of share that knees leave free")] = Leftover.COPIES
    forget_s: Annotated[float, Tune("how long what controllers asked for is kept", 1.0)] = 3600.0

    def __post_init__(self) -> None:
        check_tuned(self)
