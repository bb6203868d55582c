"""Which of several complete plans is proposed.

Owns the choice. A plan must be at least as good as the first one by the policy's objective; among those, one that can
be acted on now is preferred to a better one that would only wait: more starts and stops than one promotion may cause,
or a saving too small for what it touches. It refuses to decide whether to act: the gate does.
"""

from __future__ import annotations

from collections.abc import Sequence

from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Snapshot

DUST = 1e-6


def better(snapshot: Snapshot, standing: Plan, plans: Sequence[Plan]) -> int:
    """Index of the plan to propose. `standing`: the target restated as a plan; the first of `plans` sets the mark."""
    terms = snapshot.policy.terms
    keys = [plan.objective.key(terms) for plan in plans]
    able = [index for index, key in enumerate(keys) if key <= keys[0]]
    ready = [index for index in able if _may_be_acted_on(snapshot, standing, plans[index])]
    return min(ready or able, key=lambda index: (keys[index], index))


def _may_be_acted_on(snapshot: Snapshot, standing: Plan, plan: Plan) -> bool:
    if snapshot.target.generation == 0:
        return True
    policy = snapshot.policy
    started, stopped = _changes(standing, plan)
    serves_more = plan.objective.unserved < standing.objective.unserved - DUST
    if len(stopped) + (0 if serves_more else len(started)) > policy.changes_max:
        return False
    if serves_more or plan.objective.slo_risk < standing.objective.slo_risk - DUST:
        return True
    gain = standing.objective.cost_usd_per_h - plan.objective.cost_usd_per_h
    touched = {item.workload for item in (*started, *stopped)}
    cost = standing.objective.cost_usd_per_h
    shares = sum(item.share_pct_sm for item in standing.assignments)
    part = sum(item.share_pct_sm for item in standing.assignments if item.workload in touched) / max(1, shares)
    return gain >= max(policy.gain_usd_per_h_min, policy.gain_pct_min / 100 * cost * part) or not touched


def _changes(standing: Plan, plan: Plan) -> tuple[list[Assignment], list[Assignment]]:
    """Replicas that would start, and standing ones that would end for good."""
    before = {item.replica: item for item in standing.assignments}
    after = {item.replica for item in plan.assignments}
    started = [item for item in plan.assignments if _process(before.get(item.replica)) != _process(item)]
    return started, [item for item in standing.assignments if item.replica not in after]


def _process(item: Assignment | None) -> tuple[object, ...]:
    """What makes another process of a replica when it changes."""
    return () if item is None else (item.device, item.model, item.share_pct_sm, item.memory_mib_limit)
