"""What OLTunes' scheduler of a simulated cluster may be tuned by, beside what it shares with the planner."""

from __future__ import annotations

from typing import Annotated

from solvers.domain.value import value
from solvers.planners.tuning import Tune
from solvers.policies.oltunes.parameters import Shared
from solvers.policies.oltunes.queues import LOOKED_AT_MAX

BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
"""Table 3."""


@value
class SchedulerParameters(Shared):
    """The two switches are for finding out what a part is worth; without steps the window stays as it is."""

    memory_margin_mib: Annotated[float, Tune("min_mem: kept free on every GPU", 0, 100_000)] = 512.0
    memory_step_mib: Annotated[float, Tune("memory limits are multiples of this", 1, 100_000)] = 2048.0
    share_step_pct: Annotated[int, Tune("SM shares looked at are multiples of this", 5, 100)] = 10
    nearly_free: Annotated[
        float, Tune("when no GPU is empty: one with more than this part free, or done, counts as available", 0, 1)
    ] = 0.8
    looked_at_max: Annotated[int, Tune("tasks of each queue that are looked at for one group", 4, 100_000)] = (
        LOOKED_AT_MAX
    )
    learned_at_once: Annotated[int, Tune("outcomes that are learned together", 1, 10_000)] = 16
    with_affinity: Annotated[bool, Tune("whether affinity decides who may share")] = True
    with_tuning: Annotated[bool, Tune("whether spare memory is used to tune one task of a group")] = True

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Shares that are looked at, the whole GPU among them."""
        return (*range(self.share_step_pct, 100, self.share_step_pct), 100)
