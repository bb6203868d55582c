"""The way there and the proof: changes between target and plan, what agents must hold, what they read back.

Owns the values; computing a difference is `solvers.domain.diff`, carrying it out is the agents' work.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from solvers.domain.ids import DeviceId, Digest, Generation, NodeId, ReplicaId
from solvers.domain.part import Along, Axis, FieldRule
from solvers.domain.plan import Assignment, DeviceSetting
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
        """How many replicas end for good."""
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


@value
class HeldReplica:
    """A replica as an agent read it back: share in whole SMs included."""

    replica: ReplicaId
    device: DeviceId
    share_pct_sm: int
    sm_count: int
    memory_mib_limit: int
    batch: int
    ready: bool


@value
class Receipt:
    """What a node holds of a generation, read back from its devices."""

    node: NodeId
    generation: Generation
    outcome: ReceiptOutcome
    held: tuple[HeldReplica, ...]
    settings: tuple[DeviceSetting, ...]
    problems: tuple[str, ...] = ()
