"""What controllers have asked for, and what became of it: the memory of Morak's planner.

Owns the answer to a wish. Latency: the replica's virtual GPU grows by the share that was asked, its donor's shrinks by
as much. Power: the service leaves that device, if it has another one. A device is answered once per generation, so that
a wish that is told again before its answer took effect counts once. Old answers are forgotten, because load changes.
"""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.ids import DeviceId, Generation, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import BrokenLimit, RepartitionWish
from solvers.domain.value import value
from solvers.planners.memory import recalled

FORM = "morak-1"


@value
class Resized:
    """A virtual GPU that is not as its knee says."""

    workload: WorkloadId
    device: DeviceId
    extra_pct: int
    at_s: float


@value
class LeftService:
    """A service that shall not be on a device."""

    workload: WorkloadId
    device: DeviceId
    at_s: float


@value
class Answered:
    """The generation under which a device was answered last."""

    device: DeviceId
    generation: Generation


@value
class Wishes:
    """All of it, each by workload and device."""

    form: str = FORM
    resized: tuple[Resized, ...] = ()
    left: tuple[LeftService, ...] = ()
    answered: tuple[Answered, ...] = ()

    @staticmethod
    def of(state: bytes) -> Wishes:
        """What was kept; nothing where these bytes are of another kind."""
        found = recalled(Wishes, state)
        return found if found is not None and found.form == FORM else Wishes()

    def extra_pct(self, workload: WorkloadId, device: DeviceId) -> int:
        """How much more share than its knee a service has on a device."""
        return next((item.extra_pct for item in self.resized if (item.workload, item.device) == (workload, device)), 0)

    def heard(self, snapshot: Snapshot, forget_s: float) -> Wishes:
        """With what the snapshot's devices ask for, and without what is too old."""
        since_s, generation = snapshot.taken_at_s - forget_s, snapshot.target.generation
        known = replace(
            self,
            resized=tuple(item for item in self.resized if item.at_s >= since_s and item.extra_pct),
            left=tuple(item for item in self.left if item.at_s >= since_s),
        )
        last = {item.device: item.generation for item in known.answered}
        standing = {item.replica: item for item in snapshot.target.assignments}
        for seen in sorted(snapshot.device_telemetry, key=lambda item: item.device):
            if seen.repartition is not None and last.get(seen.device) != generation:
                known = known._answer(
                    seen.repartition,
                    Answered(device=seen.device, generation=generation),
                    at_s=snapshot.taken_at_s,
                    standing=standing,
                )
        return known

    def _answer(
        self,
        wish: RepartitionWish,
        answered: Answered,
        *,
        at_s: float,
        standing: dict[ReplicaId, Assignment],
    ) -> Wishes:
        device = answered.device
        subject = standing.get(wish.replica)
        if subject is None or subject.device != device:
            return self
        others = tuple(item for item in self.answered if item.device != device)
        known = replace(self, answered=tuple(sorted((*others, answered), key=lambda item: item.device)))
        if wish.cause is BrokenLimit.POWER:
            elsewhere = any(item.workload == subject.workload and item.device != device for item in standing.values())
            gone = LeftService(workload=subject.workload, device=device, at_s=at_s)
            return replace(known, left=(*known.left, gone)) if elsewhere else known
        known = known._resize(subject.workload, device, at_s=at_s, by_pct=wish.share_pct_sm)
        donor = None if wish.donor is None else standing.get(wish.donor)
        return known if donor is None else known._resize(donor.workload, device, at_s=at_s, by_pct=-wish.share_pct_sm)

    def _resize(self, workload: WorkloadId, device: DeviceId, *, at_s: float, by_pct: int) -> Wishes:
        made = Resized(workload=workload, device=device, extra_pct=self.extra_pct(workload, device) + by_pct, at_s=at_s)
        others = (item for item in self.resized if (item.workload, item.device) != (workload, device))
        return replace(self, resized=tuple(sorted((*others, made), key=lambda item: (item.workload, item.device))))
