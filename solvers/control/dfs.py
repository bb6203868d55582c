"""DFS: one large batch, and a clock that follows the power cap.

Owns that controller. Its rule is what is left of Morak's table when batches are fixed and no latency has a limit: down
above the cap, up below the band. So it runs that very loop under such an envelope, memory and shorter steps included,
and is told nothing that the published rule does not use. It asks for no other partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.control.governor import first_state, fitted, step
from solvers.control.judging import is_bad, latency_of, readings_of
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    Setting,
)

BATCH = 64
"""The fixed batch: large, so that throughput is high. Where the envelope ends below it, its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dfs:
    """The clock alone, by power alone."""

    settings: GovernorSettings
    batch: int = BATCH

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin with the fixed batch at the planned clock."""
        return first_state(envelope, self._with_batch(envelope, planned))

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """Go on under a new envelope, with the fixed batch."""
        found = fitted(envelope, state, planned)
        return replace(found, setting=self._with_batch(envelope, found.setting))

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        """Decide one period."""
        found = step(self.settings, self._narrowed(envelope, state), state, reading)
        if found.held or found.power is None:
            return found
        verdicts = tuple(
            replace(verdict, latency=latency_of(self.settings, replica, seen))
            for verdict, replica, seen in zip(
                found.verdicts, envelope.replicas, readings_of(envelope, reading), strict=True
            )
        )
        bad = is_bad(found.power, verdicts)
        return replace(found, verdicts=verdicts, bad=bad, repartition=None)

    def _with_batch(self, envelope: DeviceEnvelope, setting: Setting) -> Setting:
        batches = tuple(min(max(self.batch, each.batch_min), each.batch_max) for each in envelope.replicas)
        return replace(setting, batches=batches)

    def _narrowed(self, envelope: DeviceEnvelope, state: DeviceState) -> DeviceEnvelope:
        """The envelope without what this controller does not look at."""
        replicas = tuple(
            replace(replica, batch_min=batch, batch_max=batch, latency_ms_limit=None)
            for replica, batch in zip(envelope.replicas, state.setting.batches, strict=True)
        )
        return replace(envelope, replicas=replicas)
