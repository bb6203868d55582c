"""Planners that kill themselves with SIGKILL at one moment of their first cycle; run as a script.

Each line on standard input orders one, with the moment's name and its environment; the exit code comes back as a line.
They are forked from a process that has imported everything, and so are the children that plan for them. They learn
nothing, for most of a life so short would be spent on it.

The moments are the cycle's steps, each before it begins, and the two inside actuation: after the draft is stored, and
after the plan has become the target.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from functools import partial
from unittest.mock import patch

from app import bootstrap
from app.logs import configure_logs
from app.services.beliefs import beliefs
from app.services.planning import planning
from app.services.planning.planning import LeaderJournal
from app.services.planning.rollout import StoreActuator
from app.settings import load_settings
from app.workers.solve_pool import SolvePool, load_planners
from solvers.cycle.record import CycleRecord, CycleStep
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from solvers.models.suite import Suite

DRAFTED = "drafted"
PROMOTED = "promoted"
LIFE_S_MAX = 300
"""Whoever does not come to its moment ends by another signal."""
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


def live(moment: str, environment: dict[str, str]) -> None:
    """One planner's life."""
    signal.alarm(LIFE_S_MAX)
    settings = load_settings(environment)
    configure_logs(settings.log_level)
    die_at(moment)
    bootstrap.build_planner(settings).run()


if __name__ == "__main__":
    load_planners()
    gc.freeze()
    patch.object(bootstrap, "SolvePool", partial(SolvePool, start="fork")).start()
    patch.object(beliefs, "fitted", lambda evidence: Suite.fresh(beliefs.SUITE, evidence.facts, 0)).start()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            # What it says belongs to no answer.
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            live(*json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
