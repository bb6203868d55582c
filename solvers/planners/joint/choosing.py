"""Which of several complete plans is proposed.

A plan must be at least as good as the first one by the policy's objective; among those, one that can be acted on at
once (`models.worthwhile`, which the gate asks too) is preferred to a better one that would only wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import worth_of
from solvers.models.worthwhile import Step, worth_acting


def better(
    snapshot: Snapshot, movable: tuple[WorkloadId, ...], plans: Sequence[Plan], interrupted: Sequence[float] = ()
) -> int:
    """Index of the plan to propose; the first one sets the mark. `interrupted`: what counts as unserved of each as
    well, where it is known.
    """
    terms = snapshot.policy.terms
    counted = [
        replace(plan, objective=replace(plan.objective, unserved=plan.objective.unserved + more))
        for plan, more in zip(plans, interrupted or [0.0] * len(plans), strict=True)
    ]
    keys = [plan.objective.key(terms) for plan in counted]
    able = [index for index, key in enumerate(keys) if key <= keys[0]]
    if len(able) > 1:
        target = snapshot.target
        now = worth_of(snapshot, movable, target.assignments, target.settings).objective
        able = [able[number] for number in worth_acting(Step.of(snapshot, now, plans[index]) for index in able)]
    return min(able, key=lambda index: (keys[index], index))
