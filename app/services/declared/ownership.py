"""Who owns what, as it is stored: the lines of a summary, what nodes were told, and the event of a change of hands.

Owns what is read and written of ownership; the rule is the core's, the wording `ownership_words`'. It decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy.orm import Session

from app.records import record
from app.services.declared.actors import Deed
from app.services.declared.contradictions import Estate
from app.store import events, plans, targets
from solvers.cycle.owners import StandingOwners
from solvers.domain.change import Target
from solvers.domain.codec import Plain
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.ownership import Owners
from solvers.domain.policy import Policy

LISTED_MAX = 20
"""Devices that an event names; it tells how many there are."""


@record
class PolicyLine:
    """A policy that decides on anything: its chain, which planner of it made what stands, its controller, how much it
    owns, and why its part of the standing plan was left as it stood, if it was.
    """

    policy: str
    planners: tuple[str, ...]
    planner: str
    governor: str
    devices: int
    workloads: int
    held: tuple[str, ...]


def standing_of(session: Session, target: Target) -> StandingOwners:
    """What stands, with who made it."""
    if target.plan is None:
        return StandingOwners.of((), None)
    planner, parts = plans.makers(session, target.plan)
    return StandingOwners.of(target.assignments, planner, parts)


def policy_lines(
    owners: Owners, standing: StandingOwners, devices: Iterable[str], works: Iterable[str]
) -> tuple[PolicyLine, ...]:
    """Every policy that decides on anything, with how much of the fleet and of the workloads."""
    counts: dict[str, int] = defaultdict(int)
    for device in devices:
        counts[owners.policy_at(DeviceId(device)).name] += 1
    hosted: dict[str, int] = defaultdict(int)
    for workload in works:
        hosted[owners.policy_for(WorkloadId(workload)).name] += 1
    held = {part.policy: part.held for part in standing.parts}
    return tuple(
        PolicyLine(
            policy=policy.name,
            planners=policy.planners,
            planner=standing.planner_of(policy),
            governor=policy.governor,
            devices=counts[policy.name],
            workloads=hosted[policy.name],
            held=held.get(policy.name, ()),
        )
        for policy in owners.policies
    )


def note_moves(session: Session, before: Estate, after: Estate, deed: Deed) -> None:
    """Write down which devices changed hands, or whose owner is another planner or controller now."""
    old, new = before.owners, after.owners
    moved: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for device in after.devices:
        was, now = old.policy_at(device.id), new.policy_at(device.id)
        if (was.name, _hands(was)) != (now.name, _hands(now)):
            moved[now.name, _words(was), _words(now)].append(device.id)
    for (policy, was_said, now_said), devices in sorted(moved.items()):
        facts: dict[str, Plain] = {
            "owned_before": was_said,
            "owns_now": now_said,
            "devices": len(devices),
            "listed": list[Plain](sorted(devices)[:LISTED_MAX]),
        }
        event = events.Event(
            name="ownership.moved",
            actor=deed.actor,
            subject=f"policies/{policy}",
            request_id=deed.request_id,
            facts=facts,
        )
        events.append(session, event)


def misgoverned(session: Session, owners: Owners) -> tuple[WorkloadId, ...]:
    """Standing workloads on devices whose node was told another controller than their policy names now."""
    return tuple(
        sorted(
            {
                WorkloadId(told.workload)
                for told in targets.governors_told(session)
                if owners.policy_at(DeviceId(told.device)).governor != told.governor
            }
        )
    )


def _hands(policy: Policy) -> tuple[object, ...]:
    return policy.planners, policy.governor


def _words(policy: Policy) -> str:
    return f"{policy.name} (planners {', '.join(policy.planners)}; governor {policy.governor})"
