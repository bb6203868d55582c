"""Plans as subjects: one planner asked about one picture, with counted work.

Owns what of a proposal decides. The picture's own digest is left out, because a picture is a subject of its own, and so
are seconds that a search took.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.same.frozen import Taken, short_digest
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.codec import canonical_json, to_plain
from solvers.domain.plan import Proposal
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest

DEADLINE_S = 3600.0
"""Counted work ends a search, never time."""


def picture_taken(snapshot: Snapshot) -> Taken:
    """A picture as a subject."""
    return Taken(text=canonical_json(snapshot), numbers={"devices": len(snapshot.devices)})


def plan_taken(planner: str, snapshot: Snapshot, work_units: int) -> Taken:
    """What a planner proposes, everything movable that the policy lets move."""
    request = PlanRequest(
        snapshot=snapshot,
        movable=movable_workloads(snapshot, Lane.ACT),
        budget=Budget(deadline_s=DEADLINE_S, work_units=work_units),
        seed=1,
    )
    return proposal_taken(registry.propose(planner, request))


def proposal_taken(proposal: Proposal) -> Taken:
    """A proposal as a subject: the plan decides; what is told beside it has a digest of its own."""
    told = [to_plain(proposal.status), to_plain(proposal.reasons), without_seconds(to_plain(proposal.insight))]
    numbers: dict[str, float | str] = {"status": proposal.status.value, "told": short_digest(_text(told))}
    plan = proposal.plan
    if plan is None:
        return Taken(text="no plan", numbers=numbers)
    plain: Any = to_plain(plan)
    numbers |= {"usd_per_h": plan.objective.cost_usd_per_h, "replicas": len(plan.assignments)}
    numbers |= {"unplaced": len(plan.unplaced)} if plan.unplaced else {}
    return Taken(text=_text({name: item for name, item in plain.items() if name != "snapshot"}), numbers=numbers)


def without_seconds(plain: Any) -> Any:
    """The same without facts about seconds of a search."""
    if isinstance(plain, dict):
        return {name: without_seconds(item) for name, item in plain.items()}
    if isinstance(plain, list):
        return [without_seconds(item) for item in plain if not _is_seconds(item)]
    return plain


def _is_seconds(item: Any) -> bool:
    return isinstance(item, dict) and set(item) == {"name", "value"} and str(item["name"]).endswith("_s")


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True)
