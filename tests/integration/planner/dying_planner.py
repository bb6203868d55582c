"""A planner that kills itself with SIGKILL at one moment of its first cycle; run as a script with the moment's name.

The moments are the cycle's steps, each before it begins, and the two inside actuation: after the draft is stored, and
after the plan has become the target.
"""

from __future__ import annotations

import os
import signal
import sys

from app.bootstrap import build_planner
from app.logs import configure_logs
from app.services.planning import planning
from app.services.planning.planning import LeaderJournal
from app.services.planning.rollout import StoreActuator
from app.settings import load_settings
from solvers.cycle.record import CycleRecord, CycleStep
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan

DRAFTED = "drafted"
PROMOTED = "promoted"
MOMENTS = (*(step.value for step in CycleStep), DRAFTED, PROMOTED)


def die_at(moment: str) -> None:
    """Wrap the ports of every cycle to come."""

    def reached(here: str) -> None:
        if here == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    class DyingJournal(LeaderJournal):
        def step(self, step: CycleStep) -> None:
            super().step(step)
            reached(step.value)

        def draft(self, record: CycleRecord) -> None:
            super().draft(record)
            reached(DRAFTED)

    class DyingActuator(StoreActuator):
        def promote(self, record: CycleRecord, plan: Plan) -> Generation:
            generation = super().promote(record, plan)
            reached(PROMOTED)
            return generation

    planning.LeaderJournal = DyingJournal  # type: ignore[misc]
    planning.StoreActuator = DyingActuator  # type: ignore[misc]


if __name__ == "__main__":
    settings = load_settings(os.environ)
    configure_logs(settings.log_level)
    die_at(sys.argv[1])
    build_planner(settings).run()
