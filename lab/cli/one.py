"""One scenario run once: what `simulate --scenario` does.

Owns the choice of contender where none is named (the first that the scenario proposes) and what is printed. Nothing is
kept; the arena keeps.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from app.cli.output import CommandError, Format, show
from lab.cli.arena import EngineOption, contenders_by, run_tasks, scenario_paths
from lab.cli.tables import outcome_tables
from solvers.errors import InputError


def simulate_scenario(
    output: Format, *, scenario: str, planner: str | None, seed: int, data: Path, policy: tuple[str, ...] = ()
) -> None:
    """Run a scenario's file or name once and print its numbers. Raises CommandError when the run fails."""
    from lab.arena.running import Event, RunEnded, RunOrder, tasks_of
    from lab.arena.workers import Bars
    from solvers.domain.codec import to_plain

    paths = scenario_paths([scenario])
    chosen = contenders_by(planner, [], [], list(policy))
    tasks = tasks_of(RunOrder(paths=paths, seeds=1, seed_from=seed, data=data), lambda about: chosen(about)[:1])
    if not tasks:
        raise InputError("name a contender with --planner: this scenario proposes none")
    ended: list[RunEnded] = []

    def hear(event: Event) -> None:
        if isinstance(event, RunEnded):
            ended.append(event)
        if bars is not None:
            bars(event)

    with Bars(len(tasks)) if sys.stderr.isatty() else nullcontext() as bars:
        run_tasks(tasks, EngineOption.LOCAL, 1, hear)
    record = ended[0].finished.record
    if record.outcome is None:
        raise CommandError(f"{record.scenario} × {record.contender.label}, seed {record.seed}: {record.error}")
    show(to_plain(record.outcome), output, outcome_tables(record.about, record.outcome))
