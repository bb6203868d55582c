"""The verifier: everything a plan claims, derived again from the snapshot, by code that shares nothing with planners.

Owns the list of checks; `FindingCode` is the list of what they can find. It refuses to repair: a plan is promoted as it
is or not at all.
"""

from __future__ import annotations

from solvers.domain.evidence import Finding
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.verify.devices import check_devices
from solvers.verify.picture import Picture
from solvers.verify.promises import check_promises
from solvers.verify.report import is_fatal
from solvers.verify.rising import check_rising
from solvers.verify.rules import check_rules
from solvers.verify.structure import check_structure

__all__ = ["is_fatal", "verify"]


def everything(snapshot: Snapshot) -> tuple[WorkloadId, ...]:
    """Every workload of a snapshot."""
    services = (WorkloadId(item.id) for item in snapshot.services)
    jobs = (WorkloadId(item.id) for item in snapshot.jobs)
    return (*services, *jobs, *(WorkloadId(item.id) for item in snapshot.tasks))


def verify(snapshot: Snapshot, plan: Plan, movable: tuple[WorkloadId, ...] | None = None) -> tuple[Finding, ...]:
    """All findings, ordered by code, subject and severity; equal findings once. Without `movable` all may move."""
    picture = Picture.of(snapshot, plan, everything(snapshot) if movable is None else movable)
    found = {
        *check_structure(picture),
        *check_devices(picture),
        *check_rules(picture),
        *check_promises(picture),
        *check_rising(picture),
    }
    return tuple(sorted(found, key=lambda item: (item.code, item.subject, item.severity, repr(item.facts))))
