"""Who decides on every knob of a device: exactly one planner or controller of exactly one policy.

The device's policy decides on everything there. Its planner does by its plan; what the plan leaves open between two
ends of an envelope (a batch, the clock) its controller moves, and owns for as long as it is open. Why a device is
whose: `solvers.domain.ownership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, PolicyName
from solvers.domain.ownership import Owners
from solvers.domain.plan import Assignment, PlanPart
from solvers.domain.policy import Policy
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import Knob
from solvers.planners.chain import SPEC as KEEP

KNOBS = (Knob.PLACEMENT, Knob.REPLICAS, Knob.SHARE, Knob.MEMORY, Knob.BATCH, Knob.CLOCK, Knob.POWER)
"""Of a device. Which GPU type serves whom is placement there."""
PLANNER, GOVERNOR = "planner", "governor"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobOwner:
    """Who decides on one knob: `by` planner or governor, and its name."""

    knob: Knob
    policy: PolicyName
    by: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingOwners:
    """What a plan leaves to controllers, by device, and which planner made it."""

    planner: str | None
    parts: tuple[PlanPart, ...]
    on_device: dict[DeviceId, list[Assignment]]

    @staticmethod
    def of(assignments: Iterable[Assignment], planner: str | None, parts: tuple[PlanPart, ...] = ()) -> StandingOwners:
        on_device = grouped(assignments, lambda item: item.device)
        return StandingOwners(planner=planner, parts=parts, on_device=dict(on_device))

    def planner_of(self, policy: Policy) -> str:
        """Who planned for a policy; who will, where its chain has changed since or nothing stands."""
        made = next((part.planner for part in self.parts if part.policy == policy.name), self.planner)
        return made if made in policy.planners else next(iter(policy.planners), KEEP.name)


def knob_owners(owners: Owners, device: DeviceId, standing: StandingOwners) -> tuple[KnobOwner, ...]:
    policy = owners.policy_at(device)
    held = standing.on_device.get(device, [])
    open_ = set(_open(held))
    return tuple(
        KnobOwner(
            knob=knob,
            policy=policy.name,
            by=GOVERNOR if knob in open_ else PLANNER,
            name=policy.governor if knob in open_ else standing.planner_of(policy),
        )
        for knob in KNOBS
    )


def _open(held: list[Assignment]) -> Iterator[Knob]:
    """Knobs that have room between the ends of an envelope."""
    if any(item.kind is not WorkloadKind.JOB and item.envelope.batch_min < item.envelope.batch_max for item in held):
        yield Knob.BATCH
    low = max((item.envelope.clock_mhz_sm_min for item in held), default=0)
    high = min((item.envelope.clock_mhz_sm_max for item in held), default=0)
    if low < high:
        yield Knob.CLOCK
