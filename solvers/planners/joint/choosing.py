"""Which of several complete plans is proposed.

Owns the choice. A plan must be at least as good as the first one by the policy's objective; among those, one that can
be acted on now is preferred to a better one that would only wait: more starts and stops than one promotion may cause,
or a saving too small for what it touches. It refuses to decide whether to act: the gate does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solvers.domain.ids import WorkloadId
from solvers.domain.objective import Objective
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import worth_of

DUST = 1e-6


def better(
    snapshot: Snapshot, movable: tuple[WorkloadId, ...], plans: Sequence[Plan], interrupted: Sequence[float] = ()
) -> int:
    """Index of the plan to propose; the first one sets the mark. `interrupted`: what counts as unserved of each as
    well, where it is known.
    """
    terms = snapshot.policy.terms
    plans = [
        replace(plan, objective=replace(plan.objective, unserved=plan.objective.unserved + more))
        for plan, more in zip(plans, interrupted or [0.0] * len(plans), strict=True)
    ]
    keys = [plan.objective.key(terms) for plan in plans]
    able = [index for index, key in enumerate(keys) if key <= keys[0]]
    if snapshot.target.generation > 0 and len(able) > 1:
        target = snapshot.target
        now = worth_of(snapshot, movable, target.assignments, target.settings).objective
        able = [index for index in able if _may_be_acted_on(snapshot, now, plans[index])] or able
    return min(able, key=lambda index: (keys[index], index))


def _may_be_acted_on(snapshot: Snapshot, now: Objective, plan: Plan) -> bool:
    """By the hysteresis that a gate has; `now` is the standing target's worth."""
    policy, standing = snapshot.policy, snapshot.target.assignments
    started, stopped = _changes(standing, plan)
    serves_more = plan.objective.unserved < now.unserved - DUST
    if len(stopped) + (0 if serves_more else len(started)) > policy.changes_max:
        return False
    if serves_more or plan.objective.slo_risk < now.slo_risk - DUST:
        return True
    if plan.objective.rises(now, policy.terms, policy.gain_pct_min / 100):
        return True
    touched = {item.workload for item in (*started, *stopped)}
    held = sum(item.share_pct_sm for item in standing)
    part = sum(item.share_pct_sm for item in standing if item.workload in touched) / max(1, held)
    gain = now.cost_usd_per_h - plan.objective.cost_usd_per_h
    return not touched or gain >= max(policy.gain_usd_per_h_min, policy.gain_pct_min / 100 * part * now.cost_usd_per_h)


def _changes(standing: Sequence[Assignment], plan: Plan) -> tuple[list[Assignment], list[Assignment]]:
    """Replicas that would start, and standing ones that would end for good."""
    before = {item.replica: item for item in standing}
    after = {item.replica for item in plan.assignments}
    started = [item for item in plan.assignments if _process(before.get(item.replica)) != _process(item)]
    return started, [item for item in standing if item.replica not in after]


def _process(item: Assignment | None) -> tuple[object, ...]:
    """What makes another process of a replica when it changes."""
    return () if item is None else (item.device, item.model, item.share_pct_sm, item.memory_mib_limit)
