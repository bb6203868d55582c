"""What Mudi's tuner remembers: of every service and batch, how much of what it ran was late.

Owns the reading of telemetry into that memory. A reading counts for the batch that was planned, weighted against what
was remembered; services that are gone are forgotten.
"""

from __future__ import annotations

from solvers.domain.ids import WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.planners.base import recalled

FORM = "mudi-1"
DUST = 1e-4


@value
class LateReading:
    """Part of a service's requests that were late while it ran with a batch."""

    workload: WorkloadId
    batch: int
    late: float


@value
class MudiMemory:
    """All readings, by service and batch."""

    form: str = FORM
    readings: tuple[LateReading, ...] = ()

    @staticmethod
    def of(state: bytes) -> MudiMemory:
        """What was kept; nothing where these bytes are of another kind."""
        found = recalled(MudiMemory, state)
        return found if found is not None and found.form == FORM else MudiMemory()

    def late(self, workload: WorkloadId) -> dict[int, float]:
        """Late part by batch."""
        return {item.batch: item.late for item in self.readings if item.workload == workload}

    def heard(self, snapshot: Snapshot, heed: float) -> MudiMemory:
        """With what the replicas tell now."""
        services: set[str] = {service.id for service in snapshot.services}
        known = {(item.workload, item.batch): item.late for item in self.readings if item.workload in services}
        standing = {item.replica: item for item in snapshot.target.assignments if item.workload in services}
        worst: dict[tuple[WorkloadId, int], float] = {}
        for seen in sorted(snapshot.replica_telemetry, key=lambda item: item.replica):
            item = standing.get(seen.replica)
            if item is not None:
                key = (item.workload, item.batch)
                worst[key] = max(worst.get(key, 0.0), seen.violation_fraction)
        for key, late in worst.items():
            known[key] = (1.0 - heed) * known.get(key, 0.0) + heed * late
        kept = (LateReading(workload=key[0], batch=key[1], late=round(known[key], 6)) for key in sorted(known))
        return MudiMemory(readings=tuple(item for item in kept if item.late >= DUST))
