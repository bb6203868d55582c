"""What a project's workloads ask for beyond what its document allows.

How many there are, each one's priority, the replicas that all services keep at least, and what they may cost by their
own budgets are bounded here; GPUs are the planners' to bound (`quota_gpus`). A bound looks at documents alone, so that
one rule judges what is written, what is only tried on paper, and what stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from solvers.domain.ids import ProjectName
from solvers.domain.workload import Project, Service, Work

_BOUNDS = {
    "priority": "priority_max",
    "replicas_min": "quota_replicas_min",
    "budget_usd_per_h": "quota_budget_usd_per_h",
    "name": "quota_workloads",
}
"""By the field that is at fault: a name too many is no fault of any other."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts against a bound: by project and field, and whose it is: one workload's or that of all services."""

    project: ProjectName
    field: str
    whose: str


def exceeded(
    projects: Iterable[Project], works: Iterable[Work], before: Iterable[Work] = ()
) -> Iterator[tuple[str, str]]:
    """What of these workloads is beyond the bounds of its project and more than it was `before`: field and detail."""
    bounded, stood = {project.name: project for project in projects}, _asked(before)
    for key, asked in _asked(works).items():
        if asked > stood[key]:
            yield from _beyond(bounded.get(key.project), key, asked)


class AskedTogether:
    """What workloads ask for together, kept up with each that is written, so that the next is judged without all."""

    def __init__(self, works: Iterable[Work]) -> None:
        self._works: dict[tuple[type, str], Work] = {}
        self._sums = _asked(())
        for work in works:
            self.write(work)

    def exceeded(self, project: Project, work: Work) -> Iterator[tuple[str, str]]:
        """As `exceeded`, of a project's workload in place of what it was."""
        was = _asked(self._was(work))
        for key, amount in _asked((work,)).items():
            if amount > was[key]:
                yield from _beyond(project, key, amount if math.isinf(amount) else self._sums[key] - was[key] + amount)

    def write(self, work: Work) -> None:
        """Hold it in place of what it was."""
        for key, amount in _asked(self._was(work)).items():
            self._sums[key] = 0.0 if math.isinf(amount) else self._sums[key] - amount
        for key, amount in _asked((work,)).items():
            self._sums[key] += amount
        self._works[type(work), work.id] = work

    def _was(self, work: Work) -> tuple[Work, ...]:
        found = self._works.get((type(work), work.id))
        return () if found is None else (found,)


def _beyond(project: Project | None, key: Counted, asked: float) -> Iterator[tuple[str, str]]:
    field, bound = key.field, _BOUNDS[key.field]
    limit: float | None = getattr(project, bound, None)
    if limit is not None and asked > limit * (1 + _ROUNDING):
        said = f"{asked:g} of them" if field == "name" else f"{field} {asked:g}" if asked < math.inf else f"no {field}"
        yield field, f"{key.whose}: {said}, where {bound} of project {key.project} is {limit:g}"


def _asked(works: Iterable[Work]) -> defaultdict[Counted, float]:
    found: defaultdict[Counted, float] = defaultdict(float)
    for work in works:
        whose = f"{type(work).__name__} {work.id}"
        found[Counted(work.project, "priority", whose)] = work.priority
        found[Counted(work.project, "name", "services, jobs and tasks")] += 1
        if isinstance(work, Service):
            found[Counted(work.project, "replicas_min", "all services")] += work.replicas_min
            # Without a budget of its own a service may cost anything.
            usd = math.inf if work.budget_usd_per_h is None else work.budget_usd_per_h
            found[Counted(work.project, "budget_usd_per_h", whose if usd == math.inf else "all services")] += usd
    return found
