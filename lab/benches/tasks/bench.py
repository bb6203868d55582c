"""A bench of tasks: they come one by one to a heterogeneous cluster, and a scheduler puts them on its GPUs.

Owns the course: tasks and profile from the seed, the same for every contender, a run of the contender's scheduler to
the last task, and its numbers. It refuses planners of services: whoever competes here schedules tasks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lab.benches.tasks.metrics import by_kind, metrics
from lab.benches.tasks.run import Conduct, TaskCourse
from lab.benches.tasks.schedulers import SchedulerInputs, scheduler
from lab.benches.tasks.work import ArrivalPace, TaskKind, coming, profiled, told
from solvers.domain.ids import GpuTypeName
from solvers.models.base import Facts
from solvers.sim.outcome import About, Planners, ProgressListener, RunContender, RunEvent, RunOutcome


@dataclass(frozen=True, slots=True, eq=False)
class Tasking:
    """Kinds of tasks, so many of them in a pattern, on a fleet. `profile_rows` solo measurements are known before."""

    about: About
    facts: Facts
    kinds: tuple[TaskKind, ...]
    fleet: tuple[tuple[GpuTypeName, int], ...]
    pace: ArrivalPace
    count: int
    profile_rows: int
    profiled_on: GpuTypeName
    conduct: Conduct

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:  # noqa: ARG002
        """All tasks, to the end. Raises EngineError for a contender that schedules no tasks."""
        known = SchedulerInputs(
            facts=told(self.kinds, self.facts, self.profiled_on),
            samples=profiled(self.kinds, [name for name, _ in self.fleet], self.profile_rows, seed),
            seed=seed,
        )
        name = contender.planners[0] if contender.planners else ""
        said = {each.name: json.loads(each.value) for each in contender.settings}
        tasks = coming(self.kinds, self.pace, self.count, seed)
        course = TaskCourse(self.fleet, tasks, self.conduct, seed)
        log = course.under(scheduler(name, known, said), progress)
        text = f"{len(tasks)} tasks in {log.groups} groups, {log.failed} of which failed"
        return RunOutcome(
            scenario=self.about.name,
            contender=contender.label,
            seed=seed,
            metrics=metrics(log, self.kinds),
            services=by_kind(log, self.kinds),
            deeds=(RunEvent(at_s=log.until_s, kind="tasks", text=text),),
        )
