"""The way there and the proof: changes between target and plan and how they are found, what agents must hold, what they
read back. Carrying changes out, and waiting for readiness, is the agents' work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated

from solvers.domain.ids import DeviceId, Digest, Generation, ModelName
from solvers.domain.part import Along, Axis, FieldRule
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.value import value


class ChangeKind(StrEnum):
    """One atomic difference. The order here is the order of application: what frees comes before what takes."""

    STOP = "stop"
    SHRINK_SHARE = "shrink_share"
    SHRINK_MEMORY = "shrink_memory"
    LOWER_CLOCK = "lower_clock"
    LOWER_POWER = "lower_power"
    SET_MODE = "set_mode"
    SET_BATCH = "set_batch"
    SET_ENVELOPE = "set_envelope"
    MOVE = "move"
    SWAP_MODEL = "swap_model"
    GROW_MEMORY = "grow_memory"
    GROW_SHARE = "grow_share"
    START = "start"
    RAISE_POWER = "raise_power"
    RAISE_CLOCK = "raise_clock"


@value
class Change:
    """One difference, about a replica or a device. Before and after are the replica's assignments or the device's
    settings.
    """

    kind: ChangeKind
    subject: str
    before: Assignment | None = None
    after: Assignment | None = None
    setting_before: DeviceSetting | None = None
    setting_after: DeviceSetting | None = None
    cost_s: float = 0.0
    """Replica-seconds without full service that this change is expected to cost."""


@value
class Transition:
    """Ordered changes from a target to a plan."""

    changes: tuple[Change, ...]

    @property
    def process_starts(self) -> int:
        """How many replica processes must be started (a new share means a new process)."""
        starting = {
            ChangeKind.START,
            ChangeKind.MOVE,
            ChangeKind.SWAP_MODEL,
            ChangeKind.SHRINK_SHARE,
            ChangeKind.GROW_SHARE,
            ChangeKind.SHRINK_MEMORY,
            ChangeKind.GROW_MEMORY,
        }
        return len({change.subject for change in self.changes if change.kind in starting})

    @property
    def process_stops(self) -> int:
        return sum(change.kind is ChangeKind.STOP for change in self.changes)


@value
class Target:
    """What the fleet must hold. Generation 0 is the empty target before the first plan."""

    generation: Annotated[Generation, FieldRule.WHOLE] = Generation(0)
    plan: Annotated[Digest | None, FieldRule.WHOLE] = None
    promoted_at_s: Annotated[float, FieldRule.WHOLE] = 0.0
    assignments: Annotated[tuple[Assignment, ...], FieldRule.SAID] = ()
    settings: Annotated[tuple[DeviceSetting, ...], Along(Axis.DEVICES, "device")] = ()


class ReceiptOutcome(StrEnum):
    """How far a node got."""

    APPLIED = "applied"
    PARTIAL = "partial"
    REFUSED = "refused"


# --- The way from a target to a plan
#
# Compared by replica slot and by device. Reasons and planned numbers of a replica are no differences: nobody has to do
# anything about them. A device without a setting holds the driver's defaults.

LAUNCH_S_DEFAULT = 10.0
_ORDER = {kind: position for position, kind in enumerate(ChangeKind)}


def diff(target: Target, plan: Plan, launch_s_by_model: Mapping[ModelName, float]) -> Transition:
    """Changes that turn the target into the plan, in order of application, then by subject."""
    before = {item.replica: item for item in target.assignments}
    after = {item.replica: item for item in plan.assignments}
    changes: list[Change] = []
    for replica in sorted({*before, *after}):
        changes.extend(_replica_changes(before.get(replica), after.get(replica), launch_s_by_model))
    old = {setting.device: setting for setting in target.settings}
    new = {setting.device: setting for setting in plan.settings}
    for device in sorted({*old, *new}):
        changes.extend(_setting_changes(device, old.get(device), new.get(device)))
    return Transition(changes=tuple(sorted(changes, key=lambda item: (_ORDER[item.kind], item.subject))))


def _replica_changes(
    before: Assignment | None, after: Assignment | None, launch_s: Mapping[ModelName, float]
) -> Iterator[Change]:
    if after is None:
        if before is not None:
            yield Change(kind=ChangeKind.STOP, subject=before.replica, before=before)
        return
    cost_s = launch_s.get(after.model, LAUNCH_S_DEFAULT)
    if before is None:
        yield Change(kind=ChangeKind.START, subject=after.replica, after=after, cost_s=cost_s)
        return
    for kind in _kinds(before, after):
        launches = kind not in (ChangeKind.SET_BATCH, ChangeKind.SET_ENVELOPE)
        yield Change(kind=kind, subject=after.replica, before=before, after=after, cost_s=cost_s if launches else 0.0)
        # A replica is launched once, however many of its knobs change.
        cost_s = 0.0 if launches else cost_s


def _kinds(before: Assignment, after: Assignment) -> list[ChangeKind]:
    if before.device != after.device:
        return [ChangeKind.MOVE]
    if (before.model, before.kind, before.workload) != (after.model, after.kind, after.workload):
        return [ChangeKind.SWAP_MODEL]
    kinds: list[ChangeKind] = []
    if before.share_pct_sm != after.share_pct_sm:
        shrinks = after.share_pct_sm < before.share_pct_sm
        kinds.append(ChangeKind.SHRINK_SHARE if shrinks else ChangeKind.GROW_SHARE)
    if before.memory_mib_limit != after.memory_mib_limit:
        shrinks = after.memory_mib_limit < before.memory_mib_limit
        kinds.append(ChangeKind.SHRINK_MEMORY if shrinks else ChangeKind.GROW_MEMORY)
    if before.batch != after.batch:
        kinds.append(ChangeKind.SET_BATCH)
    if before.envelope != after.envelope:
        kinds.append(ChangeKind.SET_ENVELOPE)
    return kinds


def _setting_changes(device: DeviceId, old: DeviceSetting | None, new: DeviceSetting | None) -> Iterator[Change]:
    default = DeviceSetting(device=device)
    before, after = old or default, new or default
    lower = after.clock_mhz_sm or float("inf"), after.power_limit_w or float("inf")
    upper = before.clock_mhz_sm or float("inf"), before.power_limit_w or float("inf")
    kinds: list[ChangeKind] = []
    if before.mode is not after.mode:
        kinds.append(ChangeKind.SET_MODE)
    if lower[0] != upper[0]:
        kinds.append(ChangeKind.LOWER_CLOCK if lower[0] < upper[0] else ChangeKind.RAISE_CLOCK)
    if lower[1] != upper[1]:
        kinds.append(ChangeKind.LOWER_POWER if lower[1] < upper[1] else ChangeKind.RAISE_POWER)
    for kind in kinds:
        yield Change(kind=kind, subject=device, setting_before=before, setting_after=after)
