"""What a project's workloads ask for beyond what its document allows.

How many there are, each one's priority, the replicas that all services keep at least, and what they may cost by their
own budgets are bounded here; GPUs are the planners' to bound (`quota_gpus`). A bound looks at documents alone, so that
one rule judges what is written, what is only tried on paper, and what stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

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


def exceeded(
    projects: Iterable[Project], works: Iterable[Work], before: Iterable[Work] = ()
) -> Iterator[tuple[str, str]]:
    """What of these workloads is beyond the bounds of its project and more than it was `before`: field and detail."""
    bounded, stood = {project.name: project for project in projects}, _asked(before)
    for (name, field, whose), asked in _asked(works).items():
        bound = _BOUNDS[field]
        limit: float | None = getattr(bounded.get(name), bound, None)
        if limit is not None and asked > limit * (1 + _ROUNDING) and asked > stood[name, field, whose]:
            said = (
                f"{asked:g} of them" if field == "name" else f"{field} {asked:g}" if asked < math.inf else f"no {field}"
            )
            yield field, f"{whose}: {said}, where {bound} of project {name} is {limit:g}"


def _asked(works: Iterable[Work]) -> dict[tuple[ProjectName, str, str], float]:
    """What counts against bounds, by project, field, and whose it is: one workload's or that of all services."""
    found: dict[tuple[ProjectName, str, str], float] = defaultdict(float)
    for work in works:
        whose = f"{type(work).__name__} {work.id}"
        found[work.project, "priority", whose] = work.priority
        found[work.project, "name", "services, jobs and tasks"] += 1
        if isinstance(work, Service):
            found[work.project, "replicas_min", "all services"] += work.replicas_min
            # Without a budget of its own a service may cost anything.
            usd = math.inf if work.budget_usd_per_h is None else work.budget_usd_per_h
            found[work.project, "budget_usd_per_h", whose if usd == math.inf else "all services"] += usd
    return found
